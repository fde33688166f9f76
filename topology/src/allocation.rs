//! Allocation of ranks to hosts: slots, limits, and the order in which ranks are dealt.
//!
//! Ranks are dealt host by host, each up to its slots ([`DealOrder::Slot`]), or one to each host in turn
//! ([`DealOrder::Node`]). The first order lets neighbors in a ring share a host where possible. A host
//! without stated slots counts as one slot until more ranks are requested than there are slots; then such
//! hosts take the rest in equal shares. Hosts with stated slots take more only if oversubscription is
//! allowed, and never more than their maximum.

use crate::Host;
use thiserror::Error;

/// The order in which ranks are dealt to hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DealOrder {
    /// A host is filled before the next gets any.
    #[default]
    Slot,
    /// One to each host in turn.
    Node,
}

/// A request for ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Number of ranks; by default, the number of slots.
    pub ranks: Option<u32>,
    /// Ranks of each host, instead of its slots; its maximum still holds.
    pub per_host: Option<u32>,
    /// The order of dealing.
    pub order: DealOrder,
    /// Whether hosts may have more ranks than stated slots.
    pub oversubscribe: bool,
}

/// The error for ranks that could not be dealt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// There are no hosts, or no ranks are requested.
    #[error("a job needs at least one host and one rank")]
    Empty,
    /// There are fewer slots than ranks.
    #[error(
        "{ranks} ranks for {slots} slots on {hosts} hosts; give hosts more slots, ask for fewer ranks, or \
         add --oversubscribe"
    )]
    NotEnoughSlots {
        /// Requested ranks.
        ranks: u32,
        /// Existing slots.
        slots: u64,
        /// Number of hosts.
        hosts: usize,
    },
    /// More ranks than the maximum of all hosts.
    #[error(
        "{ranks} ranks, but {hosts} hosts may have {max} at most; raise the maximum, or ask for fewer ranks"
    )]
    BeyondMaximum {
        /// Requested ranks.
        ranks: u32,
        /// The sum of the limits.
        max: u64,
        /// Number of hosts.
        hosts: usize,
    },
    /// More ranks per host than a host may have.
    #[error(
        "--per-host {per_host}, but `{host}` may have {max} ranks at most; raise its maximum, or lower the \
         number"
    )]
    HostBeyondMaximum {
        /// The requested ranks.
        per_host: u32,
        /// The host.
        host: String,
        /// The host's limit.
        max: u32,
    },
}

/// Returns the index in `hosts` of every rank's host, in rank order.
///
/// # Errors
/// [`AllocationError::Empty`] for no hosts or no ranks; the other variants when there is no room for all
/// ranks.
pub fn allocate(hosts: &[Host], request: &Request) -> Result<Vec<usize>, AllocationError> {
    let quotas = quotas(hosts, request)?;
    let slots: u64 = quotas.iter().map(|quota| u64::from(*quota)).sum();
    let ranks = match request.ranks {
        Some(ranks) => ranks,
        None => u32::try_from(slots).map_err(|_| AllocationError::Empty)?,
    };
    if ranks == 0 || hosts.is_empty() {
        return Err(AllocationError::Empty);
    }
    let mut counts = deal(&quotas, ranks, request.order);
    let left = ranks - counts.iter().sum::<u32>();
    stretch(hosts, request, &mut counts, left, slots)?;
    Ok(in_order(&counts, request.order))
}

/// Returns the ranks that each host takes without oversubscription.
fn quotas(hosts: &[Host], request: &Request) -> Result<Vec<u32>, AllocationError> {
    let quota = |host: &Host| match (request.per_host, host.max_slots) {
        (Some(per_host), Some(max)) if per_host > max => {
            Err(AllocationError::HostBeyondMaximum { per_host, host: host.name.clone(), max })
        }
        (Some(per_host), _) => Ok(per_host),
        (None, _) => Ok(host.slots.unwrap_or(1)),
    };
    hosts.iter().map(quota).collect()
}

/// Deals `ranks` ranks, or as many as the quotas allow.
fn deal(quotas: &[u32], ranks: u32, order: DealOrder) -> Vec<u32> {
    let mut counts = vec![0; quotas.len()];
    let mut left = ranks;
    match order {
        DealOrder::Slot => {
            for (count, quota) in counts.iter_mut().zip(quotas) {
                *count = left.min(*quota);
                left -= *count;
            }
        }
        DealOrder::Node => {
            while left > 0 && counts != quotas {
                for (count, quota) in counts.iter_mut().zip(quotas) {
                    let one = u32::from(left > 0 && *count < *quota);
                    *count += one;
                    left -= one;
                }
            }
        }
    }
    counts
}

