//! Collectives between ranks on several hosts, and a host that is cut off during them.

use crate::{
    TBCCL,
    hosts::{LIST, expect_quiet, job},
    network::{Network, address, network_or_return},
};
use std::time::{Duration, Instant};

/// Runs every collective that `tbccl bench` checks element by element, with one and with two ranks per host.
#[test]
fn all_collectives_are_right_over_tcp_between_hosts() {
    let network = network_or_return!();
    let collectives = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv"];
    for (per_host, max) in [("1", "256K"), ("2", "32K")] {
        for collective in collectives {
            let bench = [TBCCL, "bench", collective, "-b", "4", "-e", max, "-f", "8", "-n", "2", "-w", "1"];
            let args = [&["--hosts", LIST, "--per-host", per_host, "--"], bench.as_slice()].concat();
            let done = job(&network, &args).finish();
            assert_eq!(
                done.code(),
                0,
                "{collective}: {}\n{}",
                done.stderr,
                String::from_utf8_lossy(&done.stdout)
            );
            let rows = done
                .sorted_lines()
                .iter()
                .filter(|line| line.trim_start().starts_with(char::is_numeric))
                .count();
            assert!(rows >= 4, "{collective}: {:?}", done.sorted_lines());
            // Ranks of one host use shared memory.
            let says = done.sorted_lines().iter().any(|line| line.contains("transport shm+tcp"));
            assert!(says, "{collective}: {:?}", done.sorted_lines());
        }
    }
    expect_quiet(&network);
}

/// Creates a fabric with a device on each of two hosts and a cable between them; returns its variables. The
/// software device needs memory that the hosts of a test share.
fn fabric(network: &Network) -> Vec<String> {
    drop(support::tbccl_with_software_device());
    let text = "profile = 'usb4'\n[[node]]\nname = 'h0'\ndevice = [{ name = 'x0' }]\n[[node]]\nname = 'h1'\n\
                device = [{ name = 'x1' }]\n[[cable]]\nends = ['h0/x0', 'h1/x1']\n";
    let file = network.write("fabric.toml", text);
    let folder = network.path("fabric");
    std::fs::create_dir(&folder).expect("our folder");
    let library = std::path::Path::new(TBCCL).with_file_name("libsoftrdma.so");
    let variables = [
        ("SOFTRDMA_FABRIC".to_owned(), file),
        ("SOFTRDMA_DIR".to_owned(), folder.display().to_string()),
        ("TBCCL_VERBS_LIB".to_owned(), library.display().to_string()),
    ];
    variables.map(|(name, value)| format!("{name}={value}")).to_vec()
}

/// Ranks join over TCP between the hosts, share memory within each host, and send by RDMA between hosts, as
/// the hostfile says.
#[test]
fn hosts_whose_file_names_rdma_devices_use_them_for_all_their_ranks() {
    let network = network_or_return!();
    let variables = fabric(&network);
    let host = |host: usize, rdma: &str| {
        format!(
            "[[host]]\nssh = \"h{host}\"\naddresses = [\"{}\"]\nslots = 2\nrdma = {{ {rdma} }}\nenv = {{ \
            SOFTRDMA_NODE = \
             \"h{host}\" }}\n",
            address(host)
        )
    };
    let text = host(0, "h1 = \"x0\"") + &host(1, "h0 = \"x1\"");
    let path = network.write("rdma.toml", &text);
    let mut options = vec!["--hostfile", &path];
    variables.iter().for_each(|variable| options.extend(["-x", variable]));
    let script = "echo $(cat $TBCCL_IBV_DEVICES) ${MLX_IBV_DEVICES:-none} $TBCCL_TRANSPORT";
    let done = job(&network, &[&options, ["--", "/bin/sh", "-c", script].as_slice()].concat()).finish();
    let matrix =
        r#"[[null,null,"x0","x0"],[null,null,"x0","x0"],["x1","x1",null,null],["x1","x1",null,null]]"#;
    assert_eq!(done.sorted_lines(), vec![format!("{matrix} none shm+auto"); 4], "{}", done.stderr);
    for collective in ["all_reduce", "all_gather", "all_to_all", "broadcast"] {
        let bench =
            ["--", TBCCL, "bench", collective, "-b", "4", "-e", "256K", "-f", "16", "-n", "2", "-w", "1"];
        let done = job(&network, &[options.as_slice(), &bench].concat()).finish();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert_eq!(done.code(), 0, "{collective}: {}\n{text}", done.stderr);
        assert!(
            text.contains("transport shm+verbs") && text.contains("values : 0 OK"),
            "{collective}: {text}"
        );
        assert_eq!(done.stderr, "tbccl: hosts are connected by RDMA (shm+verbs)\n");
    }
    expect_quiet(&network);
}

#[test]
fn a_host_that_is_cut_off_in_mid_operation_is_an_error_on_all_others() {
    let network = network_or_return!();
    let output = network.path("output");
    let folder = output.to_str().expect("text");
    let bench = [TBCCL, "bench", "all_reduce", "-b", "1M", "-e", "1M", "--time", "60"];
    let options = ["--hosts", LIST, "--output", folder, "-x", "TBCCL_SILENCE=1.4", "--"];
    let args = [options.as_slice(), &bench].concat();
    let job = job(&network, &args);
    let read = |rank: usize, name: &str| {
        std::fs::read_to_string(output.join(format!("rank.{rank}.{name}"))).unwrap_or_default()
    };
    support::eventually("all ranks are under way", || {
        !read(0, "out").is_empty() && network.processes(3).len() >= 3
    });
    std::thread::sleep(Duration::from_secs(1));
    network.cut(3);
    let start = Instant::now();
    support::eventually("the remaining ranks err", || (0..3).all(|rank| read(rank, "err").contains("error")));
    let took = start.elapsed();
    eprintln!("the remaining ranks erred {took:?} after the cut");
    assert!(took < Duration::from_secs(10), "took {took:?}");
    let done = job.finish();
    assert_ne!(done.code(), 0, "{}", done.stderr);
    for rank in 0..3 {
        assert!(read(rank, "err").contains("rank 3"), "{}", read(rank, "err"));
    }
    // Ranks of the cut-off host are unreachable and end by themselves; its ssh server waits for TCP.
    let is_ours = |pid: &String| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "tbccl\n")
    };
    support::eventually("nothing of ours runs on the host that is cut off", || {
        !network.processes(3).iter().any(is_ours)
    });
}
