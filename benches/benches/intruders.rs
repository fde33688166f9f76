//! Effect of unauthenticated connections on a running job: `cargo bench -p benches --bench intruders`.
//!
//! Two ranks, as processes, repeat a sum over TCP. Another process (the intruder) connects to the rendezvous
//! and to the ports of both ranks, in intervals that alternate with intervals of peace, so that other load of
//! the machine affects both. For each kind of intruder the report has the median latency in peace and under
//! attack, and their ratio.
//!
//! Intruders are limited: they connect at a fixed rate, sleep in between, and run with the lowest priority.
//! Intruders that use whole cores would compete with the ranks for them, which measures the machine and not
//! this library.
//!
//! Linux only: ports are found in `/proc`. `SECONDS` sets the time for each kind (6), `RATE` the connections
//! per port and second (200). The rendezvous reports intruders on stderr.

#![allow(clippy::print_stdout, reason = "a report is what this prints")]

use std::{
    collections::VecDeque,
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver},
    },
    thread::{self, sleep},
    time::{Duration, Instant, SystemTime},
};
use tbccl::{
    Communicator, ReduceOp,
    bootstrap::{Secret, Server, ServerSpec},
};

/// Duration of one sample of rank 0.
const SLICE: Duration = Duration::from_millis(50);
/// Duration of one interval of peace or attack.
const INTERVAL: Duration = Duration::from_millis(500);
/// Duration of an attack before it is measured.
const WARM_UP: Duration = Duration::from_millis(100);
/// Connections that an intruder holds open at a time.
const MAX_HELD: usize = 150;
/// Elements of a sum: 16 bytes, and 64 KiB.
const COUNTS: [usize; 2] = [2, 8192];

/// Kinds of intruders, each with a description.
const KINDS: [(&str, &str); 6] = [
    ("nobody", "no connections; shows how much the medians vary by themselves"),
    ("silent", "connects, sends nothing, and stays"),
    ("garbage", "connects, sends 64 invalid bytes, and stays"),
    ("half", "connects, begins a handshake, and stays"),
    ("replay", "connects, and replays the recorded bytes of a rank"),
    ("flood", "connects and disconnects, five times as often"),
];

fn main() {
    match env::var("ROLE").as_deref() {
        Ok("rank") => rank(),
        Ok("intruder") => intruder(),
        _ if !cfg!(target_os = "linux") => {
            println!("not measured: ports are found in /proc, which only Linux has");
        }
        _ => report(),
    }
}

/// Returns a number from the environment, or `default`.
fn number(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns milliseconds since the epoch, a clock that processes share.
fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis())
}

/// Repeats sums until stdin ends. For each sample, rank 0 prints the start and end, and the median and the
/// 99th percentile of the latency in ns.
fn rank() {
    let mut comm = Communicator::from_env().expect("the ranks come together");
    let count = number("COUNT", 2) as usize;
    let should_stop = Arc::new(AtomicBool::new(false));
    let should_stop_flag = Arc::clone(&should_stop);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        should_stop_flag.store(true, Relaxed);
    });
    let mut values = vec![0f64; count];
    let mut took = Vec::new();
    while values[0] == 0.0 {
        let (since, began) = (now(), Instant::now());
        took.clear();
        while began.elapsed() < SLICE && values[0] == 0.0 {
            values.fill(0.0);
            values[0] = f64::from(u8::from(comm.rank().0 == 0 && should_stop.load(Relaxed)));
            let call = Instant::now();
            comm.all_reduce_in_place(&mut values, ReduceOp::Sum).expect("undisturbed but for the time");
            took.push(call.elapsed().as_nanos());
        }
        took.sort_unstable();
        if comm.rank().0 == 0 {
            println!("{since} {} {} {}", now(), took[took.len() / 2], took[took.len() * 99 / 100]);
        }
    }
}