/// Gives the remaining ranks to hosts that may have more, to those with the fewest first.
fn stretch(
    hosts: &[Host],
    request: &Request,
    counts: &mut [u32],
    left: u32,
    slots: u64,
) -> Result<(), AllocationError> {
    let ranks = request.ranks.unwrap_or(0);
    let may_grow =
        |host: &Host| request.oversubscribe || (host.slots.is_none() && request.per_host.is_none());
    for _ in 0..left {
        let has_room = |(at, host): &(usize, &Host)| {
            may_grow(host) && host.max_slots.is_none_or(|max| counts[*at] < max)
        };
        let least = hosts.iter().enumerate().filter(has_room).min_by_key(|(at, _)| counts[*at]);
        let Some((at, _)) = least else {
            let hosts_in_all = hosts.len();
            if hosts.iter().any(may_grow) {
                let max = counts.iter().map(|count| u64::from(*count)).sum();
                return Err(AllocationError::BeyondMaximum { ranks, max, hosts: hosts_in_all });
            }
            return Err(AllocationError::NotEnoughSlots { ranks, slots, hosts: hosts_in_all });
        };
        counts[at] += 1;
    }
    Ok(())
}

/// Returns the hosts of ranks 0, 1, 2, ...
fn in_order(counts: &[u32], order: DealOrder) -> Vec<usize> {
    let of = |at: usize| (0..counts[at]).map(move |turn| (turn, at));
    let mut places: Vec<(u32, usize)> = (0..counts.len()).flat_map(of).collect();
    if order == DealOrder::Node {
        places.sort_unstable();
    }
    places.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hostfile;

    fn dealt(list: &str, request: Request) -> Result<String, AllocationError> {
        let hosts = Hostfile::parse(list.as_bytes()).expect("a hostfile").hosts;
        Ok(allocate(&hosts, &request)?.iter().map(|at| char::from(b'a' + *at as u8)).collect())
    }

    fn ranks(ranks: u32) -> Request {
        Request { ranks: Some(ranks), ..Request::default() }
    }

    #[test]
    fn without_a_number_every_slot_gets_a_rank() {
        assert_eq!(dealt("a:2\nb\nc:3", Request::default()).expect("room"), "aabccc");
        assert_eq!(
            dealt("a:2\nb\nc:3", Request { order: DealOrder::Node, ..Request::default() }).expect("room"),
            "abcacc"
        );
    }

    #[test]
    fn fewer_ranks_than_slots_fill_the_first_hosts_or_all_in_turn() {
        assert_eq!(dealt("a:4\nb:4", ranks(5)).expect("room"), "aaaab");
        assert_eq!(dealt("a:4\nb:4", Request { order: DealOrder::Node, ..ranks(5) }).expect("room"), "ababa");
        assert_eq!(dealt("a:1\nb:4", Request { order: DealOrder::Node, ..ranks(4) }).expect("room"), "abbb");
    }

    #[test]
    fn hosts_without_slots_share_what_is_left() {
        assert_eq!(dealt("a\nb", ranks(4)).expect("room"), "aabb");
        assert_eq!(dealt("a:1\nb\nc", ranks(6)).expect("room"), "abbbcc");
    }

    #[test]
    fn every_host_may_get_equally_many() {
        assert_eq!(
            dealt("a:8\nb", Request { per_host: Some(2), ..Request::default() }).expect("room"),
            "aabb"
        );
        assert_eq!(dealt("a:8\nb", Request { per_host: Some(2), ..ranks(3) }).expect("room"), "aab");
        let beyond = dealt("a slots=1 max-slots=1\nb", Request { per_host: Some(2), ..Request::default() });
        assert!(matches!(beyond, Err(AllocationError::HostBeyondMaximum { max: 1, .. })), "{beyond:?}");
        let few = dealt("a\nb", Request { per_host: Some(2), ..ranks(5) });
        assert!(matches!(few, Err(AllocationError::NotEnoughSlots { slots: 4, .. })), "{few:?}");
    }

    #[test]
    fn stated_slots_are_exceeded_only_when_asked_for_and_up_to_the_maximum() {
        let few = dealt("a:1\nb:1", ranks(3));
        assert!(
            matches!(few, Err(AllocationError::NotEnoughSlots { ranks: 3, slots: 2, hosts: 2 })),
            "{few:?}"
        );
        assert!(few.is_err_and(|e| e.to_string().contains("--oversubscribe")));
        let more = |n| Request { oversubscribe: true, ..ranks(n) };
        assert_eq!(dealt("a slots=1 max-slots=2\nb:1", more(5)).expect("room"), "aabbb");
        let beyond = dealt("a slots=1 max-slots=2\nb slots=1 max-slots=2", more(5));
        assert!(matches!(beyond, Err(AllocationError::BeyondMaximum { max: 4, .. })), "{beyond:?}");
    }

    #[test]
    fn no_ranks_are_refused() {
        assert_eq!(dealt("a", ranks(0)), Err(AllocationError::Empty));
        assert_eq!(allocate(&[], &ranks(1)), Err(AllocationError::Empty));
    }
}
