//! Texts of this machine: files on Linux, output of commands on macOS.
//!
//! Nothing is changed, and no command needs a password. Each command has a time limit; one that fails or is
//! missing leaves no text, which the reader of the recording notices.

use super::probe;
use crate::{
    launch::output_within,
    processors::{
        self,
        files::{expand, links, read},
    },
};
use inventory::Recording;
use std::{
    collections::BTreeMap,
    net::ToSocketAddrs,
    path::Path,
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Time that one command or look-up may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Files of Linux; a `*` stands for any part of a name.
const FILES: [&str; 30] = [
    "proc/sys/kernel/hostname",
    "proc/sys/kernel/osrelease",
    "proc/meminfo",
    "proc/self/limits",
    "proc/self/status",
    "proc/net/route",
    "sys/class/dmi/id/product_name",
    "sys/bus/thunderbolt/devices/*/authorized",
    "sys/bus/thunderbolt/devices/*/device_name",
    "sys/bus/thunderbolt/devices/*/generation",
    "sys/bus/thunderbolt/devices/*/key",
    "sys/bus/thunderbolt/devices/*/rx_lanes",
    "sys/bus/thunderbolt/devices/*/rx_speed",
    "sys/bus/thunderbolt/devices/*/unique_id",
    "sys/bus/thunderbolt/devices/*/vendor_name",
    "sys/bus/thunderbolt/devices/*/usb4_port*/link",
    "sys/class/net/*/bridge/bridge_id",
    "sys/class/net/*/mtu",
    "sys/class/net/*/operstate",
    "sys/class/net/*/type",
    "sys/class/infiniband/*/ports/1/gids/*",
    "sys/class/infiniband/*/ports/1/link_layer",
    "sys/class/infiniband/*/ports/1/phys_state",
    "sys/class/infiniband/*/ports/1/rate",
    "sys/class/infiniband/*/ports/1/state",
    "sys/module/ib_*/refcnt",
    "sys/module/mlx5_ib/refcnt",
    "sys/module/rdma_rxe/refcnt",
    "etc/ufw/ufw.conf",
    "run/firewalld.pid",
];

/// Symbolic links of Linux.
const LINKS: [&str; 3] =
    ["sys/class/net/*/device", "sys/class/net/*/brport/bridge", "sys/class/net/*/phy80211"];

/// Folders of Linux whose presence alone matters.
const MODULES: [&str; 3] = ["sys/module/thunderbolt", "sys/module/thunderbolt_net", "sys/module/usb4_rdma"];

/// Commands of macOS.
const COMMANDS: [&str; 14] = [
    "/usr/libexec/ApplicationFirewall/socketfilterfw --getglobalstate",
    "hostname",
    "ifconfig",
    "netstat -rn -f inet",
    "networksetup -listallhardwareports",
    "pmset -g",
    "rdma_ctl status",
    "sw_vers",
    "sysctl hw",
    "sysctl -n hw.memsize",
    "sysctl -n hw.model",
    "sysctl -n machdep.cpu.brand_string",
    "system_profiler SPThunderboltDataType -json",
    "vm_stat",
];

/// Records this machine.
pub(super) fn record() -> Recording {
    let mut recording = record_system(&COMMANDS);
    if recording.system == "linux" {
        processors::record_sysfs(Path::new("/"), &mut recording);
    }
    processors::record_hwloc(&mut recording);
    let verbs = serde_json::to_string_pretty(&probe::verbs()).unwrap_or_default();
    recording.outputs.insert("verbs".to_owned(), verbs);
    recording.outputs.insert("tbccl --version".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let resolves = if resolves_itself() { "yes" } else { "no" };
    recording.outputs.insert("resolve".to_owned(), resolves.to_owned());
    // Comes last, so that the time is that of the answer.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    recording.outputs.insert("time".to_owned(), now.as_millis().to_string());
    recording
}

/// Records the interfaces of this machine and no more, which takes no device and no look-up of a name.
pub(super) fn record_interfaces() -> Recording {
    record_system(&["hostname", "ifconfig", "networksetup -listallhardwareports"])
}

/// Records what the system tells: on macOS the output of these commands, on Linux files and addresses.
fn record_system(commands: &[&str]) -> Recording {
    let mut recording = Recording::default();
    if cfg!(target_os = "macos") {
        recording.system = "macos".to_owned();
        recording.outputs = outputs(commands);
    } else {
        recording.system = std::env::consts::OS.to_owned();
        files(Path::new("/"), &mut recording);
        recording.outputs.insert("addresses".to_owned(), addresses());
    }
    recording
}

/// Runs commands side by side; returns the output of those that succeed.
fn outputs(commands: &[&str]) -> BTreeMap<String, String> {
    let output = |line: &str| {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next()?);
        command.args(words);
        let output = output_within(command, LIMIT).ok()??;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    thread::scope(|scope| {
        let running: Vec<_> = commands.iter().map(|line| (line, scope.spawn(move || output(line)))).collect();
        let ended = running.into_iter().filter_map(|(line, thread)| Some((line, thread.join().ok()??)));
        ended.map(|(line, text)| ((*line).to_owned(), text)).collect()
    })
}

/// Reads the files and links of Linux below a folder.
fn files(root: &Path, recording: &mut Recording) {
    for path in FILES.iter().flat_map(|pattern| expand(root, pattern)) {
        // The table of an adapter has hundreds of GIDs that are not in use.
        if let Some(text) = read(root, &path).filter(|text| !path.contains("/gids/") || is_used(text)) {
            if let Some((port, index)) = path.split_once("/gids/") {
                for attribute in ["types", "ndevs"] {
                    let path = format!("{port}/gid_attrs/{attribute}/{index}");
                    recording.files.extend(read(root, &path).map(|text| (path, text)));
                }
            }
            recording.files.insert(path, text);
        }
    }
    if let Some(info) = read(root, "proc/cpuinfo") {
        let model = info.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
        recording.files.insert("proc/cpuinfo".to_owned(), model.to_owned());
    }
    recording.links.extend(links(root, &LINKS));
    for path in MODULES.iter().filter(|path| root.join(path).is_dir()) {
        recording
            .files
            .insert(format!("{path}/refcnt"), read(root, &format!("{path}/refcnt")).unwrap_or_default());
    }
}

/// Whether a GID is more than the prefix of link-local addresses.
fn is_used(gid: &str) -> bool {
    gid.trim().rsplit(':').take(4).any(|part| part != "0000")
}

/// Returns the addresses of all interfaces, one per line.
fn addresses() -> String {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let line = |interface: if_addrs::Interface| {
        let (ip, prefix) = match &interface.addr {
            if_addrs::IfAddr::V4(address) => (address.ip.to_string(), address.prefixlen),
            if_addrs::IfAddr::V6(address) => (address.ip.to_string(), address.prefixlen),
        };
        format!("{} {ip}/{prefix}\n", interface.name)
    };
    interfaces.into_iter().map(line).collect()
}

/// Whether this machine's own name has an address. The look-up has a time limit.
fn resolves_itself() -> bool {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (sender, receiver) = mpsc::channel();
    let look_up = move || {
        let _ =
            sender.send((name.as_str(), 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()));
    };
    let began = thread::Builder::new().name("resolve".into()).spawn(look_up);
    began.is_ok() && receiver.recv_timeout(LIMIT).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// Recordings of Linux machines whose files make a tree.
    const RECORDED_TREES: [&str; 8] = [
        "linux-strix-halo-usb4",
        "linux-thunderbolt-card",
        "linux-infiniband",
        "linux-roce",
        "linux-xeon-two-sockets",
        "linux-epyc-four-caches",
        "linux-hybrid-thunderbolt",
        "linux-vm",
    ];

    /// Writes a recording as a tree of files.
    fn unpack(recording: &Recording, root: &Path) {
        let create = |path: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            path
        };
        for (path, text) in &recording.files {
            fs::write(create(path), text).expect("written");
        }
        for (path, target) in &recording.links {
            symlink(target, create(path)).expect("linked");
        }
    }

    #[test]
    fn recorded_trees_are_read_as_they_were_recorded() {
        for name in RECORDED_TREES {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/machines/{name}.txt"));
            let text = fs::read_to_string(file).expect("a recording of the repository");
            let recorded = Recording::from_text(&text).expect("valid");
            let folder = tempfile::tempdir().expect("a temporary folder");
            unpack(&recorded, folder.path());
            let mut read = Recording { outputs: recorded.outputs.clone(), ..Recording::new("linux") };
            files(folder.path(), &mut read);
            processors::record_sysfs(folder.path(), &mut read);
            let (read, expected) = (inventory::Inventory::read(&read), inventory::Inventory::read(&recorded));
            assert_eq!(read, expected, "{name}");
        }
    }

    #[test]
    fn commands_that_are_missing_or_fail_leave_no_text() {
        let found = outputs(&["echo one two", "/no/such/program", "false"]);
        assert_eq!(found, BTreeMap::from([("echo one two".to_owned(), "one two\n".to_owned())]));
    }
}
