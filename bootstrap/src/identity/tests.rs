//! Tests of identities from environment variables, and of the rendezvous that they lead to.

use super::*;
use crate::{
    error::Error,
    tests::{hello, join},
};
use std::{
    collections::HashMap,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

const SECRET: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

fn identity(pairs: &[(&str, &str)]) -> Result<LaunchInfo, String> {
    LaunchInfo::from_vars(&Vars::from_pairs(pairs))
}

fn assert_refused(pairs: &[(&str, &str)], parts: &[&str]) {
    let error = identity(pairs).expect_err("not enough is said");
    assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    assert!(!error.contains('\n') && !error.contains(SECRET), "{error}");
}

#[test]
fn a_launcher_that_says_all_is_followed() {
    let vars = [
        ("TBCCL_RANK", "1"),
        ("TBCCL_SIZE", "2"),
        ("TBCCL_BOOTSTRAP", "unix:/a,tcp://h:1"),
        ("TBCCL_SECRET", SECRET),
    ];
    let ours = identity(&vars).expect("all is said");
    assert_eq!((ours.rank, ours.size), (1, 2));
    let Discovery::Known(rendezvous) = ours.discovery else { panic!("{ours:?}") };
    assert_eq!(rendezvous.addresses, [Address::Path("/a".into()), Address::Tcp("h".into(), 1)]);
    assert!(!format!("{rendezvous:?}").contains("0011"), "secrets are not shown");
}

#[test]
fn launchers_that_do_not_say_where_rank_0_is_are_helped() {
    let mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    assert_refused(&mpi, &["Open MPI says that this is rank 1 of 2", "TBCCL_ROOT=HOST:PORT", "TBCCL_SECRET"]);
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_NODELIST", "n[03-04]")];
    assert_refused(&slurm, &["Slurm says", "TBCCL_ROOT=n03:PORT"]);
    let step = [("SLURM_JOB_ID", "5"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let step = [&slurm[..], &step].concat();
    assert_refused(&step, &["n03:20080", "TBCCL_SECRET is not set", "srun passes"]);
    let step = [&step[..], &[("TBCCL_SECRET", SECRET)]].concat();
    let Discovery::Root { host, port, .. } = identity(&step).expect("enough").discovery else {
        panic!("a root")
    };
    assert_eq!((host.as_str(), port), ("n03", 20_080));
    let port = [&slurm[..], &[("TBCCL_ROOT", ":7777"), ("TBCCL_SECRET", SECRET)]].concat();
    let Discovery::Root { host, port, .. } = identity(&port).expect("enough").discovery else {
        panic!("a root")
    };
    assert_eq!((host.as_str(), port), ("n03", 7777));
    let without = [&mpi[..], &[("TBCCL_ROOT", "h:7777")]].concat();
    assert_refused(&without, &["h:7777", "TBCCL_SECRET is not set", "openssl rand -hex 32"]);
    assert_refused(&[&mpi[..], &[("TBCCL_ROOT", "h")]].concat(), &["TBCCL_ROOT=h is not HOST:PORT"]);
    assert_refused(
        &[&mpi[..], &[("TBCCL_SECRET", "00")]].concat(),
        &["TBCCL_SECRET: ", "64 hexadecimal digits"],
    );
    let ours = [("TBCCL_RANK", "0"), ("TBCCL_SIZE", "2")];
    assert_refused(&ours, &["TBCCL_BOOTSTRAP is not set", "tbccl run", "TBCCL_ROOT=HOST:PORT"]);
}

#[test]
fn the_port_of_torchruns_agent_is_never_ours() {
    let torch = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "29500")];
    let elastic = [&torch[..], &[("TORCHELASTIC_RUN_ID", "r"), ("TORCHELASTIC_RESTART_COUNT", "2")]].concat();
    let Discovery::Store { port, key, .. } = identity(&elastic).expect("enough").discovery else {
        panic!("a store")
    };
    assert_eq!((port, key.as_str()), (29500, "tbccl/r/2/rendezvous"));
    for by_hand in [&torch[..], &[&elastic[..], &[("TORCHELASTIC_USE_AGENT_STORE", "False")]].concat()] {
        assert_refused(by_hand, &["h:29501", "TBCCL_SECRET is not set"]);
    }
    assert_refused(&torch[..2], &["not where rank 0 is"]);
}

#[test]
fn a_single_rank_needs_no_place() {
    let alone = identity(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]).expect("alone");
    let met = alone.resolve(Duration::from_secs(5)).expect("a rendezvous");
    assert!(met.server.is_some());
}

