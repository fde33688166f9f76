//! `tbccl run` on several hosts, with real ssh between network namespaces.

use crate::{
    TBCCL,
    network::{HOSTS, Network, address, network_or_return},
};
use rustix::process::Signal;
use std::{
    io::Write,
    os::unix::process::ExitStatusExt,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::{Process, eventually};

/// Shell command that prints the rank's identity and host.
const WHO: &str = "echo $TBCCL_RANK of $TBCCL_SIZE, $TBCCL_LOCAL_RANK of $TBCCL_LOCAL_SIZE on $(cat \
/proc/sys/kernel/hostname), node $TBCCL_NODE_RANK";

pub(crate) const LIST: &str = "h0,h1,h2,h3";

pub(crate) fn job(network: &Network, args: &[&str]) -> Process {
    Process::start(network.launcher(args))
}

/// Starts a job of one shell per host, which runs `script`.
fn shells(network: &Network, script: &str) -> Process {
    job(network, &["--hosts", LIST, "--", "/bin/sh", "-c", script])
}

pub(crate) fn expect_quiet(network: &Network) {
    eventually("nothing runs on any host", || network.is_quiet());
    assert_eq!(network.temporary_files(), 0, "temporary files are left");
}

#[test]
fn hostfiles_of_all_formats_start_4_and_8_ranks() {
    let network = network_or_return!();
    let hosts = |each: &dyn Fn(usize) -> String, between: &str| {
        (0..HOSTS).map(each).collect::<Vec<_>>().join(between)
    };
    let json = |host: usize| format!(r#"{{"ssh": "h{host}", "ips": ["{}"]}}"#, address(host));
    let toml = |host: usize| {
        format!("[[host]]\nssh = \"h{host}\"\naddresses = [\"{}\"]\nslots = 2\n", address(host))
    };
    let files = [
        ("list.json", format!("[{}]", hosts(&json, ","))),
        ("object.json", format!(r#"{{"backend": "mpi", "hosts": [{}]}}"#, hosts(&json, ","))),
        ("hosts.txt", hosts(&|host| format!("h{host} slots=2 # a host"), "\n")),
        ("hosts.toml", hosts(&toml, "\n")),
    ];
    for (name, text) in files {
        let path = network.write(name, &text);
        for each in [1, 2] {
            let per_host = each.to_string();
            let args =
                ["--hostfile", &path, "--per-host", &per_host, "--tag-output", "--", "/bin/sh", "-c", WHO];
            let done = job(&network, &args).finish();
            assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{name}");
            let line = |rank: usize| {
                let (node, local) = (rank / each, rank % each);
                format!("[{rank}] {rank} of {}, {local} of {each} on h{node}, node {node}", HOSTS * each)
            };
            assert_eq!(done.sorted_lines(), (0..HOSTS * each).map(line).collect::<Vec<_>>(), "{name}");
        }
    }
    expect_quiet(&network);
}

#[test]
fn ranks_are_dealt_by_node_and_beyond_slots_only_when_asked() {
    let network = network_or_return!();
    let args = ["--hosts", "h0:2,h1:2", "--map-by", "node", "--tag-output", "--", "/bin/sh", "-c", WHO];
    let done = job(&network, &args).finish();
    let hosts: Vec<String> =
        done.sorted_lines().iter().map(|line| line[line.len() - 10..line.len() - 8].to_owned()).collect();
    assert_eq!(hosts, ["h0", "h1", "h0", "h1"], "{:?}", done.sorted_lines());
    let done = job(&network, &["--hosts", "h0:1,h1:1", "-n", "3", "true"]).finish();
    assert_eq!(done.code(), 2);
    assert!(done.stderr.contains("3 ranks for 2 slots on 2 hosts"), "{}", done.stderr);
    assert_eq!(
        job(&network, &["--hosts", "h0:1,h1:1", "-n", "3", "--oversubscribe", "true"]).finish().code(),
        0
    );
    expect_quiet(&network);
}

#[test]
fn variables_and_the_folder_are_carried_and_the_secret_is_on_no_command_line() {
    let network = network_or_return!();
    let own = network.path("own/cwd");
    let args = [
        "--hosts",
        "h0,h1",
        "-x",
        "GREETING=a b'c\"",
        "-x",
        "TBCCL_TIMEOUT=7",
        "--cwd",
        own.to_str().expect("text"),
        "--",
        "/bin/sh",
        "-c",
        "echo $GREETING $TBCCL_TIMEOUT $PWD $TBCCL_TEST_CARRIED ${#TBCCL_SECRET}; sleep 1; cat \
        /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c \"$TBCCL_SECRET\"",
    ];
    let mut command = network.launcher(&args);
    command.env("TBCCL_TEST_CARRIED", "over").env("NOT_CARRIED", "x");
    let done = Process::start(command).finish();
    let line = format!("a b'c\" 7 {} over 64", own.display());
    // The only matching command line is that of the grep itself.
    assert_eq!(
        done.sorted_lines().iter().filter(|l| **l == line).count(),
        2,
        "{:?} {}",
        done.sorted_lines(),
        done.stderr
    );
    assert!(done.sorted_lines().iter().all(|l| *l == line || l.len() <= 2), "{:?}", done.sorted_lines());
    expect_quiet(&network);
}

#[test]
fn programs_of_mlx_find_what_they_read() {
    let network = network_or_return!();
    let text = format!(
        r#"{{"envs": ["MLX_X=1"], "hosts": [
            {{"ssh": "h0", "ips": ["{}"], "rdma": [null, "en1", null]}},
            {{"ssh": "h1", "ips": ["{}"], "rdma": ["en1", null, "en2"]}},
            {{"ssh": "h2", "ips": [], "rdma": [null, "en2", null]}}]}}"#,
        address(0),
        address(1)
    );
    let path = network.write("mlx.json", &text);
    let script = "echo $MLX_RANK $MLX_WORLD_SIZE $MLX_X $MLX_JACCL_COORDINATOR $(cat $MLX_HOSTFILE) $(cat \
    $MLX_IBV_DEVICES)";
    let done = job(&network, &["--hostfile", &path, "--", "/bin/sh", "-c", script]).finish();
    let matrix = r#"[[null,"en1",null],["en1",null,"en2"],[null,"en2",null]]"#;
    let line = |rank| {
        format!(
            r#"{rank} 3 1 10.77.0.1:32323 [["10.77.0.1:32323"],["10.77.0.2:32324"],["h2:32325"]] {matrix}"#
        )
    };
    assert_eq!((done.sorted_lines(), done.stderr.as_str()), ((0..3).map(line).collect(), ""));
    expect_quiet(&network);
}

#[test]
fn hosts_are_numbered_along_the_cables() {
    let network = network_or_return!();
    // The cables form the ring h0, h2, h1, h3.
    let wires = [("h0", ["h2", "h3"]), ("h1", ["h2", "h3"]), ("h2", ["h0", "h1"]), ("h3", ["h0", "h1"])];
    let host = |(name, peers): &(&str, [&str; 2])| {
        format!("[[host]]\nssh = \"{name}\"\nrdma = {{ {} = \"a\", {} = \"b\" }}\n", peers[0], peers[1])
    };
    let path = network.write("ring.toml", &wires.iter().map(host).collect::<String>());
    let script = "echo $TBCCL_RANK $(cat /proc/sys/kernel/hostname)";
    let done = job(&network, &["--hostfile", &path, "--", "/bin/sh", "-c", script]).finish();
    assert_eq!(done.sorted_lines(), ["0 h0", "1 h2", "2 h1", "3 h3"]);
    assert!(done.stderr.contains("numbered along the cables: h0, h2, h1, h3"), "{}", done.stderr);
    let done =
        job(&network, &["--hostfile", &path, "--order", "file", "--", "/bin/sh", "-c", script]).finish();
    assert_eq!(done.sorted_lines(), ["0 h0", "1 h1", "2 h2", "3 h3"]);
    expect_quiet(&network);
}

#[test]
fn the_first_rank_that_fails_gives_the_status_and_ends_the_others() {
    let network = network_or_return!();
    let done = shells(&network, "[ $RANK = 2 ] && exit 7; sleep 1000 & wait").finish();
    assert_eq!(done.code(), 7);
    assert!(done.stderr.starts_with("tbccl run: rank 2 (pid "), "{}", done.stderr);
    assert!(
        done.stderr.ends_with(" on h2) exited with status 7; ending the other 3 ranks\n"),
        "{}",
        done.stderr
    );
    expect_quiet(&network);
}

#[test]
fn a_rank_that_is_killed_ends_the_others_even_if_they_do_not_listen() {
    let network = network_or_return!();
    let script = "trap '' TERM; [ $RANK = 3 ] && kill -KILL $$; (trap '' TERM; sleep 1000) & while :; do \
    sleep 0.1; done";
    let done = job(&network, &["--hosts", LIST, "--grace", "0.3", "--", "/bin/sh", "-c", script]).finish();
    assert_eq!(done.code(), 128 + 9);
    assert!(
        done.stderr.contains(" on h3) was killed by SIGKILL; ending the other 3 ranks"),
        "{}",
        done.stderr
    );
    expect_quiet(&network);
}

#[test]
fn a_host_whose_ssh_server_is_killed_counts_as_failed_with_its_ranks() {
    let network = network_or_return!();
    let script = "echo ready; sleep 1000 & sleep 1000";
    let job = job(&network, &["--hosts", "h0:1,h1:1,h2:1,h3:2", "--", "/bin/sh", "-c", script]);
    job.until_ready(5);
    network.kill_server(3);
    let start = Instant::now();
    let done = job.finish();
    assert_eq!(done.code(), 255);
    assert!(done.stderr.contains("tbccl run: host h3 is lost: "), "{}", done.stderr);
    assert!(done.stderr.contains("; ranks 3, 4 count as failed\n"), "{}", done.stderr);
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    let server_is_gone = || (0..HOSTS).all(|host| network.processes(host).is_empty());
    eventually("nothing runs on any host", server_is_gone);
}

#[test]
fn ranks_die_with_their_agent() {
    let network = network_or_return!();
    let job = shells(&network, "echo ready; exec sleep 1000");
    job.until_ready(4);
    network.kill_agent(2);
    let done = job.finish();
    assert_eq!(done.code(), 255);
    assert!(done.stderr.contains("host h2 is lost: "), "{}", done.stderr);
    assert!(done.stderr.contains("rank 2 counts as failed"), "{}", done.stderr);
    expect_quiet(&network);
}

#[test]
fn nothing_outlives_a_killed_launcher_on_any_host() {
    let network = network_or_return!();
    let script =
        "trap '' TERM HUP INT; (trap '' TERM HUP; sleep 1000) & echo ready; while :; do sleep 0.1; done";
    let mut job =
        job(&network, &["--hosts", LIST, "--per-host", "2", "--grace", "0.3", "--", "/bin/sh", "-c", script]);
    job.until_ready(8);
    job.signal(Signal::KILL);
    assert_eq!(job.wait().signal(), Some(9));
    expect_quiet(&network);
}

/// A delayed connection reports late that its host's ranks have started, while other hosts' ranks already
/// run.
#[test]
fn a_signal_that_comes_while_other_hosts_still_start_reaches_all_ranks() {
    let network = network_or_return!();
    let told = network.path("own/cwd/dd");
    let script = format!(
        "#!/bin/sh\n[ $(cat /proc/sys/kernel/hostname) = h3 ] || exec {TBCCL} $@\n{TBCCL} $@ | while sleep \
        0.4; do\n  dd bs=1000000 count=1 2>{0}\n  grep -q '^0+0 records in' {0} && exit\ndone\n",
        told.display()
    );
    let slow = network.write("slow-tbccl", &script);
    std::fs::set_permissions(&slow, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let script = "trap 'echo heard; exit 0' USR1; [ $RANK = 3 ] || echo ready; while :; do sleep 0.05; done";
    let args = ["--tbccl", &slow, "--hosts", LIST, "--", "/bin/sh", "-c", script];
    let job = job(&network, &args);
    job.until_ready(3);
    job.signal(Signal::USR1);
    let done = job.finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["heard".to_owned(); 4]), "{}", done.stderr);
    expect_quiet(&network);
}

