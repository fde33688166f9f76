//! One end of a connection of a probe: queue pairs on one device, completion queues, and memory.
//!
//! # Safety
//! The memory is mapped as long as the end lives. Members are dropped in the order of their declaration:
//! queue pairs, then the region, then the memory. Offsets are checked against the length. Devices write to
//! the memory at any time, so it is accessed by raw pointers only, and reads are volatile.

use crate::commands::selftest::finding::{Trouble, broken};
use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};
use transport::{
    memory::Mapping,
    verbs::{
        Access, Channel, Completion, CompletionQueue, Context, DeviceCapabilities, Domain, Gid, Library,
        LocalAddress, LocalRun, Mtu, Operation, POLL_BATCH, PacketClass, PostError, QueuePair, QueuePairSpec,
        Region, RemoteAddress, RemoteRun, SendRequest, WcStatus, explain, find_gid,
    },
};

/// Address boundary that no region crosses.
pub(super) const LINE: u64 = 1 << 32;
/// Time within which a completion must come, and that of a quick test.
const PATIENCE: Duration = Duration::from_secs(5);
const QUICK_PATIENCE: Duration = Duration::from_secs(3);
/// Packet sequence number of all connections.
const PSN: u32 = 7;

/// An open device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) domain: Domain,
    pub(super) capabilities: DeviceCapabilities,
    /// The source address of connections, with its index.
    pub(super) gid: (u8, Gid),
    /// Time within which a completion must come.
    pub(super) patience: Duration,
}

impl Device {
    pub(super) fn open(library: &Library, name: &str, quick: bool) -> Result<Device, Trouble> {
        let context = library.open(name)?;
        let gid = find_gid(&context, None, Duration::from_secs(1), &mut |_| ())?;
        let domain = context.domain()?;
        let capabilities = DeviceCapabilities::probe(&context, &domain)?;
        let patience = if quick { QUICK_PATIENCE } else { PATIENCE };
        Ok(Device { context, domain, capabilities, gid, patience })
    }

    /// Returns bytes rounded up to whole frames, on devices that count in frames.
    pub(super) fn framed(&self, bytes: usize) -> usize {
        self.capabilities.frame_bytes.map_or(bytes, |frame| bytes.next_multiple_of(frame as usize))
    }

    /// Returns the queue entries of a message.
    pub(super) fn entries(&self, bytes: usize) -> u32 {
        self.capabilities.frame_bytes.map_or(1, |frame| bytes.div_ceil(frame as usize).max(1) as u32)
    }
}

/// Sends or receives of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Sends,
    Receives,
}

/// Depths of a queue pair: send entries and receive entries.
pub(super) type Depths = (u32, u32);

/// One end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) queues: Vec<QueuePair>,
    region: Region,
    memory: Mapping,
    /// Offset of the first registered byte in the mapping.
    base: usize,
    sends: CompletionQueue,
    receives: CompletionQueue,
    pub(super) channel: Option<Channel>,
    pub(super) device: Device,
    taken: [VecDeque<Completion>; 2],
    /// Time within which a completion must come.
    pub(super) patience: Duration,
}

impl End {
    /// Makes an end with private memory, whose queue pairs are ready for receives.
    pub(super) fn new(device: &Device, bytes: usize, depths: &[Depths]) -> Result<End, Trouble> {
        let memory = Mapping::private_for_device(bytes, LINE).map_err(|error| no_memory(&error))?;
        End::over(device, (memory, 0, bytes), depths, false)
    }

    /// Makes an end with memory from `base` on of a mapping; `has_events` asks for a completion channel.
    pub(super) fn over(
        device: &Device,
        (memory, base, bytes): (Mapping, usize, usize),
        depths: &[Depths],
        has_events: bool,
    ) -> Result<End, Trouble> {
        assert!(base + bytes <= memory.len(), "a range of the mapping");
        let context = &device.context;
        let channel = if has_events { Some(context.channel()?) } else { None };
        let most = context.attributes().map_or(4096, |limits| limits.max_cqe.max(1) as u32);
        let [sends, receives] =
            [640u32, 640].map(|depth| context.completion_queue(depth.min(most), channel.as_ref()));
        let (sends, receives) = (sends?, receives?);
        // SAFETY: the mapping becomes a member of this value behind the region, so it outlives it.
        let region =
            unsafe { device.domain.register(memory.as_ptr().wrapping_add(base), bytes, Access::Remote) }?;
        let (service, inline_bytes) = (device.capabilities.service, device.capabilities.max_inline.min(256));
        let pair = |&(send_depth, recv_depth): &Depths| {
            let spec = QueuePairSpec { service, send_depth, recv_depth, inline_bytes };
            let pair = device.domain.queue_pair_on(&spec, &sends, &receives)?;
            pair.initialize(Access::Remote)?;
            Ok::<QueuePair, Trouble>(pair)
        };
        let queues = depths.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        let patience = device.patience;
        let (device, taken) = (device.clone(), [VecDeque::new(), VecDeque::new()]);
        Ok(End { queues, region, memory, base, sends, receives, channel, device, taken, patience })
    }

