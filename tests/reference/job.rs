//! Jobs: threads of this process, or processes that share memory, which are this program again.

use crate::work::Work;
use std::{
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};
use tbccl::Communicator;

/// Says what a rank is to do.
const WORK: &str = "WORK_OF_A_RANK";

/// Jobs of tests that run side by side take turns: each keeps all cores busy, and its ranks wait for each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a rank says when it has done all.
fn done(rank: u32, cases: usize) -> String {
    format!("@done {rank} {cases}")
}

/// On so many threads; how many cases.
pub(crate) fn between_threads(work: Work, ranks: u32) -> usize {
    let _turn = turn();
    let communicators = Communicator::local(ranks, &work.config()).expect("memory for a test");
    let cases: Vec<usize> = thread::scope(|scope| {
        let run =
            |mut comm: Communicator| scope.spawn(move || work.run(&mut comm).expect("all calls succeed"));
        let threads: Vec<_> = communicators.into_iter().map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(cases.iter().all(|number| *number == cases[0]), "{work}: {cases:?}");
    cases[0]
}

/// In so many processes; how many cases. No call waits for long in vain, so the job ends.
pub(crate) fn between_processes(work: Work, ranks: u32) -> usize {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tbccl"));
    command.args(["run", "-n", &ranks.to_string(), "--transport", "shm", "--"]).arg(program);
    command.args(["--exact", "job::play", "--nocapture", "--test-threads=1"]);
    let _turn = turn();
    let output = command.env(WORK, work.to_string()).stdin(Stdio::null()).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{work} of {ranks} processes: {errors}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let cases = |rank: u32| {
        let line = said.lines().find_map(|line| line.split_once(&format!("@done {rank} ")));
        let number = line.and_then(|(_, number)| number.trim().parse::<usize>().ok());
        number.unwrap_or_else(|| panic!("rank {rank} says not what it did: {said}"))
    };
    assert!((0..ranks).all(|rank| cases(rank) == cases(0)), "{work}: {said}");
    cases(0)
}

/// Not a test: the work of this process, if it has any.
#[test]
fn play() {
    use std::io::Write;
    let Ok(work) = std::env::var(WORK) else { return };
    let work: Work = work.parse().expect("some work");
    let mut comm = Communicator::from_env_with(&work.config()).expect("a job");
    assert_eq!(comm.transport(), "shm");
    let cases = work.run(&mut comm).expect("all calls succeed");
    // In one write, so that ranks do not mix.
    let said = format!("\n{}\n", done(comm.rank().0, cases));
    std::io::stdout().write_all(said.as_bytes()).expect("somebody listens");
}