#[test]
fn signals_reach_the_ranks_of_all_hosts() {
    let network = network_or_return!();
    let script = "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    let job = shells(&network, script);
    job.until_ready(4);
    job.signal(Signal::USR1);
    let done = job.finish();
    assert_eq!((done.code(), done.sorted_lines()), (0, vec!["heard".to_owned(); 4]));
    expect_quiet(&network);
}

#[test]
fn tagged_lines_of_all_hosts_are_whole_and_long_output_is_complete() {
    let network = network_or_return!();
    let script = "i=0; while [ $i -lt 300 ]; do printf \"a$RANK \"; printf \"$i \"; echo end; i=$((i+1)); \
    done; head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100";
    let done = job(&network, &["--hosts", LIST, "--tag-output", "--", "/bin/sh", "-c", script]).finish();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""));
    let text = String::from_utf8(done.stdout).expect("text");
    for rank in 0..4 {
        let begin = format!("[{rank}] ");
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&begin)).collect();
        let expected: Vec<String> = (0..300).map(|i| format!("a{rank} {i} end")).collect();
        assert_eq!(lines[..300], expected);
        assert_eq!(lines[300..].len(), 30000, "rank {rank}");
        assert!(lines[300..].iter().all(|line| line.len() == 100 && line.bytes().all(|b| b == b'x')));
    }
    expect_quiet(&network);
}

