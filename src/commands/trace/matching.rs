//! Sends and their receives: by call, peers, lane and order.
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
    matching.pairs.sort_unstable();
    matching.alone.sort_unstable();
    matching
}
