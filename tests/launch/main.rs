//! `tbccl run` and the launcher, with real processes.

mod between_hosts;
mod cables;
mod config;
mod doctor;
mod hosts;
mod job;
mod link_local;
mod network;
mod probes;
mod pulled_cables;
mod rendezvous;
#[cfg(target_os = "linux")]
mod survivors;

use rustix::process::Signal;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};
use support::{Mark, Process, eventually};
use tbccl_cli::launch::{Ended, LaunchError, LaunchSpec, Outcome, Rendezvous, launch};

/// The program under test.
const TBCCL: &str = env!("CARGO_BIN_EXE_tbccl");

#[test]
fn all_ranks_run_and_success_is_success() {
    let done = job::shells(4, &[], "echo rank $TBCCL_RANK").finish();
    assert_eq!(done.code(), 0);
    assert_eq!(done.sorted_lines(), ["rank 0", "rank 1", "rank 2", "rank 3"]);
    assert_eq!(done.stderr, "");
}

#[test]
fn a_rank_knows_who_it_is() {
    let script = "echo $TBCCL_RANK $TBCCL_SIZE $TBCCL_LOCAL_RANK $TBCCL_LOCAL_SIZE $TBCCL_NODE_RANK \
                  ${TBCCL_BOOTSTRAP+set} $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE";
    let done = job::shells(2, &[], script).finish();
    assert_eq!(done.sorted_lines(), ["0 2 0 2 0 set 0 2 0 2", "1 2 1 2 0 set 1 2 1 2"]);
}

#[test]
fn variables_are_set_passed_on_and_replace_those_of_other_launchers() {
    let options =
        ["-x", "GREETING=a=b c", "-x", "PATH", "-x", "RANK=seven", "-x", "TWICE=1", "-x", "TWICE=2"];
    let done = job::shells(1, &options, "echo \"$GREETING|$RANK|$TWICE|${PATH:+path}\"").finish();
    assert_eq!(done.sorted_lines(), ["a=b c|seven|2|path"]);
    let done = job::shells(1, &["-x", "TBCCL_TEST_NOT_SET"], "true").finish();
    assert_eq!(done.code(), 0);
    assert!(done.stderr.contains("warning: -x TBCCL_TEST_NOT_SET: not set here"), "{}", done.stderr);
}

#[test]
fn who_a_rank_is_can_not_be_replaced() {
    for options in [["-x", "TBCCL_RANK=0"], ["-x", "TBCCL_BOOTSTRAP=x"], ["-x", "=x"]] {
        let done = job::shells(2, &options, "echo started").finish();
        assert_eq!((done.code(), done.stdout.len()), (2, 0), "{options:?}");
        assert!(done.stderr.starts_with("tbccl: error: "), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
}

#[test]
fn the_status_is_that_of_the_first_rank_that_fails() {
    let script = "case $RANK in 1) exit 3;; 0) sleep 0.4; exit 4;; esac; sleep 1000";
    let done = job::shells(3, &[], script).finish();
    assert_eq!(done.code(), 3);
    assert!(done.stderr.starts_with("tbccl run: rank 1 (pid "), "{}", done.stderr);
    assert!(done.stderr.ends_with(") exited with status 3; ending the other 2 ranks\n"), "{}", done.stderr);
}

#[test]
fn a_signal_counts_from_128() {
    let done = job::shells(2, &[], "[ $RANK = 1 ] && kill -KILL $$; sleep 1000").finish();
    assert_eq!(done.code(), 128 + 9);
    assert!(done.stderr.ends_with(") was killed by SIGKILL; ending the other rank\n"), "{}", done.stderr);
}

#[test]
fn ranks_that_are_done_are_no_reason_to_end_the_others() {
    let done = job::shells(3, &[], "[ $RANK = 1 ] || exit 0; sleep 1.5; echo late").finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["late".to_owned()]));
}

#[test]
fn ranks_that_are_to_go_on_without_others_do() {
    let script = "case $RANK in 1) exit 3;; 2) kill -9 $$;; esac; sleep 1.5; echo $RANK is through";
    let done = job::shells(4, &["--keep-going"], script).finish();
    assert_eq!(
        (done.code(), done.sorted_lines()),
        (0, vec!["0 is through".to_owned(), "3 is through".to_owned()])
    );
    assert!(done.stderr.contains("ranks go on"), "{}", done.stderr);
    let done = job::shells(2, &["--keep-going"], "sleep 0.$RANK; exit 4").finish();
    assert_eq!(done.code(), 4, "nobody has done the work: {}", done.stderr);
    let script = "case $RANK in 1) exit 3;; esac; sleep 1000";
    let done = job::shells(3, &["--keep-going", "--timeout", "0.5"], script).finish();
    assert_eq!(done.code(), 124, "{}", done.stderr);
}

