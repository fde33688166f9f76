//! Selection of the source GID of a port.
//!
//! GID tables have empty entries, and entries move when a link goes down and up, so the search covers the
//! whole table and returns the index it found. On Thunderbolt the IPv4-mapped GID is missing for up to
//! minutes after a restart, until the system gives up on DHCP and assigns an address itself. A link-local
//! IPv6 GID is there from the beginning, but connections from it work on some systems only, so the search
//! waits for IPv4.

use super::{Cause, Context, Gid, VerbsError};
use std::{
    thread,
    time::{Duration, Instant},
};
use verbs_sys::PortState;

/// Interval between two reads of the table.
const INTERVAL: Duration = Duration::from_millis(50);

/// Interval between two messages to `on_wait`.
const REMINDER: Duration = Duration::from_secs(5);

/// Selects the GID to connect from and returns it with its index: the one at the index `wanted`, or the best.
///
/// The order of preference is IPv4-mapped, link-local, any other, and among these RoCE v2 before v1. The
/// function returns at once when there is an IPv4-mapped GID, or any GID on a device other than Thunderbolt,
/// or one at the index `wanted`. Otherwise it waits up to `timeout` and then takes the best GID there is.
/// `on_wait` gets a message with the reason at the beginning of the wait and every few seconds.
///
/// # Errors
/// [`VerbsError::NoAddress`] when the table is still empty or the port still down at the end;
/// [`VerbsError::NoSuchGid`] when there is no GID at the index `wanted`.
pub fn find_gid(
    context: &Context,
    wanted: Option<u8>,
    timeout: Duration,
    on_wait: &mut dyn FnMut(&str),
) -> Result<(u8, Gid), VerbsError> {
    let began = Instant::now();
    let mut last_message: Option<Instant> = None;
    loop {
        let gids = context.gids();
        let best = match wanted {
            Some(wanted) => gids.iter().find(|(index, _)| *index == wanted).copied(),
            None => best_gid(&gids, |index| context.is_roce_v1(index)),
        };
        let is_down = context.port().is_ok_and(|port| port.state == PortState::DOWN);
        let (waited, may_wait) = (began.elapsed(), began.elapsed() < timeout);
        let is_final = |gid: Gid| wanted.is_some() || gid.is_ipv4_mapped() || !context.is_thunderbolt();
        match best {
            Some(found) if is_final(found.1) => return Ok(found),
            Some(found) if !may_wait && !is_down => return Ok(found),
            _ if !may_wait => {
                if let Some(index) = wanted.filter(|_| !is_down && !gids.is_empty()) {
                    let gids = gids.iter().map(|(index, gid)| format!("{index}: {gid}")).collect();
                    return Err(VerbsError::NoSuchGid { device: context.name().to_owned(), index, gids });
                }
                let cause = if is_down { Cause::PortDown } else { Cause::NoAddress };
                return Err(VerbsError::NoAddress { device: context.name().to_owned(), waited, cause });
            }
            _ => {}
        }
        if last_message.is_none_or(|last_message| last_message.elapsed() >= REMINDER) {
            last_message = Some(Instant::now());
            on_wait(&wait_message(context.name(), is_down, timeout.saturating_sub(waited)));
        }
        thread::sleep(INTERVAL.min(timeout.saturating_sub(waited)));
    }
}

fn wait_message(device: &str, is_down: bool, left: Duration) -> String {
    let what = if is_down { "its port to come up" } else { "an IPv4 address to be assigned to its port" };
    format!("{device}: waiting for {what}, for {:.0} s at most", left.as_secs_f64().ceil())
}

fn best_gid(gids: &[(u8, Gid)], is_roce_v1: impl Fn(u8) -> bool) -> Option<(u8, Gid)> {
    let rank = |gid: Gid| match (gid.is_ipv4_mapped(), gid.is_link_local()) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    };
    gids.iter().copied().min_by_key(|(index, gid)| (rank(*gid), is_roce_v1(*index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    #[test]
    fn ipv4_comes_before_link_local_before_others_wherever_they_stand() {
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().expect("an address").octets());
        let table = [(0, gid("fd00::1")), (1, gid("fe80::1")), (4, gid("::ffff:10.0.0.1"))];
        let best = |gids: &[(u8, Gid)]| best_gid(gids, |_| false);
        assert_eq!(best(&table), Some(table[2]));
        assert_eq!(best(&table[..2]), Some(table[1]));
        assert_eq!(best(&table[..1]), Some(table[0]));
        assert_eq!(best(&[]), None);
    }

    /// Linux gives an adapter each address twice, first for v1, whose packets no router forwards.
    #[test]
    fn roce_v2_comes_before_v1_of_the_same_kind_of_address() {
        let gid = |text: &str| Gid(text.parse::<Ipv6Addr>().expect("an address").octets());
        let (local, ip) = (gid("fe80::1"), gid("::ffff:10.0.0.1"));
        let table = [(0, local), (1, local), (2, ip), (3, ip)];
        let is_v1 = |index: u8| index.is_multiple_of(2);
        assert_eq!(best_gid(&table, is_v1), Some(table[3]));
        assert_eq!(best_gid(&table[..2], is_v1), Some(table[1]));
        assert_eq!(best_gid(&table[..3], is_v1), Some(table[2]), "IPv4 comes first");
    }

    #[test]
    fn messages_say_what_is_waited_for() {
        let left = Duration::from_millis(1500);
        assert_eq!(
            wait_message("rdma_en2", false, left),
            "rdma_en2: waiting for an IPv4 address to be assigned to its port, for 2 s at most"
        );
        assert!(wait_message("rdma_en2", true, left).contains("its port to come up"));
    }
}
