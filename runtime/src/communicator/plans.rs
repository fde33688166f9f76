//! The plan cache: plans are chosen, made and compiled once per kind of call.
//!
//! `Plans::borrow` looks a call up by its [`CallKey`]. On a miss it chooses an algorithm by the call's
//! [`PlanKey`] (`select`), plans (`plan`) and compiles (`Program`). This module runs no plan.

use super::{
    call::{Blocks, Call},
    keys::{CallKey, PlanKey},
};
use crate::{
    Config,
    call::{CallKind, CallRecord, UnnumberedDigest, Words},
    error::{Error, Result},
    executor::{CallConstants, Program, Protocols, SizedStraight, Sizing},
    kernels::{Reducer, Threads},
};
use collectives::{
    BlockLayout, Codec, Collective, Hosts, Numerics, Spec, TooLarge, plan,
    schedule::InPlace,
    select::{self, Choice, Names, Overrides, Policy, price},
};
use events::{
    target,
    tracing::{Level, enabled, info},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};
use topology::{Rank, Reach};

/// Values that decide a compiled program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProgramKey {
    collective: Collective,
    algorithm: &'static str,
    segments: u32,
    root: Rank,
    in_place: InPlace,
    uneven: bool,
    numerics: Numerics,
    codec: Option<Codec>,
}

/// Values that decide the prediction of the cost model. Sizes up to the same power of two share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bucket {
    call: select::Call,
    root: Rank,
    requirements: select::Requirements,
}

/// Sets of the cache of recent calls; a power of two. Each has two slots: of ten kinds of calls, two have the
/// same set half of the time, and three hardly ever.
const CACHE_SETS: usize = 128;

/// The latest choice of ranks that are threads of one process.
///
/// Each of them would make the same choice in the same generation.
#[derive(Debug, Default)]
pub(super) struct SharedChoice {
    choice: Mutex<Option<Known>>,
}

/// A call and its generation, with the algorithm and segments chosen for it.
type Known = ((PlanKey, u64), (&'static str, u32));

/// Settings by which all calls are carried out, whatever their plans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Execution {
    pub(super) protocols: Protocols,
    pub(super) threads: Threads,
}

/// A plan, and the values derived from it and from a call's parameters.
#[derive(Debug)]
pub(super) struct PlannedCall {
    pub(super) program: Arc<Program>,
    /// For blocks of one length, and messages that are not packed.
    pub(super) constants: CallConstants,
    /// The program with the ranges of the call, if it is straight, and `constants` hold for it.
    pub(super) straight: Option<SizedStraight>,
    pub(super) scratch_bytes: usize,
    /// Whether blocks have lengths of their own, or messages are packed.
    pub(super) is_variant: bool,
    /// The record of the call, with the number of the latest one, and without lengths of blocks.
    pub(super) record: CallRecord,
    /// The words of `record`.
    pub(super) words: Words,
    /// Digest of `record`.
    pub(super) digest: UnnumberedDigest,
    /// Whether a call with this plan has waited until its receivers had entered it.
    pub(super) is_confirmed: bool,
}

/// An entry of the cache of recent calls.
#[derive(Debug)]
struct CachedCall {
    key: CallKey,
    /// Generation in which the plan was chosen.
    generation: u64,
    /// The call; `None` while it is borrowed.
    planned: Option<Box<PlannedCall>>,
}

/// Cache slot that a borrowed call returns to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheSlot(usize);

/// The choice that a program makes between two calls. It takes precedence over all options.
#[derive(Debug)]
struct Override {
    policy: Policy,
    segments: u32,
}

/// The state before [`Plans::override_once`].
#[derive(Debug)]
pub(super) struct SavedOverride {
    /// The earlier override, if algorithms were overridden.
    overriding: Option<Option<Override>>,
    segments_once: u32,
    generation: u64,
}

/// Returns the value of a slot for a key, or makes it with `make`; other threads wait meanwhile.
fn get_or_make<K: Clone + PartialEq, V: Clone>(
    slot: &Mutex<Option<(K, V)>>,
    key: &K,
    make: impl FnOnce() -> Result<V>,
) -> Result<V> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, value)) = &*slot
        && known == key
    {
        return Ok(value.clone());
    }
    let value = make()?;
    *slot = Some((key.clone(), value.clone()));
    Ok(value)
}

/// Algorithm choice that the log has once; sizes up to the same power of two are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LoggedChoice {
    collective: Collective,
    size_bits: u32,
    algorithm: &'static str,
    segments: u32,
}