#[test]
fn what_is_read_goes_to_rank_0_to_another_or_to_all() {
    let network = network_or_return!();
    let input: String = (0..20000).map(|i| format!("line {i}\n")).collect();
    for (who, expected) in [("0", vec![0]), ("3", vec![3]), ("all", vec![0, 1, 2, 3]), ("none", vec![])] {
        let args = [
            "--hosts",
            LIST,
            "--stdin",
            who,
            "--",
            "/bin/sh",
            "-c",
            "n=$(wc -l); [ $n -gt 0 ] && echo $RANK read $n || true",
        ];
        let mut command = network.launcher(&args);
        command.stdin(Stdio::piped());
        let mut job = Process::start(command);
        let mut stdin = job.stdin().expect("a pipe");
        let bytes = input.clone();
        // The job may not read its input.
        let writer = std::thread::spawn(move || stdin.write_all(bytes.as_bytes()));
        let done = job.finish();
        let _ = writer.join().expect("no panic");
        let lines: Vec<String> = expected.iter().map(|rank| format!("{rank} read 20000")).collect();
        assert_eq!((done.code(), done.sorted_lines()), (0, lines), "--stdin {who}: {}", done.stderr);
    }
    expect_quiet(&network);
}

/// Returns the stderr lines of a job that failed to start and started no process.
fn refused(network: &Network, args: &[&str]) -> Vec<String> {
    let done = job(network, args).finish();
    assert_eq!((done.code(), done.stdout.len()), (2, 0), "{args:?}: {}", done.stderr);
    expect_quiet(network);
    done.stderr.lines().map(str::to_owned).collect()
}

