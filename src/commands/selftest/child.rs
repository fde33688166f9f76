//! Child processes with a time limit, whose crash or hang is a result.
//!
//! A driver of a device may crash, hang, or hang in the kernel. So every probe and every job runs in a
//! process of its own, which is waited for with a limit. A process that does not end by SIGTERM gets SIGKILL.
//! One that does not end by SIGKILL is left alone, and the result says so.

use super::message::Message;
use crate::launch::in_own_group;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// Lines of other output that are kept.
const KEPT_LINES: usize = 400;
/// Time between two looks at a child.
const TICK: Duration = Duration::from_millis(5);
/// Time after SIGTERM; a launcher ends its ranks meanwhile.
const GRACE: Duration = Duration::from_secs(3);
/// Time after SIGKILL, and for the rest of the output of a process that has ended.
const REST: Duration = Duration::from_secs(2);

/// The way in which a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exited(i32),
    Killed(i32),
    /// It ran longer than its limit.
    Late,
    /// It does not even end by SIGKILL.
    Stuck,
    /// The user has interrupted the test.
    Interrupted,
    NotStarted(String),
}

/// An ended child: its end, and its output other than messages.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    /// The latest step that each of its processes named, with the words before it: `rank 1: `, or nothing.
    pub(super) steps: BTreeMap<String, String>,
    /// The last lines of its other output.
    pub(super) output: Vec<String>,
    pub(super) took: Duration,
}

impl Ended {
    /// Whether the child ended in good order.
    pub(super) fn is_success(&self) -> bool {
        self.end == End::Exited(0)
    }

    /// Returns a description of the end, with the step.
    pub(super) fn describe(&self) -> String {
        let steps = self.steps.iter().filter(|(_, step)| !step.is_empty());
        let steps: Vec<String> = steps.map(|(rank, step)| format!("{rank}{step}")).collect();
        let during = if steps.is_empty() { String::new() } else { format!(", while {}", steps.join(", ")) };
        let seconds = self.took.as_secs_f64();
        match &self.end {
            End::Exited(code @ 129..=192) => {
                format!("a process was killed by {}{during}", signal_name(code - 128))
            }
            End::Exited(124) => format!("not done after {seconds:.0} s{during}"),
            End::Exited(code) => format!("ended with status {code}{during}"),
            End::Killed(signal) => format!("killed by {}{during}", signal_name(*signal)),
            End::Late => format!("not done after {seconds:.0} s{during}"),
            End::Stuck => format!("hangs in the kernel and can't be killed{during}"),
            End::Interrupted => "interrupted".to_owned(),
            End::NotStarted(why) => format!("can't be started: {why}"),
        }
    }

    /// Returns what the user can do about an end that is not in good order.
    pub(super) fn remedy(&self) -> &'static str {
        match &self.end {
            End::Stuck => "restart the machine before anything else uses the device; please report it",
            End::Late => {
                "the driver hangs: look at the system's log, restart the machine if it hangs again, and \
                 please report it"
            }
            End::Killed(_) | End::Exited(129..=192) => {
                "look at the crash report of the system, and please report it with this file"
            }
            End::Interrupted => "run the test again",
            End::Exited(_) => "the details in the file say why",
            End::NotStarted(_) => "see that tbccl is installed whole",
        }
    }
}

/// Returns the name of a signal.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGILL => "SIGILL",
        libc::SIGFPE => "SIGFPE",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTERM => "SIGTERM",
        libc::SIGINT => "SIGINT",
        _ => return format!("signal {signal}"),
    };
    name.to_owned()
}

