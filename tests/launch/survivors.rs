//! Processes that try to outlive their job: in sessions of their own, as daemons, without environment. None
//! is left, in whichever way the job ends, and processes of others are left alone.

use crate::{TBCCL, job, network::HOSTS, network::Network, network::network_or_return};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::{
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};
use support::{Process, children_of, eventually};

/// Time in which a job's processes have to be gone after the event that ends it: a grace period of 0.2 s
/// twice, the drain of 1 s, and time for a busy machine.
const BOUND: Duration = Duration::from_secs(15);

/// Ways in which a rank leaves a process. The process ignores terminating signals, and has `a word` as an
/// argument, since some have no environment.
const LEAVERS: [(&str, &str); 4] = [
    ("a session of its own", "setsid $STAY &"),
    ("a daemon", "(setsid sh -c 'trap \"\" TERM HUP; \"$@\" & exit' sh $STAY)"),
    ("a daemon without environment", "(setsid env -i PATH=$PATH $STAY &)"),
    ("a wrapper's child", "sh -c \"$STAY; true\" &"),
];

/// A word that only the processes of one test have on their command line. Dropping it kills those that a
/// failed test has left.
struct Word(String);

impl Word {
    fn new() -> Word {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Word(format!("tbccl-stays-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    fn ids(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id| command_line(*id).split('\0').any(|word| word == self.0)).collect()
    }

    /// Returns the processes that have the word on their command line.
    fn processes(&self) -> Vec<String> {
        let describe = |id: u32| format!("{id}: {}", command_line(id).replace('\0', " "));
        self.ids().into_iter().map(describe).collect()
    }

    /// Waits until no process has the word.
    fn expect_none(&self, what: &str) {
        let start = Instant::now();
        eventually(what, || self.ids().is_empty());
        assert!(start.elapsed() < BOUND, "{what}: took {:?}", start.elapsed());
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        for id in self.ids() {
            let _ = kill_process(pid(id), Signal::KILL);
        }
    }
}

fn command_line(id: u32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default()).into_owned()
}

fn parent_of(id: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).expect("a parent");
    parent.trim().parse().expect("a number")
}

/// Returns the letter of a process's state.
fn state_of(id: u32) -> char {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("it runs");
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).expect("a state");
    state.trim().chars().next().expect("a letter")
}

/// Writes an executable script.
fn write_program(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}")).expect("our folder");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("our file");
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id as i32).expect("not 0")
}

/// Returns a script for ranks that leave a process in the given way, say so, and then run `rest`.
fn script(folder: &Path, leaver: &str, word: &Word, rest: &str) -> String {
    let stay = folder.join("stay");
    write_program(&stay, "trap '' TERM HUP INT\n: >\"$2/there-$$\"\nwhile :; do sleep 0.05; done\n");
    let (stay, word) = (stay.display(), &word.0);
    let there = folder.join(word).display().to_string();
    // A rank says that it is ready once the process ignores signals.
    format!(
        "there={there}-$RANK; mkdir $there; STAY=\"{stay} {word} $there\"; export STAY; {leaver}\n\
         while [ -z \"$(ls $there)\" ]; do sleep 0.02; done; echo ready; {rest}"
    )
}

fn kill(id: u32) {
    kill_process(pid(id), Signal::KILL).expect("it runs");
}

/// Returns the process ids of the keeper and the agent of a launcher on this host.
fn keeper_and_agent(job: &Process) -> (u32, u32) {
    let [keeper] = children_of(job.id())[..] else { panic!("one keeper") };
    let [agent] = children_of(keeper)[..] else { panic!("one agent") };
    (keeper, agent)
}

#[test]
fn nothing_that_a_rank_starts_outlives_a_job_that_ends() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, leaver) in LEAVERS {
        for (rest, status) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
            for options in [&["--grace", "0.2"][..], &["--grace", "0.2", "--tag-output"]] {
                let word = Word::new();
                let done = job::shells(1, options, &script(folder.path(), leaver, &word, rest)).finish();
                assert_eq!(done.code(), status, "{name}: {}", done.stderr);
                // At the end of the launcher, not some time later.
                assert_eq!(word.processes(), Vec::<String>::new(), "{name}, {rest}, {options:?}");
                assert!(done.took < BOUND, "{name}: took {:?}", done.took);
            }
        }
    }
}

#[test]
fn nothing_that_a_rank_starts_outlives_a_launcher_an_agent_or_a_keeper_that_is_killed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, leaver) in LEAVERS {
        for victim in ["launcher", "agent", "keeper"] {
            let word = Word::new();
            let script = script(folder.path(), leaver, &word, "sleep 1000");
            let mut job = job::shells(1, &["--grace", "0.2"], &script);
            job.until_ready(1);
            let (keeper, agent) = keeper_and_agent(&job);
            match victim {
                "launcher" => job.signal(Signal::KILL),
                "agent" => kill(agent),
                _ => kill(keeper),
            }
            word.expect_none(&format!("the end of {name} after that of the {victim}"));
            let status = job.wait();
            match victim {
                "launcher" => assert_eq!(status.signal(), Some(9)),
                _ => assert_eq!(status.code(), Some(255), "{victim}"),
            }
            eventually("the end of the job", || job.mark().processes().is_empty());
        }
    }
}

