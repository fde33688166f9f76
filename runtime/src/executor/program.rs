//! One rank's part of a schedule, flattened for execution.

use collectives::{
    Packing, Schedule,
    schedule::{Action, Buffer, ChunkRange, Direction},
};
use std::fmt::Write;
use topology::Rank;

/// The kind of a step; a message's peer is known from its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpKind {
    Send,
    Recv,
    RecvReduce,
    Copy,
    Reduce,
    Encode,
    Decode,
    DecodeReduce,
}

impl OpKind {
    /// Whether it is a step without a message.
    pub(super) const fn is_local(self) -> bool {
        !matches!(self, OpKind::Send | OpKind::Recv | OpKind::RecvReduce)
    }
}

/// A run of chunks, with its ends split into block and chunk so that binding it takes no division.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) buffer: Buffer,
    pub(super) from: (u32, u32),
    pub(super) to: (u32, u32),
    /// Whether it is made of whole blocks, which are not packed.
    pub(super) is_whole: bool,
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    /// Send, copy, encode and decode: the source. Reduce: the left operand. RecvReduce, DecodeReduce: the
    /// local operand.
    pub(super) a: Run,
    /// Reduce: the right operand. DecodeReduce: the packed one.
    pub(super) b: Run,
    /// The destination, of all but sends.
    pub(super) dst: Run,
    /// The result is complete: an average divides.
    pub(super) last: bool,
    /// No step reads what it writes, which is a part of the result.
    pub(super) writes_result: bool,
    /// For receives: the step is announced when fewer messages of its stream than this precede it. Messages
    /// that use the same memory do not count: the schedule relies on the stream's order, and takes them one
    /// by one.
    pub(super) ahead: u8,
    /// The range of its dependents in [`Program::dependents`].
    pub(super) dependents: (u32, u32),
    /// Which of the calls that run together it belongs to.
    pub(super) call: u16,
}

/// How many messages of a stream are announced at a time.
const WINDOW: u8 = 16;

/// The messages of one direction with one peer on one lane, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) sends: bool,
    pub(super) peer: Rank,
    /// The index of its link.
    pub(super) link: u32,
    /// The range of its steps in [`Program::order`].
    pub(super) first: u32,
    pub(super) end: u32,
}

/// A receive that a send follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    /// Its stream.
    pub(super) stream: u32,
    /// Its position in [`Program::order`].
    pub(super) position: u32,
}

/// A program in which each stream has one message, and all sends come first.
#[derive(Clone, Debug)]
pub(super) struct Straight {
    /// The sends, one for each of the first streams.
    pub(super) sends: Box<[StraightStep]>,
    /// The other steps, in order.
    pub(super) steps: Box<[StraightStep]>,
    /// Whether one of them is a receive.
    pub(super) receives: bool,
}

/// A step of a straight program.
#[derive(Clone, Copy, Debug)]
pub(super) struct StraightStep {
    pub(super) step: u32,
    /// The number of the stream of a message, and the stream; `None` for a local step.
    pub(super) stream: Option<(u32, Stream)>,
}

impl Straight {
    /// Returns the parts of a program whose streams have one message each.
    fn new(ops: &[Op], streams: &[Stream], order: &[u32]) -> Straight {
        let step_of = |stream: &Stream| order[stream.first as usize];
        let at = |step: u32| StraightStep {
            step,
            stream: (0..).zip(streams.iter().copied()).find(|(_, stream)| step_of(stream) == step),
        };
        let sends = streams.iter().filter(|stream| stream.sends).map(|stream| at(step_of(stream)));
        let others = (0..).zip(ops).filter(|(_, op)| op.kind != OpKind::Send).map(|(step, _)| at(step));
        let receives = streams.iter().any(|stream| !stream.sends);
        Straight { sends: sends.collect(), steps: others.collect(), receives }
    }
}

