//! Unix sockets of a rendezvous, which are known by a number.
//!
//! On Linux the socket is in the abstract namespace, which no file system holds. Elsewhere it is a file in a
//! folder of its own that is removed with its owner.

use rustix::net::listen;
#[cfg(target_os = "linux")]
use rustix::net::sockopt;
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
};

/// Length of the kernel's queue of connections to accept. The system's limit may be lower.
pub(crate) const BACKLOG: i32 = 4096;

/// Whether the peer is a process of the same user.
pub(crate) fn is_same_user(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
    }
    #[cfg(not(target_os = "linux"))]
    {
        // The socket's folder admits its owner only.
        let _ = stream;
        true
    }
}

/// A folder with access for its owner only, removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a random socket name.
pub(crate) fn random_name() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
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
    let folder = Folder(folder);
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

/// Whether a process of the same user opened this socket. `stream` is a connection to it.
pub(crate) fn is_owned_by_user(stream: &UnixStream, name: u128) -> bool {
    #[cfg(target_os = "linux")]
    {
        let _ = name;
        is_same_user(stream)
    }
    #[cfg(not(target_os = "linux"))]
    {
        use std::os::unix::fs::MetadataExt;
        let _ = stream;
        let us = rustix::process::geteuid().as_raw();
        std::fs::symlink_metadata(folder_of(name)).is_ok_and(|about| about.is_dir() && about.uid() == us)
    }
}

fn start_listening(listener: &UnixListener) -> io::Result<()> {
    listen(listener, BACKLOG)?;
    listener.set_nonblocking(true)
}
