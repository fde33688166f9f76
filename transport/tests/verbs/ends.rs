//! Ends of connections, with memory.
//!
//! # Safety
//! An end's memory is mapped as long as the end lives; its members are dropped in the order queue pair,
//! region, memory. While work is in progress, the memory is accessed through volatile reads only.

use crate::fabric::PATIENCE;
use std::{cell::UnsafeCell, thread, time::Instant};
use transport::verbs::{
    Access, Completion, CompletionQueue, Context, Domain, Gid, Library, LocalAddress, LocalRun, Mtu,
    POLL_BATCH, PacketClass, PostError, QpType, QueuePair, QueuePairSpec, Region, RemoteAddress, RemoteRun,
    SendRequest, WcStatus,
};

/// Bytes of an end's memory.
pub(crate) const BYTES: usize = 1 << 20;

/// Page-aligned memory that devices write to.
#[derive(Debug)]
struct Memory(Box<[UnsafeCell<Page>]>);

#[repr(C, align(16384))]
#[derive(Debug)]
struct Page([u8; 16384]);

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) queue_pair: QueuePair,
    pub(crate) region: Region,
    memory: Memory,
    pub(crate) completions: CompletionQueue,
    pub(crate) domain: Domain,
    pub(crate) context: Context,
    came: Vec<Completion>,
}

/// Returns the queue pair options of most tests.
pub(crate) fn spec(service: QpType) -> QueuePairSpec {
    QueuePairSpec { service, send_depth: 64, recv_depth: 64, inline_bytes: 0 }
}

impl End {
    /// Creates an end that is ready for receives.
    pub(crate) fn new(library: &Library, device: &str, spec: QueuePairSpec, access: Access) -> End {
        let context = library.open(device).expect("a device");
        let domain = context.domain().expect("a domain");
        let completions = context.completion_queue(256, None).expect("a completion queue");
        let page = || UnsafeCell::new(Page([0; 16384]));
        let memory = Memory((0..BYTES / size_of::<Page>()).map(|_| page()).collect());
        let start = memory.0[0].get().cast();
        // SAFETY: the memory is mapped until after the region is deregistered.
        let region = unsafe { domain.register(start, BYTES, access) }.expect("registered");
        let queue_pair = domain.queue_pair(&spec, &completions).expect("a queue pair");
        queue_pair.initialize(access).expect("initialised");
        End { queue_pair, region, memory, completions, domain, context, came: Vec::new() }
    }

    /// Returns a GID of the port with its index.
    pub(crate) fn gid(&self) -> (u8, Gid) {
        let gids = self.context.gids();
        *gids.iter().find(|(_, gid)| gid.is_ipv4_mapped()).unwrap_or(&gids[0])
    }

    /// Returns the address that the other end connects to.
    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress { qp: self.queue_pair.number(), gid: self.gid().1, lid: 0, psn: 7 }
    }

    pub(crate) fn connect(&self, theirs: &RemoteAddress) {
        let ours =
            LocalAddress { gid_index: self.gid().0, mtu: Mtu::B4096, psn: 7, class: PacketClass::default() };
        self.queue_pair.connect(&ours, theirs).expect("connected");
    }

    /// Returns a range of the memory, for this end's requests.
    pub(crate) fn run(&self, at: usize, len: usize) -> LocalRun {
        assert!(at + len <= BYTES);
        let start = self.region.start().wrapping_add(at);
        LocalRun { start, len: len as u32, lkey: self.region.lkey() }
    }

    /// Returns an address in the memory, for the peer's writes.
    pub(crate) fn target(&self, at: usize) -> RemoteRun {
        RemoteRun { address: self.region.start().addr() as u64 + at as u64, rkey: self.region.rkey() }
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: the range is inside the memory, and no other code uses it meanwhile.
        unsafe { self.region.start().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.memory.0.len() * size_of::<Page>());
        // SAFETY: the address is inside the memory; the read is volatile, since the device writes to it.
        (at..at + len).map(|at| unsafe { self.region.start().add(at).read_volatile() }).collect()
    }

    pub(crate) fn receive(&self, id: u64, run: LocalRun) -> Result<(), PostError> {
        // SAFETY: the memory belongs to this end, or is empty; the queue pair is destroyed first.
        unsafe { self.queue_pair.post_receive(id, run) }
    }

    pub(crate) fn post(&self, request: &SendRequest) -> Result<(), PostError> {
        // SAFETY: as above.
        unsafe { self.queue_pair.post_send(request) }
    }

    /// Waits for the completion of a request. Keeps completions of other requests.
    pub(crate) fn completion(&mut self, id: u64) -> Completion {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.came.iter().position(|found| found.id == id) {
                return self.came.remove(at);
            }
            let mut out = [Completion::default(); POLL_BATCH];
            self.came.extend(self.completions.poll(&mut out).expect("a queue in order"));
            assert!(Instant::now() < until, "no completion of {id}, only {:?}", self.came);
            thread::yield_now();
        }
    }

    /// Waits for the successful completion of a request.
    pub(crate) fn success(&mut self, id: u64) -> Completion {
        let found = self.completion(id);
        assert_eq!(found.status, WcStatus::SUCCESS, "{found:?}");
        found
    }
}

/// Two connected ends on two devices, which may be one.
pub(crate) fn pair(library: &Library, devices: [&str; 2], service: QpType, access: Access) -> [End; 2] {
    let [a, b] = devices.map(|device| End::new(library, device, spec(service), access));
    a.connect(&b.address());
    b.connect(&a.address());
    [a, b]
}
