//! Messages by plain verbs: no header, no number, no checksum, no reply.
//!
//! [`End`] is one end of a connection by plain verbs, [`in_fabric`] runs a benchmark again beside a software
//! fabric.
//!
//! # Safety
//! Memory of requests is leaked, so it outlives the queue pairs. What has arrived is read only while no
//! receive of its part is posted.

#![allow(dead_code, reason = "each benchmark uses a part")]

use benches::Buffer;
use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};
use transport::verbs::{
    Access, Completion, CompletionQueue, Context, Gid, Library, LocalAddress, LocalRun, Mtu, Operation,
    POLL_BATCH, PacketClass, QpType, QueuePair, QueuePairSpec, Region, RemoteAddress, SendRequest,
};

/// Holds the path of the verbs library in the inner process, which has the fabric in its environment.
const INNER: &str = "TBCCL_BENCH_VERBS_LIBRARY";

/// Entries of a queue, in frames on devices that count in frames.
const DEPTH: u32 = 2048;
/// Bytes of a part of an end's memory: one is sent, two receive in turns.
const PART_BYTES: usize = 1 << 20;
/// Time that an end waits for the other one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Polls that find nothing, for one look at the clock.
const POLLS_PER_LOOK: u32 = 1 << 16;
/// Frames of sends of which the last one asks for its completion.
const SIGNALED_FRAMES: usize = 128;

/// One end of a connection by plain verbs.
pub(crate) struct End {
    queue_pair: QueuePair,
    sends: CompletionQueue,
    receives: CompletionQueue,
    run: LocalRun,
    _region: Region,
    context: Context,
    unsignaled_frames: usize,
    /// Receives that were posted, those that have completed, and those whose messages were taken.
    posted: usize,
    arrived: usize,
    taken: usize,
    memory: *const f32,
}

impl End {
    pub(crate) fn new(library: &Library, device: &str) -> Result<End, Box<dyn Error>> {
        let context = library.open(device)?;
        let domain = context.domain()?;
        let sends = context.completion_queue(DEPTH, None)?;
        let receives = context.completion_queue(DEPTH, None)?;
        let memory = Box::leak(Box::new(Buffer::new(3 * PART_BYTES, 1)));
        let access = Access::Local;
        // SAFETY: the memory is never freed.
        let region = unsafe { domain.register(memory.as_mut_ptr(), 3 * PART_BYTES, access) }?;
        let spec =
            QueuePairSpec { service: QpType::UC, send_depth: DEPTH, recv_depth: DEPTH, inline_bytes: 0 };
        let queue_pair = domain.queue_pair_on(&spec, &sends, &receives)?;
        queue_pair.initialize(access)?;
        let run = LocalRun { start: region.start(), len: 0, lkey: region.lkey() };
        let memory = memory.as_ptr().cast();
        Ok(End {
            queue_pair,
            sends,
            receives,
            run,
            _region: region,
            context,
            unsignaled_frames: 0,
            posted: 0,
            arrived: 0,
            taken: 0,
            memory,
        })
    }

    fn gid(&self) -> (u8, Gid) {
        let gids = self.context.gids();
        *gids.iter().find(|(_, gid)| gid.is_ipv4_mapped()).unwrap_or(&gids[0])
    }

    pub(crate) fn address(&self) -> RemoteAddress {
        RemoteAddress { qp: self.queue_pair.number(), gid: self.gid().1, lid: 0, psn: 7 }
    }

    pub(crate) fn connect(&self, to: &RemoteAddress) -> Result<(), Box<dyn Error>> {
        let gid_index = self.gid().0;
        let ours = LocalAddress { gid_index, mtu: Mtu::B4096, psn: 7, class: PacketClass::default() };
        Ok(self.queue_pair.connect(&ours, to)?)
    }

    /// Posts a receive. A reader of what has arrived posts one in advance at most.
    pub(crate) fn receive(&mut self, len: usize) {
        assert!(len <= PART_BYTES, "a message of {len} bytes");
        let offset = (1 + self.posted % 2) * PART_BYTES;
        self.posted += 1;
        let run = LocalRun { len: len as u32, start: self.run.start.wrapping_add(offset), ..self.run };
        // SAFETY: see the module.
        unsafe { self.queue_pair.post_receive(1, run) }.expect("room");
    }