/// One rank's part of a schedule.
#[derive(Debug)]
pub(crate) struct Program {
    pub(super) ops: Box<[Op]>,
    pub(super) dependents: Box<[u32]>,
    /// How many steps each step comes after.
    pub(super) waits_for: Box<[u32]>,
    pub(super) streams: Box<[Stream]>,
    pub(super) order: Box<[u32]>,
    /// Per step: the receive that it follows. Empty where none follows any.
    pub(super) followed: Box<[Option<Followed>]>,
    /// Local steps that come after nothing.
    pub(super) first_local: Box<[u32]>,
    /// The order of a straight program.
    pub(super) straight: Option<Straight>,
    /// Whether the rank sends before it waits, and receives.
    pub(super) exchanges: bool,
    /// Whether receivers have nothing to do but wait for the messages of this rank: the program is straight,
    /// and has no receives.
    pub(super) is_awaited: bool,
    /// Chunks per block.
    pub(crate) chunks: u32,
    /// Pieces of each message, which travel one after the other.
    pub(crate) segments: u32,
    pub(crate) scratch_blocks: u32,
    /// How messages are packed, and the memory for it.
    pub(crate) packing: Option<Packing>,
    /// Names the plan; equal on all ranks, in place or not.
    pub(crate) id: u64,
    /// The algorithm's name.
    pub(crate) algorithm: String,
    /// The first step and the algorithm of each call, of several that run together.
    pub(super) parts: Box<[(u32, String)]>,
    /// Peers that this rank only sends to, if it receives from none: nothing that arrives shows that they are
    /// in the same call.
    pub(crate) unheard: Box<[Rank]>,
}

impl Program {
    /// The part of `rank` in a schedule whose messages are whole. `lanes` is how many lanes there are between
    /// two ranks.
    pub(crate) fn compile(schedule: &Schedule, rank: Rank, lanes: u8) -> Program {
        assert!(schedule.lanes <= lanes, "a schedule of {} lanes on {lanes}", schedule.lanes);
        let steps = &schedule.programs[rank.index()].steps;
        let chunks = schedule.chunks;
        let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); steps.len()];
        for (at, step) in steps.iter().enumerate() {
            for earlier in &step.after {
                dependents[*earlier as usize].push(at as u32);
            }
        }
        let mut flat = Vec::new();
        let mut ops = Vec::with_capacity(steps.len());
        let writes_results = schedule.writes_results(rank);
        for ((step, after), writes_result) in steps.iter().zip(&dependents).zip(writes_results) {
            let first = flat.len() as u32;
            flat.extend(after);
            ops.push(Op { writes_result, ..op(step.action, chunks, (first, flat.len() as u32)) });
        }
        let (streams, order) = streams(steps.iter().map(|s| (s.action, s.lane)), lanes);
        for stream in streams.iter().filter(|s| !s.sends) {
            let messages = &order[stream.first as usize..stream.end as usize];
            for (at, step) in messages.iter().enumerate() {
                let before = messages[..at].iter().rev().map(|step| &steps[*step as usize].action);
                ops[*step as usize].ahead = ahead(schedule, rank, &steps[*step as usize].action, before);
            }
        }
        let follows = steps.iter().map(|step| step.follows);
        let followed = followed(follows.collect(), &streams, &order);
        let waits_for: Box<[u32]> = steps.iter().map(|s| s.after.len() as u32).collect();
        let first_local =
            (0..ops.len()).filter(|i| ops[*i].kind.is_local() && waits_for[*i] == 0).map(|i| i as u32);
        let straight = if followed.is_empty() { straight(&ops, &flat, &streams, &order) } else { None };
        Program {
            first_local: first_local.collect(),
            is_awaited: straight.as_ref().is_some_and(|straight| !straight.receives),
            straight,
            exchanges: exchanges(&streams, &order, &waits_for),
            ops: ops.into(),
            dependents: flat.into(),
            waits_for,
            unheard: unheard(&streams),
            streams: streams.into(),
            order: order.into(),
            followed,
            chunks,
            segments: 1,
            scratch_blocks: schedule.scratch_blocks,
            packing: schedule.packing,
            id: plan_id(schedule),
            algorithm: schedule.algorithm.clone(),
            parts: [].into(),
        }
    }

    /// A program of one message with one peer.
    pub(crate) fn message(peer: Rank, sends: bool, lanes: u8) -> Program {
        let range = |buffer| ChunkRange { buffer, first: 0, len: 1 };
        let action = if sends {
            Action::Send { peer, src: range(Buffer::Input) }
        } else {
            Action::Recv { peer, dst: range(Buffer::Output) }
        };
        let (streams, order) = streams([(action, 0)].into_iter(), lanes);
        let ops = [Op { writes_result: !sends, ..op(action, 1, (0, 0)) }];
        Program {
            straight: Some(Straight::new(&ops, &streams, &order)),
            ops: ops.into(),
            dependents: [].into(),
            waits_for: [0].into(),
            streams: streams.into(),
            order: order.into(),
            followed: [].into(),
            first_local: [].into(),
            exchanges: false,
            is_awaited: sends,
            chunks: 1,
            segments: 1,
            scratch_blocks: 0,
            packing: None,
            id: 0,
            algorithm: "message".into(),
            parts: [].into(),
            unheard: [].into(),
        }
    }

    /// Whether a step is a send.
    pub(crate) fn sends(&self, step: u32) -> bool {
        self.ops[step as usize].kind == OpKind::Send
    }

    /// Returns the description of a step; see [`Program::write_step`].
    pub(crate) fn describe(&self, step: u32, peer: Rank) -> String {
        let mut described = String::new();
        self.write_step(step, peer, &mut described);
        described
    }

    /// Appends the description of a step, e.g. `step 3 of ring: recv from rank 1`; `tbccl plan show` has the
    /// same numbers.
    pub(crate) fn write_step(&self, step: u32, peer: Rank, out: &mut String) {
        let op = &self.ops[step as usize];
        let (number, algorithm) = match self.parts.get(usize::from(op.call)) {
            Some((first, algorithm)) => (step - first, algorithm),
            None => (step, &self.algorithm),
        };
        let written = write!(out, "step {number} of {algorithm}: ").and_then(|()| match op.kind {
            OpKind::Send => write!(out, "send to rank {peer}"),
            OpKind::Recv => write!(out, "recv from rank {peer}"),
            OpKind::RecvReduce => write!(out, "recv_reduce from rank {peer}"),
            OpKind::Copy => out.write_str("copy"),
            OpKind::Reduce => out.write_str("reduce"),
            OpKind::Encode => out.write_str("encode"),
            OpKind::Decode => out.write_str("decode"),
            OpKind::DecodeReduce => out.write_str("decode_reduce"),
        });
        debug_assert!(written.is_ok(), "writing to a string");
    }
}