#[test]
fn the_others_may_say_what_a_failure_means_to_them() {
    let done =
        job::shells(2, &[], "[ $RANK = 1 ] && exit 3; sleep 0.3; echo rank 1 is gone; exit 4").finish();
    assert_eq!((done.code(), done.sorted_lines()), (3, vec!["rank 1 is gone".to_owned()]));
}

#[test]
fn who_does_not_listen_is_killed() {
    let script = "[ $RANK = 1 ] && exit 5; trap '' TERM; while :; do sleep 0.1; done";
    let done = job::shells(3, &["--grace", "0.2"], script).finish();
    assert_eq!(done.code(), 5);
    assert!(
        done.stderr.contains("ranks 0, 2 did not end within 200ms of SIGTERM; killing"),
        "{}",
        done.stderr
    );
}

#[test]
fn a_stopped_rank_is_ended_too() {
    let script = "trap 'echo asked; exit 0' TERM; [ $RANK = 1 ] && exit 5; kill -STOP $$; sleep 1000";
    let done = job::shells(2, &["--grace", "20"], script).finish();
    assert_eq!((done.code(), done.sorted_lines()), (5, vec!["asked".to_owned()]));
    assert!(done.took < Duration::from_secs(15), "it was not killed, but asked");
}

#[test]
fn children_of_wrapper_scripts_are_ended_too() {
    let wrapper = "sleep 1000 & (trap '' TERM; while :; do sleep 0.1; done) & echo ready";
    // The failing rank leaves children, and so does the rank that is ended.
    let script = format!("{wrapper}; [ $RANK = 1 ] && exit 6; wait");
    let done = job::shells(2, &["--grace", "0.2"], &script).finish();
    assert_eq!(done.code(), 6);
    // A successful rank leaves children too.
    let done = job::shells(1, &["--grace", "0.2"], wrapper).finish();
    assert_eq!(done.code(), 0);
}

#[test]
fn the_time_can_be_limited() {
    let done = job::shells(2, &["--timeout", "0.3"], "sleep 1000").finish();
    assert_eq!(done.code(), 124);
    assert_eq!(done.stderr, "tbccl run: the time limit of 300ms has passed; ending ranks 0, 1\n");
    let done = job::shells(2, &["--timeout", "1000"], "exit 9").finish();
    assert_eq!(done.code(), 9);
}

#[test]
fn signals_are_passed_on_to_all_ranks() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2] {
        let number = signal.as_raw();
        let script = format!("trap 'echo heard; exit 0' {number}; echo ready; while :; do sleep 0.02; done");
        let job = job::shells(3, &[], &script);
        job.until_ready(3);
        job.signal(signal);
        let done = job.finish();
        assert_eq!((done.code(), done.sorted_lines()), (0, vec!["heard".to_owned(); 3]), "{signal:?}");
    }
}

#[test]
fn ranks_that_a_signal_ends_decide_the_status() {
    let job = job::shells(2, &[], "echo ready; sleep 1000");
    job.until_ready(2);
    job.signal(Signal::TERM);
    assert_eq!(job.finish().code(), 128 + 15);
}

#[test]
fn who_interrupts_twice_does_not_wait() {
    let script = "trap 'echo ready' INT; echo ready; while :; do sleep 0.02; done";
    let job = job::shells(2, &["--grace", "1000"], script);
    job.until_ready(2);
    job.signal(Signal::INT);
    job.until_ready(2);
    job.signal(Signal::INT);
    let done = job.finish();
    assert_eq!(done.code(), 128 + 2);
    assert!(done.stderr.contains("interrupted again; killing ranks 0, 1"), "{}", done.stderr);
}

#[test]
fn what_nohup_ignores_stays_ignored() {
    let mut command = Command::new("/bin/sh");
    let script = "trap '' HUP; exec \"$0\" run -n 1 sh -c 'echo ready; sleep 0.5; echo alive'";
    command.args(["-c", script, TBCCL]).stdin(Stdio::null());
    let job = Process::start(command);
    job.until_ready(1);
    job.signal(Signal::HUP);
    let done = job.finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["alive".to_owned()]));
}

#[cfg(target_os = "linux")]
#[test]
fn no_rank_outlives_a_killed_launcher() {
    let mut job = job::shells(3, &[], "trap '' TERM HUP INT; echo ready; exec sleep 1000");
    job.until_ready(3);
    job.signal(Signal::KILL);
    assert_eq!(job.wait().signal(), Some(9));
    eventually("the end of the ranks", || job.mark().processes().is_empty());
}

