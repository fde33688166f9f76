//! Fallback from a preferred driver to a second one if any rank can't use the first.
//!
//! Ranks exchange the first driver's messages with a leading mark. A rank that fails sends the reason
//! instead. All ranks receive the reason in the same round, drop the first driver and start set-up of the
//! second. When the first driver's set-up ends, ranks exchange one more round to report late failures. A
//! first driver that does not connect all ranks is not used either: transfers that would fail over it work
//! over the second.
//!
//! Invariant: all ranks use the same driver, since the choice follows from messages that all ranks have
//! received.
//!
//! # Safety
//! The only unsafe function passes lent memory on to the driver in use, under the caller's promise.

use super::{Endpoint, ProgressHandle, RailInfo, RegistrationGuard};
use crate::{
    Link, Sleeper, TransportError,
    memory::{Slab, Span},
};
use std::{sync::Arc, time::Duration};

/// Before a word of the first driver.
const WORD: u8 = b'w';
/// Before the reason why it can't be used.
const CANNOT: u8 = b'n';
/// Instead of a word: it is connected.
const READY: u8 = b'r';

/// Which driver speaks.
#[derive(Debug)]
enum Stage {
    /// The first, or the reason why there is none.
    First(Result<Box<dyn Endpoint>, String>),
    /// The first has said all.
    Ready(Box<dyn Endpoint>),
    /// This is the one that is used.
    Chosen(Box<dyn Endpoint>),
    /// Between stages.
    Nothing,
}

/// Told which driver was taken, by its name, and why not the first, if it was not.
pub type OnChoice = Box<dyn FnOnce(&str, Option<&str>) + Send>;

/// One rank's part of one driver or the other.
pub struct Fallback {
    rank: u32,
    /// By rank, a number of its host: those of one host need not reach each other.
    hosts: Vec<u32>,
    stage: Stage,
    second: Option<Box<dyn Endpoint>>,
    tell: Option<OnChoice>,
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
    /// An endpoint that has opened both drivers, or the reason why the first can't be opened.
    ///
    /// Ranks on the same host, by `hosts`, need not reach each other.
    #[must_use]
    pub fn new(
        rank: u32,
        hosts: Vec<u32>,
        first: Result<Box<dyn Endpoint>, TransportError>,
        second: Box<dyn Endpoint>,
        tell: OnChoice,
    ) -> Fallback {
        let first = first.map_err(|error| reason(rank, &error));
        Fallback { rank, hosts, stage: Stage::First(first), second: Some(second), tell: Some(tell) }
    }

    fn tell(&mut self, name: &str, why_not: Option<&str>) {
        if let Some(tell) = self.tell.take() {
            tell(name, why_not);
        }
    }

    fn fall_back(&mut self, why: &str) -> Result<Option<Vec<u8>>, TransportError> {
        // Memory and devices of the first driver are released before the second needs them.
        self.stage = Stage::Nothing;
        let mut second = self.second.take().expect("it is fallen back to once");
        self.tell(second.name(), Some(why));
        let word = second.exchange(&[]);
        self.stage = Stage::Chosen(second);
        word
    }

    /// Two ranks of different hosts that don't reach each other, if there are any.
    fn gap(&self, endpoint: &dyn Endpoint) -> Option<(u32, u32)> {
        let ranks = self.hosts.len() as u32;
        let pairs = (0..ranks).flat_map(|a| (a + 1..ranks).map(move |b| (a, b)));
        let mut far = pairs.filter(|(a, b)| self.hosts[*a as usize] != self.hosts[*b as usize]);
        far.find(|(a, b)| !endpoint.connects(*a, *b))
    }