#[test]
fn a_program_or_folder_that_one_host_lacks_is_one_line_and_nothing_is_started() {
    let network = network_or_return!();
    for host in [0, 1, 3] {
        let program = network.own(host, "program");
        std::fs::write(&program, "#!/bin/sh\necho started\n").expect("our folder");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("ours");
        std::fs::create_dir(network.own(host, "folder")).expect("our folder");
    }
    let (program, folder) = (network.path("own/program"), network.path("own/folder"));
    let (program, folder) = (program.to_str().expect("text"), folder.to_str().expect("text"));
    let lines = refused(&network, &["--hosts", LIST, "--", program]);
    let told =
        format!("tbccl: error: host h2: no program `{program}`; there is no such file; check the spelling");
    assert_eq!(lines, [told]);
    let lines = refused(&network, &["--hosts", LIST, "--cwd", folder, "--", "true"]);
    let told = format!(
        "tbccl: error: host h2: the folder {folder} does not exist; create it, or name another with --cwd"
    );
    assert_eq!(lines, [told]);
    assert_eq!(
        job(&network, &["--hosts", "h0,h1,h3", "--", program]).finish().sorted_lines(),
        ["started"; 3]
    );
}

#[test]
fn hosts_that_refuse_are_a_line_each_with_what_ssh_said() {
    let network = network_or_return!();
    let strange = format!("ssh -F {}", network.path("strange_config").display());
    let lines = refused(&network, &["--ssh", &strange, "--hosts", "h0,h1,h2", "--", "true"]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (line, host) in lines.iter().zip(["h1", "h2"]) {
        assert!(line.starts_with(&format!("tbccl: error: host {host}: ssh failed: ")), "{line}");
        assert!(line.contains("Permission denied (publickey)"), "{line}");
        assert!(line.contains(&format!("`ssh {host} true` must work without a password")), "{line}");
    }
    for (host, said) in
        [("h9", "connect to host 10.77.0.99"), ("nowhere.invalid", "Could not resolve hostname")]
    {
        let lines = refused(&network, &["--hosts", &format!("h0,{host}"), "--", "true"]);
        let told = format!("host {host}: ssh failed: ssh: {said}");
        assert!(lines.len() == 1 && lines[0].contains(&told), "{lines:?}");
    }
    let lines = refused(&network, &["--ssh", "no-such-ssh", "--hosts", "h0,h1", "--", "true"]);
    assert!(
        lines.len() == 1 && lines[0].contains("can't run `no-such-ssh`") && lines[0].contains("--ssh"),
        "{lines:?}"
    );
}

#[test]
fn another_version_and_no_tbccl_at_all_are_told_apart() {
    let network = network_or_return!();
    let hello = r#"{"Hello":{"version":"99.1.2","protocol":1,"launcher":null}}"#;
    let mut bytes = b"Welcome!\n\n#!tbccl-agent\n".to_vec();
    bytes.extend((hello.len() as u32).to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(hello.as_bytes());
    std::fs::write(network.path("hello"), bytes).expect("our folder");
    let liar = network
        .write("liar", &format!("#!/bin/sh\ncat {}\ncat >/dev/null\n", network.path("hello").display()));
    std::fs::set_permissions(&liar, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let ours = env!("CARGO_PKG_VERSION");
    let lines = refused(&network, &["--tbccl", &liar, "--hosts", "h0,h1", "--", "true"]);
    let told = format!("host h1: its tbccl is 99.1.2 (protocol 1), and this one is {ours} (protocol 2)");
    assert!(lines.len() == 1 && lines[0].contains(&told), "{lines:?}");
    let lines = refused(&network, &["--tbccl", "/no/such/tbccl", "--hosts", "h0,h1", "--", "true"]);
    assert_eq!(lines, ["tbccl: error: host h1: there is no /no/such/tbccl; check --tbccl"]);
    let lines = refused(&network, &["--tbccl", "/bin/true", "--hosts", "h0,h1", "--", "true"]);
    assert!(lines.len() == 1 && lines[0].contains("host h1: ssh ended with status 0"), "{lines:?}");
}

#[test]
fn output_goes_to_files_and_a_full_disk_ends_the_job() {
    let network = network_or_return!();
    let folder = network.path("output");
    let output = folder.to_str().expect("text");
    let args =
        ["--hosts", LIST, "--output", output, "--", "/bin/sh", "-c", "echo out $RANK; echo err $RANK >&2"];
    assert_eq!(job(&network, &args).finish().code(), 0);
    for rank in 0..4 {
        let read =
            |name: &str| std::fs::read_to_string(folder.join(format!("rank.{rank}.{name}"))).expect("a file");
        assert_eq!((read("out"), read("err")), (format!("out {rank}\n"), format!("err {rank}\n")));
    }
    std::fs::remove_file(folder.join("rank.2.out")).expect("a file");
    std::os::unix::fs::symlink("/dev/full", folder.join("rank.2.out")).expect("a link");
    let script = "while :; do echo more; sleep 0.05; done";
    let done = job(&network, &["--hosts", LIST, "--output", output, "--", "/bin/sh", "-c", script]).finish();
    assert_eq!(done.code(), 2, "{}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    assert!(
        done.stderr.contains("rank 2 to") && done.stderr.contains("No space left on device"),
        "{}",
        done.stderr
    );
    assert!(done.stderr.contains("--output"), "{}", done.stderr);
    expect_quiet(&network);
}

#[test]
fn under_the_name_mpirun_it_takes_what_mlx_launch_passes() {
    let network = network_or_return!();
    let mpirun = network.path("mpirun");
    std::os::unix::fs::symlink(TBCCL, &mpirun).expect("a link");
    let hostfile = network.write("mpi-hosts", "h0 slots=1\nh1 slots=1\nh2 slots=2\n");
    let own = network.path("own/cwd");
    let mut command = network.enter(0, mpirun.to_str().expect("text"));
    let args =
        ["--output", ":raw", "--hostfile", &hostfile, "-cwd", own.to_str().expect("text"), "-x", "A=b"];
    command.args(args).args(["--", "/bin/sh", "-c", "echo $MLX_RANK $A $PWD"]).stdin(Stdio::null());
    // Open MPI's options do not include ssh's; ssh reads its configuration file.
    let bin = network.path("bin");
    std::fs::create_dir(&bin).expect("our folder");
    let ssh = bin.join("ssh");
    let config = network.path("ssh_config");
    std::fs::write(&ssh, format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", config.display()))
        .expect("written");
    std::fs::set_permissions(&ssh, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    command.env("PATH", format!("{}:/usr/bin:/bin:/usr/sbin:/sbin", bin.display()));
    let done = Process::start(command).finish();
    let expected: Vec<String> = (0..4).map(|rank| format!("{rank} b {}", own.display())).collect();
    assert_eq!((done.code(), done.sorted_lines()), (0, expected), "{}", done.stderr);
    expect_quiet(&network);
}

/// The network leaves nothing behind even if a test is killed, because its guardian sees the end of its
/// stdin.
#[test]
fn the_hosts_of_a_test_are_gone_with_it() {
    let network = network_or_return!();
    let own = network.path("own");
    drop(network);
    assert!(!own.exists());
    let namespaces = Command::new("ip").args(["netns", "list"]).output().expect("ip").stdout;
    let namespaces = String::from_utf8_lossy(&namespaces).into_owned();
    let folder = own.parent().expect("a folder").to_owned();
    assert!(!folder.exists(), "{namespaces}");
}
