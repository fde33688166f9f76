//! Ways to start ranks.

use super::job::{self, free_port, secret};
use rustix::process::Signal;
use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};
use support::{Process, tbccl};

/// Asserts that every rank prints the sum over all ranks.
fn all_sum(ranks: Vec<Process>) {
    let size = ranks.len();
    for rank in ranks {
        rank.next_after("@joined ");
        assert_eq!(rank.next_after("@sum "), (size * (size - 1) / 2).to_string());
        let done = rank.finish();
        assert_eq!(done.code(), 0, "{}", done.stderr);
    }
}

#[test]
fn ranks_of_mpi_hydra_and_slurm_meet_where_rank_0_opens() {
    for (rank_name, size_name) in [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("TBCCL_RANK", "TBCCL_SIZE"),
    ] {
        let (secret, root) = (secret(), format!("127.0.0.1:{}", free_port()));
        // Rank 0 starts last; the others wait for it.
        let ranks = [2u32, 1, 0].map(|rank| {
            let rank = rank.to_string();
            let env =
                [(rank_name, &*rank), (size_name, "3"), ("TBCCL_ROOT", &root), ("TBCCL_SECRET", &secret)];
            job::rank("sum", &env)
        });
        all_sum(ranks.into());
    }
}

/// Starts a rank with the variables that `srun` sets in a step on one host of an allocation of two, a port
/// and a secret.
fn rank_of_srun(rank: u32, port: u16, secret: &str, timeout: &str) -> Process {
    let (rank, root) = (rank.to_string(), format!(":{port}"));
    let env = [
        ("SLURM_JOB_ID", "17"),
        ("SLURM_JOB_NODELIST", "elsewhere[3-4]"),
        ("SLURM_STEP_NODELIST", "localhost"),
        ("SLURM_PROCID", &rank),
        ("SLURM_LOCALID", &rank),
        ("SLURM_NTASKS", "2"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("TBCCL_ROOT", &root),
        ("TBCCL_SECRET", secret),
        ("TBCCL_TIMEOUT", timeout),
    ];
    job::rank("sum", &env)
}

#[test]
fn ranks_of_srun_need_a_port_and_a_secret_in_common() {
    let (port, secret) = (free_port(), secret());
    all_sum([1, 0].map(|rank| rank_of_srun(rank, port, &secret, "30")).into());
    let (port, other) = (free_port(), job::secret());
    let ranks = [(0, &secret), (1, &other)].map(|(rank, secret)| rank_of_srun(rank, port, secret, "3"));
    for rank in ranks {
        let lines = rank.finish().sorted_lines().join("\n");
        assert!(lines.contains("@refused ") && !lines.contains("@joined"), "{lines}");
    }
}

#[test]
fn a_launcher_that_says_too_little_is_answered_with_what_to_do() {
    let done = job::rank("sum", &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")]).finish();
    let said = done.sorted_lines().join("\n");
    assert!(said.contains("@refused Open MPI says that this is rank 1 of 3"), "{said}");
    assert!(said.contains("TBCCL_ROOT=HOST:PORT") && said.contains("tbccl run"), "{said}");
}

#[test]
fn a_port_of_rank_0_that_is_in_use_is_said_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let root = taken.local_addr().expect("bound").to_string();
    let secret = secret();
    let env = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("TBCCL_ROOT", &*root), ("TBCCL_SECRET", &secret)];
    let said = job::rank("sum", &env).finish().sorted_lines().join("\n");
    assert!(said.contains("is in use") && said.contains(&root), "{said}");
    assert!(!said.contains(&secret), "the secret is not shown");
}

#[test]
fn ranks_meet_by_unique_id() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("id");
    let file = file.to_str().expect("a path");
    let ranks = ["0", "1", "2"]
        .map(|rank| job::rank("unique", &[("ID_RANK", rank), ("ID_SIZE", "3"), ("ID_FILE", file)]));
    all_sum(ranks.into());
}

/// Their host is known only once they have joined. Then they share memory like the ranks of `tbccl run`, and
/// not like those of a host among others, which see less of each other.
#[test]
fn ranks_of_one_host_that_might_have_spanned_several_share_all_their_memory() {
    for (variable, value, shares) in [
        ("TBCCL_TRANSPORT", ["auto"; 2], true),
        ("TBCCL_TRANSPORT", ["shm+auto"; 2], true),
        ("TBCCL_TRANSPORT", ["shm+tcp"; 2], false),
        ("TBCCL_HOST_ID", ["a", "b"], false),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("id");
        let file = file.to_str().expect("a path");
        let ranks = [("0", value[0]), ("1", value[1])].map(|(rank, value)| {
            let id = [("ID_RANK", rank), ("ID_SIZE", "2"), ("ID_FILE", file)];
            job::rank("sum", &[&id[..], &[(variable, value), ("TBCCL_LOG", "info")]].concat())
        });
        for rank in ranks {
            rank.next_after("@sum ");
            let done = rank.finish();
            assert_eq!(done.code(), 0, "{}", done.stderr);
            let reads = done.stderr.contains("messages may be read by system call: ");
            assert_eq!(reads, shares, "{variable}={value:?}: {}", done.stderr);
        }
    }
}