    /// Lets the first driver hear what all have said, and says what it says.
    fn ask(&mut self, mut first: Box<dyn Endpoint>, messages: &[Vec<u8>]) -> Vec<u8> {
        match first.exchange(messages) {
            Ok(Some(word)) => {
                self.stage = Stage::First(Ok(first));
                [&[WORD], word.as_slice()].concat()
            }
            Ok(None) => {
                self.stage = Stage::Ready(first);
                vec![READY]
            }
            Err(error) => {
                let why = reason(self.rank, &error);
                let word = [&[CANNOT], why.as_bytes()].concat();
                self.stage = Stage::First(Err(why));
                word
            }
        }
    }

    fn chosen(&self) -> &dyn Endpoint {
        match &self.stage {
            Stage::Chosen(endpoint) => &**endpoint,
            _ => unreachable!("the conversation is over"),
        }
    }

    fn chosen_mut(&mut self) -> &mut dyn Endpoint {
        match &mut self.stage {
            Stage::Chosen(endpoint) => &mut **endpoint,
            _ => unreachable!("the conversation is over"),
        }
    }
}

/// An error as others are to read it: with the rank that has it.
fn reason(rank: u32, error: &TransportError) -> String {
    match error {
        TransportError::Wiring { .. } => error.to_string(),
        other => format!("rank {rank}: {other}"),
    }
}

/// The first reason that a rank has given, if any has; or the words, without their marks.
fn words(messages: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
    if let Some(word) = messages.iter().find(|word| word.first() == Some(&CANNOT)) {
        return Err(String::from_utf8_lossy(&word[1..]).into_owned());
    }
    let mut all = Vec::with_capacity(messages.len());
    for (rank, word) in messages.iter().enumerate() {
        match word.split_first() {
            Some((&(WORD | READY), rest)) => all.push(rest.to_vec()),
            _ => return Err(format!("rank {rank} has said what no rank of this version says")),
        }
    }
    Ok(all)
}

