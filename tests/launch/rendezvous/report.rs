//! The report of a hang, where a rank does not answer although its process runs.
//!
//! The connection of that rank to the rendezvous leads through a relay of the test, which withholds all bytes
//! from some time on. The rendezvous waits a second for the rank's answer, and the rank that reports waits
//! for the rendezvous.

use super::job::{self, secret};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};
use support::{Process, TIMEOUT};

/// Time limit of the rank that reports, in seconds.
const LIMIT: &str = "1.5";

/// A relay of connections to an address.
struct Relay {
    address: String,
    withholds: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a relay, which sends the time of each piece of bytes from the address that it withholds.
    fn start(to: String, withheld: Sender<Instant>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("tcp://{}", listener.local_addr().expect("bound"));
        let withholds = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&withholds);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let far = TcpStream::connect(&to).expect("the rendezvous listens");
                let [near_again, far_again] = [&near, &far].map(|end| end.try_clone().expect("a descriptor"));
                let (withheld, flags) = (withheld.clone(), [Arc::clone(&flag), Arc::clone(&flag)]);
                let [one, other] = flags;
                thread::spawn(move || pass_on(near, far, &one, |_| ()));
                thread::spawn(move || {
                    pass_on(far_again, near_again, &other, |at| {
                        let _ = withheld.send(at);
                    })
                });
            }
        });
        Relay { address, withholds }
    }
}

/// Passes bytes on in one direction until the end, or calls `withheld` with the time for those that it drops.
fn pass_on(mut from: TcpStream, mut to: TcpStream, withholds: &AtomicBool, withheld: impl Fn(Instant)) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if withholds.load(SeqCst) {
            withheld(Instant::now());
        } else if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Starts a rank that reaches the rendezvous at an address.
fn rank(number: u32, bootstrap: &str, secret: &str, case: &str, file: &str) -> Process {
    let (number, role) = (number.to_string(), format!("end_report {case}"));
    let env = [
        ("TBCCL_RANK", number.as_str()),
        ("TBCCL_SIZE", "3"),
        ("TBCCL_BOOTSTRAP", bootstrap),
        ("TBCCL_SECRET", secret),
        ("TBCCL_TRANSPORT", "shm"),
        ("END_FILE", file),
    ];
    let limit = ("TBCCL_TIMEOUT", if number == "0" { LIMIT } else { "60" });
    job::rank(&role, &[&env[..], &[limit]].concat())
}

/// Asserts that rank 0, which reports a hang while rank 2 is silent, returns another error as soon as there
/// is one, and writes no report.
fn ends(case: &str, expected: &str) {
    let (folder, secret) = (tempfile::tempdir().expect("a folder"), secret());
    let file = folder.path().join("end");
    let secret_file = folder.path().join("secret");
    std::fs::write(&secret_file, &secret).expect("our folder");
    std::fs::set_permissions(&secret_file, std::fs::Permissions::from_mode(0o600)).expect("our file");
    let mut command = support::tbccl();
    command.args(["rendezvous", "--listen", "127.0.0.1:0", "-n", "3", "--secret-file"]).arg(&secret_file);
    let server = Process::start(command);
    let bootstrap = server.next_after("TBCCL_BOOTSTRAP=");
    let (_, tcp) = bootstrap.rsplit_once("tcp://").expect("it listens on TCP");
    let (sender, withheld) = channel();
    let relay = Relay::start(tcp.to_owned(), sender);
    let ranks = [&bootstrap, &bootstrap, &relay.address];
    let ranks = [0, 1, 2].map(|number| {
        let file = file.to_str().expect("text");
        rank(number, ranks[number as usize], &secret, case, file)
    });
    // Rank 0 begins its call a moment later.
    ranks.iter().for_each(|rank| drop(rank.next_after("@ready ")));
    let began = Instant::now();
    relay.withholds.store(true, SeqCst);
    let asked = withheld.recv_timeout(TIMEOUT).expect("rank 2 is asked for its status");
    assert!(asked - began > Duration::from_secs(1), "{case}: rank 0 does not report yet");
    std::fs::write(&file, "").expect("our folder");
    let error = ranks[0].next_after("@error ");
    assert!(error.starts_with(expected), "{case}: {error}");
    let [zero, ..] = ranks;
    let done = zero.finish();
    assert!(!done.stderr.contains("rank 2"), "{case}: {}", done.stderr);
}

#[test]
fn a_rank_that_reports_returns_the_failure_of_another_rank_at_once() {
    ends("failure", "rank 1 failed: the program aborted");
}

#[test]
fn a_rank_that_reports_can_be_aborted() {
    ends("abort", "the program aborted");
}

#[test]
fn a_rank_that_reports_can_be_interrupted() {
    ends("interrupt", "the program aborted");
}
