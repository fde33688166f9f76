//! What strangers at the ports of a job cost it: `cargo bench -p benches --bench intruders`.
//!
//! Two ranks, as processes, sum over TCP again and again. From another process strangers call at the rendezvous and at
//! the ports of both ranks, in intervals that alternate with intervals of peace, so that whatever else the machine does
//! meets both. The report has, for each kind of stranger, the median latency in peace and under attack, and their ratio.
//!
//! The strangers are modest: they call at a rate, sleep in between, and run with the lowest priority. Those that take
//! whole cores compete with the ranks for them, which says something of the machine and nothing of this library.
//!
//! Linux only: ports are found in `/proc`. `SECONDS` sets how long each kind is measured (6), `RATE` how many strangers
//! call at each port per second (200). What the rendezvous says of strangers is on stderr.

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

/// What rank 0 measures at a time.
const SLICE: Duration = Duration::from_millis(50);
/// How long there is peace or an attack at a time.
const INTERVAL: Duration = Duration::from_millis(500);
/// How long an attack goes on before it counts.
const RUN_UP: Duration = Duration::from_millis(100);
/// Connections that one stranger holds at a time.
const HELD: usize = 150;
/// The elements of a sum: 16 bytes, and 64 KiB.
const COUNTS: [usize; 2] = [2, 8192];

/// How strangers behave.
const KINDS: [(&str, &str); 6] = [
    ("nobody", "no one calls, which shows how much the medians vary by themselves"),
    ("silent", "connects, says nothing, and stays"),
    ("garbage", "connects, says 64 bytes of nonsense, and stays"),
    ("half", "connects, begins a handshake, and stays"),
    ("replay", "connects, and repeats what a rank was heard to say"),
    ("flood", "connects and hangs up, five times as often"),
];

fn main() {
    match env::var("ROLE").as_deref() {
        Ok("rank") => rank(),
        Ok("stranger") => stranger(),
        _ if !cfg!(target_os = "linux") => println!("not tried: ports are found in /proc, which is Linux's"),
        _ => report(),
    }
}

/// A number that the environment gives, or this one.
fn number(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Milliseconds since the epoch: a clock that processes share.
fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_millis())
}

