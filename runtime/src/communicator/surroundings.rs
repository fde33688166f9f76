//! The machine as a rank sees it when its communicator begins, and what follows for waits and selection.
//!
//! The cores, the ranks on this host and the hosts of the others decide how a rank waits, which protocols it
//! takes, and which tuning file fits. Nothing here sends, receives or measures.

use super::{
    cores::CoreShare,
    machine::{fingerprint, placement_of, tuning_of},
};
use crate::{
    Config,
    calibration::Thresholds,
    error::PeerName,
    executor::{OnOtherCores, Protocols, Writes},
    processors::{Caches, Processors},
};
use collectives::{
    Hosts,
    select::{Fingerprint, Tuning},
};
use events::{target, warning};
use std::time::Duration;
use topology::Rank;
use transport::{WaitPolicy, driver::Endpoint};

/// Longest sleep of a rank that its device wakes, before it checks whether its peers live.
const WOKEN_SLEEP: Duration = Duration::from_millis(25);

/// The machine, as a rank sees it.
pub(super) struct Surroundings {
    /// Cores that this rank may use, and the ranks that share them.
    share: CoreShare,
    /// Ranks of this host that use other cores, and are reached by memory.
    elsewhere: Vec<Rank>,
    /// Hosts of all ranks.
    pub(super) hosts: Hosts,
    pub(super) here: Fingerprint,
    pub(super) tuning: Tuning,
    /// Whether ranks share cores. Equal on all ranks.
    pub(super) is_oversubscribed: bool,
}

impl Surroundings {
    pub(super) fn of(
        (rank, names, transport): (Rank, &[PeerName], &str),
        endpoint: Option<&dyn Endpoint>,
        config: &Config,
    ) -> Surroundings {
        let size = names.len() as u32;
        let placement = placement_of(endpoint, names);
        // Equal on all ranks: those of one host see the same machine.
        let cores = config.selection.cores.map_or(Processors::here().cores, |cores| cores as usize);
        let by_memory = endpoint.is_none_or(|endpoint| endpoint.hosts().is_some());
        let apart = placement.as_ref().is_some_and(|placement| placement.hosts() == size);
        let together = placement.as_ref().is_none_or(|placement| placement.hosts() == 1);
        let tuning = tuning_of(transport, apart);
        let (share, elsewhere) = CoreShare::and_others(rank, names);
        Surroundings {
            share,
            elsewhere: if by_memory { elsewhere } else { Vec::new() },
            hosts: placement.as_ref().map_or(Hosts::One, Hosts::of),
            here: fingerprint(transport, names),
            is_oversubscribed: (by_memory || tuning.messages_are_calls) && together && size as usize > cores,
            tuning,
        }
    }

    /// Returns how this rank waits. `wakes` says whether its device can wake it.
    pub(super) fn wait_policy(&self, config: &Config, has_endpoint: bool, wakes: bool) -> WaitPolicy {
        let mut wait = WaitPolicy::for_host(self.share.ranks, self.share.cores);
        if let Some(polls) = config.polling.spin_polls {
            wait.spin_polls = polls;
        }
        if wakes {
            wait.max_sleep = WOKEN_SLEEP;
        }
        if has_endpoint {
            wait.poll_interval = config.polling.interval;
        }
        wait
    }

    /// Returns the ranks that a wait may poll for a little before it yields the core: none where the user has
    /// set how long waits spin, and none where more than two ranks share a core. There a rank on another core
    /// is rarely the one that has it: 8 ranks on two cores lost up to 7 % at 256 bytes.
    pub(super) fn on_other_cores(&self, config: &Config) -> OnOtherCores {
        let is_likely = self.share.ranks <= 2 * self.share.cores && config.polling.spin_polls.is_none();
        OnOtherCores::new(if is_likely { &self.elsewhere } else { &[] })
    }

    /// Returns how many threads reduce for this rank.
    pub(super) fn reduce_threads(&self, config: &Config) -> u32 {
        config.reduce_threads.unwrap_or(self.share.cores / self.share.ranks)
    }

    /// Returns the thresholds of protocols.
    pub(super) fn protocols(&self, config: &Config, machine: Thresholds) -> Protocols {
        let machine = if self.is_oversubscribed { on_shared_cores(machine) } else { machine };
        Protocols { counts_combined_pieces: self.is_oversubscribed, ..protocols_of(config, machine) }
    }
}

/// Smallest piece of a message that ranks which share cores combine in place with registered memory, on
/// machines where others stage longer ones too.
///
/// A rank that reads another one's memory holds it up until it is done, and both may wait for the same core.
/// Time with staging as a part of that without, four ranks on two cores of an AMD EPYC (Zen 4), common cache
/// / none, partial results of a `reduce` by `binomial`: messages of 4 KiB 0.77 / 0.66, 16 KiB 0.73 / 0.46,
/// 64 KiB 0.72 / 0.36, 256 KiB 0.97 / 0.30, 1 MiB 1.33 / 0.28, 4 MiB 1.1 / 0.75. A `reduce_scatter` of
/// registered memory by `ring` takes 1.2 of its time with messages of 256 KiB, and 1.4 with 1 MiB, with a
/// common cache.
const DIRECT_ON_SHARED_CORES_BYTES: usize = 512 << 10;

