//! The socket of a rendezvous: its name, and who may connect.

use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
};

/// Is the other end a process of our user?
pub(super) fn same_user(stream: &UnixStream) -> bool {
    #[cfg(target_os = "linux")]
    {
        rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
    }
    #[cfg(not(target_os = "linux"))]
    {
        // The socket's folder can be entered by its owner only.
        let _ = stream;
        true
    }
}

/// A folder that only its owner can enter, removed when dropped.
#[derive(Debug)]
pub(super) struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    getrandom(&mut bytes)?;
    Ok(format!("tbccl-{:032x}", u128::from_le_bytes(bytes)))
}

#[cfg(target_os = "linux")]
fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    let got = rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == 16 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(not(target_os = "linux"))]
fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, bytes)
}

/// Opens a socket; its address, and the folder of its file if it has one.
#[cfg(target_os = "linux")]
pub(super) fn listen() -> io::Result<(UnixListener, String, Option<Folder>)> {
    use std::os::linux::net::SocketAddrExt;
    let name = random_name()?;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name)?;
    Ok((UnixListener::bind_addr(&address)?, format!("unix-abstract:{name}"), None))
}

/// Opens a socket; its address, and the folder of its file if it has one.
#[cfg(not(target_os = "linux"))]
pub(super) fn listen() -> io::Result<(UnixListener, String, Option<Folder>)> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = std::env::temp_dir().join(random_name()?);
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let folder = Folder(folder);
    let path = folder.0.join("s");
    Ok((UnixListener::bind(&path)?, format!("unix:{}", path.display()), Some(folder)))
}

/// Connects to a rendezvous.
pub(in super::super) fn connect(address: &str) -> io::Result<UnixStream> {
    #[cfg(target_os = "linux")]
    if let Some(name) = address.strip_prefix("unix-abstract:") {
        use std::os::linux::net::SocketAddrExt;
        return UnixStream::connect_addr(&std::os::unix::net::SocketAddr::from_abstract_name(name)?);
    }
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(path),
        None => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("`{address}` is not a rendezvous address"),
        )),
    }
}
