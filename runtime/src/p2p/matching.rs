//! Matching of messages and receives by MPI's rule.
//!
//! A receive names a context, and a source and a tag or any. A message goes to the matching receive that was
//! posted first; a receive takes the matching message that arrived first. So messages of one source in one
//! context do not overtake each other among the receives that match them.
//!
//! Posted receives and unexpected messages lie in ordered maps, by key and then by age: with source and tag
//! named, both are found without a search. A receive from any source or with any tag scans the messages of
//! its context.
//!
//! Invariant: no stored receive matches a stored message.

use std::collections::BTreeMap;

/// Context, source and tag of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) context: u32,
    /// The source; `None` for any.
    pub(super) from: Option<u32>,
    /// The tag; `None` for any.
    pub(super) tag: Option<i32>,
}

/// Context, source and tag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) context: u32,
    pub(super) from: u32,
    pub(super) tag: i32,
}

/// Context, source, tag and age.
type Key = (u32, u32, i64, u64);

const ANY_RANK: u32 = u32::MAX;
const ANY_TAG: i64 = i64::MAX;

/// Posted receives `R` and unexpected messages `M`.
#[derive(Debug)]
pub(super) struct Matching<R, M> {
    posted: BTreeMap<Key, R>,
    arrived: BTreeMap<Key, M>,
    /// Number of posted receives from any source or with any tag.
    wildcards: usize,
    /// The age of the next entry.
    next: u64,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Matching<R, M> {
        Matching { posted: BTreeMap::new(), arrived: BTreeMap::new(), wildcards: 0, next: 0 }
    }
}

/// Returns the oldest key of this context, source and tag.
fn oldest<T>(map: &BTreeMap<Key, T>, (context, from, tag): (u32, u32, i64)) -> Option<Key> {
    let ages = (context, from, tag, 0)..=(context, from, tag, u64::MAX);
    map.range(ages).next().map(|(key, _)| *key)
}

impl<R, M> Matching<R, M> {
    /// Takes the receive that an arriving message matches. If there is none, [`Matching::keep`] must follow.
    pub(super) fn arrive(&mut self, envelope: &Envelope) -> Option<R> {
        if self.posted.is_empty() {
            return None;
        }
        let Envelope { context, from, tag } = *envelope;
        let tag = i64::from(tag);
        let mut found = oldest(&self.posted, (context, from, tag));
        if self.wildcards > 0 {
            let wide = [(from, ANY_TAG), (ANY_RANK, tag), (ANY_RANK, ANY_TAG)];
            let others =
                wide.into_iter().filter_map(|(from, tag)| oldest(&self.posted, (context, from, tag)));
            found = found.into_iter().chain(others).min_by_key(|key| key.3);
        }
        let key = found?;
        self.wildcards -= usize::from(is_wildcard(&key));
        self.posted.remove(&key)
    }

    /// Stores a message that matches no posted receive.
    pub(super) fn keep(&mut self, envelope: &Envelope, message: M) {
        let key = (envelope.context, envelope.from, i64::from(envelope.tag), self.age());
        self.arrived.insert(key, message);
    }

    /// Takes the message that a new receive matches. If there is none, [`Matching::post`] must follow.
    pub(super) fn take(&mut self, pattern: &Pattern) -> Option<(Envelope, M)> {
        let Pattern { context, from, tag } = *pattern;
        let key = match (from, tag) {
            (Some(from), Some(tag)) => oldest(&self.arrived, (context, from, tag.into()))?,
            _ => {
                let senders = from.map_or((0, ANY_RANK), |from| (from, from));
                let keys = (context, senders.0, i64::MIN, 0)..=(context, senders.1, ANY_TAG, u64::MAX);
                let matching = |key: &&Key| tag.is_none_or(|tag| i64::from(tag) == key.2);
                *self.arrived.range(keys).map(|(key, _)| key).filter(matching).min_by_key(|key| key.3)?
            }
        };
        let message = self.arrived.remove(&key)?;
        Some((Envelope { context, from: key.1, tag: key.2 as i32 }, message))
    }

    /// Returns the unexpected messages.
    pub(super) fn arrived_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.arrived.values_mut()
    }

    /// Stores a receive that matches no unexpected message.
    pub(super) fn post(&mut self, pattern: &Pattern, receive: R) {
        let from = pattern.from.unwrap_or(ANY_RANK);
        let tag = pattern.tag.map_or(ANY_TAG, i64::from);
        let key = (pattern.context, from, tag, self.age());
        self.wildcards += usize::from(is_wildcard(&key));
        self.posted.insert(key, receive);
    }

    /// Returns the number of posted receives and of unexpected messages.
    #[cfg(test)]
    pub(super) fn len(&self) -> (usize, usize) {
        (self.posted.len(), self.arrived.len())
    }

    fn age(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn is_wildcard(key: &Key) -> bool {
    key.1 == ANY_RANK || key.2 == ANY_TAG
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference: the rule by linear search from the oldest entry.
    #[derive(Default)]
    struct Lists {
        posted: Vec<(Pattern, u32)>,
        arrived: Vec<(Envelope, u32)>,
    }

    fn fits(pattern: &Pattern, envelope: &Envelope) -> bool {
        pattern.context == envelope.context
            && pattern.from.is_none_or(|from| from == envelope.from)
            && pattern.tag.is_none_or(|tag| tag == envelope.tag)
    }

    impl Lists {
        fn arrive(&mut self, envelope: Envelope, number: u32) -> Option<u32> {
            let found = self.posted.iter().position(|(pattern, _)| fits(pattern, &envelope));
            if found.is_none() {
                self.arrived.push((envelope, number));
            }
            found.map(|at| self.posted.remove(at).1)
        }

        fn post(&mut self, pattern: Pattern, number: u32) -> Option<u32> {
            let found = self.arrived.iter().position(|(envelope, _)| fits(&pattern, envelope));
            if found.is_none() {
                self.posted.push((pattern, number));
            }
            found.map(|at| self.arrived.remove(at).1)
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        Arrives(Envelope),
        Posted(Pattern),
    }

    fn event() -> impl Strategy<Value = Event> {
        let tag = || prop_oneof![Just(-1), Just(0), Just(7), Just(i32::MIN), Just(i32::MAX)];
        let arrives = (0..2u32, 0..3u32, tag())
            .prop_map(|(context, from, tag)| Event::Arrives(Envelope { context, from, tag }));
        let posted = (0..2u32, proptest::option::of(0..3u32), proptest::option::of(tag()))
            .prop_map(|(context, from, tag)| Event::Posted(Pattern { context, from, tag }));
        prop_oneof![arrives, posted]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn messages_go_to_the_receives_that_a_search_from_the_oldest_on_finds(
            events in prop::collection::vec(event(), 0..60)
        ) {
            let (mut matching, mut lists) = (Matching::default(), Lists::default());
            for (number, event) in (0u32..).zip(events) {
                match event {
                    Event::Arrives(envelope) => {
                        let found = matching.arrive(&envelope);
                        if found.is_none() {
                            matching.keep(&envelope, number);
                        }
                        prop_assert_eq!(found, lists.arrive(envelope, number));
                    }
                    Event::Posted(pattern) => {
                        let found = matching.take(&pattern);
                        if found.is_none() {
                            matching.post(&pattern, number);
                        }
                        if let Some((envelope, _)) = &found {
                            prop_assert!(fits(&pattern, envelope));
                        }
                        prop_assert_eq!(found.map(|(_, number)| number), lists.post(pattern, number));
                    }
                }
                prop_assert_eq!(matching.len(), (lists.posted.len(), lists.arrived.len()));
            }
        }
    }
}