/// Smallest message that ranks which share cores exchange by system call at the latest, on machines where
/// others do for longer ones.
///
/// Each byte is copied once by cores that are busy in any case. Four ranks on two cores of an Intel Xeon (2
/// MiB of second-level cache), with input that they have just written, time as a part of that of staged
/// messages: `all_to_all` of 64 KiB to each peer 2.0, 256 KiB 0.7, 1 MiB 0.6, 4 MiB 0.85, `all_gather` of 256
/// KiB to 4 MiB 1.1, 0.75 and 1.3. With input that they have not written: `all_to_all` of 256 KiB to 4 MiB
/// 0.35, 0.27, 0.65, `all_gather` 0.8, 0.6, 0.75 to 2.5, and 1.7 with 16 MiB.
const PULL_ON_SHARED_CORES_BYTES: usize = 128 << 10;

/// Returns the thresholds of a machine for ranks that share cores.
fn on_shared_cores(machine: Thresholds) -> Thresholds {
    let combined_direct_min_bytes = machine.combined_direct_min_bytes.min(DIRECT_ON_SHARED_CORES_BYTES);
    let gather_pull_min_bytes = match machine.gather_pull_min_bytes {
        usize::MAX => usize::MAX,
        bytes => bytes.min(PULL_ON_SHARED_CORES_BYTES),
    };
    let unchanged_pull_min_bytes = machine.unchanged_pull_min_bytes.min(gather_pull_min_bytes);
    Thresholds { gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes }
}

/// Returns the thresholds by which protocols are chosen: those of options, and of the machine for the others.
fn protocols_of(config: &Config, machine: Thresholds) -> Protocols {
    let (pull, direct) = (config.shm.pull_min_bytes, config.direct_min_bytes);
    let options =
        Protocols::with_minima(pull.unwrap_or(usize::MAX), direct.unwrap_or(Config::DIRECT_MIN_BYTES));
    Protocols {
        gather_pull_min_bytes: pull.unwrap_or(machine.gather_pull_min_bytes),
        unchanged_pull_min_bytes: pull.unwrap_or(machine.unchanged_pull_min_bytes),
        combined_direct_min_bytes: direct.map_or(machine.combined_direct_min_bytes, |_| 0),
        stream_min_bytes: config.stream_min_bytes.unwrap_or_else(|| Writes::streamed_from(Caches::here())),
        ..options
    }
}

/// Warns of a model and, for the first communicator of a job, of a tuning file that do not fit.
pub(super) fn warn_of_unused(config: &Config, here: &Fingerprint, size: u32, is_first: bool) {
    let tuned = config.selection.tuned.as_ref();
    if let Some((what, there, here)) = tuned.and_then(|tuned| tuned.fingerprint.difference(here))
        && is_first
    {
        warning!(
            target::SELECTION,
            None,
            "the tuning file is not used: it was measured with {what} {there}, and this job has {here}; \
             measure anew with `tbccl tune`"
        );
    }
    if let Some(Err(why)) = config.selection.model.as_ref().map(|model| model.covers(size)) {
        warning!(target::SELECTION, None, "the model is not used: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They kept the defaults, copied twice what others read, and read in place what others stage in a third
    /// of the time.
    #[test]
    fn ranks_that_share_cores_have_the_thresholds_of_others_up_to_a_limit() {
        let found = |thresholds: [usize; 3]| {
            let [gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes] = thresholds;
            let machine =
                Thresholds { gather_pull_min_bytes, unchanged_pull_min_bytes, combined_direct_min_bytes };
            let found = protocols_of(&Config::default(), on_shared_cores(machine));
            [found.gather_pull_min_bytes, found.unchanged_pull_min_bytes, found.combined_direct_min_bytes]
        };
        assert_eq!(found([32 << 10, 16 << 10, 64 << 10]), [32 << 10, 16 << 10, 64 << 10]);
        let (pull, direct) = (PULL_ON_SHARED_CORES_BYTES, DIRECT_ON_SHARED_CORES_BYTES);
        assert_eq!(found([2 << 20, 1 << 20, usize::MAX]), [pull, pull, direct]);
        let unchanged_alone = [usize::MAX, 64 << 10, 0];
        assert_eq!(found(unchanged_alone), unchanged_alone, "reading changed ones gains nothing there");
    }

    #[test]
    fn thresholds_are_those_of_options_and_of_the_machine_for_the_others() {
        let machine = Thresholds {
            gather_pull_min_bytes: 7,
            unchanged_pull_min_bytes: 6,
            combined_direct_min_bytes: 8,
        };
        let of = |config: &Config| protocols_of(config, machine);
        let found = of(&Config::default());
        assert_eq!((found.pull_min_bytes, found.gather_pull_min_bytes), (usize::MAX, 7));
        assert_eq!((found.unchanged_pull_min_bytes, found.combined_direct_min_bytes), (6, 8));
        assert_eq!(found.stream_min_bytes, Writes::streamed_from(Caches::here()));
        let mut config = Config { direct_min_bytes: Some(1), stream_min_bytes: Some(3), ..Config::default() };
        config.shm.pull_min_bytes = Some(2);
        let found = of(&config);
        assert_eq!((found.pull_min_bytes, found.gather_pull_min_bytes), (2, 2));
        assert_eq!(found.unchanged_pull_min_bytes, 2);
        assert_eq!((found.direct_min_bytes, found.combined_direct_min_bytes), (1, 0));
        assert_eq!(found.stream_min_bytes, 3);
    }
}