/// The plans of one communicator.
#[derive(Debug)]
pub(super) struct Plans {
    execution: Execution,
    rank: Rank,
    ranks: u32,
    lanes: u8,
    /// Ranks that can send to each other. Plans send between those only.
    reach: Reach,
    /// Ranks that have links to each other.
    links: Reach,
    /// The requirements of all plans: hosts, and the tree and the ring along which messages go if not every
    /// rank reaches every other one. Equal on all ranks, as are all inputs of the choice of plans.
    placement: select::Requirements,
    policy: Policy,
    segments: u32,
    /// Replaces the policy and the segments, if the program has chosen.
    overriding: Option<Override>,
    /// Replaces every other number of segments, unless it is 0.
    segments_once: u32,
    /// Generation of the valid choices: those made since the latest override.
    generation: u64,
    /// Number of generations so far.
    generations: u64,
    programs: HashMap<ProgramKey, Arc<Program>>,
    cached: Box<[Option<CachedCall>; 2 * CACHE_SETS]>,
    /// The slot of the latest call, which most calls are like.
    latest: usize,
    /// Predictions of the cost model, if there is one.
    simulated: Mutex<HashMap<Bucket, Option<Choice>>>,
    /// The choice shared by the ranks of this process, if there are several.
    shared_choice: Option<Arc<SharedChoice>>,
    /// Choices that the log has.
    logged_choices: HashSet<LoggedChoice>,
}

impl Plans {
    pub(super) fn new(
        rank: Rank,
        ranks: u32,
        lanes: u8,
        (reach, links, hosts): (Reach, Reach, Hosts),
        policy: Policy,
        (execution, config): (Execution, &Config),
    ) -> Plans {
        let placement = select::Requirements { hosts, ..Default::default() }.within(ranks, &reach);
        Plans {
            execution,
            rank,
            ranks,
            lanes,
            reach,
            links,
            placement,
            policy,
            segments: config.selection.segments,
            overriding: None,
            segments_once: 0,
            generation: 0,
            generations: 0,
            programs: HashMap::new(),
            cached: Box::new([const { None }; 2 * CACHE_SETS]),
            latest: 0,
            simulated: Mutex::default(),
            shared_choice: None,
            logged_choices: HashSet::new(),
        }
    }

    /// Returns the settings by which calls are carried out.
    pub(super) fn execution(&self) -> &Execution {
        &self.execution
    }

    /// Shares choices and plans with other ranks of this process from now on.
    pub(super) fn share_choice(&mut self, shared_choice: &Arc<SharedChoice>) {
        self.shared_choice = Some(Arc::clone(shared_choice));
    }

    /// Sets overrides and segments, which then decide alone: measurements and predictions do not count.
    /// `None` returns to the options.
    pub(super) fn set_override(&mut self, wanted: Option<(Overrides, u32)>) {
        self.overriding = wanted.map(|(overrides, segments)| self.override_of(overrides, segments));
        self.begin_generation();
    }

    fn override_of(&self, overrides: Overrides, segments: u32) -> Override {
        Override { policy: Policy { overrides, tuned: None, model: None, ..self.policy.clone() }, segments }
    }

    fn begin_generation(&mut self) {
        self.generations += 1;
        self.generation = self.generations;
    }

    /// Overrides as [`Plans::set_override`], until [`Plans::restore`] gets the returned value. Without names,
    /// or with 0 segments, the earlier ones hold.
    pub(super) fn override_once(&mut self, names: Option<Names>, segments: u32) -> SavedOverride {
        let saved = (self.segments_once, self.generation);
        let overriding =
            names.map(|names| self.override_of(Overrides { names, rules: Vec::new() }, segments));
        let overriding = overriding.map(|overriding| self.overriding.replace(overriding));
        self.segments_once = segments;
        self.begin_generation();
        SavedOverride { overriding, segments_once: saved.0, generation: saved.1 }
    }

    /// Restores the overrides before [`Plans::override_once`].
    pub(super) fn restore(&mut self, saved: SavedOverride) {
        if let Some(overriding) = saved.overriding {
            self.overriding = overriding;
        }
        (self.segments_once, self.generation) = (saved.segments_once, saved.generation);
    }

    /// Lends the plan of a call, which returns it by [`Plans::give_back`]. A plan that is not returned is
    /// made again.
    ///
    /// # Errors
    /// Those of [`Call::reducer`], and those of the choice of a plan.
    // Always inlined, as `give_back`: out of line they took 3 % of the instructions of a small call.
    #[inline(always)]
    pub(super) fn borrow(
        &mut self,
        call: &Call,
        blocks: Blocks<'_>,
        numerics: Numerics,
    ) -> Result<(CacheSlot, Box<PlannedCall>)> {
        let key = CallKey::new(call, blocks, numerics);
        match self.take_cached(self.latest, key) {
            Some(planned) => Ok((CacheSlot(self.latest), planned)),
            None => self.borrow_another(key, (call, blocks, numerics)),
        }
    }