/// Names the plan by what must be equal on all ranks; in place or not may differ between them.
fn plan_id(schedule: &Schedule) -> u64 {
    let shape = [u64::from(schedule.chunks), u64::from(schedule.root.0), u64::from(schedule.ranks())];
    let mut bytes = schedule.algorithm.clone().into_bytes();
    bytes.extend(schedule.packing.map(|packing| packing.codec.code()));
    bytes.extend(shape.iter().flat_map(|w| w.to_le_bytes()));
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

fn op(action: Action, chunks: u32, dependents: (u32, u32)) -> Op {
    let run = |r: ChunkRange| {
        let end = r.first + r.len;
        let (from, to) = ((r.first / chunks, r.first % chunks), (end / chunks, end % chunks));
        let is_whole = from.1 == 0 && to.1 == 0 && r.buffer != Buffer::Packed;
        Run { buffer: r.buffer, from, to, is_whole }
    };
    let none = Run { buffer: Buffer::Scratch, from: (0, 0), to: (0, 0), is_whole: true };
    let (kind, a, b, dst, last) = match action {
        Action::Send { src, .. } => (OpKind::Send, run(src), none, none, false),
        Action::Recv { dst, .. } => (OpKind::Recv, none, none, run(dst), false),
        Action::RecvReduce { local, dst, last, .. } => (OpKind::RecvReduce, run(local), none, run(dst), last),
        Action::Copy { src, dst } => (OpKind::Copy, run(src), none, run(dst), false),
        Action::Reduce { a, b, dst, last } => (OpKind::Reduce, run(a), run(b), run(dst), last),
        Action::Encode { src, dst } => (OpKind::Encode, run(src), none, run(dst), false),
        Action::Decode { src, dst } => (OpKind::Decode, run(src), none, run(dst), false),
        Action::DecodeReduce { local, src, dst, last } => {
            (OpKind::DecodeReduce, run(local), run(src), run(dst), last)
        }
    };
    Op { kind, a, b, dst, last, writes_result: false, ahead: WINDOW, dependents, call: 0 }
}

/// How early a receive may be announced, given those before it in its stream, the latest first.
fn ahead<'a>(
    schedule: &Schedule,
    rank: Rank,
    action: &Action,
    before: impl Iterator<Item = &'a Action>,
) -> u8 {
    let Action::Recv { dst, .. } = *action else { return WINDOW };
    let uses = |other: &Action| match *other {
        Action::Recv { dst: theirs, .. } => schedule.overlap(rank, dst, theirs),
        Action::RecvReduce { local, dst: theirs, .. } => {
            schedule.overlap(rank, dst, theirs) || schedule.overlap(rank, dst, local)
        }
        _ => false,
    };
    let between = before.take(WINDOW.into()).take_while(|other| !uses(other)).count();
    // One further on is the one that uses it; it must be complete.
    (between as u8 + 1).min(WINDOW)
}

