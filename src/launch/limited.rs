//! Commands that run to their end within a time limit.

use super::spawn::in_own_group;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io::{self, Read},
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Maximum bytes of each stream that are kept.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// Runs a command without input, and returns its status and output; `None` if it was killed after `limit`.
///
/// # Errors
/// The system's, if the command or a thread can't be started.
pub(crate) fn output_within(mut command: Command, limit: Duration) -> io::Result<Option<Output>> {
    let deadline = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = in_own_group(command)?;
    let (sender, receiver) = mpsc::channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    ];
    for (stream, pipe) in pipes.into_iter().enumerate() {
        let sender = sender.clone();
        let read = move || {
            let mut bytes = Vec::new();
            let _ = pipe.map(|pipe| pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
            let _ = sender.send((stream, bytes));
        };
        if let Err(error) = thread::Builder::new().name("command-output".into()).spawn(read) {
            kill(&mut child);
            return Err(error);
        }
    }
    let mut streams = [Vec::new(), Vec::new()];
    for _ in 0..2 {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((stream, bytes)) => streams[stream] = bytes,
            Err(_) => {
                kill(&mut child);
                return Ok(None);
            }
        }
    }
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            kill(&mut child);
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(2));
    }
    let [stdout, stderr] = streams;
    Ok(Some(Output { status: child.wait()?, stdout, stderr }))
}

/// Kills a child with its process group. A process that hangs in the kernel is not waited for.
fn kill(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let deadline = Instant::now() + Duration::from_secs(1);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn status_and_both_streams_are_returned() {
        let output = output_within(shell("echo out; echo err >&2; exit 3"), Duration::from_secs(20));
        let output = output.expect("a shell").expect("in time");
        assert_eq!(
            (output.status.code(), output.stdout, output.stderr),
            (Some(3), b"out\n".into(), b"err\n".into())
        );
    }

    #[test]
    fn a_command_and_its_children_are_killed_after_the_limit() {
        let start = Instant::now();
        let output = output_within(shell("sleep 1000 & sleep 1000"), Duration::from_millis(100));
        assert!(output.expect("a shell").is_none());
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}
