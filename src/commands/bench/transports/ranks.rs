//! Ping-pong of two ranks of the library, over TCP and over software RDMA devices, by `tbccl bench pingpong`.

use super::{Cable, POLLED_SIZE, Round, SIZES, cable::NEAR};
use crate::{commands::CommandError, launch::in_own_group};
use bootstrap::{Secret, Server, ServerSpec};
use serde_json::Value;
use std::{
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// A way of polling: its name, and the options that select it.
pub(super) struct Polling {
    pub(super) name: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

/// Ways of polling that are compared.
pub(super) const POLLING: [Polling; 8] = [
    Polling { name: "poll at all times", variables: &[("TBCCL_POLL_INTERVAL_US", "0")] },
    Polling { name: "poll every 1 us", variables: &[("TBCCL_POLL_INTERVAL_US", "1")] },
    Polling { name: "poll every 5 us", variables: &[("TBCCL_POLL_INTERVAL_US", "5")] },
    Polling { name: "poll every 10 us", variables: &[("TBCCL_POLL_INTERVAL_US", "10")] },
    Polling { name: "batches of 4", variables: &[("TBCCL_POLL_BATCH", "4")] },
    Polling { name: "yield the core", variables: &[("TBCCL_SPIN_POLLS", "0")] },
    Polling { name: "yield, no events", variables: &[("TBCCL_SPIN_POLLS", "0"), ("TBCCL_POLL_EVENTS", "0")] },
    Polling {
        name: "yield, events at any depth",
        variables: &[("TBCCL_SPIN_POLLS", "0"), ("TBCCL_POLL_EVENT_PERCENT", "100")],
    },
];

/// Arguments of the measurement of sizes, given as powers of two.
fn arguments(transport: &str, (first, last): (u32, u32), time: Duration) -> Vec<String> {
    let words = ["bench", "pingpong", "--transport", transport, "--json", "-", "--cpu", "-f", "2"];
    let mut all: Vec<String> = words.map(str::to_owned).to_vec();
    let sizes = ["-b".to_owned(), (1u64 << first).to_string(), "-e".to_owned(), (1u64 << last).to_string()];
    all.extend(sizes);
    all.extend(["--time".to_owned(), time.as_secs_f64().to_string()]);
    all
}

/// Measures all sizes over TCP, each rank at its end of the cable.
pub(super) fn tcp(program: &Path, cable: &Cable, time: Duration) -> Result<Round, CommandError> {
    let secret = Secret::generate().map_err(CommandError::new)?;
    let spec = ServerSpec::network(2, vec![(NEAR, 0).into()], secret.clone());
    let server = Server::start(&spec).map_err(CommandError::new)?;
    let addresses = server.bootstrap_addresses().join(",");
    let start = |mut command: Command, rank: &str| {
        command
            .args(arguments("tcp", (*SIZES.start(), *SIZES.end()), time))
            .envs([("TBCCL_RANK", rank), ("TBCCL_SIZE", "2"), ("TBCCL_BOOTSTRAP", &addresses)])
            .env("TBCCL_SECRET", secret.to_hex().as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        in_own_group(command).map_err(|e| CommandError::new(format_args!("rank {rank}: {e}")))
    };
    let far = start(cable.far_command(program), "1")?;
    let near = start(Command::new(program), "0")?;
    let text = output(near, "rank 0 over TCP");
    // The far rank ends with rank 0, or after its time limit.
    output(far, "rank 1 over TCP")?;
    let mut round = times(&text?)?;
    if !cable.is_delayed {
        for (own, size) in round.iter_mut().zip(SIZES) {
            *own += cable.time_us(1 << size);
        }
    }
    Ok(round)
}

/// Measures all sizes over RDMA.
pub(super) fn rdma(program: &Path, cable: &Cable, time: Duration) -> Result<Round, CommandError> {
    let text = on_fabric(program, cable, (*SIZES.start(), *SIZES.end()), time, &[])?;
    times(&text)
}

/// Measures one size with one way of polling: time, and processor time of the busier rank.
pub(super) fn polling(
    program: &Path,
    cable: &Cable,
    time: Duration,
    way: &Polling,
) -> Result<(f64, f64), CommandError> {
    let text = on_fabric(program, cable, (POLLED_SIZE, POLLED_SIZE), time, way.variables)?;
    let row = rows(&text)?.into_iter().next().ok_or_else(|| CommandError::new("no row was measured"))?;
    let cpu = row["cpu_us"].as_array().into_iter().flatten().filter_map(Value::as_f64).fold(0.0, f64::max);
    Ok((time_of(&row)?, cpu))
}

/// Runs the measurement on two nodes of a fabric of software devices; returns its rows. The devices are those
/// of Linux over USB4, since the sockets are Linux's, too.
fn on_fabric(
    program: &Path,
    cable: &Cable,
    sizes: (u32, u32),
    time: Duration,
    variables: &[(&str, &str)],
) -> Result<String, CommandError> {
    let failed = |e: std::io::Error| CommandError::new(format_args!("the fabric of software devices: {e}"));
    let mut file = tempfile::NamedTempFile::with_suffix(".toml").map_err(failed)?;
    write!(
        file,
        "profile = \"usb4\"\n\n[link]\nlatency_us = {:?}\nbandwidth_gbps = {:?}\n\n[[node]]\nname = \
         \"near\"\ndevice = [{{ name = \"cable\" }}]\n\n[[node]]\nname = \"far\"\ndevice = [{{ name = \
         \"cable\" }}]\n\n[[cable]]\nends = [\"near/cable\", \"far/cable\"]\n",
        cable.latency_us, cable.gigabits
    )
    .map_err(failed)?;
    let mut command = Command::new(program);
    command
        .args(["fabric", "run", "--fabric"])
        .arg(file.path())
        .arg("--")
        .arg(program)
        .args(arguments("verbs", sizes, time))
        // A device writes memory without a system call, as these pages allow.
        .env("SOFTRDMA_REMAP", "1")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    output(in_own_group(command).map_err(failed)?, "ranks over RDMA")
}

/// Waits for a child; returns its stdout.
fn output(mut child: Child, name: &str) -> Result<String, CommandError> {
    let mut text = String::new();
    let read = child.stdout.take().map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut text));
    let status = read.and_then(|_| child.wait());
    match status {
        Ok(status) if status.success() => Ok(text),
        Ok(status) => Err(CommandError::new(format_args!("{name}: {status}"))),
        Err(error) => Err(CommandError::new(format_args!("{name}: {error}"))),
    }
}

fn rows(text: &str) -> Result<Vec<Value>, CommandError> {
    let rows = text.lines().filter(|line| line.starts_with('{')).map(serde_json::from_str::<Value>);
    let rows = rows.collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|e| CommandError::new(format_args!("a row of the measurement: {e}")))?;
    Ok(rows.into_iter().filter(|row| row.get("op").is_some()).collect())
}

fn time_of(row: &Value) -> Result<f64, CommandError> {
    row["us_median"].as_f64().ok_or_else(|| CommandError::new("a row of the measurement has no time"))
}

/// Returns the times of all sizes.
fn times(text: &str) -> Result<Round, CommandError> {
    let round = rows(text)?.iter().map(time_of).collect::<Result<Round, _>>()?;
    match round.len() == SIZES.count() {
        true => Ok(round),
        false => {
            Err(CommandError::new(format_args!("{} of {} sizes were measured", round.len(), SIZES.count())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_an_operation_are_no_results_and_missing_sizes_an_error() {
        let row = |us: f64| format!("{{\"op\": \"pingpong\", \"us_median\": {us}}}\n");
        let text = format!("{{\"machine\": {{}}}}\n{}", row(2.5).repeat(7));
        assert_eq!(times(&text).expect("all sizes"), [2.5; 7]);
        let error = times(&row(1.0)).expect_err("one size").message().to_owned();
        assert_eq!(error, "1 of 7 sizes were measured");
    }
}