/// Starts two jobs of three ranks in a role: as MPI does, and by unique id.
fn by_other_means(role: &str, folder: &tempfile::TempDir) -> [Vec<Process>; 2] {
    let file = folder.path().join("id");
    let (secret, root) = (secret(), format!("127.0.0.1:{}", free_port()));
    let mpi = |rank| {
        let env = [("PMI_RANK", rank), ("PMI_SIZE", "3"), ("TBCCL_ROOT", &root), ("TBCCL_SECRET", &secret)];
        job::rank(role, &env)
    };
    let id = |rank| {
        let file = file.to_str().expect("a path");
        job::rank(role, &[("ID_RANK", rank), ("ID_SIZE", "3"), ("ID_FILE", file)])
    };
    let ranks = ["0", "1", "2"];
    [ranks.map(mpi).into(), ranks.map(id).into()]
}

#[test]
fn ranks_that_no_launcher_of_ours_has_started_split_and_grow() {
    for (role, says) in [("split", "@split "), ("grow", "@grown ")] {
        let folder = tempfile::tempdir().expect("a folder");
        for rank in by_other_means(role, &folder).into_iter().flatten() {
            rank.next_after(says);
            let done = rank.finish();
            assert_eq!(done.code(), 0, "{}", done.stderr);
        }
    }
}

#[test]
fn ranks_that_no_launcher_of_ours_has_started_go_on_without_one_that_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    for ranks in by_other_means("ladder", &folder) {
        let mut through = 0;
        for rank in ranks {
            let done = rank.finish();
            let said = done.sorted_lines().join("\n");
            if said.contains("@dying ") {
                continue;
            }
            assert_eq!(done.code(), 0, "{said}\n{}", done.stderr);
            through += u32::from(said.contains("@through "));
        }
        assert_eq!(through, 2);
    }
}

/// Starts a stand-alone rendezvous; returns it with the variables that it prints for ranks.
fn rendezvous(args: &[&str]) -> (Process, String, String) {
    let server = job::start(&[&["rendezvous"], args].concat());
    let bootstrap = server.next_after("TBCCL_BOOTSTRAP=");
    let file = server.next_after("TBCCL_SECRET_FILE=");
    (server, bootstrap, file)
}

fn rank_at(bootstrap: &str, file: &str, role: &str, rank: u32, size: u32) -> Process {
    let (rank, size) = (rank.to_string(), size.to_string());
    let env = [
        ("TBCCL_RANK", &*rank),
        ("TBCCL_SIZE", &*size),
        ("TBCCL_BOOTSTRAP", bootstrap),
        ("TBCCL_SECRET_FILE", file),
    ];
    job::rank(role, &env)
}

#[test]
fn a_rendezvous_of_its_own_ends_with_the_job() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    let file = file.to_str().expect("a path");
    // With all addresses that it prints, and with TCP alone.
    for only_tcp in [false, true] {
        let (server, bootstrap, file) = rendezvous(&["--secret-file", file, "--listen", "127.0.0.1:0"]);
        let (_, tcp) = bootstrap.split_once(',').expect("a socket of this host, and one of the network");
        let bootstrap = if only_tcp { tcp } else { &bootstrap };
        all_sum((0..2).map(|rank| rank_at(bootstrap, &file, "sum", rank, 2)).collect());
        let done = server.finish();
        assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    }
}

#[test]
fn a_rank_that_is_killed_is_told_to_the_others_and_to_the_rendezvous() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    let args = ["--secret-file", file.to_str().expect("a path"), "--listen", "127.0.0.1:0", "-n", "3"];
    let (server, bootstrap, file) = rendezvous(&args);
    let (_, tcp) = bootstrap.split_once(',').expect("two ways");
    let mut ranks: Vec<Process> = (0..3).map(|rank| rank_at(tcp, &file, "barrier", rank, 3)).collect();
    ranks.iter_mut().for_each(|rank| drop(rank.next_after("@going")));
    let killed = super::roles::now();
    ranks[1].signal(Signal::KILL);
    for survivor in [0, 2] {
        let error = ranks[survivor].next_after("@error ");
        let (at, text) = error.split_once(' ').expect("the time first");
        let late = at.parse::<u128>().expect("a time") - killed;
        assert!(late < 2000, "{late} ms: {text}");
        assert!(text.contains("rank 1 (process "), "{text}");
    }
    drop(ranks);
    assert_eq!(server.finish().code(), 1);
}

