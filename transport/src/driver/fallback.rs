//! Fallback from a first driver to a second one if any rank can't use the first.
//!
//! Ranks exchange the first driver's messages with a leading tag. A rank that fails sends the reason instead.
//! All ranks receive the reason in the same round, drop the first driver and start set-up of the second. When
//! the first driver's set-up ends, ranks exchange one more round to report late failures.
//!
//! A first driver that does not connect all ranks is used if schedules can relay messages along its
//! connections. The second driver then carries messages between the other pairs of ranks (`supplement`). Else
//! the first driver is not used either: transfers that would fail over it work over the second.
//!
//! Invariant: all ranks use the same driver, since the choice follows from messages that all ranks have
//! received.
//!
//! # Safety
//! The only unsafe function passes registered memory on to the driver in use, under the caller's promise.

use super::{
    Endpoint, ProgressHandle, RailInfo, RegistrationGuard, first_unreached, supplement::Supplemented,
};
use crate::{
    Link, Sleeper, TransportError,
    memory::{Slab, Span},
};
use std::{sync::Arc, time::Duration};

/// Tag of a message of the first driver.
const MESSAGE: u8 = b'w';
/// Tag of the reason why a rank can't use the first driver.
const FAILURE: u8 = b'n';
/// Tag of an otherwise empty message: the rank's first driver has finished set-up.
const READY: u8 = b'r';

/// State of set-up.
#[derive(Debug)]
enum Stage {
    /// The first driver is in set-up, or failed for this reason.
    First(Result<Box<dyn Endpoint>, String>),
    /// The first driver has finished set-up; the other ranks may not have.
    Ready(Box<dyn Endpoint>),
    /// The driver in use.
    Chosen(Box<dyn Endpoint>),
    /// Placeholder while one stage replaces another.
    Empty,
}

/// The driver that the ranks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The first one.
    First,
    /// The first one, along whose connections schedules relay messages. Other messages between ranks without
    /// a connection go over the second.
    FirstRelaying,
    /// The second one, for this reason against the first.
    Second(&'a str),
}

