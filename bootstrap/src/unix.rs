//! Unix sockets of a rendezvous, which are known by a number.
//!
//! On Linux the socket is in the abstract namespace, which no file system holds. Elsewhere it is a file in a
//! folder of its own that is removed with its owner.
//!
//! A rendezvous also has a socket for questions about its job, which processes of the same user find by its
//! prefix: on Linux in the kernel's list of sockets, elsewhere in the temporary folder.
//!
//! On Linux the lower half of the number identifies the boot and the network namespace of the socket, so that
//! a process elsewhere does not try the name, which another program might have taken there.

use rustix::net::listen;
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
};
use transport::forks::Origin;
#[cfg(target_os = "linux")]
use xxhash_rust::xxh3::xxh3_64;

/// Length of the kernel's queue of connections to accept. The system's limit may be lower.
pub(crate) const BACKLOG: i32 = 4096;

/// A folder with access for its owner only, removed when dropped, but not by a forked child.
#[derive(Debug)]
pub(crate) struct Folder(std::path::PathBuf, Origin);

impl Drop for Folder {
    fn drop(&mut self) {
        if self.1.is_here() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Returns a random name of a socket of this host.
pub(crate) fn random_name() -> io::Result<u128> {
    let mut bytes = [0u8; 8];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(name_here(u64::from_le_bytes(bytes)))
}

/// Returns the name with this upper half of a socket of this host.
pub(crate) fn name_here(upper: u64) -> u128 {
    u128::from(upper) << 64 | u128::from(host_tag())
}

/// Whether a name is known to belong to another host, boot or network namespace.
pub(crate) fn is_elsewhere(name: u128) -> bool {
    let (tag, ours) = (name as u64, host_tag());
    tag != 0 && ours != 0 && tag != ours
}

/// Returns the number of this boot and network namespace; 0 if it is not known.
#[cfg(target_os = "linux")]
fn host_tag() -> u64 {
    let (boot, network) = (transport::host::boot_id(), transport::host::network_namespace());
    if boot.is_empty() || network.is_empty() { 0 } else { xxh3_64(format!("{boot} {network}").as_bytes()) }
}

/// Returns 0: names of files need no number.
#[cfg(not(target_os = "linux"))]
fn host_tag() -> u64 {
    0
}

/// Returns the socket's number from the name that [`local_address`] gives it.
pub(crate) fn parse_name(name: &str) -> Option<u128> {
    let digits = name.strip_prefix("tbccl-").filter(|digits| digits.len() == 32)?;
    u128::from_str_radix(digits, 16).ok()
}

/// Returns the folder of the socket file.
#[cfg(not(target_os = "linux"))]
fn folder_of(name: u128) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tbccl-{name:032x}"))
}

/// Returns the text address of the socket.
pub(crate) fn local_address(name: u128) -> String {
    #[cfg(target_os = "linux")]
    {
        format!("unix-abstract:tbccl-{name:032x}")
    }
    #[cfg(not(target_os = "linux"))]
    {
        format!("unix:{}", folder_of(name).join("s").display())
    }
}

/// Opens the socket and starts to listen.
#[cfg(target_os = "linux")]
pub(crate) fn listen_unix(name: u128) -> io::Result<(UnixListener, Option<Folder>)> {
    let listener = UnixListener::bind_addr(&abstract_name(name)?)?;
    start_listening(&listener)?;
    Ok((listener, None))
}

/// Opens the socket in a new folder and starts to listen.
#[cfg(not(target_os = "linux"))]
pub(crate) fn listen_unix(name: u128) -> io::Result<(UnixListener, Option<Folder>)> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = folder_of(name);
    let make = || std::fs::DirBuilder::new().mode(0o700).create(&folder);
    match make() {
        // A killed process leaves its folder behind.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            if connect_to_name(name).is_ok() {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_dir_all(&folder)?;
            make()?;
        }
        other => other?,
    }
    let folder = Folder(folder, Origin::here());
    let listener = UnixListener::bind(folder.0.join("s"))?;
    start_listening(&listener)?;
    Ok((listener, Some(folder)))
}

#[cfg(target_os = "linux")]
fn abstract_name(name: u128) -> io::Result<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(format!("tbccl-{name:032x}"))
}

/// Connects to the socket.
pub(crate) fn connect_to_name(name: u128) -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    {
        UnixStream::connect_addr(&abstract_name(name)?)
    }
    #[cfg(not(target_os = "linux"))]
    {
        UnixStream::connect(folder_of(name).join("s"))
    }
}

/// Begin of the names of sockets for questions.
const INQUIRIES: &str = "tbccl-why-";

/// Opens a socket for questions of processes of this user.
#[cfg(target_os = "linux")]
pub(crate) fn listen_for_inquiries() -> io::Result<(UnixListener, Option<Folder>)> {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    let name = format!("{INQUIRIES}{:032x}", random_name()?);
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    start_listening(&listener)?;
    Ok((listener, None))
}

/// Opens a socket for questions of processes of this user, in a new folder.
#[cfg(not(target_os = "linux"))]
pub(crate) fn listen_for_inquiries() -> io::Result<(UnixListener, Option<Folder>)> {
    use std::os::unix::fs::DirBuilderExt;
    let path = std::env::temp_dir().join(format!("{INQUIRIES}{:032x}", random_name()?));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    let folder = Folder(path, Origin::here());
    let listener = UnixListener::bind(folder.0.join("s"))?;
    start_listening(&listener)?;
    Ok((listener, Some(folder)))
}

/// Connects to every socket for questions of this host that has a listener. Their users are not checked.
#[cfg(target_os = "linux")]
pub(crate) fn connect_to_inquiries() -> io::Result<Vec<UnixStream>> {
    use std::os::{linux::net::SocketAddrExt, unix::net::SocketAddr};
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let names = sockets.lines().filter_map(|line| {
        let name = line.rsplit_once(' ')?.1.strip_prefix('@')?;
        name.starts_with(INQUIRIES).then_some(name)
    });
    // A connected socket has the name of its listener.
    let names: std::collections::BTreeSet<&str> = names.collect();
    let connect = |name: &&str| UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok();
    Ok(names.iter().filter_map(connect).collect())
}

/// Connects to every socket for questions of this host that has a listener, and removes the folders that
/// killed processes of this user have left. Their users are not checked.
#[cfg(not(target_os = "linux"))]
pub(crate) fn connect_to_inquiries() -> io::Result<Vec<UnixStream>> {
    use std::os::unix::fs::MetadataExt;
    let is_ours = |path: &std::path::Path| {
        let owner = std::fs::symlink_metadata(path).map(|found| found.uid());
        owner.is_ok_and(|owner| owner == rustix::process::geteuid().as_raw())
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(std::env::temp_dir())?.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(INQUIRIES) || !is_ours(&path) {
            continue;
        }
        match UnixStream::connect(path.join("s")) {
            Ok(stream) => found.push(stream),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = std::fs::remove_dir_all(&path);
            }
            Err(_) => {}
        }
    }
    Ok(found)
}

fn start_listening(listener: &UnixListener) -> io::Result<()> {
    listen(listener, BACKLOG)?;
    listener.set_nonblocking(true)
}