#[test]
fn tagged_lines_are_whole_however_they_come() {
    // Four ranks write each line in three pieces, on two streams.
    let script = r#"i=0; while [ $i -lt 500 ]; do printf "a$RANK "; printf "b$RANK " >&2
        printf "$i "; printf "$i " >&2; echo end; echo end >&2; i=$((i+1)); done"#;
    let done = job::shells(4, &["--tag-output"], script).finish();
    assert_eq!(done.code(), 0);
    let stdout = String::from_utf8(done.stdout).expect("text");
    for (text, letter, tag) in [(&stdout, 'a', ""), (&done.stderr, 'b', ":err")] {
        for rank in 0..4 {
            let begin = format!("[{rank}{tag}] ");
            let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&begin)).collect();
            let expected: Vec<String> = (0..500).map(|i| format!("{letter}{rank} {i} end")).collect();
            assert_eq!(lines, expected);
        }
        assert_eq!(text.lines().count(), 2000);
    }
}

#[test]
fn tagged_output_keeps_every_byte_and_the_last_line() {
    let script = r"printf 'a\000\377\n\nlast'; printf oops >&2; exit 3";
    let done = job::shells(1, &["--tag-output"], script).finish();
    assert_eq!(done.code(), 3);
    assert_eq!(done.stdout, b"[0] a\0\xff\n[0] \n[0] last\n");
    assert!(done.stderr.contains("[0:err] oops\n"), "{}", done.stderr);
}

#[test]
fn a_reader_that_goes_away_ends_the_writers() {
    let mut command = Command::new(TBCCL);
    command.args(["run", "-n", "2", "--tag-output", "sh", "-c", "while :; do echo more; done"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut launcher = command.spawn().expect("the launcher starts");
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let mut status = None;
    eventually("the end of the launcher", || {
        status = launcher.try_wait().expect("our child");
        status.is_some()
    });
    assert_ne!(status.and_then(|s| s.code()), Some(0));
}

#[test]
fn rank_0_reads_what_is_piped_in() {
    let mut command = Command::new(TBCCL);
    command.args(["run", "-n", "2", "--tag-output", "cat"]).stdin(Stdio::piped());
    let mut job = Process::start(command);
    let mut stdin = job.stdin().expect("a pipe");
    stdin.write_all(b"input\n").expect("read by rank 0");
    drop(stdin);
    let done = job.finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["[0] input".to_owned()]));
}

#[test]
fn bad_usage_is_one_line_and_status_2() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().join("data");
    std::fs::write(&data, "no program").expect("our folder");
    let data = data.to_str().expect("text");
    let cases: [(&[&str], &str); 10] = [
        (&["-n", "0", "true"], "at least one rank"),
        (&["-n", "-1", "true"], "a number of ranks was expected"),
        (&["-n", "two", "true"], "a number of ranks was expected"),
        (&["-n", "2", "--tag-ouput", "true"], "'--tag-output'"),
        (&["-n", "2", "--timeout", "soon", "true"], "a time in seconds was expected"),
        (&["-n", "2"], "<PROGRAM>"),
        (&["true"], "--ranks <N>"),
        (&["-n", "2", "tbccl-no-such-program"], "no program `tbccl-no-such-program`; it is not in PATH"),
        (&["-n", "2", "./no/such/program"], "there is no such file"),
        (&["-n", "2", data], "chmod +x"),
    ];
    for (args, expected) in cases {
        let done = job::run(args).finish();
        assert_eq!((done.code(), done.stdout.len()), (2, 0), "{args:?}: {}", done.stderr);
        assert!(done.stderr.starts_with("tbccl: error: "), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{args:?}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{args:?}: {}", done.stderr);
    }
}

#[test]
fn the_nearest_command_is_suggested() {
    let output = Command::new(TBCCL).arg("rum").output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("tbccl: error: "), "{stderr}");
    assert!(stderr.contains("`run`"), "{stderr}");
}

#[test]
fn arguments_after_the_program_are_the_programs() {
    let done = job::run(&["-np", "1", "echo", "-np", "2", "--timeout", "x", "--", "-n"]).finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["-np 2 --timeout x -- -n".to_owned()]));
}