/// Connects to ports at a fixed rate until the process is killed.
fn intruder() {
    let kind = env::var("KIND").expect("a kind");
    let addresses: Vec<SocketAddr> = env::var("ADDRESSES")
        .expect("addresses")
        .split(' ')
        .map(|address| address.parse().expect("an address"))
        .collect();
    let recorded = fs::read(env::var("RECORDED").expect("a file")).unwrap_or_default();
    let rate = number("RATE", 200) * if kind == "flood" { 5 } else { 1 };
    let mut open_connections = VecDeque::new();
    let pause = Duration::from_secs(1) / rate as u32;
    let mut next = Instant::now();
    loop {
        for (at, address) in addresses.iter().enumerate() {
            let Ok(mut stream) = TcpStream::connect_timeout(address, Duration::from_secs(1)) else {
                continue;
            };
            let mut payload = match kind.as_str() {
                "garbage" => vec![0xee; 64],
                "half" => recorded[..recorded.len().min(20)].to_vec(),
                "replay" => recorded.clone(),
                _ => Vec::new(),
            };
            // The byte that selects the kind of connection: the rendezvous, which is the first address, or
            // data.
            if at > 0 && payload.len() > 8 && payload.starts_with(b"tbc") {
                payload[4] = 2;
            }
            let _ = stream.write_all(&payload);
            if kind != "flood" {
                open_connections.push_back(stream);
            }
        }
        while open_connections.len() > MAX_HELD {
            open_connections.pop_front();
        }
        next += pause;
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Two ranks that sum, and the samples of rank 0.
struct Job {
    server: Server,
    ranks: Vec<(Child, Option<ChildStdin>)>,
    slices: Receiver<[u128; 4]>,
}

impl Job {
    fn start(count: usize, recorded: &Arc<Mutex<Vec<u8>>>) -> Job {
        let secret = Secret::generate().expect("random numbers");
        let listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        let server = Server::start(&ServerSpec::network(2, listen, secret.clone())).expect("a port");
        let proxy = recording_proxy(server.addresses()[0], Arc::clone(recorded));
        let ranks: Vec<(Child, Option<ChildStdin>)> = [server.addresses()[0], proxy]
            .into_iter()
            .enumerate()
            .map(|(rank, address)| {
                let mut command = Command::new(env::current_exe().expect("this program"));
                command.env("ROLE", "rank").env("COUNT", count.to_string());
                command.env("TBCCL_RANK", rank.to_string()).env("TBCCL_SIZE", "2");
                command.env("TBCCL_BOOTSTRAP", format!("tcp://{address}"));
                command.env("TBCCL_SECRET", secret.to_hex().as_str());
                command.env("TBCCL_TRANSPORT", "tcp").env("TBCCL_INTERFACE", "127.0.0.1");
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
                let mut child = command.spawn().expect("a process");
                let stdin = child.stdin.take();
                (child, stdin)
            })
            .collect();
        let mut job = Job { server, ranks, slices: mpsc::channel().1 };
        job.slices = job.listen();
        job
    }

    /// Returns a channel with the samples of rank 0.
    fn listen(&mut self) -> Receiver<[u128; 4]> {
        let (sender, slices) = mpsc::channel();
        let stdout = self.ranks[0].0.stdout.take().expect("piped");
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let numbers: Vec<u128> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
                if let Ok(slice) = numbers.try_into() {
                    let _ = sender.send(slice);
                }
            }
        });
        slices
    }

    /// Returns the addresses of the rendezvous and the ranks.
    fn addresses(&self) -> Vec<SocketAddr> {
        let ranks = self.ranks.iter().flat_map(|(child, _)| listening_addresses(child.id()));
        [self.server.addresses()[0]].into_iter().chain(ranks).collect()
    }

    fn end(mut self) {
        self.ranks.iter_mut().for_each(|(_, stdin)| *stdin = None);
        for (child, _) in &mut self.ranks {
            assert!(child.wait().expect("ours").success(), "a rank has failed");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a proxy to the rendezvous that records the first bytes of the first client.
fn recording_proxy(rendezvous: SocketAddr, recorded: Arc<Mutex<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut rank, _) = listener.accept().expect("a rank");
        let mut server = TcpStream::connect(rendezvous).expect("the rendezvous");
        let mut back = (server.try_clone().expect("a copy"), rank.try_clone().expect("a copy"));
        thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(std::net::Shutdown::Write);
        });
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = rank.read(&mut bytes) {
            let mut recorded = recorded.lock().expect("no panics");
            if recorded.len() < 1000 {
                recorded.extend_from_slice(&bytes[..len]);
            }
            drop(recorded);
            if server.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Write);
    });
    address
}