#[test]
fn a_secret_file_that_others_can_read_is_refused_with_the_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secret");
    std::fs::write(&path, SECRET).expect("written");
    let text = path.to_str().expect("a path");
    let vars =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("TBCCL_ROOT", "localhost:7"), ("TBCCL_SECRET_FILE", text)];
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
    assert_refused(&vars, &["TBCCL_SECRET_FILE: ", "chmod 600"]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
    identity(&vars).expect("only ours");
}

/// Runs the part of PyTorch's store server that ranks use, for `clients` connections.
fn serve_store(listener: TcpListener, clients: usize) -> thread::JoinHandle<()> {
    let kept: Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>> = Arc::default();
    thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().expect("a client");
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                let _ = serve_client(&mut stream, &kept);
            })
        };
        let threads: Vec<_> = (0..clients).map(serve).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    })
}

fn serve_client(stream: &mut TcpStream, kept: &Mutex<HashMap<Vec<u8>, Vec<u8>>>) -> io::Result<()> {
    let number = |stream: &mut TcpStream| {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).map(|()| u64::from_ne_bytes(bytes))
    };
    let text = |stream: &mut TcpStream| {
        let mut bytes = vec![0; number(stream)? as usize];
        stream.read_exact(&mut bytes).map(|()| bytes)
    };
    loop {
        let mut query = [0];
        stream.read_exact(&mut query)?;
        match query[0] {
            0 => {
                let mut magic = [0; 4];
                stream.read_exact(&mut magic)?;
                assert_eq!(u32::from_ne_bytes(magic), 0x3C85_F7CE);
            }
            1 => {
                let (key, value) = (text(stream)?, text(stream)?);
                kept.lock().expect("no panic").insert(key, value);
            }
            3 => {
                let key = text(stream)?;
                let value =
                    kept.lock().expect("no panic").get(&key).cloned().expect("it was asked for before");
                stream.write_all(&(value.len() as u64).to_ne_bytes())?;
                stream.write_all(&value)?;
            }
            5 => {
                assert_eq!(number(stream)?, 1);
                let key = text(stream)?;
                assert!(key.starts_with(b"/tbccl/"), "{key:?}");
                let missing = !kept.lock().expect("no panic").contains_key(&key);
                stream.write_all(&[u8::from(missing)])?;
            }
            other => panic!("query {other}"),
        }
    }
}

#[test]
fn ranks_meet_through_a_store_on_whose_port_nobody_else_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let store = serve_store(listener, 2);
    let key = "tbccl/test/0/rendezvous".to_owned();
    let of = |rank| LaunchInfo {
        rank,
        size: 2,
        discovery: Discovery::Store { host: "127.0.0.1".into(), port, key: key.clone(), secret: None },
        is_open: false,
    };
    let waiting = thread::spawn({
        let identity = of(1);
        move || identity.resolve(Duration::from_secs(20))
    });
    thread::sleep(Duration::from_millis(100));
    let first = of(0).resolve(Duration::from_secs(20)).expect("the store keeps");
    let second = waiting.join().expect("no panic").expect("rank 0 said where");
    let server = first.server.as_ref().expect("rank 0 opens it");
    assert_eq!(server.addresses().len(), 1);
    assert_ne!(server.addresses()[0].port(), port);
    assert!(server.addresses()[0].ip().is_loopback(), "the master is only known here");
    let expected = format!("{},tcp://{}", server.address(), server.addresses()[0]);
    let addresses: Vec<String> =
        second.identity.rendezvous.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses.join(","), expected);
    let secret =
        |rendezvous: &ConnectSpec| rendezvous.secret.as_ref().expect("made for the job").to_hex().to_string();
    assert_eq!(
        secret(&first.identity.rendezvous),
        secret(&second.identity.rendezvous),
        "for connections between ranks"
    );
    store.join().expect("no panic");
}