    /// Takes the plan of a call from a slot, if it is there.
    #[inline(always)]
    fn take_cached(&mut self, slot: usize, key: CallKey) -> Option<Box<PlannedCall>> {
        let cached = self.cached[slot].as_mut()?;
        let is_valid = cached.key == key && cached.generation == self.generation;
        if is_valid { cached.planned.take() } else { None }
    }

    /// Lends the plan of a call that is another one than the latest.
    #[inline(never)]
    fn borrow_another(
        &mut self,
        key: CallKey,
        (call, blocks, numerics): (&Call, Blocks<'_>, Numerics),
    ) -> Result<(CacheSlot, Box<PlannedCall>)> {
        let set = key.hash() % CACHE_SETS * 2;
        for slot in [set, set + 1] {
            if let Some(planned) = self.take_cached(slot, key) {
                self.latest = slot;
                return Ok((CacheSlot(slot), planned));
            }
        }
        let planned = self.make(call, &PlanKey::new(call, blocks, numerics))?;
        // The latest one stays beside it.
        self.cached.swap(set, set + 1);
        self.cached[set] = Some(CachedCall { key, generation: self.generation, planned: None });
        self.latest = set;
        Ok((CacheSlot(set), planned))
    }

    /// Takes back a lent plan.
    #[inline(always)]
    pub(super) fn give_back(&mut self, slot: CacheSlot, planned: Box<PlannedCall>) {
        if let Some(cached) = &mut self.cached[slot.0] {
            cached.planned = Some(planned);
        }
    }

    #[cold]
    fn make(&mut self, call: &Call, shape: &PlanKey) -> Result<Box<PlannedCall>> {
        let reducer = call.reducer()?;
        let program = self.find(shape)?;
        let sized = self.constants_of(shape, &program, reducer);
        let constants = sized.map_err(|error| Error::InvalidArgument(error.to_string()))?;
        let record = CallRecord {
            seq: 0,
            kind: CallKind::Collective(call.collective),
            dtype: call.dtype,
            op: call.op,
            count: call.count,
            root: call.root,
            plan: program.id,
            uneven: shape.uneven,
            codec: call.codec,
        };
        let is_variant = shape.uneven || shape.codec.is_some();
        Ok(Box::new(PlannedCall {
            straight: if is_variant {
                None
            } else {
                SizedStraight::new(&program, &constants, &self.execution.protocols)
            },
            scratch_bytes: (u64::from(program.scratch_blocks) * constants.layout.count()) as usize
                * constants.elem_bytes,
            program,
            constants,
            is_variant,
            record,
            words: record.encode(),
            digest: record.unnumbered_digest(),
            is_confirmed: false,
        }))
    }

    fn constants_of(
        &self,
        shape: &PlanKey,
        program: &Program,
        reducer: Option<Reducer>,
    ) -> Result<CallConstants, TooLarge> {
        let Execution { protocols, threads } = self.execution;
        let (collective, count) = (shape.collective, if shape.uneven { 0 } else { shape.count });
        let elem_bytes = shape.elem_bytes as usize;
        let (inputs, outputs) = (collective.input_blocks(self.ranks), collective.output_blocks(self.ranks));
        let most = inputs.max(outputs).max(program.scratch_blocks);
        let layout = BlockLayout::new(count, elem_bytes, program.chunks, most)?;
        // Of the largest buffer of any rank, which fits memory. Not of the local buffers, since only a root
        // may have one.
        let bytes = count * u64::from(shape.elem_bytes) * u64::from(inputs.max(outputs));
        Ok(CallConstants {
            layout,
            uneven: None,
            packed: None,
            elem_bytes,
            reducer,
            ranks: self.ranks,
            threads,
            results: protocols.writes_of(count as usize * elem_bytes * outputs as usize),
            sizing: Sizing::ByCall(protocols.size_class(bytes)),
            gathers: reducer.is_none(),
            segments: protocols.counted_segments(program.segments, reducer.is_none()),
        })
    }

    fn find(&mut self, shape: &PlanKey) -> Result<Arc<Program>> {
        let (algorithm, segments) = match &self.shared_choice {
            Some(shared_choice) => {
                get_or_make(&shared_choice.choice, &(*shape, self.generation), || self.choose(shape))?
            }
            None => self.choose(shape)?,
        };
        let key = ProgramKey {
            collective: shape.collective,
            algorithm,
            segments,
            root: shape.root,
            in_place: shape.in_place,
            uneven: shape.uneven,
            numerics: shape.numerics,
            codec: shape.codec,
        };
        self.log_choice(shape, algorithm, segments);
        if let Some(program) = self.programs.get(&key) {
            return Ok(Arc::clone(program));
        }
        let make = || {
            let spec = Spec::new(shape.collective, self.ranks)?
                .with_root(shape.root)?
                .with_in_place(shape.in_place)
                .with_segments(segments)?
                .with_numerics(shape.numerics)
                .with_codec(shape.codec)
                .only_for(self.rank)?;
            let spec = self.requirements(shape).place(spec)?;
            plan::plan(&if shape.uneven { spec.with_uneven_blocks() } else { spec }, algorithm)
        };
        let mut program = Program::compile(&make()?, self.rank, self.lanes);
        program.segments = segments;
        let program = Arc::new(program);
        self.programs.insert(key, Arc::clone(&program));
        Ok(program)
    }

    /// Logs the algorithm of a collective, once per power of two of its block's bytes.
    fn log_choice(&mut self, shape: &PlanKey, algorithm: &'static str, segments: u32) {
        if !enabled!(target: target::SELECTION, Level::INFO) {
            return;
        }
        let (collective, bytes) = (shape.collective, shape.count.saturating_mul(shape.elem_bytes.into()));
        let size_bits = u64::BITS - bytes.leading_zeros();
        if self.logged_choices.insert(LoggedChoice { collective, size_bits, algorithm, segments }) {
            info!(target: target::SELECTION, rank = self.rank.0,
                "{} of {bytes} B per block: {algorithm}, {segments} segments per chunk", collective.name());
        }
    }

    /// Chooses algorithm and segments, by values that all ranks agree on. A collective that does not have the
    /// algorithm that the options name chooses for itself.
    pub(super) fn choose(&self, shape: &PlanKey) -> Result<(&'static str, u32)> {
        let call = select::Call {
            collective: shape.collective,
            ranks: self.ranks,
            block_bytes: shape.count.saturating_mul(shape.elem_bytes.into()),
        };
        let requirements = self.requirements(shape);
        let (policy, segments) = match &self.overriding {
            Some(overriding) => (&overriding.policy, overriding.segments),
            None => (&self.policy, self.segments),
        };
        // The model belongs to the options, and does not count where the program has chosen.
        let bucket = Bucket { call, root: shape.root, requirements };
        let simulated = || if self.overriding.is_some() { None } else { self.simulated(bucket) };
        let choice = select::choose_with(call, shape.root, &self.reach, policy, requirements, simulated)?;
        let segments = if self.segments_once > 0 { self.segments_once } else { segments };
        let segments = match segments {
            wanted if wanted > 0 && shape.collective != Collective::Barrier => wanted,
            _ => choice.segments,
        };
        Ok((choice.algorithm, segments))
    }

    fn requirements(&self, shape: &PlanKey) -> select::Requirements {
        let PlanKey { uneven, numerics, .. } = *shape;
        select::Requirements { uneven, numerics, ..self.placement }
    }

    /// Returns the prediction of the cost model for calls of a bucket, which is made once.
    fn simulated(&self, mut bucket: Bucket) -> Option<Choice> {
        self.policy.model.as_ref()?;
        bucket.call.block_bytes = price::bucket(bucket.call.block_bytes);
        let Bucket { call, root, requirements } = bucket;
        let mut known = self.simulated.lock().unwrap_or_else(PoisonError::into_inner);
        *known
            .entry(bucket)
            .or_insert_with(|| select::simulated(call, root, &self.reach, &self.policy, requirements))
    }

    /// Whether a call has no plan because not every rank reaches every other. Equal on all ranks.
    pub(super) fn lacks_cables(&self, shape: &PlanKey) -> bool {
        !self.reach.is_complete() && self.choose(shape).is_err()
    }

    /// Returns the number of compiled programs.
    #[cfg(test)]
    pub(super) fn programs_compiled(&self) -> usize {
        self.programs.len()
    }

    /// Limits sends to these pairs of ranks, as if no other cables existed.
    #[cfg(test)]
    pub(super) fn limit_to(&mut self, reach: Reach) {
        self.placement = self.placement.within(self.ranks, &reach);
        self.reach = reach.clone();
        self.links = reach;
    }

    /// Whether this rank and another can send to each other.
    pub(super) fn reaches(&self, peer: Rank) -> bool {
        self.links.connects(self.rank, peer)
    }
}