/// Sums until stdin ends. Rank 0 says for each slice when it began and ended, the median latency in ns, and that of
/// which one in a hundred was longer.
fn rank() {
    let mut comm = Communicator::from_env().expect("the ranks come together");
    let count = number("COUNT", 2) as usize;
    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Relaxed);
    });
    let mut values = vec![0f64; count];
    let mut took = Vec::new();
    while values[0] == 0.0 {
        let (since, began) = (now(), Instant::now());
        took.clear();
        while began.elapsed() < SLICE && values[0] == 0.0 {
            values.fill(0.0);
            values[0] = f64::from(u8::from(comm.rank().0 == 0 && over.load(Relaxed)));
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

/// Calls at ports, at a rate, until it is killed.
fn stranger() {
    let kind = env::var("KIND").expect("a kind");
    let doors: Vec<SocketAddr> = env::var("DOORS")
        .expect("addresses")
        .split(' ')
        .map(|door| door.parse().expect("an address"))
        .collect();
    let heard = fs::read(env::var("HEARD").expect("a file")).unwrap_or_default();
    let rate = number("RATE", 200) * if kind == "flood" { 5 } else { 1 };
    let mut inside = VecDeque::new();
    let pause = Duration::from_secs(1) / rate as u32;
    let mut next = Instant::now();
    loop {
        for (at, door) in doors.iter().enumerate() {
            let Ok(mut stream) = TcpStream::connect_timeout(door, Duration::from_secs(1)) else { continue };
            let mut said = match kind.as_str() {
                "garbage" => vec![0xee; 64],
                "half" => heard[..heard.len().min(20)].to_vec(),
                "replay" => heard.clone(),
                _ => Vec::new(),
            };
            // The byte that says what a connection is for: the rendezvous, which is the first door, or data.
            if at > 0 && said.len() > 8 && said.starts_with(b"tbc") {
                said[4] = 2;
            }
            let _ = stream.write_all(&said);
            if kind != "flood" {
                inside.push_back(stream);
            }
        }
        while inside.len() > HELD {
            inside.pop_front();
        }
        next += pause;
        sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Two ranks that sum, and what rank 0 says.
struct Job {
    server: Server,
    ranks: Vec<(Child, Option<ChildStdin>)>,
    slices: Receiver<[u128; 4]>,
}

impl Job {
    fn start(count: usize, heard: &Arc<Mutex<Vec<u8>>>) -> Job {
        let secret = Secret::generate().expect("random numbers");
        let listen = vec![(Ipv4Addr::LOCALHOST, 0).into()];
        let server = Server::start(&ServerSpec::network(2, listen, secret.clone())).expect("a port");
        let wire = tap(server.addresses()[0], Arc::clone(heard));
        let ranks: Vec<(Child, Option<ChildStdin>)> = [server.addresses()[0], wire]
            .into_iter()
            .enumerate()
            .map(|(rank, place)| {
                let mut command = Command::new(env::current_exe().expect("this program"));
                command.env("ROLE", "rank").env("COUNT", count.to_string());
                command.env("TBCCL_RANK", rank.to_string()).env("TBCCL_SIZE", "2");
                command.env("TBCCL_BOOTSTRAP", format!("tcp://{place}"));
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

    /// What rank 0 says, as it comes.
    fn listen(&mut self) -> Receiver<[u128; 4]> {
        let (says, slices) = mpsc::channel();
        let stdout = self.ranks[0].0.stdout.take().expect("piped");
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let numbers: Vec<u128> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
                if let Ok(slice) = numbers.try_into() {
                    let _ = says.send(slice);
                }
            }
        });
        slices
    }

    /// Where the rendezvous and the ranks listen.
    fn doors(&self) -> Vec<SocketAddr> {
        let ranks = self.ranks.iter().flat_map(|(child, _)| listening(child.id()));
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

/// A wire to the rendezvous that remembers what the first who uses it says.
fn tap(door: SocketAddr, heard: Arc<Mutex<Vec<u8>>>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let place = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (mut rank, _) = listener.accept().expect("a rank");
        let mut server = TcpStream::connect(door).expect("the rendezvous");
        let mut back = (server.try_clone().expect("a copy"), rank.try_clone().expect("a copy"));
        thread::spawn(move || {
            let _ = std::io::copy(&mut back.0, &mut back.1);
            let _ = back.1.shutdown(std::net::Shutdown::Write);
        });
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = rank.read(&mut bytes) {
            let mut heard = heard.lock().expect("no panics");
            if heard.len() < 1000 {
                heard.extend_from_slice(&bytes[..len]);
            }
            drop(heard);
            if server.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Write);
    });
    place
}

/// The ports of this host on which a process listens, by what the kernel tells.
fn listening(process: u32) -> Vec<SocketAddr> {
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

/// Strangers of a kind, for as long as it lives.
struct Attack(Child);

impl Attack {
    fn begin(kind: &str, doors: &[SocketAddr], heard: &str) -> Attack {
        let doors: Vec<String> = doors.iter().map(ToString::to_string).collect();
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(env::current_exe().expect("this program"));
        command.env("ROLE", "stranger").env("KIND", kind).env("DOORS", doors.join(" ")).env("HEARD", heard);
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

/// Measures one kind; the medians of slices in peace and under attack.
fn measure(job: &Job, kind: &str, heard: &str) -> [Vec<[u128; 4]>; 2] {
    let doors = job.doors();
    assert_eq!(doors.len(), 3, "the rendezvous and a port for each rank: {doors:?}");
    let rounds = Duration::from_secs(number("SECONDS", 6)).as_millis() / (2 * INTERVAL.as_millis());
    let mut spans: [Vec<[u128; 2]>; 2] = [Vec::new(), Vec::new()];
    while job.slices.try_recv().is_ok() {}
    for _ in 0..rounds.max(1) {
        for (at, span) in spans.iter_mut().enumerate() {
            let attack = (at == 1 && kind != "nobody").then(|| Attack::begin(kind, &doors, heard));
            sleep(RUN_UP);
            let since = now();
            sleep(INTERVAL);
            span.push([since, now()]);
            drop(attack);
            // Whoever is still inside is thrown out within a second.
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
        "stranger", "size", "peace", "attack", "ratio", "peace p99", "attack p99", "refused"
    );
    println!(
        "{:>10}  {:>8}  {:>10}  {:>10}  {:>6}  {:>10}  {:>10}  {:>9}",
        "", "(B)", "(us)", "(us)", "", "(us)", "(us)", ""
    );
    for count in COUNTS {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let job = Job::start(count, &heard);
        job.slices.recv_timeout(Duration::from_secs(30)).expect("the ranks come together");
        fs::write(&file, &*heard.lock().expect("no panics")).expect("a file");
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
    println!("# refused: by the rendezvous; as many again, and more, were refused by each rank");
}