/// Sorts messages into streams, sends first so that peers can start.
fn streams(steps: impl Iterator<Item = (Action, u8)>, lanes: u8) -> (Vec<Stream>, Vec<u32>) {
    let mut keyed: Vec<(bool, u32, Rank, u32)> = steps
        .enumerate()
        .filter_map(|(at, (action, lane))| {
            let (peer, direction) = action.message()?;
            let sends = direction == Direction::Out;
            Some((sends, peer.0 * u32::from(lanes) + u32::from(lane), peer, at as u32))
        })
        .collect();
    // Within a stream by step; streams in the order of their first steps, sends first so that peers can
    // start.
    keyed.sort_by_key(|(sends, link, _, at)| (!sends, *link, *at));
    let mut streams: Vec<Stream> = Vec::new();
    for (at, (sends, link, peer, _)) in keyed.iter().enumerate() {
        match streams.last_mut() {
            Some(s) if (s.sends, s.link) == (*sends, *link) => s.end = at as u32 + 1,
            _ => streams.push(Stream {
                sends: *sends,
                peer: *peer,
                link: *link,
                first: at as u32,
                end: at as u32 + 1,
            }),
        }
    }
    (streams, keyed.into_iter().map(|(_, _, _, at)| at).collect())
}

/// Returns the positions of the receives that steps follow, which are given by their numbers.
pub(super) fn followed(
    follows: Vec<Option<u32>>,
    streams: &[Stream],
    order: &[u32],
) -> Box<[Option<Followed>]> {
    if follows.iter().all(Option::is_none) {
        return [].into();
    }
    let mut places = vec![None; follows.len()];
    for (number, stream) in (0..).zip(streams) {
        for position in stream.first..stream.end {
            places[order[position as usize] as usize] = Some(Followed { stream: number, position });
        }
    }
    follows.into_iter().map(|followed| followed.and_then(|step| places[step as usize])).collect()
}

/// Most steps of a straight program.
pub(super) const MOST_STRAIGHT: usize = 64;

/// Returns how a program runs, if it is straight.
fn straight(ops: &[Op], dependents: &[u32], streams: &[Stream], order: &[u32]) -> Option<Straight> {
    let has_single_messages = streams.iter().all(|stream| stream.end - stream.first == 1);
    if !has_single_messages || ops.len() > MOST_STRAIGHT {
        return None;
    }
    for (step, op) in (0..).zip(ops) {
        let (first, end) = op.dependents;
        for later in &dependents[first as usize..end as usize] {
            if *later <= step || ops[*later as usize].kind == OpKind::Send {
                return None;
            }
        }
        if matches!(op.kind, OpKind::Encode | OpKind::Decode | OpKind::DecodeReduce) {
            return None;
        }
    }
    Some(Straight::new(ops, streams, order))
}

/// Whether a rank sends before it waits, and receives. Then its peers may do so at the same time.
fn exchanges(streams: &[Stream], order: &[u32], waits_for: &[u32]) -> bool {
    let begins = |stream: &Stream| stream.sends && waits_for[order[stream.first as usize] as usize] == 0;
    streams.iter().any(begins) && streams.iter().any(|stream| !stream.sends)
}

fn unheard(streams: &[Stream]) -> Box<[Rank]> {
    if streams.iter().any(|s| !s.sends) {
        return [].into();
    }
    let mut peers: Vec<Rank> = streams.iter().map(|s| s.peer).collect();
    peers.sort();
    peers.dedup();
    peers.into()
}
