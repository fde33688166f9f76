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
    let mut wait = AddressWait::new(timeout, true);
    loop {
        if let Some(found) = wait.look(context, wanted, timeout, on_wait)? {
            return Ok(found);
        }
    }
}

/// A wait for addresses that may be interrupted.
#[derive(Clone, Copy, Debug)]
pub struct AddressWait {
    began: Instant,
    timeout: Duration,
    /// Whether a link-local address of a Thunderbolt port will do in the end.
    accepts_link_local: bool,
    last_message: Option<Instant>,
}

impl AddressWait {
    /// Begins a wait of at most `timeout`. In the end the best address there is will do, unless
    /// `accepts_link_local` is false: then a Thunderbolt port must have an IPv4 address.
    #[must_use]
    pub fn new(timeout: Duration, accepts_link_local: bool) -> AddressWait {
        AddressWait { began: Instant::now(), timeout, accepts_link_local, last_message: None }
    }

    /// Searches as [`find_gid`] until the wait is over, or for `part`; `None` after a part without a result.
    ///
    /// # Errors
    /// As for [`find_gid`], once the wait is over.
    pub fn look(
        &mut self,
        context: &Context,
        wanted: Option<u8>,
        part: Duration,
        on_wait: &mut dyn FnMut(&str),
    ) -> Result<Option<(u8, Gid)>, VerbsError> {
        let part_began = Instant::now();
        loop {
            let waited = self.began.elapsed();
            let left = self.timeout.saturating_sub(waited);
            let is_down = match self.look_once(context, wanted, waited, left)? {
                Look::Found(found) => return Ok(Some(found)),
                Look::Waits { is_down } => is_down,
            };
            if self.last_message.is_none_or(|last_message| last_message.elapsed() >= REMINDER) {
                self.last_message = Some(Instant::now());
                on_wait(&wait_message(context.name(), is_down, left));
            }
            let left_of_part = part.saturating_sub(part_began.elapsed());
            if left_of_part.is_zero() {
                return Ok(None);
            }
            thread::sleep(INTERVAL.min(left).min(left_of_part));
        }
    }

    /// Looks at a port after `waited`, with `left` of the time for its address.
    fn look_once(
        &self,
        context: &Context,
        wanted: Option<u8>,
        waited: Duration,
        left: Duration,
    ) -> Result<Look, VerbsError> {
        let gids = context.gids();
        let best = match wanted {
            Some(wanted) => gids.iter().find(|(index, _)| *index == wanted).copied(),
            None => best_gid(&gids, |index| context.is_roce_v1(index)),
        };
        let is_down = context.port().is_ok_and(|port| port.state == PortState::DOWN);
        let is_final = |gid: Gid| wanted.is_some() || gid.is_ipv4_mapped() || !context.is_thunderbolt();
        match best {
            Some(found) if is_final(found.1) => return Ok(Look::Found(found)),
            Some(found) if left.is_zero() && !is_down && self.accepts_link_local => {
                return Ok(Look::Found(found));
            }
            _ if !left.is_zero() => return Ok(Look::Waits { is_down }),
            _ => {}
        }
        let device = context.name().to_owned();
        if let Some(index) = wanted.filter(|_| !is_down && !gids.is_empty()) {
            let gids = gids.iter().map(|(index, gid)| format!("{index}: {gid}")).collect();
            return Err(VerbsError::NoSuchGid { device, index, gids });
        }
        let cause = if is_down { Cause::PortDown } else { Cause::NoAddress };
        Err(VerbsError::NoAddress { device, waited, cause })
    }
}

/// Result of one look at a port.
enum Look {
    Found((u8, Gid)),
    Waits { is_down: bool },
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
