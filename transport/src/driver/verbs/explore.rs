//! Exhaustive model checks, for tests: visits every state that a small model can reach.

use std::{
    collections::{HashSet, VecDeque},
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

/// A state of a model.
pub(super) trait Model: Clone + Hash {
    /// An event that leads from a state to another one.
    type Step: Copy + Debug;

    /// Returns the steps that are possible.
    fn steps(&self) -> Vec<Self::Step>;

    /// Takes one of these steps.
    ///
    /// # Panics
    /// If the step breaks a rule.
    fn take(&mut self, step: Self::Step);

    /// Checks the rules that hold in every state.
    ///
    /// # Panics
    /// If the state breaks one.
    fn check(&self);
}

/// Visits all states that `start` can reach and checks each. Prints the shortest sequence of steps to a state
/// that breaks a rule.
///
/// # Panics
/// If a state or a step breaks a rule, or if there are fewer than `least` states: the model has then lost
/// steps.
pub(super) fn explore<M: Model>(least: usize, start: M) {
    // Fingerprints take the place of states: a million states share one with a probability of 3e-8.
    let mut seen = HashSet::from([fingerprint(&start)]);
    // The steps to all states, each with the index of the step before it.
    let mut ways: Vec<(usize, Option<M::Step>)> = vec![(0, None)];
    let mut open = VecDeque::from([(0, start)]);
    while let Some((at, state)) = open.pop_front() {
        guarded(&ways, (at, None), || state.check());
        for step in state.steps() {
            let mut next = state.clone();
            guarded(&ways, (at, Some(step)), || next.take(step));
            if seen.insert(fingerprint(&next)) {
                ways.push((at, Some(step)));
                open.push_back((ways.len() - 1, next));
            }
        }
    }
    assert!(seen.len() >= least, "{} states", seen.len());
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Runs a check; prints the steps that led to it if it panics.
fn guarded<S: Copy + Debug>(
    ways: &[(usize, Option<S>)],
    (mut at, last): (usize, Option<S>),
    check: impl FnOnce(),
) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(check)) else { return };
    let mut steps: Vec<S> = last.into_iter().collect();
    while let (before, Some(step)) = ways[at] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    eprintln!("after the steps {steps:?}");
    resume_unwind(panic)
}
