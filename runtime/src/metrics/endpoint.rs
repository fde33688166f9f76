//! The endpoint of a host: the one of its processes that has the port answers for all ranks of the host.
//!
//! Each process of a job has a thread that tries to take the port. The one that gets it serves until its
//! process ends; the others try again every [`RETRY_INTERVAL`], so a rank that survives takes over. A process
//! that finds the port taken asks its owner for the job: ranks of one job say nothing, and the first rank of
//! a host warns of any other owner. A job runs the same without its endpoint.
//!
//! A request is answered on a thread of its own, of which there are at most [`MAX_CONNECTIONS`].

use super::{
    MetricsAddress,
    http::{self, Answer},
    prometheus,
    rank::HostMetrics,
    text,
};
use events::{
    target,
    tracing::{debug, info},
    warning,
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::AcqRel},
    },
    thread,
    time::{Duration, Instant},
};
use transport::forks::Origin;

/// Interval at which a process tries to take the port from an owner that has ended.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of requests that are answered at a time.
const MAX_CONNECTIONS: usize = 8;

/// Number of tries in a row after which an owner that gives no answer counts as another program. An endpoint
/// with too many clients may give none for a while.
const PATIENT_TRIES: u32 = 5;

/// Time in which the owner of a taken port names its job.
const OWNER_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which a collection of metrics serves further requests.
const FRESHNESS: Duration = Duration::from_millis(250);

/// Beginnings of the lines with which an endpoint names its jobs and its process.
const JOB: &str = "tbccl job ";
const PROCESS: &str = "process ";

/// The way to the metrics of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Collects the metrics of the ranks on this host.
    pub(crate) collect: fn() -> HostMetrics,
    /// Returns the numbers of the jobs of this process.
    pub(crate) jobs: fn() -> Vec<u64>,
}

/// The process that has a thread for the endpoint; forked children have none.
static STARTED: Mutex<Option<Origin>> = Mutex::new(None);

/// Serves the metrics of this host, or waits to take over from the process that does. The first call in a
/// process counts. `warns` is the rank that warns of a port that can't be had, if it is this one.
pub(crate) fn serve(address: MetricsAddress, warns: Option<u32>, source: Source) {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if started.is_some_and(Origin::is_here) {
        return;
    }
    let run = move || keep_serving(address, warns, source);
    match thread::Builder::new().name("tbccl-metrics".into()).spawn(run) {
        Ok(_) => *started = Some(Origin::here()),
        Err(error) => {
            warning!(target::INIT, warns, "no metrics at {address}: no thread could be started: {error}");
        }
    }
}

