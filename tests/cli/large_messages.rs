//! Messages of more than 2 GiB and 4 GiB: one each over TCP and over RDMA, of two kinds of devices.
//!
//! Lengths in bytes exceed what 31 and 32 bits hold, so a length that is cut off on its way shows as wrong
//! elements or as an error. The benchmark checks every element.

use crate::TBCCL;
use serde_json::Value;
use std::{path::Path, process::Command};

/// Lengths just beyond 2 GiB and 4 GiB.
const LENGTHS: [u64; 2] = [(2 << 30) + 4096, (4 << 30) + 4096];

/// Sends one message from rank 0 to rank 1, by `tbccl bench`, to which this adds the operation.
fn send_one(command: &mut Command, transport: &str, bytes: u64) {
    let bytes_text = bytes.to_string();
    // One buffer per rank, a single send of the whole, one run, checked once.
    command.args(["broadcast", "--in-place", "-r", "0", "--algo", "binomial", "--segments", "1"]);
    command.args(["-d", "uint8", "-b", &bytes_text, "-e", &bytes_text, "-n", "1", "-w", "0", "-c", "1"]);
    command.args(["--tries", "1", "-T", "300", "--json", "-", "--transport", transport]);
    let output = command.env("TBCCL_CALIBRATE", "0").output().expect("it starts");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{transport}, {bytes} B: {text}{errors}");
    let row = text.lines().find(|line| line.contains("\"op\"")).expect("a row");
    let row: Value = serde_json::from_str(row).expect("JSON");
    assert_eq!((row["wrong"].as_u64(), row["bytes"].as_u64()), (Some(0), Some(bytes)), "{row}");
    assert_eq!(row["moved_bytes"].as_u64(), Some(bytes), "one message: {row}");
}

#[test]
#[ignore = "takes minutes and 10 GiB of memory; `make endurance` runs it"]
fn a_message_of_more_than_4_gib_arrives_over_tcp_and_rdma() {
    let fabrics = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/fabrics");
    for bytes in LENGTHS {
        send_one(Command::new(TBCCL).args(["bench", "--ranks", "2"]), "tcp", bytes);
        for fabric in ["usb4-pair.toml", "apple-tb5-mesh2.toml"] {
            let mut command = support::tbccl_with_software_device();
            command
                .args(["fabric", "run", "--fabric"])
                .arg(fabrics.join(fabric))
                .args(["--", TBCCL, "bench"]);
            send_one(&mut command, "verbs", bytes);
        }
    }
}
