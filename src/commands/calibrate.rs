//! `tbccl calibrate`: measures this machine for the thresholds of shared memory, or shows the results.

use super::{CommandError, print};
use serde_json::json;
use std::{fmt::Write, process::ExitCode};
use tbccl::{
    Communicator, Config,
    calibration::{Calibration, ExchangeCost, Fingerprint, Gather, Record, Seen},
};

const EXAMPLES: &str = "\
Examples:
  tbccl calibrate              measures this machine, unless that has been done
  tbccl calibrate --show       shows what was measured
  tbccl calibrate --again      measures once more, for instance on an idle machine

The first job of a machine that shares memory does the same by itself, in less than 0.2 s. Times are
microseconds in which two ranks on cores of their own exchange a message each: staged, which means copied
through a staging area; pulled, which means read by system call; or read in place, from registered memory.
`fresh` messages have just been written, `rewritten` ones in the memory of the last message, `unchanged` ones
are as they were at the last exchange, and `combined` ones are added to those of the other rank, in place.

The cores of a virtual machine may share a cache at one time and none at another: measurements with other line
latencies are kept side by side, and only thresholds that gain in all of them are used. See docs/tuning.md.";

/// Measure this machine for the thresholds of shared memory
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only show what was measured
    #[arg(long, conflicts_with = "again")]
    show: bool,

    /// Measure even if that has been done
    #[arg(long)]
    again: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tbccl calibrate`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let config = Config::from_env().map_err(CommandError::new)?;
    let found = if args.show {
        Communicator::calibration(&config)
    } else {
        Communicator::calibrate(&config, args.again)
    };
    match found.map_err(CommandError::new)? {
        Calibration::Measured(record) if args.json => print(&format!("{:#}\n", json(&record))),
        Calibration::Measured(record) => {
            let path = config.calibration.unwrap_or_default();
            print(&format!("{}{}\n{}", table(&record), path.display(), effect(&record)));
        }
        Calibration::Missing(why) if args.show && args.json => {
            print(&format!("{:#}\n", json!({ "fingerprint": Fingerprint::here(), "missing": why })));
        }
        Calibration::Missing(why) => {
            return Err(CommandError::new(format_args!("there is no calibration of this machine: {why}")));
        }
    }
    Ok(ExitCode::SUCCESS)
}

const HEADER: &str = "                  \
fresh           rewritten           unchanged            combined
     bytes     staged   pulled     staged   pulled     staged   pulled     staged  in place
";

/// Returns the measurements as text, the latest first.
fn table(record: &Record) -> String {
    let mut text = format!("{}; {}\n", record.fingerprint.machine, record.fingerprint.system);
    for seen in &record.seen {
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "\nline {:.3} us, yield {:.2} us, wake {:.1} us{}; measured in {:.0} ms",
            seen.line_ns / 1e3,
            seen.yield_ns / 1e3,
            seen.wake_ns / 1e3,
            cores(seen),
            seen.took_ms
        );
        text.push_str(HEADER);
        for ExchangeCost { bytes, fresh, rewritten, unchanged, combined } in &seen.exchanges {
            let _ = write!(text, "{bytes:>10}");
            for Gather { staged_us, pulled_us } in [fresh, rewritten, unchanged] {
                let pulled = pulled_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"));
                let _ = write!(text, " {staged_us:>10.2} {pulled:>8}");
            }
            let _ = writeln!(text, " {:>10.2} {:>9.2}", combined.staged_us, combined.in_place_us);
        }
    }
    text.push('\n');
    text
}

fn cores(seen: &Seen) -> String {
    match &seen.cores[..] {
        [first, second] => format!(" between cores {first} and {second}"),
        _ => String::new(),
    }
}

/// Returns the thresholds that follow, as sentences.
pub(super) fn effect(record: &Record) -> String {
    let from = |bytes: Option<usize>, what: &str| match bytes {
        Some(bytes) => format!("{what} from {bytes} bytes on\n"),
        None => format!("{what} at no size\n"),
    };
    from(record.pulled_from(), "messages that ranks exchange and do not combine are read by system call")
        + &from(record.pulled_unchanged_from(), "those that are unchanged since the last call")
        + &from(record.in_place_from(), "registered memory into which a call combines is read in place")
}

/// Returns a record, and the thresholds that follow, as JSON.
pub(super) fn json(record: &Record) -> serde_json::Value {
    json!({
        "fingerprint": record.fingerprint,
        "seen": record.seen,
        "pulled_from_bytes": record.pulled_from(),
        "pulled_unchanged_from_bytes": record.pulled_unchanged_from(),
        "in_place_from_bytes": record.in_place_from(),
    })
}