    /// Sends a message; few ask for their completion.
    pub(crate) fn send(&mut self, len: usize) {
        assert!(len <= PART_BYTES, "a message of {len} bytes");
        self.unsignaled_frames += len.div_ceil(4096).max(16);
        let run = LocalRun { len: len as u32, ..self.run };
        let signaled = self.unsignaled_frames >= SIGNALED_FRAMES;
        let request = SendRequest { id: 0, run, operation: Operation::Send, signaled, inline: false };
        // SAFETY: see the module.
        unsafe { self.queue_pair.post_send(&request) }.expect("room");
        if signaled {
            self.unsignaled_frames = 0;
            let mut out = [Completion::default(); POLL_BATCH];
            self.sends.poll(&mut out).expect("a queue");
        }
    }

    /// Waits until a message has arrived, for [`PATIENCE`] at most.
    pub(crate) fn take(&mut self) {
        let mut out = [Completion::default(); POLL_BATCH];
        let (mut polls, mut began) = (0_u32, None);
        while self.arrived == self.taken {
            self.arrived += self.receives.poll(&mut out).expect("a queue").len();
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_LOOK) {
                let began = began.get_or_insert_with(Instant::now);
                assert!(began.elapsed() < PATIENCE, "no message has arrived for {PATIENCE:?}");
            }
        }
        self.taken += 1;
    }

    /// Adds what was sent and what has arrived.
    pub(crate) fn add_to(&self, sum: &mut [f32]) {
        assert!(self.posted - self.taken <= 1 && size_of_val(sum) <= PART_BYTES);
        let offset = (1 + (self.taken - 1) % 2) * PART_BYTES;
        // SAFETY: each part has `PART_BYTES`. The receive of this one has completed, and the one that may be
        // posted writes to the other part.
        let (sent, arrived) = unsafe {
            let arrived = self.memory.byte_add(offset);
            (
                std::slice::from_raw_parts(self.memory, sum.len()),
                std::slice::from_raw_parts(arrived, sum.len()),
            )
        };
        for ((sum, sent), arrived) in sum.iter_mut().zip(sent).zip(arrived) {
            *sum = sent + arrived;
        }
    }
}

/// Path of the verbs library, in the inner process.
pub(crate) fn library() -> Option<PathBuf> {
    env::var_os(INNER).map(PathBuf::from)
}

/// Runs this program again on each of these nodes of a fabric, or once on none, in a folder that is removed
/// afterwards.
pub(crate) fn in_fabric(fabric: &str, nodes: &[&str]) -> Result<(), Box<dyn Error>> {
    let this = env::current_exe()?;
    let folder = this.parent().and_then(Path::parent).ok_or("no folder")?;
    let library = folder.join("libsoftrdma.so");
    if !library.exists() {
        return Err("build the software device first: cargo build --release -p tbccl-softrdma".into());
    }
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("fabric.toml");
    fs::write(&file, fabric)?;
    let run = |node: Option<&&str>| {
        let mut command = Command::new(&this);
        command
            .args(env::args().skip(1))
            .current_dir(scratch.path())
            .env(INNER, &library)
            .env("SOFTRDMA_FABRIC", &file)
            .env("SOFTRDMA_DIR", scratch.path().join("shared"))
            .env("SOFTRDMA_REMAP", "1")
            .env_remove("SOFTRDMA_NODE");
        if let Some(node) = node {
            command.env("SOFTRDMA_NODE", node);
        }
        command.spawn()
    };
    let mut ranks = match nodes {
        [] => vec![run(None)?],
        nodes => nodes.iter().map(|node| run(Some(node))).collect::<Result<_, _>>()?,
    };
    let ended: Vec<_> = ranks.iter_mut().map(Child::wait).collect::<Result<_, _>>()?;
    ended.iter().all(ExitStatus::success).then_some(()).ok_or_else(|| "an inner process failed".into())
}