/// Runs a command to its end, and calls `on_message` with each of its messages.
pub(super) fn run(
    mut command: Command,
    limit: Duration,
    is_interrupted: &AtomicBool,
    on_message: &mut dyn FnMut(Message),
) -> Ended {
    let began = Instant::now();
    let mut ended =
        Ended { end: End::Late, steps: BTreeMap::new(), output: Vec::new(), took: Duration::ZERO };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match in_own_group(command) {
        Ok(child) => child,
        Err(error) => return Ended { end: End::NotStarted(error.to_string()), ..ended },
    };
    let mut output = Output::of(&mut child);
    let mut take = |output: &mut Output, wait: Duration| {
        output.take(wait, &mut |message| match message {
            (rank, Message::Step(text)) => {
                ended.steps.insert(rank, text);
            }
            (_, message) => on_message(message),
        })
    };
    ended.end = loop {
        take(&mut output, TICK);
        match child.try_wait() {
            Ok(Some(status)) => break end_of(status),
            Err(error) => break End::NotStarted(error.to_string()),
            Ok(None) if is_interrupted.load(Relaxed) => break stop(&mut child, End::Interrupted),
            Ok(None) if began.elapsed() > limit => break stop(&mut child, End::Late),
            Ok(None) => {}
        }
    };
    // A descendant that lives on may hold the pipes.
    let until = Instant::now() + REST;
    while take(&mut output, TICK) && Instant::now() < until {}
    ended.output = output.kept.into();
    ended.took = began.elapsed();
    ended
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exited(code),
        (None, Some(signal)) => End::Killed(signal),
        (None, None) => End::Exited(255),
    }
}

/// Ends a child and its group; returns `end`, or that it can't be ended.
fn stop(child: &mut Child, end: End) -> End {
    for (signal, time) in [(Signal::TERM, GRACE), (Signal::KILL, REST)] {
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return End::Stuck };
        let _ = kill_process_group(pid, signal);
        let until = Instant::now() + time;
        while Instant::now() < until {
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return end;
            }
            thread::sleep(TICK);
        }
    }
    End::Stuck
}

/// The output of a child, which threads read.
struct Output {
    lines: Receiver<String>,
    kept: VecDeque<String>,
}

impl Output {
    fn of(child: &mut Child) -> Output {
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            read_lines(stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read_lines(stderr, sender);
        }
        Output { lines, kept: VecDeque::new() }
    }

    /// Takes lines until none comes for `wait`. Returns whether there may be more.
    fn take(&mut self, wait: Duration, on_message: &mut dyn FnMut((String, Message))) -> bool {
        loop {
            match self.lines.recv_timeout(wait) {
                Ok(line) => match Message::parse(&line) {
                    Some(message) => on_message(message),
                    None => {
                        self.kept.push_back(line);
                        if self.kept.len() > KEPT_LINES {
                            self.kept.pop_front();
                        }
                    }
                },
                Err(mpsc::RecvTimeoutError::Timeout) => return true,
                Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// Sends the lines of a stream; the thread ends with the stream.
fn read_lines(stream: impl Read + Send + 'static, sender: Sender<String>) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Ended, Vec<Message>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut messages = Vec::new();
        let ended = run(command, limit, &AtomicBool::new(false), &mut |message| messages.push(message));
        (ended, messages)
    }

    #[test]
    fn the_end_the_step_and_the_output_are_reported() {
        let script = r#"echo '@selftest {"step":"asking"}'; echo no >&2; kill -SEGV $$"#;
        let (ended, _) = shell(script, Duration::from_secs(20));
        assert_eq!((ended.end.clone(), ended.output.as_slice()), (End::Killed(11), &["no".to_owned()][..]));
        assert_eq!(ended.describe(), "killed by SIGSEGV, while asking");
        let (ended, messages) = shell(r#"echo '[1] @selftest {"devices":[]}'"#, Duration::from_secs(20));
        assert!(ended.is_success() && messages == [Message::Devices(Vec::new())], "{messages:?}");
    }

    #[test]
    fn a_process_that_hangs_is_ended_in_time() {
        let (ended, _) = shell("exec sleep 100", Duration::from_millis(50));
        assert!(ended.end == End::Late && ended.took < Duration::from_secs(5), "{ended:?}");
    }

    #[test]
    fn an_interrupt_ends_the_process() {
        let mut command = Command::new("sh");
        command.args(["-c", "exec sleep 100"]);
        let ended = run(command, Duration::from_secs(50), &AtomicBool::new(true), &mut |_| ());
        assert!(ended.end == End::Interrupted && ended.took < Duration::from_secs(5), "{ended:?}");
    }
}
