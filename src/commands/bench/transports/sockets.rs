//! Ping-pong by blocking sockets, one thread at each end, as programs without a library write it.
//!
//! Both ends send without delay (`TCP_NODELAY`). The end that measures tells the length and number of the
//! messages in a header of 16 bytes; 0 messages end the connection.

use super::{
    Cable, Round, SIZES,
    cable::{FAR, NEAR},
};
use crate::{
    commands::{CommandError, print},
    launch::in_own_group,
};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// Time in which a connection is made, and in which a message must arrive.
const LIMIT: Duration = Duration::from_secs(10);
/// Messages of a sample, and of the warm-up.
const BATCH: u64 = 100;

/// Accepts one connection, and sends back what arrives. Prints the port first.
pub(super) fn echo(address: Ipv4Addr) -> io::Result<()> {
    bind_to_core(1);
    let listener = TcpListener::bind((address, 0))?;
    print(&format!("{}\n", listener.local_addr()?.port()));
    // A connection that never comes must not keep this process: the parent's end kills it.
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut message = Vec::new();
    loop {
        let (bytes, count) = (read_number(&mut stream)?, read_number(&mut stream)?);
        if count == 0 {
            return Ok(());
        }
        message.resize(usize::try_from(bytes).map_err(io::Error::other)?, 0);
        for _ in 0..count {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    }
}

fn read_number(stream: &mut TcpStream) -> io::Result<u64> {
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

/// A child that is killed where this process gives up.
struct Echo(Child);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures all sizes.
pub(super) fn measure(program: &Path, cable: &Cable, time: Duration) -> Result<Round, CommandError> {
    let failed = |e: io::Error| CommandError::new(format_args!("sockets over the cable: {e}"));
    let mut command = cable.far_command(program);
    command.args(["bench", "--compare-transports", "--echo", &FAR.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Echo(in_own_group(command).map_err(failed)?);
    let mut port = String::new();
    let stdout = child.0.stdout.take().ok_or_else(|| CommandError::new("the echo has no stdout"))?;
    BufReader::new(stdout).read_line(&mut port).map_err(failed)?;
    let port = port.trim().parse().map_err(|_| CommandError::new("the echo of messages has not started"))?;
    // A thread of its own, so that this process's other work stays unbound.
    let thread = std::thread::scope(|scope| scope.spawn(|| measure_at(port, time)).join());
    let round = thread.map_err(|_| CommandError::new("sockets over the cable: a thread has panicked"))?;
    let mut round = round.map_err(failed)?;
    if !cable.is_delayed {
        for (own, size) in round.iter_mut().zip(SIZES) {
            *own += cable.time_us(1 << size);
        }
    }
    Ok(round)
}

fn measure_at(port: u16, time: Duration) -> io::Result<Round> {
    bind_to_core(0);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::new(IpAddr::V4(FAR), port), LIMIT)?;
    debug_assert_eq!(stream.local_addr()?.ip(), NEAR);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let round = SIZES.map(|size| one_size(&mut stream, 1 << size, time)).collect::<io::Result<Round>>()?;
    stream.write_all(&[0; 16])?;
    Ok(round)
}

/// Returns the median of half round trips, in microseconds.
fn one_size(stream: &mut TcpStream, bytes: u64, time: Duration) -> io::Result<f64> {
    let mut message = vec![7; bytes as usize];
    let mut batch = |count: u64| -> io::Result<Vec<f64>> {
        stream.write_all(&bytes.to_le_bytes())?;
        stream.write_all(&count.to_le_bytes())?;
        let mut samples = Vec::new();
        for _ in 0..count {
            let began = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            samples.push(began.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        Ok(samples)
    };
    batch(BATCH)?;
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        samples.extend(batch(BATCH)?);
    }
    Ok(super::table::median(&mut samples))
}

/// Binds this thread to the n-th core that it may use, as ranks of the library are bound.
#[cfg(target_os = "linux")]
fn bind_to_core(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut own = CpuSet::new();
    own.set(cores[index * cores.len() / 2]);
    // A refused binding does not prevent the measurement.
    let _ = sched_setaffinity(None, &own);
}

/// No-op; this system has no namespaces, either.
#[cfg(not(target_os = "linux"))]
fn bind_to_core(_index: usize) {}