#[test]
fn a_store_that_is_not_there_is_said_with_its_address() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let discovery = Discovery::Store { host: "127.0.0.1".into(), port: free, key: "k".into(), secret: None };
    let error =
        LaunchInfo { rank: 1, size: 2, discovery, is_open: false }.resolve(Duration::from_millis(100));
    let error = error.expect_err("nobody");
    let Error::Rendezvous(why) = &error else { panic!("{error:?}") };
    assert!(why.contains(&format!("127.0.0.1:{free}")) && why.contains("torchrun"), "{why}");
}

#[test]
fn ranks_of_mlx_launch_are_met_where_it_says() {
    let nccl =
        [("MLX_RANK", "1"), ("MLX_WORLD_SIZE", "2"), ("NCCL_HOST_IP", "10.0.0.1"), ("NCCL_PORT", "12345")];
    assert_refused(
        &nccl,
        &["mlx.launch says that this is rank 1 of 2", "10.0.0.1:12345", "TBCCL_SECRET is not set"],
    );
    let secret = [&nccl[..], &[("TBCCL_SECRET", SECRET)]].concat();
    let Discovery::Root { host, port, .. } = identity(&secret).expect("enough").discovery else {
        panic!("a root")
    };
    assert_eq!((host.as_str(), port), ("10.0.0.1", 12345));
    assert_refused(&nccl[..2], &["no variable gives the address of rank 0", "tbccl run"]);
    let elsewhere = [&secret[..], &[("TBCCL_ROOT", "h:7")]].concat();
    let Discovery::Root { host, .. } = identity(&elsewhere).expect("enough").discovery else {
        panic!("a root")
    };
    assert_eq!(host, "h", "what people say themselves counts");
}

#[test]
fn ranks_of_one_host_that_know_it_by_its_loopback_need_no_secret() {
    for (host, rank, size) in
        [("MASTER_ADDR", "RANK", "WORLD_SIZE"), ("NCCL_HOST_IP", "MLX_RANK", "MLX_WORLD_SIZE")]
    {
        let port = if host == "MASTER_ADDR" { "MASTER_PORT" } else { "NCCL_PORT" };
        for address in ["127.0.0.1", "localhost", "::1"] {
            let vars = [(rank, "0"), (size, "2"), (host, address), (port, "29500")];
            assert!(
                matches!(identity(&vars).expect("enough").discovery, Discovery::LocalPort { .. }),
                "{vars:?}"
            );
            let secret = [&vars[..], &[("TBCCL_SECRET", SECRET)]].concat();
            assert!(
                matches!(identity(&secret).expect("enough").discovery, Discovery::Root { .. }),
                "{vars:?}"
            );
        }
    }
}

/// Returns a port number that no other test uses. It serves as a name only.
fn port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    (std::process::id() % 60_000) as u16 + TAKEN.fetch_add(1, Relaxed)
}

fn local_port(rank: u32, port: u16) -> LaunchInfo {
    LaunchInfo::at_root_with(rank, 2, ("127.0.0.1", port), None).expect("a user needs no secret")
}

#[test]
fn ranks_that_have_only_a_port_in_common_meet_though_the_others_come_first() {
    let port = port();
    let waiting = thread::spawn(move || {
        let met = local_port(1, port).resolve(Duration::from_secs(20)).expect("a place");
        join(&met.identity.rendezvous, &hello(1, 2, 20_000)).map(|_| ())
    });
    thread::sleep(Duration::from_millis(100));
    let first = local_port(0, port).resolve(Duration::from_secs(20)).expect("a rendezvous");
    assert!(first.server.is_some() && first.identity.rendezvous.secret.is_none());
    let _ours = join(&first.identity.rendezvous, &hello(0, 2, 20_000)).expect("both are there");
    waiting.join().expect("no panic").expect("both are there");
}

/// Returns a rank of a Slurm step on one node, with variables that `srun` sets, and others.
fn local_task(rank: &str, step: &str, more: &[(&str, &str)]) -> LaunchInfo {
    let job = std::process::id().to_string();
    let vars = [
        ("SLURM_JOB_ID", &*job),
        ("SLURM_STEP_ID", step),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_NODELIST", "n3"),
        ("SLURM_PROCID", rank),
        ("SLURM_STEP_NUM_TASKS", "2"),
    ];
    identity(&[&vars[..], more].concat()).expect("enough")
}