/// Callback for the choice.
pub type OnChoice = Box<dyn FnOnce(Choice<'_>) + Send>;

/// One rank's endpoint of one driver or the other.
pub struct Fallback {
    rank: u32,
    /// Host number of each rank. Ranks of one host need not reach each other.
    hosts: Vec<u32>,
    max_relayed_ranks: u32,
    stage: Stage,
    second: Option<Box<dyn Endpoint>>,
    on_choice: Option<OnChoice>,
}

impl std::fmt::Debug for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fallback")
            .field("rank", &self.rank)
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl Fallback {
    /// Returns an endpoint for two drivers; `first` is an error if that driver can't be opened.
    ///
    /// Ranks with the same number in `hosts` need not reach each other. Of up to `max_relayed_ranks` ranks,
    /// those without a connection between them may be reached along others. `on_choice` is called once.
    #[must_use]
    pub fn new(
        rank: u32,
        (hosts, max_relayed_ranks): (Vec<u32>, u32),
        first: Result<Box<dyn Endpoint>, TransportError>,
        second: Box<dyn Endpoint>,
        on_choice: OnChoice,
    ) -> Fallback {
        let first = first.map_err(|error| reason(rank, &error));
        let (stage, second, on_choice) = (Stage::First(first), Some(second), Some(on_choice));
        Fallback { rank, hosts, max_relayed_ranks, stage, second, on_choice }
    }

    fn notify(&mut self, choice: Choice<'_>) {
        if let Some(on_choice) = self.on_choice.take() {
            on_choice(choice);
        }
    }

    fn fall_back(&mut self, why: &str) -> Result<Option<Vec<u8>>, TransportError> {
        // Memory and devices of the first driver are released before the second needs them.
        self.stage = Stage::Empty;
        let mut second = self.second.take().expect("fallback happens once");
        self.notify(Choice::Second(why));
        let message = second.exchange(&[]);
        self.stage = Stage::Chosen(second);
        message
    }

    /// Returns two ranks of different hosts that don't reach each other, if there are any.
    fn unreachable_pair(&self, endpoint: &dyn Endpoint) -> Option<(u32, u32)> {
        let ranks = self.hosts.len() as u32;
        let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
        let mut remote = pairs.filter(|(a, b)| self.hosts[*a as usize] != self.hosts[*b as usize]);
        remote.find(|(a, b)| !endpoint.connects(*a, *b))
    }

    /// Whether every rank reaches every other one along ranks that the first driver connects, or that share a
    /// host, and schedules can relay messages so far.
    fn can_relay(&self, endpoint: &dyn Endpoint) -> bool {
        let ranks = self.hosts.len() as u32;
        let is_hop = |a: u32, b: u32| {
            self.hosts[a as usize] == self.hosts[b as usize] || endpoint.connects(a.min(b), a.max(b))
        };
        let is_ring = || (0..ranks).all(|rank| is_hop(rank, (rank + 1) % ranks));
        match ranks <= self.max_relayed_ranks {
            true => first_unreached(ranks, is_hop).is_none(),
            false => self.max_relayed_ranks > 0 && is_ring(),
        }
    }

    /// Uses the first driver, and begins set-up of the second one beside it.
    fn supplement(&mut self, first: Box<dyn Endpoint>) -> Result<Option<Vec<u8>>, TransportError> {
        let second = self.second.take().expect("the choice happens once");
        let mut both = Supplemented::new(self.rank, first, second);
        self.notify(Choice::FirstRelaying);
        let message = both.exchange(&[]);
        self.stage = Stage::Chosen(Box::new(both));
        message
    }

    /// Passes the messages of all ranks to the first driver. Returns its next message, with a tag.
    fn exchange_first(&mut self, mut first: Box<dyn Endpoint>, messages: &[Vec<u8>]) -> Vec<u8> {
        match first.exchange(messages) {
            Ok(Some(message)) => {
                self.stage = Stage::First(Ok(first));
                [&[MESSAGE], message.as_slice()].concat()
            }
            Ok(None) => {
                self.stage = Stage::Ready(first);
                vec![READY]
            }
            Err(error) => {
                let why = reason(self.rank, &error);
                let message = [&[FAILURE], why.as_bytes()].concat();
                self.stage = Stage::First(Err(why));
                message
            }
        }
    }

    fn chosen(&self) -> &dyn Endpoint {
        match &self.stage {
            Stage::Chosen(endpoint) => &**endpoint,
            _ => unreachable!("set-up is complete"),
        }
    }

    fn chosen_mut(&mut self) -> &mut dyn Endpoint {
        match &mut self.stage {
            Stage::Chosen(endpoint) => &mut **endpoint,
            _ => unreachable!("set-up is complete"),
        }
    }
}

/// Text of an error for other ranks; it names the rank that failed.
fn reason(rank: u32, error: &TransportError) -> String {
    match error {
        TransportError::Wiring { .. } => error.to_string(),
        other => format!("rank {rank}: {other}"),
    }
}

/// Removes the tags of messages.
///
/// # Errors
/// The reason of the lowest rank that sent one, or a description of an unknown message.
fn strip_tags(messages: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
    if let Some(message) = messages.iter().find(|message| message.first() == Some(&FAILURE)) {
        return Err(String::from_utf8_lossy(&message[1..]).into_owned());
    }
    let mut all = Vec::with_capacity(messages.len());
    for (rank, message) in messages.iter().enumerate() {
        match message.split_first() {
            Some((&(MESSAGE | READY), rest)) => all.push(rest.to_vec()),
            _ => return Err(format!("rank {rank} sent a set-up message that this version does not know")),
        }
    }
    Ok(all)
}

impl Endpoint for Fallback {
    fn name(&self) -> &'static str {
        self.chosen().name()
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Empty) {
            Stage::Chosen(mut endpoint) => {
                let message = endpoint.exchange(messages);
                self.stage = Stage::Chosen(endpoint);
                message
            }
            Stage::First(first) => match (first, strip_tags(messages)) {
                (Ok(first), Ok(messages)) => Ok(Some(self.exchange_first(first, &messages))),
                (Err(why), Ok(_)) if messages.is_empty() => {
                    let message = [&[FAILURE], why.as_bytes()].concat();
                    self.stage = Stage::First(Err(why));
                    Ok(Some(message))
                }
                (first, Err(why)) => {
                    drop(first);
                    self.fall_back(&why)
                }
                // This rank's reason is among the messages.
                (Err(why), Ok(_)) => self.fall_back(&why),
            },
            Stage::Ready(first) => {
                let unreachable = self.unreachable_pair(&*first);
                let why = match (strip_tags(messages), unreachable) {
                    (Err(why), _) => why,
                    (Ok(_), Some(_)) if self.can_relay(&*first) => return self.supplement(first),
                    (Ok(_), Some((a, b))) => format!("no cable connects rank {a} with rank {b}"),
                    (Ok(_), None) => {
                        self.notify(Choice::First);
                        self.stage = Stage::Chosen(first);
                        return Ok(None);
                    }
                };
                drop(first);
                self.fall_back(&why)
            }
            Stage::Empty => unreachable!("every stage is replaced"),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.chosen().connects(a, b)
    }

    fn is_for_schedules(&self, a: u32, b: u32) -> bool {
        self.chosen().is_for_schedules(a, b)
    }

    fn link(&mut self, peer: u32, lane: u8) -> Box<dyn Link> {
        self.chosen_mut().link(peer, lane)
    }

    fn slab(&self) -> &Slab {
        self.chosen().slab()
    }

    unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
    ) -> Result<Option<Box<dyn RegistrationGuard>>, TransportError> {
        // SAFETY: the caller keeps the same promise that `register` asks for.
        unsafe { self.chosen_mut().register(start, len) }
    }

    fn begin_use(&mut self, memory: Span<'_>) {
        self.chosen_mut().begin_use(memory);
    }

    fn end_use(&mut self, memory: Span<'_>) {
        self.chosen_mut().end_use(memory);
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleeper>> {
        self.chosen().sleeper()
    }

    fn progress_handle(&self) -> Option<Arc<dyn ProgressHandle>> {
        self.chosen().progress_handle()
    }

    fn rails(&self, peer: u32) -> Vec<RailInfo> {
        self.chosen().rails(peer)
    }

    fn prefer_rail(&mut self, peer: u32, rail: Option<usize>) {
        self.chosen_mut().prefer_rail(peer, rail);
    }

    fn flush(&mut self, within: Duration, is_gone: &dyn Fn(u32) -> bool) -> bool {
        match &mut self.stage {
            Stage::Chosen(endpoint) => endpoint.flush(within, is_gone),
            _ => true,
        }
    }

    fn close(&mut self, timeout: Duration) {
        if let Stage::Chosen(endpoint) = &mut self.stage {
            endpoint.close(timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Arena, ArenaLayout};
    use crate::ring::RingLayout;
    use std::sync::{Mutex, mpsc};

    /// A scripted endpoint: exchanges a fixed number of messages, fails in a given round, and connects all
    /// but one pair.
    #[derive(Debug)]
    struct Scripted {
        name: &'static str,
        rounds: usize,
        done: usize,
        fails_in: Option<usize>,
        unreachable_pair: Option<(u32, u32)>,
        slab: Slab,
        alive: Arc<Mutex<i32>>,
    }

    impl Drop for Scripted {
        fn drop(&mut self) {
            *self.alive.lock().expect("no panic") -= 1;
        }
    }

    impl Endpoint for Scripted {
        fn name(&self) -> &'static str {
            self.name
        }

        fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
            let expected = format!("{} {}", self.name, self.done);
            assert!(
                messages.iter().all(|message| message == expected.as_bytes()),
                "{expected}: {messages:?}"
            );
            assert_eq!(messages.is_empty(), self.done == 0);
            if self.fails_in == Some(self.done) {
                return Err(TransportError::Corrupt("a test"));
            }
            self.done += 1;
            Ok((self.done <= self.rounds).then(|| format!("{} {}", self.name, self.done).into_bytes()))
        }

        fn connects(&self, a: u32, b: u32) -> bool {
            self.unreachable_pair != Some((a, b))
        }

        fn link(&mut self, _: u32, _: u8) -> Box<dyn Link> {
            unreachable!("the test opens no links")
        }

        fn slab(&self) -> &Slab {
            &self.slab
        }

        fn close(&mut self, _: Duration) {}
    }

    /// Runs set-up of scripted endpoints on three ranks.
    ///
    /// Returns the driver that each rank ends up with, and the reason against the first, or that it relays.
    fn chosen_drivers(
        rounds: usize,
        fails: &[(u32, usize)],
        opens: bool,
        (unreachable_pair, max_relayed_ranks): (Option<(u32, u32)>, u32),
    ) -> Vec<(String, Option<String>)> {
        let layout = ArenaLayout { ranks: 1, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 16 };
        let slab = Slab::new(&Arena::private(layout).expect("memory"), None);
        let alive = Arc::new(Mutex::new(0));
        let scripted = |name, rank| {
            *alive.lock().expect("no panic") += 1;
            let first = name == "first";
            let fails_in = fails.iter().find(|(of, _)| first && *of == rank).map(|(_, round)| *round);
            let (slab, alive) = (slab.clone(), Arc::clone(&alive));
            Box::new(Scripted {
                name,
                rounds,
                done: 0,
                fails_in,
                unreachable_pair: unreachable_pair.filter(|_| first),
                slab,
                alive,
            })
        };
        let (sender, replies) = mpsc::channel();
        let end = |rank| {
            let first: Result<Box<dyn Endpoint>, _> = if opens || rank != 1 {
                Ok(scripted("first", rank))
            } else {
                Err(TransportError::Corrupt("none"))
            };
            let sender = sender.clone();
            let on_choice = move |choice: Choice<'_>| {
                let (name, why) = match choice {
                    Choice::First => ("first", None),
                    Choice::FirstRelaying => ("first", Some("relaying")),
                    Choice::Second(why) => ("second", Some(why)),
                };
                sender.send((rank, name.to_owned(), why.map(str::to_owned))).expect("somebody listens");
            };
            let ranks = (vec![0, 0, 1], max_relayed_ranks);
            Fallback::new(rank, ranks, first, scripted("second", rank), Box::new(on_choice))
        };
        let mut ends: Vec<Fallback> = (0..3).map(end).collect();
        let mut messages = Vec::new();
        loop {
            let replies: Vec<_> =
                ends.iter_mut().map(|end| end.exchange(&messages).expect("a message")).collect();
            if replies.iter().all(Option::is_none) {
                break;
            }
            messages =
                replies.into_iter().map(|message| message.expect("all end in the same round")).collect();
        }
        let mut choices: Vec<_> = replies.try_iter().collect();
        choices.sort();
        assert!(choices.iter().map(|(rank, ..)| *rank).eq(0..3), "each tells once: {choices:?}");
        for (end, (_, name, _)) in ends.iter().zip(&choices) {
            assert_eq!(end.name(), name);
        }
        let expected = if choices[0].1 == "first" { 6 } else { 3 };
        assert_eq!(*alive.lock().expect("no panic"), expected, "what was given up is gone");
        choices.into_iter().map(|(_, name, why)| (name, why)).collect()
    }

    #[test]
    fn all_take_the_first_if_nothing_speaks_against_it() {
        for rounds in 1..4 {
            assert_eq!(chosen_drivers(rounds, &[], true, (None, 0)), vec![("first".to_owned(), None); 3]);
            // Ranks of one host have shared memory.
            assert_eq!(chosen_drivers(rounds, &[], true, (Some((0, 1)), 0))[0].0, "first");
        }
    }

    #[test]
    fn all_take_the_second_for_the_same_reason_whoever_fails_and_whenever() {
        let second = |why: &str| vec![("second".to_owned(), Some(why.to_owned())); 3];
        let damage = "a message header is not valid (a test); something else wrote to the shared memory";
        for rounds in 1..4 {
            for round in 0..=rounds {
                for rank in 0..3 {
                    let why = format!("rank {rank}: {damage}");
                    assert_eq!(
                        chosen_drivers(rounds, &[(rank, round)], true, (None, 0)),
                        second(&why),
                        "{round} of {rounds}"
                    );
                }
                let why = format!("rank 1: {damage}");
                assert_eq!(
                    chosen_drivers(rounds, &[(1, round), (2, round)], true, (None, 0)),
                    second(&why),
                    "two fail"
                );
            }
            let choices = chosen_drivers(rounds, &[(2, rounds)], false, (None, 0));
            assert!(choices.iter().all(|(name, why)| {
                name == "second" && why.as_ref().is_some_and(|why| why.starts_with("rank 1: "))
            }));
            assert_eq!(
                chosen_drivers(rounds, &[], true, (Some((1, 2)), 2)),
                second("no cable connects rank 1 with rank 2")
            );
        }
    }

    #[test]
    fn the_first_is_taken_where_messages_can_be_relayed_and_the_second_connects_other_ranks() {
        for rounds in 1..4 {
            let choices = chosen_drivers(rounds, &[], true, (Some((1, 2)), 3));
            assert_eq!(choices, vec![("first".to_owned(), Some("relaying".to_owned())); 3]);
        }
    }
}