#[test]
fn a_job_that_can_not_be_started_whole_is_not_started() {
    let mut command = Command::new("/bin/sh");
    let script = "ulimit -n 24; exec \"$0\" run -n 64 --tag-output sleep 1000";
    command.args(["-c", script, TBCCL]).stdin(Stdio::null());
    let done = Process::start(command).finish();
    assert_eq!(done.code(), 2);
    assert!(done.stderr.starts_with("tbccl: error: "), "{}", done.stderr);
    assert!(done.stderr.contains("of 64 can't be started"), "{}", done.stderr);
    assert!(done.stderr.contains("ulimit -n"), "{}", done.stderr);
}

#[test]
fn on_one_host_all_the_same_can_be_asked_for() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().canonicalize().expect("it is there");
    let path = path.to_str().expect("text");
    let done = job::shells(2, &["--cwd", path, "--timestamp", "--tag-output"], "pwd").finish();
    let is_line = |rank: usize, line: &String| line.ends_with(&format!("Z [{rank}] {path}"));
    assert!(
        done.sorted_lines().iter().any(|l| is_line(0, l))
            && done.sorted_lines().iter().any(|l| is_line(1, l))
    );
    let output = format!("{path}/output");
    let done = job::shells(2, &["--output", &output], "echo $RANK; exit $RANK").finish();
    assert_eq!((done.code(), done.stdout.len()), (1, 0));
    assert!(done.stderr.contains(") exited with status 1"), "{}", done.stderr);
    assert_eq!(std::fs::read_to_string(format!("{output}/rank.1.out")).expect("a file"), "1\n");
    let done =
        job::run(&["--hosts", "localhost:3", "--", "/bin/sh", "-c", "echo $RANK $TBCCL_NODE_RANK"]).finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, ["0 0", "1 0", "2 0"].map(str::to_owned).to_vec()));
    let done = job::shells(1, &["--cwd", "/no/such/folder"], "true").finish();
    assert_eq!(done.code(), 2);
    assert!(done.stderr.contains("the folder /no/such/folder does not exist"), "{}", done.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_are_kept_on_cores_of_their_own() {
    let cores = std::thread::available_parallelism().expect("known").get();
    let script = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status";
    for options in [&["--bind", "core"][..], &["--bind", "core", "--tag-output"]] {
        let done = job::shells(2, options, script).finish();
        let lists: Vec<String> = done
            .sorted_lines()
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
            .collect();
        if cores >= 2 && done.stderr.is_empty() {
            assert!(lists.len() == 2 && lists[0] != lists[1], "{lists:?}");
        } else {
            // Two hardware threads of one core count as one core.
            assert!(done.stderr.contains("--bind has no effect"), "{}", done.stderr);
        }
    }
}

/// Ranks that each had a core of their own yielded it at each poll: only the ranks of the host were counted.
#[cfg(target_os = "linux")]
#[test]
fn ranks_spin_if_they_are_bound_to_cores_of_their_own() {
    let cores = std::thread::available_parallelism().expect("known").get();
    let polls = |options: &[&str], ranks: usize| {
        let count = ranks.to_string();
        let job = [&["-n", &count, "-x", "TBCCL_LOG=info"], options].concat();
        let done = job::run(&[&job[..], &["--", TBCCL, "bench", "barrier", "-n", "2"]].concat()).finish();
        assert_eq!(done.code(), 0, "{}", done.stderr);
        let waits = done.stderr.lines().filter_map(|line| line.split_once("waits: ")?.1.split_once(" polls"));
        let polls: Vec<u32> = waits.map(|(polls, _)| polls.parse().expect("a number")).collect();
        assert_eq!(polls.len(), ranks, "{}", done.stderr);
        (polls, done.stderr.contains("--bind has no effect"))
    };
    // Of more ranks than cores, two at least share one.
    for (ranks, all_spin) in [(2, cores >= 2), (cores + 1, false)] {
        let (polls, is_refused) = polls(&["--bind", "core"], ranks);
        if !is_refused {
            assert_eq!(polls.iter().all(|polls| *polls > 0), all_spin, "{ranks} ranks: {polls:?}");
        }
    }
}

#[test]
fn mistakes_in_hostfiles_are_told_with_file_line_and_column() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cases: [(&str, &[u8], &str); 5] = [
        (
            "a.json",
            b"{\"hosts\": [{\"ssh\": \"a\", \"slot\": 2}]}",
            ":1:30: unknown key `slot`; did you mean `slots`?",
        ),
        ("b.txt", b"a slots=2\nb slots=0\n", ":2:3: 0 slots"),
        (
            "c.toml",
            b"[[host]]\nssh = \"a\"\nslots = \"two\"\n",
            ":3:9: a text stands where a number of slots should",
        ),
        ("d", b"", ":1:1: the file names no host"),
        ("e", b"a\n\xff\n", ":2:1: this byte is not UTF-8"),
    ];
    for (name, bytes, told) in cases {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("our folder");
        let done = job::run(&["--hostfile", path.to_str().expect("text"), "true"]).finish();
        assert_eq!((done.code(), done.stderr.lines().count()), (2, 1), "{}", done.stderr);
        assert!(done.stderr.contains(&format!("{name}{told}")), "{}", done.stderr);
    }
    let done = job::run(&["--hostfile", "/no/such/file", "true"]).finish();
    assert!(done.stderr.contains("the hostfile /no/such/file: "), "{}", done.stderr);
}