    /// Returns the numbers of the queue pairs, for the other end.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.queues.iter().map(QueuePair::number).collect()
    }

    /// Connects a queue pair to one of the peer, from an address of the port.
    pub(super) fn connect(
        &self,
        queue: usize,
        (index, _): (u8, Gid),
        (number, gid, lid, mtu): (u32, Gid, u16, u32),
    ) -> Result<(), Trouble> {
        let own = self.device.context.port()?.active_mtu.0;
        let ours = LocalAddress {
            gid_index: index,
            mtu: Mtu(own.min(mtu)),
            psn: PSN,
            class: PacketClass::default(),
        };
        Ok(self.queues[queue].connect(&ours, &RemoteAddress { qp: number, gid, lid, psn: PSN })?)
    }

    /// Returns a range of the memory, for requests.
    pub(super) fn run(&self, at: usize, len: usize) -> LocalRun {
        self.check(at, len);
        LocalRun { start: self.region.start().wrapping_add(at), len: len as u32, lkey: self.region.lkey() }
    }

    /// Returns an address in the memory, for the peer's writes.
    pub(super) fn target(&self, at: usize) -> RemoteRun {
        RemoteRun { address: self.region.start().addr() as u64 + at as u64, rkey: self.region.rkey() }
    }

    fn check(&self, at: usize, len: usize) {
        let is_inside = at.checked_add(len).is_some_and(|end| self.base + end <= self.memory.len());
        assert!(is_inside && at + len <= self.region.len(), "a range of the memory");
    }

    /// Writes the pattern of a seed.
    pub(super) fn fill(&self, at: usize, len: usize, seed: u64) {
        self.check(at, len);
        for (offset, byte) in pattern(seed).take(len).enumerate() {
            // SAFETY: the range lies in the memory.
            unsafe { self.region.start().add(at + offset).write_volatile(byte) };
        }
    }

    /// Returns the offset of the first byte that differs from the pattern of a seed.
    pub(super) fn difference(&self, at: usize, len: usize, seed: u64) -> Option<usize> {
        self.check(at, len);
        // SAFETY: the range lies in the memory; the read is volatile, since devices write to it.
        let byte = |offset: usize| unsafe { self.region.start().add(at + offset).read_volatile() };
        pattern(seed).take(len).enumerate().find_map(|(offset, wanted)| {
            let differs = byte(offset) != wanted;
            differs.then_some(offset)
        })
    }

    /// Posts a receive.
    pub(super) fn receive(&self, queue: usize, id: u64, run: LocalRun) -> Result<(), PostError> {
        // SAFETY: `run` lies in the memory of this end or is empty; the queue pair is dropped before it.
        unsafe { self.queues[queue].post_receive(id, run) }
    }

    /// Posts a send that asks for its completion.
    pub(super) fn send(&self, queue: usize, id: u64, run: LocalRun) -> Result<(), PostError> {
        let operation = Operation::Send;
        self.post(queue, &SendRequest { id, run, operation, signaled: true, inline: false })
    }

    /// Posts a request.
    pub(super) fn post(&self, queue: usize, request: &SendRequest) -> Result<(), PostError> {
        // SAFETY: as for `receive`; probes leave memory unchanged until its request is done, or their check
        // of the content fails.
        unsafe { self.queues[queue].post_send(request) }
    }

    /// Takes the completions that are there.
    pub(super) fn poll(&mut self, side: Side) -> Result<Vec<Completion>, Trouble> {
        let queue = match side {
            Side::Sends => &self.sends,
            Side::Receives => &self.receives,
        };
        let mut found: Vec<Completion> = self.taken[side as usize].drain(..).collect();
        let mut out = [Completion::default(); POLL_BATCH];
        found.extend_from_slice(queue.poll(&mut out)?);
        Ok(found)
    }

    /// Waits for `count` successful completions, in the order in which they come.
    pub(super) fn wait(
        &mut self,
        side: Side,
        count: usize,
        subject: &str,
    ) -> Result<Vec<Completion>, Trouble> {
        let until = Instant::now() + self.patience;
        let mut found = Vec::new();
        while found.len() < count {
            let came = self.poll(side)?;
            if came.is_empty() {
                thread::yield_now();
            }
            for completion in came {
                if found.len() == count {
                    self.taken[side as usize].push_back(completion);
                    continue;
                }
                found.push(success(completion, subject)?);
            }
            if found.len() < count && Instant::now() > until {
                let seconds = self.patience.as_secs_f64();
                let text = format!(
                    "{subject}: {} of {count} {} completed within {seconds:.1} s",
                    found.len(),
                    if side == Side::Sends { "sends" } else { "receives" }
                );
                return Err(broken(text));
            }
        }
        Ok(found)
    }

    /// Asks for an event of the next receive completion.
    pub(super) fn arm(&self) -> Result<(), Trouble> {
        Ok(self.receives.arm()?)
    }
}

/// Returns a successful completion.
pub(super) fn success(completion: Completion, subject: &str) -> Result<Completion, Trouble> {
    if completion.status == WcStatus::SUCCESS {
        return Ok(completion);
    }
    let (cause, remedy) = explain(completion.status);
    let text = format!("{subject}: request {} ended with {:?}: {cause}", completion.id, completion.status);
    if completion.status == WcStatus::WR_FLUSH_ERR {
        // The peer has given up, and says why.
        return Err(Trouble::Peer(text));
    }
    Err(Trouble::Fail(text, format!("{remedy}; {}", crate::commands::selftest::finding::REPORT)))
}

/// Returns the bytes of a pattern.
fn pattern(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .flatten()
}

pub(super) fn no_memory(error: &transport::TransportError) -> Trouble {
    Trouble::Unknown(error.to_string(), "close other programs and try again".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_different_seeds_differ_early() {
        let begin = |seed| pattern(seed).take(16).collect::<Vec<u8>>();
        assert!(begin(1) == begin(1) && begin(1) != begin(3) && begin(4) != begin(6));
    }
}