impl Endpoint for Fallback {
    fn name(&self) -> &'static str {
        self.chosen().name()
    }

    fn exchange(&mut self, messages: &[Vec<u8>]) -> Result<Option<Vec<u8>>, TransportError> {
        match std::mem::replace(&mut self.stage, Stage::Nothing) {
            Stage::Chosen(mut endpoint) => {
                let word = endpoint.exchange(messages);
                self.stage = Stage::Chosen(endpoint);
                word
            }
            Stage::First(first) => match (first, words(messages)) {
                (Ok(first), Ok(messages)) => Ok(Some(self.ask(first, &messages))),
                (Err(why), Ok(_)) if messages.is_empty() => {
                    let word = [&[CANNOT], why.as_bytes()].concat();
                    self.stage = Stage::First(Err(why));
                    Ok(Some(word))
                }
                (first, Err(why)) => {
                    drop(first);
                    self.fall_back(&why)
                }
                // Ours is among what is heard.
                (Err(why), Ok(_)) => self.fall_back(&why),
            },
            Stage::Ready(first) => {
                let gap = self.gap(&*first);
                let why = match (words(messages), gap) {
                    (Err(why), _) => why,
                    (Ok(_), Some((a, b))) => format!("no cable connects rank {a} with rank {b}"),
                    (Ok(_), None) => {
                        self.tell(first.name(), None);
                        self.stage = Stage::Chosen(first);
                        return Ok(None);
                    }
                };
                drop(first);
                self.fall_back(&why)
            }
            Stage::Nothing => unreachable!("a stage follows every other"),
        }
    }

    fn connects(&self, a: u32, b: u32) -> bool {
        self.chosen().connects(a, b)
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
        // SAFETY: the caller's promise is the one that is asked for.
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
        gap: Option<(u32, u32)>,
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
            assert!(messages.iter().all(|word| word == expected.as_bytes()), "{expected}: {messages:?}");
            assert_eq!(messages.is_empty(), self.done == 0);
            if self.fails_in == Some(self.done) {
                return Err(TransportError::Corrupt("a test"));
            }
            self.done += 1;
            Ok((self.done <= self.rounds).then(|| format!("{} {}", self.name, self.done).into_bytes()))
        }

        fn connects(&self, a: u32, b: u32) -> bool {
            self.gap != Some((a, b))
        }

        fn link(&mut self, _: u32, _: u8) -> Box<dyn Link> {
            unreachable!("no links are asked for")
        }

        fn slab(&self) -> &Slab {
            &self.slab
        }

        fn close(&mut self, _: Duration) {}
    }

    /// Drivers that three ranks end up with, and the reasons against the first, for scripted endpoints.
    fn taken(
        rounds: usize,
        fails: &[(u32, usize)],
        opens: bool,
        gap: Option<(u32, u32)>,
    ) -> Vec<(String, Option<String>)> {
        let layout = ArenaLayout { ranks: 1, lanes: 1, ring: RingLayout::default(), slab_bytes: 1 << 16 };
        let slab = Slab::new(&Arena::private(layout).expect("memory"), None);
        let alive = Arc::new(Mutex::new(0));
        let scripted = |name, rank| {
            *alive.lock().expect("no panic") += 1;
            let first = name == "first";
            let fails_in = fails.iter().find(|(of, _)| first && *of == rank).map(|(_, round)| *round);
            let (slab, alive) = (slab.clone(), Arc::clone(&alive));
            Box::new(Scripted { name, rounds, done: 0, fails_in, gap: gap.filter(|_| first), slab, alive })
        };
        let (says, said) = mpsc::channel();
        let end = |rank| {
            let first: Result<Box<dyn Endpoint>, _> = if opens || rank != 1 {
                Ok(scripted("first", rank))
            } else {
                Err(TransportError::Corrupt("none"))
            };
            let says = says.clone();
            let tell = move |name: &str, why: Option<&str>| {
                says.send((rank, name.to_owned(), why.map(str::to_owned))).expect("somebody listens");
            };
            Fallback::new(rank, vec![0, 0, 1], first, scripted("second", rank), Box::new(tell))
        };
        let mut ends: Vec<Fallback> = (0..3).map(end).collect();
        let mut words = Vec::new();
        loop {
            let said: Vec<_> = ends.iter_mut().map(|end| end.exchange(&words).expect("a word")).collect();
            if said.iter().all(Option::is_none) {
                break;
            }
            words = said.into_iter().map(|word| word.expect("all end in the same round")).collect();
        }
        let mut told: Vec<_> = said.try_iter().collect();
        told.sort();
        assert!(told.iter().map(|(rank, ..)| *rank).eq(0..3), "each tells once: {told:?}");
        for (end, (_, name, _)) in ends.iter().zip(&told) {
            assert_eq!(end.name(), name);
        }
        let expected = if told[0].1 == "first" { 6 } else { 3 };
        assert_eq!(*alive.lock().expect("no panic"), expected, "what was given up is gone");
        told.into_iter().map(|(_, name, why)| (name, why)).collect()
    }

    #[test]
    fn all_take_the_first_if_nothing_speaks_against_it() {
        for rounds in 1..4 {
            assert_eq!(taken(rounds, &[], true, None), vec![("first".to_owned(), None); 3]);
            // Ranks of one host have shared memory.
            assert_eq!(taken(rounds, &[], true, Some((0, 1)))[0].0, "first");
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
                        taken(rounds, &[(rank, round)], true, None),
                        second(&why),
                        "{round} of {rounds}"
                    );
                }
                let why = format!("rank 1: {damage}");
                assert_eq!(taken(rounds, &[(1, round), (2, round)], true, None), second(&why), "two fail");
            }
            let told = taken(rounds, &[(2, rounds)], false, None);
            assert!(told.iter().all(|(name, why)| {
                name == "second" && why.as_ref().is_some_and(|why| why.starts_with("rank 1: "))
            }));
            assert_eq!(
                taken(rounds, &[], true, Some((1, 2))),
                second("no cable connects rank 1 with rank 2")
            );
        }
    }
}