#[test]
fn a_launcher_whose_agent_and_keeper_are_killed_finds_processes_by_their_mark() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (name, leaver) in LEAVERS.into_iter().filter(|(name, _)| !name.contains("without environment")) {
        let word = Word::new();
        let script = script(folder.path(), leaver, &word, "sleep 1000");
        let job = job::shells(1, &["--grace", "0.2"], &script);
        job.until_ready(1);
        let (keeper, agent) = keeper_and_agent(&job);
        // A stopped process can't act between the two signals.
        kill_process(pid(agent), Signal::STOP).expect("it runs");
        kill(keeper);
        kill(agent);
        let done = job.finish();
        assert_eq!(done.code(), 255, "{name}: {}", done.stderr);
        assert!(done.stderr.contains("is lost: the agent ended before its ranks"), "{}", done.stderr);
        assert_eq!(word.processes(), Vec::<String>::new(), "{name}");
    }
}

/// Returns a rank's script, with `word` on the command line of a process on each of four hosts.
fn on_all_hosts(network: &Network, leaver: &str, word: &Word) -> Process {
    let script = script(&network.path(""), leaver, word, "sleep 1000");
    let mut command = network.launcher(&["--hosts", "h0,h1,h2,h3", "--grace", "0.2"]);
    command.args(["--", "/bin/sh", "-c", &script]);
    Process::start(command)
}

#[test]
fn nothing_outlives_a_killed_launcher_agent_or_keeper_on_any_host() {
    let network = network_or_return!();
    for (name, leaver) in LEAVERS {
        for victim in ["launcher", "agent", "keeper"] {
            let word = Word::new();
            let mut job = on_all_hosts(&network, leaver, &word);
            job.until_ready(HOSTS);
            // The shell that starts a daemon has the word, too, until it ends.
            eventually("the end of shells", || word.processes().len() == HOSTS);
            match victim {
                "launcher" => job.signal(Signal::KILL),
                "agent" => network.kill_agent(2),
                _ => network.kill_keeper(2),
            }
            word.expect_none(&format!("the end of {name} after that of the {victim}"));
            job.wait();
            eventually("nothing runs on any host", || network.is_quiet());
        }
    }
}

/// Starts a job with rank 0 on this host and rank 1 on another one, whose ssh is a shell here. Both leave a
/// daemon without environment, and rank 0 then runs `rest`. Returns the job and the agent of rank 1.
fn with_another_host(folder: &Path, word: &Word, rest: &str) -> (Process, u32) {
    let ssh = folder.join("fake");
    write_program(&ssh, "exec sh -c \"$2\"\n");
    let agent = folder.join(format!("agent-{}", word.0));
    let rest = format!("[ $RANK = 1 ] || {{ {rest}; }}; sleep 1000");
    let script = format!(
        "[ $RANK = 0 ] || echo $PPID >{}; {}",
        agent.display(),
        script(folder, LEAVERS[2].1, word, &rest)
    );
    let ssh = ssh.to_str().expect("text");
    let options = ["--ssh", ssh, "--hosts", "localhost,elsewhere", "--grace", "0.2"];
    let job = job::shells(2, &options, &script);
    job.until_ready(2);
    let agent = std::fs::read_to_string(agent).expect("its id").trim().parse().expect("a number");
    (job, agent)
}

fn stop(id: u32) {
    kill_process(pid(id), Signal::STOP).expect("it runs");
}

/// The agent of another host is stopped, and then the launcher is killed.
fn stop_and_kill_the_launcher(folder: &Path) {
    let word = Word::new();
    let (mut job, agent) = with_another_host(folder, &word, "sleep 1000");
    stop(agent);
    job.signal(Signal::KILL);
    word.expect_none("the end of both daemons after that of the launcher");
    job.wait();
    eventually("the end of the job", || job.mark().processes().is_empty());
}

/// The agent of another host is stopped, and then a rank of this host fails.
fn stop_and_fail(folder: &Path) {
    let word = Word::new();
    let fails = folder.join("fails");
    let rest = format!("until [ -e {} ]; do sleep 0.05; done; exit 3", fails.display());
    let (job, agent) = with_another_host(folder, &word, &rest);
    stop(agent);
    std::fs::write(fails, "").expect("our folder");
    let done = job.finish();
    assert_eq!(done.code(), 3, "{}", done.stderr);
    // At the end of the launcher, not some time later.
    assert_eq!(word.processes(), Vec::<String>::new(), "{}", done.stderr);
}

/// An agent is stopped while the job runs.
fn stop_a_running_job(folder: &Path) {
    let word = Word::new();
    let (job, agent) = with_another_host(folder, &word, "sleep 1000");
    stop(agent);
    let done = job.finish();
    assert_eq!(done.code(), 255, "{}", done.stderr);
    let line = "host elsewhere is lost: no message came for 20s; rank 1 counts as failed";
    assert!(done.stderr.contains(line), "{}", done.stderr);
    eventually("the end of the daemons", || word.ids().is_empty());
}