/// Takes the port and serves; waits for it while another process has it.
fn keep_serving(address: MetricsAddress, warns: Option<u32>, source: Source) {
    let mut waiting = Waiting::default();
    loop {
        match TcpListener::bind(address.to_listen()) {
            Ok(listener) => {
                info!(target: target::INIT, "metrics of this host at http://{address}/metrics");
                answer_requests(&listener, source);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if let Some(rank) = warns.filter(|_| !waiting.has_warned) {
                    waiting.look(address, rank, source);
                }
            }
            Err(error) => {
                if let Some(rank) = warns {
                    warning!(
                        target::INIT,
                        Some(rank),
                        "no metrics at {address}: {error}; set TBCCL_METRICS to a port above 1023, of an \
                         address of this host"
                    );
                }
                return;
            }
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// The state of a process that waits for the port.
#[derive(Debug, Default)]
struct Waiting {
    has_warned: bool,
    /// Whether the owner has been a rank of the same job.
    is_ours: bool,
    /// Tries in a row to which the owner gave no answer.
    unanswered: u32,
}

impl Waiting {
    /// Asks the owner of the port for its job, and warns of another one.
    fn look(&mut self, address: MetricsAddress, rank: u32, source: Source) {
        let Some(owner) = self.foreign(ask_owner(address), &(source.jobs)()) else { return };
        self.has_warned = true;
        warning!(
            target::INIT,
            Some(rank),
            "no metrics at {address}: the port is taken by {owner}; set TBCCL_METRICS to a free port, or end \
             its owner, and the job's ranks take the port"
        );
    }

    /// Describes the owner of the port by its answer, unless it is a rank of the same job, has ended
    /// meanwhile, or may be an endpoint with too many clients.
    fn foreign(&mut self, answer: io::Result<Owner>, ours: &[u64]) -> Option<String> {
        match answer {
            Ok(Owner { jobs, pid }) => {
                self.unanswered = 0;
                self.is_ours = jobs.iter().any(|job| ours.contains(job));
                match jobs.first() {
                    _ if self.is_ours => None,
                    Some(job) => Some(format!("another job of tbccl ({job:016x}, process {pid})")),
                    None => Some("another program".to_owned()),
                }
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
            Err(_) => {
                self.unanswered += 1;
                let is_patient = self.is_ours || self.unanswered < PATIENT_TRIES;
                (!is_patient).then(|| "another program".to_owned())
            }
        }
    }
}

/// The process that has the port, as it says.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    /// Numbers of its jobs; none if it is no endpoint of metrics.
    jobs: Vec<u64>,
    pid: u32,
}

/// Asks the owner of the port for its jobs.
fn ask_owner(address: MetricsAddress) -> io::Result<Owner> {
    let deadline = Instant::now() + OWNER_TIMEOUT;
    let mut stream = TcpStream::connect_timeout(&address.to_connect(), OWNER_TIMEOUT)?;
    stream.set_write_timeout(Some(OWNER_TIMEOUT))?;
    stream.write_all(b"GET /job HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut bytes = [0; 1024];
    while answer.len() < 4096 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes)? {
            0 => break,
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
    if answer.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let text = String::from_utf8_lossy(&answer);
    let jobs = text.lines().filter_map(|line| u64::from_str_radix(line.strip_prefix(JOB)?, 16).ok());
    let pid = text.lines().find_map(|line| line.strip_prefix(PROCESS)?.parse().ok());
    Ok(Owner { jobs: jobs.collect(), pid: pid.unwrap_or_default() })
}

/// Number of requests that are being answered.
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// A place among the requests that are answered at a time.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        // Made before the check, so that a place that can't be had is given back.
        let (before, place) = (CONNECTIONS.fetch_add(1, AcqRel), Place);
        (before < MAX_CONNECTIONS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        CONNECTIONS.fetch_sub(1, AcqRel);
    }
}

/// Answers requests until the listener fails.
fn answer_requests(listener: &TcpListener, source: Source) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_of_connection(&error) => continue,
            Err(error) => {
                // Descriptors or memory may be short for a while.
                debug!(target: target::INIT, "the endpoint of metrics accepts no connection: {error}");
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        match Place::take() {
            Some(place) => {
                let answer = move || answer_one(stream, place, source);
                // Without a thread the connection is closed, and the client tries again.
                drop(thread::Builder::new().name("tbccl-scrape".into()).spawn(answer));
            }
            None => http::refuse(&stream, &owner_lines(source)),
        }
    }
}

/// Whether an error concerns one connection, and not the listener.
fn is_of_connection(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted | ErrorKind::ConnectionReset)
}

/// Answers one connection. A client that goes away, or is slow, gets no answer.
fn answer_one(mut stream: TcpStream, place: Place, source: Source) {
    let answered = http::exchange(&mut stream, |request| match request.path.as_str() {
        "/job" => Answer::plain("200 OK", owner_lines(source)),
        "/metrics" => metrics(source, request.takes_openmetrics),
        "/" => Answer::plain("200 OK", format!("{}metrics are at /metrics\n", owner_lines(source))),
        _ => Answer::plain("404 Not Found", "metrics are at /metrics\n"),
    });
    if let Err(error) = answered {
        debug!(target: target::INIT, "a client of the endpoint of metrics got no answer: {error}");
    }
    drop(place);
}

/// Returns the lines from which [`ask_owner`] reads the owner.
fn owner_lines(source: Source) -> String {
    let jobs: String = (source.jobs)().iter().map(|job| format!("{JOB}{job:016x}\n")).collect();
    format!("{jobs}{PROCESS}{}\n", std::process::id())
}

/// The latest collection, and its time.
static LATEST: Mutex<Option<(Instant, HostMetrics)>> = Mutex::new(None);

/// Returns the metrics of this host, in the format that a client takes. Requests that come together share a
/// collection.
fn metrics(source: Source, takes_openmetrics: bool) -> Answer {
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    let host = match &*latest {
        Some((at, host)) if at.elapsed() < FRESHNESS => host.clone(),
        _ => {
            let host = (source.collect)();
            *latest = Some((Instant::now(), host.clone()));
            host
        }
    };
    drop(latest);
    match text::encode(host) {
        Ok(body) if takes_openmetrics => Answer { status: "200 OK", media_type: text::MEDIA_TYPE, body },
        Ok(body) => Answer {
            status: "200 OK",
            media_type: prometheus::MEDIA_TYPE,
            body: prometheus::from_openmetrics(&body),
        },
        Err(_) => Answer::plain("500 Internal Server Error", "the metrics could not be encoded\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(jobs: &[u64]) -> io::Result<Owner> {
        Ok(Owner { jobs: jobs.to_vec(), pid: 9 })
    }

    #[test]
    fn ranks_of_one_job_say_nothing_and_other_owners_are_described() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.foreign(owner(&[3, 5]), &[5]), None);
        assert_eq!(waiting.foreign(Err(ErrorKind::ConnectionRefused.into()), &[5]), None, "it has ended");
        let described = waiting.foreign(owner(&[255]), &[5]);
        assert_eq!(described.as_deref(), Some("another job of tbccl (00000000000000ff, process 9)"));
        assert_eq!(waiting.foreign(owner(&[]), &[5]).as_deref(), Some("another program"));
    }

    #[test]
    fn an_owner_without_an_answer_is_foreign_only_after_some_tries() {
        let silence = || Err(ErrorKind::TimedOut.into());
        let mut waiting = Waiting::default();
        for _ in 1..PATIENT_TRIES {
            assert_eq!(waiting.foreign(silence(), &[5]), None);
        }
        assert_eq!(waiting.foreign(silence(), &[5]).as_deref(), Some("another program"));
        waiting.foreign(owner(&[5]), &[5]);
        assert!((0..100).all(|_| waiting.foreign(silence(), &[5]).is_none()), "it is known to be ours");
    }
}