#[test]
fn tasks_of_a_slurm_step_on_one_node_meet_without_a_port_and_with_their_secret_if_they_have_one() {
    for (step, more) in [("0", &[][..]), ("1", &[("TBCCL_SECRET", SECRET)])] {
        assert!(!local_task("0", step, more).may_span_hosts());
        let waiting = thread::spawn(move || {
            let met = local_task("1", step, more).resolve(Duration::from_secs(20)).expect("a place");
            join(&met.identity.rendezvous, &hello(1, 2, 20_000)).map(|_| ())
        });
        thread::sleep(Duration::from_millis(100));
        let first = local_task("0", step, more).resolve(Duration::from_secs(20)).expect("a rendezvous");
        assert!(first.server.as_ref().expect("rank 0 opens it").addresses().is_empty(), "no port is open");
        assert_eq!(first.identity.rendezvous.secret.is_some(), !more.is_empty());
        let _ours = join(&first.identity.rendezvous, &hello(0, 2, 20_000)).expect("both are there");
        waiting.join().expect("no panic").expect("both are there");
    }
}

#[test]
fn a_task_without_the_secret_of_its_step_and_a_second_rendezvous_of_a_step_are_refused() {
    let (theirs, secret) = ("7".repeat(64), [("TBCCL_SECRET", SECRET)]);
    let first = local_task("0", "2", &secret).resolve(Duration::from_secs(20)).expect("a rendezvous");
    for more in [&[][..], &[("TBCCL_SECRET", &*theirs)]] {
        let met = local_task("1", "2", more).resolve(Duration::from_secs(20)).expect("a place");
        assert!(join(&met.identity.rendezvous, &hello(1, 2, 2_000)).is_err(), "{more:?}");
    }
    let error =
        local_task("0", "2", &secret).resolve(Duration::from_secs(20)).expect_err("taken").to_string();
    assert!(error.contains(".2 is in use") && error.contains("TBCCL_ROOT=localhost:PORT"), "{error}");
    drop(first);
}

#[test]
fn two_jobs_that_would_meet_by_the_same_port_are_told() {
    let port = port();
    let _first = local_port(0, port).resolve(Duration::from_secs(20)).expect("a rendezvous");
    let error = local_port(0, port).resolve(Duration::from_secs(20)).expect_err("taken").to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("--nccl-port"), "{error}");
}

#[test]
fn ranks_without_a_secret_meet_at_any_address_of_the_first_one_and_are_open() {
    let port = port();
    let at = |rank, host| LaunchInfo::at_root_with(rank, 2, (host, port), None).expect("a description");
    assert!(!local_port(0, port).is_open() && at(0, "0.0.0.0").is_open());
    assert!(!local_port(0, port).may_span_hosts() && at(0, "0.0.0.0").may_span_hosts());
    let with = LaunchInfo::at_root_with(0, 2, ("0.0.0.0", port), Some(Secret::from_bytes([7; 32])));
    assert!(!with.expect("a description").is_open());
    let Some(IpAddr::V4(ip)) = crate::interfaces::our_addresses().into_iter().find(IpAddr::is_ipv4) else {
        eprintln!("skipped: this host has no address");
        return;
    };
    if ip.is_loopback() {
        eprintln!("skipped: this host has only a loopback address");
        return;
    }
    let first = at(0, "0.0.0.0").resolve(Duration::from_secs(20)).expect("a rendezvous");
    let advertised = first.identity.rendezvous.addresses.clone();
    assert!(advertised.contains(&Address::Tcp(ip.to_string(), port)), "{advertised:?}");
    let second = at(1, &ip.to_string()).resolve(Duration::from_secs(20)).expect("an address");
    assert!(
        second.identity.rendezvous.has_remote_address() && first.identity.rendezvous.has_remote_address()
    );
    let waiting = thread::spawn(move || join(&second.identity.rendezvous, &hello(1, 2, 20_000)).map(|_| ()));
    let _ours = join(&first.identity.rendezvous, &hello(0, 2, 20_000)).expect("both are there");
    waiting.join().expect("no panic").expect("both are there");
}