/// A rendezvous server that records what the launcher reports.
#[derive(Default)]
struct Listener {
    heard: Mutex<Vec<(u32, u32, String)>>,
}

impl Rendezvous for Listener {
    fn address(&self) -> String {
        "test:here".to_owned()
    }

    fn report_exit(&self, rank: u32, pid: u32, how: &str) {
        self.heard.lock().expect("no panic").push((rank, pid, how.to_owned()));
    }
}

#[test]
fn the_rendezvous_server_hears_of_failures_only() {
    let mut spec = LaunchSpec::new(3, "/bin/sh", TBCCL);
    let script = "[ $TBCCL_BOOTSTRAP = test:here ] || exit 9; [ $RANK = 1 ] && exit 3; [ $RANK = 2 ]";
    spec.args = ["-c", script].map(Into::into).to_vec();
    spec.name = "test";
    let listener = Listener::default();
    let outcome = launch(&spec, &listener).expect("it starts");
    let Outcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    // Rank 0 fails too; which of the two failures is seen first is not determined.
    let candidates = [(0, Ended::Exited(1)), (1, Ended::Exited(3))];
    assert!(candidates.contains(&(failure.rank, failure.how)), "{failure:?}");
    let mut heard = listener.heard.into_inner().expect("no panic");
    heard.sort();
    let ranks: Vec<(u32, &str)> = heard.iter().map(|(rank, _, how)| (*rank, how.as_str())).collect();
    assert_eq!(ranks, [(0, "exited with status 1"), (1, "exited with status 3")]);
    assert!(heard.iter().any(|(rank, pid, _)| (*rank, *pid) == (failure.rank, failure.pid)));
}

/// A rendezvous server whose calls panic.
#[derive(Debug)]
struct Broken;

impl Rendezvous for Broken {
    fn address(&self) -> String {
        String::new()
    }

    fn report_exit(&self, _rank: u32, _pid: u32, _how: &str) {
        std::panic::resume_unwind(Box::new("broken"));
    }
}

#[test]
fn a_panic_leaves_no_rank() {
    let mark = Mark::new();
    let mut spec = LaunchSpec::new(3, "/bin/sh", TBCCL);
    spec.args = ["-c", "[ $RANK = 1 ] && exit 3; trap '' TERM; sleep 1000 & wait"].map(Into::into).to_vec();
    spec.env = vec![(Mark::NAME.into(), mark.value().into())];
    let result = std::panic::catch_unwind(|| launch(&spec, &Broken));
    assert!(result.is_err());
    assert_eq!(mark.processes(), Vec::<String>::new());
}

#[test]
fn a_rank_may_have_variables_of_its_own() {
    let pair = |key: &str, value: &str| (key.into(), value.into());
    let mut spec = LaunchSpec::new(3, "/bin/sh", TBCCL);
    let script = "[ $ALL.${OWN-none} = $([ $RANK = 1 ] && echo all.one || echo ${RANK}.none) ]";
    spec.args = ["-c", script].map(Into::into).to_vec();
    spec.env = vec![pair("ALL", "all")];
    spec.rank_env =
        vec![vec![pair("ALL", "0")], vec![pair("OWN", "one")], vec![pair("ALL", "x"), pair("ALL", "2")]];
    let outcome = launch(&spec, &Listener::default()).expect("it starts");
    assert_eq!(outcome, Outcome::Succeeded);
    spec.rank_env[2] = vec![pair("TBCCL_RANK", "0")];
    let error = launch(&spec, &Listener::default()).expect_err("not theirs to set");
    assert!(matches!(error, LaunchError::Reserved(_)), "{error}");
}

#[test]
fn a_job_needs_a_rank() {
    let error = launch(&LaunchSpec::new(0, "true", TBCCL), &Broken).expect_err("no ranks");
    assert!(matches!(error, LaunchError::NoRanks), "{error}");
}
