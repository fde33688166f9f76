//! Jobs of threads of this process, or of processes that share memory and run this program again.

use crate::work::Work;
use std::{
    process::Stdio,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};
use tbccl::Communicator;

/// Environment variable with the work of a rank.
const WORK: &str = "WORK_OF_A_RANK";

/// Serializes the jobs of concurrent tests: each keeps all cores busy, and its ranks wait for each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the line that a rank prints at the end.
fn done(rank: u32, cases: usize) -> String {
    format!("@done {rank} {cases}")
}

/// Runs the work on `ranks` threads; returns the number of cases.
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

/// Runs the work in `ranks` processes; returns the number of cases. The time limit of calls ends a job that
/// hangs.
pub(crate) fn between_processes(work: Work, ranks: u32) -> usize {
    let program = std::env::current_exe().expect("this program");
    let mut command = support::tbccl();
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

/// Runs the work of this process, if it has any; not a test.
#[test]
fn play() {
    use std::io::Write;
    let Ok(work) = std::env::var(WORK) else { return };
    let work: Work = work.parse().expect("some work");
    let mut comm = Communicator::from_env_with(&work.config()).expect("a job");
    assert_eq!(comm.transport(), "shm");
    let cases = work.run(&mut comm).expect("all calls succeed");
    // One write, so that lines of ranks do not mix.
    let said = format!("\n{}\n", done(comm.rank().0, cases));
    std::io::stdout().write_all(said.as_bytes()).expect("somebody listens");
}
