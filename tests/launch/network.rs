//! Simulated hosts on one machine: network namespaces on a private switch, and cables between them.
//!
//! Each has an ssh server with temporary keys, a host name, and a private folder at the same path on all
//! hosts. The network is connected to nothing else.
//!
//! A guardian process removes everything when the test ends in any way: its stdin is a pipe from the test.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// Number of hosts, unless a test asks for others.
pub(crate) const HOSTS: usize = 4;

/// Addresses of cables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CableAddresses {
    /// A network of two IPv4 addresses for each cable.
    Networks,
    /// A link-local IPv6 address at each end, as a port has that nobody has set up.
    LinkLocal,
    /// A network with room for many hosts for each cable, at ports whose names tell nothing.
    Unmarked,
}

impl CableAddresses {
    /// Returns the beginning of the names of ports.
    fn port_names(self) -> &'static str {
        if self == CableAddresses::Unmarked { "en" } else { "thunderbolt" }
    }
}

/// Returns the missing requirement, if there is one.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        return Some("network namespaces are Linux's");
    }
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make network namespaces");
    }
    let is_there = |program: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
            .iter()
            .any(|folder| PathBuf::from(folder).join(program).exists())
    };
    let missing =
        ["ip", "sshd", "ssh", "ssh-keygen", "unshare", "mount"].into_iter().find(|name| !is_there(name));
    missing.map(|_| "ip, sshd, ssh, unshare or mount is missing; run tools/install-missing test")
}

/// Returns a network, of the hosts and cables that are given. Returns from a test that can't run here, after
/// printing why.
macro_rules! network_or_return {
    () => {
        network_or_return!(@ $crate::network::Network::new())
    };
    ($hosts:expr, $cables:expr, $addresses:expr) => {
        network_or_return!(@ $crate::network::Network::with_cables($hosts, $cables, $addresses))
    };
    (@ $network:expr) => {
        match $crate::network::obstacle() {
            None => $network,
            Some(why) => {
                support::missing(&why);
                return;
            }
        }
    };
}
pub(crate) use network_or_return;

/// The hosts. Dropping it removes them.
pub(crate) struct Network {
    folder: tempfile::TempDir,
    prefix: String,
    guardian: Child,
    hosts: usize,
    /// Beginning of the names of the cables' ports.
    port_names: &'static str,
}

/// Script that removes everything of the prefix: processes and namespaces.
const GUARDIAN: &str = r#"
echo ready
cat >/dev/null
for ns in $(ip netns list | cut -d' ' -f1 | grep "^$0-"); do
    for try in 1 2 3; do
        pids=$(ip netns pids "$ns")
        [ -z "$pids" ] && break
        kill -KILL $pids 2>/dev/null
        sleep 0.05
    done
    ip netns del "$ns"
done
rm -rf "$1"
"#;