#[test]
fn nothing_outlives_its_job_although_an_agent_is_stopped() {
    let folders = [(); 3].map(|()| tempfile::tempdir().expect("a temporary folder"));
    // Most of the time passes before the agents count as lost.
    thread::scope(|scope| {
        scope.spawn(|| stop_and_kill_the_launcher(folders[0].path()));
        scope.spawn(|| stop_and_fail(folders[1].path()));
        scope.spawn(|| stop_a_running_job(folders[2].path()));
    });
}

/// The signal that the launcher gives to ssh for its own death has killed the keeper, which a program in the
/// place of ssh becomes. The stopped agent then remained, unless the system happened to continue it.
#[test]
fn the_keeper_behind_a_program_in_the_place_of_ssh_outlives_the_launcher() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let word = Word::new();
    let (mut job, agent) = with_another_host(folder.path(), &word, "sleep 1000");
    let keeper = parent_of(agent);
    stop(agent);
    eventually("the stop of the agent", || state_of(agent) == 'T');
    job.signal(Signal::KILL);
    job.wait();
    assert_eq!(parent_of(agent), keeper, "the keeper has ended before its agent");
    word.expect_none("the end of both daemons");
    eventually("the end of the job", || job.mark().processes().is_empty());
}

#[test]
fn a_keeper_that_is_stopped_does_not_outlive_its_job() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let word = Word::new();
    let (job, agent) = with_another_host(folder.path(), &word, "sleep 0.3; exit 3");
    stop(parent_of(agent));
    let done = job.finish();
    assert_eq!(done.code(), 3, "{}", done.stderr);
    assert_eq!(word.processes(), Vec::<String>::new(), "{}", done.stderr);
}

#[test]
fn ranks_behind_an_ssh_server_do_not_outlive_their_launcher_although_their_agent_is_stopped() {
    let network = network_or_return!();
    let word = Word::new();
    let mut job = on_all_hosts(&network, LEAVERS[0].1, &word);
    job.until_ready(HOSTS);
    network.signal_agent(2, "STOP");
    job.signal(Signal::KILL);
    word.expect_none("the end of all daemons");
    job.wait();
    eventually("nothing runs on any host", || network.is_quiet());
}

#[test]
fn processes_that_the_job_did_not_start_are_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other");
    // The shell has a child, and becomes the launcher.
    let script = r#"sleep 1000 & echo $! >"$1"; exec "$0" run -n 1 sh -c 'sleep 1000 & echo ready; wait'"#;
    for victim in ["launcher", "agent"] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, TBCCL]).arg(&other).stdin(Stdio::null());
        let mut job = Process::start(command);
        job.until_ready(1);
        let other: u32 = std::fs::read_to_string(&other).expect("its id").trim().parse().expect("a number");
        let is_agents = |pid: &u32| *pid != other;
        let [keeper] = children_of(job.id()).into_iter().filter(is_agents).collect::<Vec<_>>()[..] else {
            panic!("one keeper")
        };
        match victim {
            "launcher" => job.signal(Signal::KILL),
            _ => kill(children_of(keeper)[0]),
        }
        job.wait();
        eventually("the end of the job", || job.mark().processes() == [other.to_string()]);
        kill(other);
    }
}

#[test]
fn processes_that_the_login_shell_of_a_host_has_started_are_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ssh, other) = (folder.path().join("fake"), folder.path().join("other"));
    let text = "sh -c 'sleep 1000 & sleep 1000' >/dev/null & echo $! >\"${0%fake}other\"";
    write_program(&ssh, &format!("{text}\nexec sh -c \"$2\"\n"));
    let ssh = ssh.to_str().expect("text");
    let mut job = job::run(&["--ssh", ssh, "--hosts", "elsewhere", "--", "sh", "-c", "exec sleep 0.2"]);
    assert_eq!(job.wait().code(), Some(0));
    let other: u32 = std::fs::read_to_string(&other).expect("its id").trim().parse().expect("a number");
    assert!(test_kill_process(pid(other)).is_ok(), "the login shell's process was ended");
    for pid in children_of(other).into_iter().chain([other]) {
        kill(pid);
    }
    eventually("the end of all processes", || job.mark().processes().is_empty());
}

#[test]
fn ended_daemons_do_not_use_up_process_ids() {
    // Ended orphans are children of the agent, the rank's parent.
    let count =
        "grep -sc '^State:.*Z' /dev/null $(grep -ls \"^PPid:.$PPID$\" /proc/[0-9]*/status) | grep -c ':1$'";
    let script = format!(
        "i=0; while [ $i -lt 20 ]; do (true &); i=$((i+1)); done; sleep 1.5; (true &); sleep 2.5; {count}"
    );
    let done = job::shells(1, &[], &script).finish();
    assert_eq!(done.sorted_lines(), ["0"], "ended processes that the agent has not reaped");
}