/// Returns the addresses on which a process listens, from `/proc`.
fn listening_addresses(process: u32) -> Vec<SocketAddr> {
    let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let inodes: Vec<String> = links
        .filter_map(|link| fs::read_link(link.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| link.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    let port = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_ours = columns.get(3) == Some(&"0A") && inodes.iter().any(|inode| columns[9] == inode);
        let port = columns.get(1)?.rsplit_once(':')?.1;
        is_ours.then(|| u16::from_str_radix(port, 16).ok()).flatten()
    };
    table.lines().filter_map(port).map(|port| (Ipv4Addr::LOCALHOST, port).into()).collect()
}

/// A running intruder process, killed on drop.
struct Attack(Child);

impl Attack {
    fn begin(kind: &str, addresses: &[SocketAddr], recorded: &str) -> Attack {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(env::current_exe().expect("this program"));
        command
            .env("ROLE", "intruder")
            .env("KIND", kind)
            .env("ADDRESSES", addresses.join(" "))
            .env("RECORDED", recorded);
        Attack(command.stdin(Stdio::null()).spawn().expect("nice, and this program"))
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn median(mut values: Vec<u128>) -> f64 {
    values.sort_unstable();
    values.get(values.len() / 2).map_or(f64::NAN, |value| *value as f64 / 1000.0)
}

/// Measures one kind of intruder and returns the samples in peace and under attack.
fn measure(job: &Job, kind: &str, recorded: &str) -> [Vec<[u128; 4]>; 2] {
    let addresses = job.addresses();
    assert_eq!(addresses.len(), 3, "the rendezvous and a port for each rank: {addresses:?}");
    let rounds = Duration::from_secs(number("SECONDS", 6)).as_millis() / (2 * INTERVAL.as_millis());
    let mut spans: [Vec<[u128; 2]>; 2] = [Vec::new(), Vec::new()];
    while job.slices.try_recv().is_ok() {}
    for _ in 0..rounds.max(1) {
        for (at, span) in spans.iter_mut().enumerate() {
            let attack = (at == 1 && kind != "nobody").then(|| Attack::begin(kind, &addresses, recorded));
            sleep(WARM_UP);
            let since = now();
            sleep(INTERVAL);
            span.push([since, now()]);
            drop(attack);
            // The ranks drop remaining connections within a second.
            sleep(Duration::from_millis(if at == 1 { 1000 } else { 0 }));
        }
    }
    let slices: Vec<[u128; 4]> = job.slices.try_iter().collect();
    spans.map(|span| {
        let within = |slice: &&[u128; 4]| span.iter().any(|[from, to]| *from <= slice[0] && slice[1] <= *to);
        slices.iter().filter(within).copied().collect()
    })
}

fn report() {
    let file = env::temp_dir().join(format!("tbccl-heard-{}", std::process::id()));
    println!(
        "{:>10}  {:>8}  {:>10}  {:>10}  {:>6}  {:>10}  {:>10}  {:>9}",
        "intruder", "size", "peace", "attack", "ratio", "peace p99", "attack p99", "refused"
    );
    println!(
        "{:>10}  {:>8}  {:>10}  {:>10}  {:>6}  {:>10}  {:>10}  {:>9}",
        "", "(B)", "(us)", "(us)", "", "(us)", "(us)", ""
    );
    for count in COUNTS {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let job = Job::start(count, &recorded);
        job.slices.recv_timeout(Duration::from_secs(30)).expect("the ranks come together");
        fs::write(&file, &*recorded.lock().expect("no panics")).expect("a file");
        for (kind, _) in KINDS {
            let before = job.server.rejections().strangers;
            let [peace, attack] = measure(&job, kind, &file.to_string_lossy());
            let of = |slices: &[[u128; 4]], at: usize| median(slices.iter().map(|slice| slice[at]).collect());
            println!(
                "{kind:>10}  {:>8}  {:>10.2}  {:>10.2}  {:>6.2}  {:>10.1}  {:>10.1}  {:>9}",
                count * 8,
                of(&peace, 2),
                of(&attack, 2),
                of(&attack, 2) / of(&peace, 2),
                of(&peace, 3),
                of(&attack, 3),
                job.server.rejections().strangers - before
            );
        }
        job.end();
    }
    let _ = fs::remove_file(&file);
    KINDS.iter().for_each(|(kind, what)| println!("# {kind}: {what}"));
    println!("# refused: by the rendezvous; each rank refused at least as many");
}