/// Script that enters a host's name and private folder, and executes another program.
const ENTER: &str = r#"
set -e
echo "$1" >/proc/sys/kernel/hostname
mount --bind "$2/own-$1" "$2/own"
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd
shift 2
exec "$@"
"#;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().expect("a program");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Network {
    pub(crate) fn new() -> Network {
        Network::with_hosts(HOSTS)
    }

    /// Returns a network of hosts that also have cables between them, each with its addresses. The
    /// ports of a host are `thunderbolt0` (or `en0`) and so on, in the order of its cables.
    pub(crate) fn with_cables(hosts: usize, cables: &[(usize, usize)], addresses: CableAddresses) -> Network {
        let mut network = Network::with_hosts(hosts);
        network.port_names = addresses.port_names();
        let mut ports = vec![0; hosts];
        for (number, (a, b)) in cables.iter().enumerate() {
            let mut port = |host: usize| {
                ports[host] += 1;
                format!("{}{}", addresses.port_names(), ports[host] - 1)
            };
            let ends = [(*a, port(*a)), (*b, port(*b))];
            network.add_cable(number, &ends, addresses);
        }
        network
    }

    fn add_cable(&self, number: usize, ends: &[(usize, String); 2], addresses: CableAddresses) {
        let ns = ends.each_ref().map(|(host, _)| self.namespace(&format!("h{host}")));
        let [(_, a), (_, b)] = ends;
        run("ip", &["-n", &ns[0], "link", "add", a, "type", "veth", "peer", "name", b, "netns", &ns[1]]);
        for (at, (_, port)) in (1..).zip(ends) {
            let ns = &ns[at - 1];
            // An address that the system has chosen counts for a second or two as not yet valid.
            run("ip", &["-n", ns, "link", "set", port, "addrgenmode", "none"]);
            run("ip", &["-n", ns, "link", "set", port, "up"]);
            let address = match addresses {
                CableAddresses::Networks => format!("{}/30", cable_address(number, at - 1)),
                CableAddresses::Unmarked => format!("{}/24", cable_address(number, at - 1)),
                CableAddresses::LinkLocal => format!("fe80::{:x}:{at}/64", number + 1),
            };
            let add = ["-n", ns, "addr", "add", &address, "dev", port];
            let no_check: &[&str] = if addresses == CableAddresses::LinkLocal { &["nodad"] } else { &[] };
            run("ip", &[&add, no_check].concat());
        }
        // Linux may tell of a plugged cable up to a second later.
        let is_up = |(ns, (_, port)): (&String, &(usize, String))| {
            let output =
                Command::new("ip").args(["-n", ns, "-o", "link", "show", port]).output().expect("ip");
            String::from_utf8_lossy(&output.stdout).contains("state UP")
        };
        support::eventually("the cable is up", || ns.iter().zip(ends).all(is_up));
    }

    /// Returns the bytes that the switch has received from all hosts.
    pub(crate) fn switched_bytes(&self) -> u64 {
        self.received_bytes("sw", "p")
    }

    /// Returns the bytes that all ports of a host's cables have received.
    pub(crate) fn cable_bytes(&self, host: usize) -> Vec<u64> {
        (0..self.ports(host))
            .map(|port| self.received_bytes(&format!("h{host}"), &format!("{}{port}", self.port_names)))
            .collect()
    }

    fn ports(&self, host: usize) -> usize {
        let ns = self.namespace(&format!("h{host}"));
        let output = Command::new("ip").args(["-n", &ns, "-o", "link", "show"]).output().expect("ip");
        String::from_utf8_lossy(&output.stdout).matches(&format!(": {}", self.port_names)).count()
    }

    /// Returns the bytes that the interfaces whose names begin so have received.
    fn received_bytes(&self, ns: &str, beginning: &str) -> u64 {
        let script = format!("cat /sys/class/net/{beginning}*/statistics/rx_bytes");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(ns), "/bin/sh", "-c", &script]);
        let output = command.stdin(Stdio::null()).output().expect("ip");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(|line| line.parse::<u64>().expect("a number")).sum()
    }

    fn with_hosts(hosts: usize) -> Network {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("tbccl-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut guardian = Command::new("/bin/sh")
            .args(["-c", GUARDIAN, &prefix])
            .arg(folder.path())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Errors occur when namespaces of other tests change during the listing.
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        BufReader::new(guardian.stdout.take().expect("a pipe")).read_line(&mut line).expect("it is ready");
        let network = Network { folder, prefix, guardian, hosts, port_names: "thunderbolt" };
        network.make_links();
        network.make_keys();
        for host in 0..hosts {
            network.start_server(host);
        }
        network
    }

    /// Returns the path of a file that all hosts share.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of a file of one host, which the host sees as `own`.
    pub(crate) fn own(&self, host: usize, name: &str) -> PathBuf {
        self.path(&format!("own-h{host}")).join(name)
    }

    /// Writes a shared file; returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).expect("our folder");
        path.to_str().expect("text").to_owned()
    }

    pub(crate) fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn make_links(&self) {
        let switch = self.namespace("sw");
        run("ip", &["netns", "add", &switch]);
        run("ip", &["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        run("ip", &["-n", &switch, "link", "set", "br0", "up"]);
        for host in 0..self.hosts {
            let (ns, port) = (self.namespace(&format!("h{host}")), format!("p{host}"));
            run("ip", &["netns", "add", &ns]);
            let veth =
                ["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &ns];
            run("ip", &veth);
            run("ip", &["-n", &switch, "link", "set", &port, "master", "br0", "up"]);
            run("ip", &["-n", &ns, "addr", "add", &format!("{}/24", address(host)), "dev", "eth0"]);
            run("ip", &["-n", &ns, "link", "set", "lo", "up"]);
            run("ip", &["-n", &ns, "link", "set", "eth0", "up"]);
        }
    }

    fn make_keys(&self) {
        for key in ["host_key", "user_key", "strange_key"] {
            let path = self.path(key);
            run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", path.to_str().expect("text")]);
        }
        let public = std::fs::read_to_string(self.path("host_key.pub")).expect("a key");
        self.write("known_hosts", &format!("* {public}"));
        let folder = self.folder.path().display();
        let mut config = String::new();
        for host in 0..self.hosts {
            config += &format!("Host h{host}\n    HostName {}\n", address(host));
        }
        // No host has this address.
        config += "Host h9\n    HostName 10.77.0.99\n    ConnectTimeout 1\n";
        let rest = |key: &str| {
            format!(
                "Host *\n    User root\n    IdentityFile {folder}/{key}\n    IdentitiesOnly yes\n    \
                IdentityAgent none\n    UserKnownHostsFile {folder}/known_hosts\n    GlobalKnownHostsFile \
                /dev/null\n    StrictHostKeyChecking yes\n"
            )
        };
        self.write("ssh_config", &format!("{config}{}", rest("user_key")));
        self.write("strange_config", &format!("{config}{}", rest("strange_key")));
        std::fs::create_dir(self.path("own")).expect("our folder");
    }

    fn start_server(&self, host: usize) {
        let folder = self.folder.path().display();
        for name in ["tmp", "cwd"] {
            std::fs::create_dir_all(self.own(host, name)).expect("our folder");
        }
        let config = format!(
            "ListenAddress {}\nListenAddress ::\nHostKey {folder}/host_key\n\
             AuthorizedKeysFile {folder}/user_key.pub\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nPrintMotd no\n\
             PrintLastLog no\nMaxStartups 100\nSetEnv TMPDIR={folder}/own/tmp\n",
            address(host)
        );
        let config = self.write(&format!("sshd_config-{host}"), &config);
        let log = std::fs::File::create(self.path(&format!("sshd-{host}.log"))).expect("our folder");
        let mut server = self.enter(host, "/usr/sbin/sshd");
        server.args(["-D", "-e", "-f", &config]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut server = server.spawn().expect("ip");
        self.write(&format!("sshd-{host}.pid"), &server.id().to_string());
        support::eventually("sshd listens", || {
            assert!(server.try_wait().expect("our child").is_none(), "sshd ended: {}", self.log(host));
            self.log(host).contains("Server listening")
        });
    }

    pub(crate) fn log(&self, host: usize) -> String {
        std::fs::read_to_string(self.path(&format!("sshd-{host}.log"))).unwrap_or_default()
    }

    /// Returns a command that runs a program on a host.
    pub(crate) fn enter(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        let ns = self.namespace(&format!("h{host}"));
        command.args(["netns", "exec", &ns, "unshare", "-m", "-u", "/bin/sh", "-c", ENTER, "enter"]);
        command.arg(format!("h{host}")).arg(self.folder.path()).arg(program);
        command
    }

    /// Returns the `ssh` command line with the temporary keys.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh -F {}", self.path("ssh_config").display())
    }

    /// Returns a command for `tbccl run` on host 0 with these options, which may begin with another ssh
    /// command.
    pub(crate) fn launcher(&self, args: &[&str]) -> Command {
        let mut command = self.enter(0, super::TBCCL);
        command.arg("run").stdin(Stdio::null());
        if args.first() != Some(&"--ssh") {
            command.args(["--ssh", &self.ssh()]);
        }
        command.args(args);
        command
    }

    /// Returns a command for another subcommand of tbccl on host 0, which reaches hosts by `ssh`.
    pub(crate) fn command(&self, subcommand: &str, ssh: &str) -> Command {
        let mut command = self.enter(0, super::TBCCL);
        command.args([subcommand, "--ssh", ssh]).stdin(Stdio::null());
        command
    }

    fn server_of(&self, host: usize) -> String {
        std::fs::read_to_string(self.path(&format!("sshd-{host}.pid"))).expect("our file")
    }

    /// Returns the processes of a host without its ssh server.
    pub(crate) fn processes(&self, host: usize) -> Vec<String> {
        let ns = self.namespace(&format!("h{host}"));
        let output = Command::new("ip").args(["netns", "pids", &ns]).output().expect("ip");
        let server = self.server_of(host);
        let pids = String::from_utf8_lossy(&output.stdout).into_owned();
        // Zombies do not count as running.
        let runs = |pid: &&str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
        };
        pids.split_whitespace().filter(|pid| *pid != server).filter(runs).map(str::to_owned).collect()
    }

    /// Whether no process of a job runs on any host.
    pub(crate) fn is_quiet(&self) -> bool {
        (0..self.hosts).all(|host| self.processes(host).is_empty())
    }

    /// Counts the files that jobs have left in temporary folders.
    pub(crate) fn temporary_files(&self) -> usize {
        let count = |host| std::fs::read_dir(self.own(host, "tmp")).expect("a folder").count();
        (0..self.hosts).map(count).sum()
    }

    /// Kills the ssh server of a host and its connections.
    pub(crate) fn kill_server(&self, host: usize) {
        let is_server = |pid: &String| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("sshd"))
        };
        let mut pids: Vec<String> = self.processes(host).into_iter().filter(is_server).collect();
        assert!(!pids.is_empty(), "no connection to host {host}");
        pids.push(self.server_of(host));
        let mut kill = Command::new("/bin/kill");
        assert!(kill.arg("-KILL").args(pids).status().expect("kill").success());
    }

    /// Sends a signal to the agent of a host.
    pub(crate) fn signal_agent(&self, host: usize, signal: &str) {
        self.signal_named(host, "tbccl", signal);
    }

    /// Kills the agent of a host.
    pub(crate) fn kill_agent(&self, host: usize) {
        self.signal_agent(host, "KILL");
    }

    /// Kills the keeper of a host's agent.
    pub(crate) fn kill_keeper(&self, host: usize) {
        self.signal_named(host, "tbccl-keeper", "KILL");
    }

    /// Sends a signal to the one process of a host with this name that runs `tbccl agent`.
    fn signal_named(&self, host: usize, name: &str, signal: &str) {
        let is_agent = |pid: &String| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            line.starts_with(super::TBCCL.as_bytes()) && line.ends_with(b"\0agent\0") && comm.trim() == name
        };
        let pids: Vec<String> = self.processes(host).into_iter().filter(is_agent).collect();
        assert_eq!(pids.len(), 1, "one {name}");
        let mut kill = Command::new("/bin/kill");
        assert!(kill.args(["-s", signal]).args(pids).status().expect("kill").success());
    }

    /// Cuts the cable of a host.
    pub(crate) fn cut(&self, host: usize) {
        run("ip", &["-n", &self.namespace("sw"), "link", "set", &format!("p{host}"), "down"]);
    }
}

pub(crate) fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// Returns the address of an end of a cable, 0 or 1, in a network of its own.
pub(crate) fn cable_address(cable: usize, end: usize) -> String {
    format!("10.88.{cable}.{}", end + 1)
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        let _ = self.guardian.wait();
        let _ = std::io::stderr().flush();
    }
}