#[test]
fn a_rendezvous_that_can_not_be_opened_says_why_in_one_line() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secret");
    let file = path.to_str().expect("a path");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let refused = |args: &[&str], says: &str| {
        let done = job::start(&[&["rendezvous"], args].concat()).finish();
        assert_eq!(done.code(), 2, "{done:?}");
        assert!(done.stderr.starts_with("tbccl: error: ") && done.stderr.contains(says), "{}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    };
    refused(&["--secret-file", file, "--listen", &address], "is in use");
    refused(&["--secret-file", file, "--listen", "192.0.2.1:0"], "192.0.2.1 is not an address of this host");
    refused(&[], "--secret-file FILE");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
    refused(&["--secret-file", file], "chmod 600");
}

#[test]
fn ranks_of_another_size_are_refused_on_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    let args = ["--secret-file", file.to_str().expect("a path"), "--listen", "127.0.0.1:0", "-n", "2"];
    let (server, bootstrap, file) = rendezvous(&args);
    let said = rank_at(&bootstrap, &file, "sum", 1, 3).finish().sorted_lines().join("\n");
    const WHY: &str = "rank 1 of 3 cannot join a job of 2 ranks";
    assert!(said.contains(WHY), "{said}");
    let done = server.finish();
    assert_eq!(done.code(), 2);
    assert!(done.stderr.contains(WHY), "{}", done.stderr);
}

/// Returns the entries of an audit with a name.
fn entries(file: &std::path::Path, event: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(file).expect("an audit");
    let entries = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    entries.filter(|entry| entry["event"] == event).collect()
}

#[test]
fn an_audit_has_who_joined_and_who_was_refused_and_is_limited() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let secret = path("secret");
    let args = ["--secret-file", secret.to_str().expect("a path"), "--listen", "127.0.0.1:0", "-n", "2"];
    let mut command = tbccl();
    command.arg("rendezvous").args(args).env("TBCCL_AUDIT", path("audit"));
    let server = Process::start(command);
    let (bootstrap, file) = (server.next_after("TBCCL_BOOTSTRAP="), server.next_after("TBCCL_SECRET_FILE="));
    let (_, tcp) = bootstrap.split_once(',').expect("two ways");
    let (_, port) = tcp.rsplit_once(':').expect("a port");

    let began = Instant::now();
    // A rank with another secret, and more strangers than are written.
    std::fs::write(path("other"), job::secret()).expect("our folder");
    let permissions = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path("other"), permissions).expect("our file");
    let other = path("other");
    let intruder = rank_at(tcp, other.to_str().expect("a path"), "sum", 0, 2).finish();
    assert!(intruder.sorted_lines().join("\n").contains("another secret"));
    for _ in 0..80 {
        let mut stranger = TcpStream::connect(("127.0.0.1", port.parse().expect("a number"))).expect("open");
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
        // The answer is the end of the connection.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    all_sum((0..2).map(|rank| rank_at(tcp, &file, "sum", rank, 2)).collect());
    assert_eq!(server.finish().code(), 0);

    let joined = entries(&path("audit"), "joined");
    let mut ranks: Vec<_> = joined.iter().map(|entry| entry["rank"].as_u64()).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [Some(0), Some(1)], "{joined:?}");
    assert!(joined.iter().all(|entry| entry["size"] == 2 && entry["rank_pid"].is_u64()), "{joined:?}");
    assert!(joined.iter().all(|entry| entry["from"].as_str().is_some_and(|from| from.contains("127.0.0.1"))));
    let failed = entries(&path("audit"), "failed_proof");
    let has =
        |why: &str| failed.iter().any(|entry| entry["why"].as_str().is_some_and(|text| text.contains(why)));
    assert!(has("secret") && has("does not speak tbccl's protocol"), "{failed:?}");
    if began.elapsed() < Duration::from_secs(10) {
        assert_eq!(failed.len(), 50, "a limited number");
    }
    let left_out = entries(&path("audit"), "left_out");
    let count: u64 = left_out.iter().filter_map(|entry| entry["count"].as_u64()).sum();
    assert!(failed.len() as u64 + count >= 81, "{left_out:?}");
}

#[test]
fn a_rank_of_another_size_is_in_the_audit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (secret, audit) = (folder.path().join("secret"), folder.path().join("audit"));
    let mut command = tbccl();
    command.args(["rendezvous", "-n", "2", "--listen", "127.0.0.1:0", "--secret-file"]).arg(&secret);
    command.env("TBCCL_AUDIT", &audit);
    let server = Process::start(command);
    let (bootstrap, file) = (server.next_after("TBCCL_BOOTSTRAP="), server.next_after("TBCCL_SECRET_FILE="));
    drop(rank_at(&bootstrap, &file, "sum", 1, 3).finish());
    assert_eq!(server.finish().code(), 2);
    let refused = entries(&audit, "refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0]["from"].as_str().is_some_and(|from| from.starts_with("rank 1 of 3 (process ")));
    assert!(refused[0]["why"].as_str().is_some_and(|why| why.contains("cannot join a job of 2 ranks")));
}

#[test]
fn a_job_whose_audit_cannot_be_written_does_not_start() {
    let mut command = tbccl();
    command.args(["rendezvous", "--secret-file", "/nowhere"]).env("TBCCL_AUDIT", "/nowhere/at/all");
    let done = Process::start(command).finish();
    assert_eq!(done.code(), 2);
    assert!(done.stderr.contains("opening the audit /nowhere/at/all"), "{}", done.stderr);
}
