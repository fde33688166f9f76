//! Sends and their receives: by call, peers, lane and order; of tagged messages by context, tag, peers and
//! the order of the requests.
//!
//! Collectives are numbered by communicator, and messages by pair of ranks, so both ends of a message have
//! the same number. A send has no receive in the files if the receiver's ring has lost it, or if its call
//! failed; such sends are told from those that must have one by their calls.

use super::format::{Category, Event, Scope};
use std::collections::HashMap;

/// A call of a rank: its number, and for messages the two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallKey {
    scope: Scope,
    call: u64,
    /// Sender and receiver of a call that is a message.
    ends: Option<(u32, u32)>,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MessageKey {
    scope: Scope,
    call: u64,
    from: u32,
    to: u32,
    lane: u8,
    index: u32,
}

/// Tagged messages that meet their receives in the order of the requests: sender, receiver, context and tag.
type TaggedKey = (u32, u32, u32, i32);

/// The messages of a merged trace, as indices of events.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Sends with their receives.
    pub(super) pairs: Vec<(usize, usize)>,
    /// Messages without another end, although both ranks have the whole call.
    pub(super) alone: Vec<usize>,
    /// Messages of which the other end was lost, or not reached.
    pub(super) excused: usize,
}

/// Returns sender and receiver of an event's message.
pub(super) fn ends(event: &Event) -> Option<(u32, u32)> {
    let peer = event.args.as_ref()?.peer?;
    match event.cat? {
        Category::Send => Some((event.pid, peer)),
        Category::Receive => Some((peer, event.pid)),
        _ => None,
    }
}

fn key_of(event: &Event) -> Option<MessageKey> {
    let (from, to) = ends(event)?;
    let args = event.args.as_ref()?;
    let (scope, call) = (args.scope?, args.call.filter(|call| *call > 0)?);
    Some(MessageKey { scope, call, from, to, lane: args.lane?, index: args.index? })
}

/// Returns the call that a call event is.
fn call_of(event: &Event) -> Option<CallKey> {
    if event.cat != Some(Category::Call) {
        return None;
    }
    let args = event.args.as_ref()?;
    let ends = match args.direction {
        None => None,
        Some(Category::Send) => Some((event.pid, args.peer?)),
        Some(_) => Some((args.peer?, event.pid)),
    };
    Some(CallKey { scope: args.scope?, call: args.call?, ends })
}

/// Matches the messages of events. `lost_until` is the time of the latest end among the lost events of a
/// rank, in nanoseconds.
pub(super) fn match_messages(events: &[Event], lost_until: impl Fn(u32) -> u64) -> Matching {
    let (mut sends, mut receives) = (HashMap::new(), HashMap::new());
    let mut whole: HashMap<(u32, CallKey), bool> = HashMap::new();
    for (at, event) in events.iter().enumerate() {
        if let (Some(call), Some((begin, _))) = (call_of(event), event.times()) {
            let is_done = event.args.as_ref().is_some_and(|args| args.outcome.as_deref() == Some("done"));
            whole.insert((event.pid, call), is_done && begin >= lost_until(event.pid));
        }
        let Some(key) = key_of(event) else { continue };
        match event.cat {
            Some(Category::Send) => sends.insert(key, at),
            _ => receives.insert(key, at),
        };
    }
    let has_whole_call = |key: &MessageKey| {
        let ends = (key.scope == Scope::Message).then_some((key.from, key.to));
        let call = CallKey { scope: key.scope, call: key.call, ends };
        [key.from, key.to].iter().all(|rank| whole.get(&(*rank, call)).copied().unwrap_or(false))
    };
    let mut matching = Matching::default();
    let mut alone = Vec::new();
    for (key, send) in &sends {
        match receives.remove(key) {
            Some(receive) => matching.pairs.push((*send, receive)),
            None => alone.push((*key, *send)),
        }
    }
    alone.extend(receives);
    for (key, at) in alone {
        if has_whole_call(&key) { matching.alone.push(at) } else { matching.excused += 1 }
    }
    match_tagged(events, lost_until, &mut matching);
    matching.pairs.sort_unstable();
    matching.alone.sort_unstable();
    matching
}
/// Matches tagged messages. The order says nothing about those of a rank that has lost events, and a message
/// may be left without a receive.
fn match_tagged(events: &[Event], lost_until: impl Fn(u32) -> u64, matching: &mut Matching) {
    let mut ends_of = HashMap::<TaggedKey, [Vec<(u64, usize)>; 2]>::new();
    for (at, event) in events.iter().enumerate() {
        let (Some((from, to)), Some(args)) = (ends(event), &event.args) else { continue };
        if let (Some(Scope::Tagged), Some(context), Some(tag), Some(request)) =
            (args.scope, args.context, args.tag, args.request)
        {
            let of_key = ends_of.entry((from, to, context, tag)).or_default();
            of_key[usize::from(event.cat == Some(Category::Receive))].push((request, at));
        }
    }
    for ((from, to, ..), [mut sends, mut receives]) in ends_of {
        let is_whole = lost_until(from) == 0 && lost_until(to) == 0;
        let pairs = if is_whole { sends.len().min(receives.len()) } else { 0 };
        matching.excused += sends.len() + receives.len() - 2 * pairs;
        sends.sort_unstable();
        receives.sort_unstable();
        let at = |requests: Vec<(u64, usize)>| requests.into_iter().take(pairs).map(|(_, at)| at);
        matching.pairs.extend(at(sends).zip(at(receives)));
    }
}
