//! Diagnosis of failed calls: the cause and the remedy.
//!
//! Verbs libraries answer with an error number, and the same number has different meanings: `EINVAL` of a
//! connection attempt may be a bridge, a missing address, or one that has moved. The table here therefore
//! depends on the action, the number, the transport, and the state and GIDs of the port at that moment. The
//! meanings on Apple's device come from public runbooks and issues (mlx 3162, 3467, 3755, 3777, 4191, 4209,
//! omlx 3037), all others from the verbs manual.
//!
//! The system's name selects wording of advice here, and nothing else anywhere.

use super::{Action, Errno, Gid, Refusal};
use std::fmt;
use verbs_sys::{PortState, QpType};

/// Cause of a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// There is no cable, or no active port at its other end.
    PortDown,
    /// The port is part of a network bridge, which has its addresses.
    Bridge,
    /// The port has no IPv4 address.
    NoIpv4,
    /// The port has no address at all.
    NoAddress,
    /// The local address moved within the port's table.
    AddressMoved,
    /// The cable leads to another machine or port than the given one.
    WrongCable,
    /// All queue pairs of the device are in use.
    QueuePairs,
    /// All regions of the device are in use.
    Regions,
    /// The system lets this process lock no more memory, or the device has no more regions.
    LockedMemory,
    /// Unused protection domains were never deallocated.
    LeakedDomains,
    /// A Thunderbolt port gives no protection domain, and the error number does not tell why.
    NoDomain,
    /// The device has no queue pairs of this type.
    Service(QpType),
    /// The device has no completion events.
    Events,
    /// The request exceeds a limit of the device for queues or regions.
    LimitExceeded,
    /// The memory is not mapped.
    Unmapped,
    /// The process may not use the device.
    Permission,
    /// The device or its driver was removed.
    DeviceRemoved,
    /// The system has no RDMA driver.
    NoDriver,
    /// A completion queue was too small and lost completions.
    Overrun,
    /// RDMA has not been enabled on this Mac.
    NotEnabled,
    /// RDMA is enabled, but this Mac's ports don't support it.
    Thunderbolt4,
    /// None of the known causes.
    Unknown,
}

impl Cause {
    /// Returns a short description of the cause.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Cause::PortDown => "the port is down",
            Cause::Bridge => {
                "the port seems to belong to a network bridge: it has a single link-local address"
            }
            Cause::NoIpv4 => "the port has no IPv4 address",
            Cause::NoAddress => "the port has no address",
            Cause::AddressMoved => "the port's address has moved in its table",
            Cause::WrongCable => "the peer can't be reached through this port: its cable leads elsewhere",
            Cause::QueuePairs => "all queue pairs of the device are taken",
            Cause::Regions => "all memory regions of the device are taken",
            Cause::LockedMemory => "no more memory can be locked for the device",
            Cause::LeakedDomains => "the device has no protection domain left",
            Cause::NoDomain => "the device gives no protection domain",
            Cause::Service(QpType::RC) => "the device has no reliable connections",
            Cause::Service(QpType::UC) => "the device has no unreliable connections",
            Cause::Service(_) => "the device has no queue pairs of this kind",
            Cause::Events => "the device has no completion events",
            Cause::LimitExceeded => "the device does not grant what was asked for",
            Cause::Unmapped => "the memory is not mapped",
            Cause::Permission => "this user may not use the device",
            Cause::DeviceRemoved => "the device or its driver is gone",
            Cause::NoDriver => "no driver for RDMA devices is loaded",
            Cause::Overrun => "the completion queue has overflowed",
            Cause::NotEnabled => "RDMA is not enabled on this Mac",
            Cause::Thunderbolt4 => "this Mac has no Thunderbolt 5",
            Cause::Unknown => "the reason is not known",
        }
    }

    /// Returns advice to the user.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Cause::PortDown => {
                "plug in the cable, and see that the other machine is awake and has RDMA enabled; see \
                 `tbccl doctor --check port`"
            }
            Cause::Bridge => {
                "take the port out of the bridge: on macOS delete `Thunderbolt Bridge` in the network \
                 settings, or run `sudo ifconfig bridge0 down`; see `tbccl doctor --check bridge`"
            }
            Cause::NoIpv4 => {
                "wait until one is assigned, which can take minutes after a restart, or assign one: on \
                 macOS `sudo ifconfig enN inet 169.254.0.1 netmask 255.255.0.0 alias`, on Linux `sudo ip \
                 addr add 169.254.0.1/16 dev NAME`; see `tbccl doctor --check gid,ipv4`"
            }
            Cause::NoAddress => {
                "see that the port's network interface is up: `tbccl doctor --check gid,ipv4`"
            }
            Cause::AddressMoved => "connect again: addresses are looked up anew",
            Cause::WrongCable => {
                "compare the cables with the device matrix (`tbccl doctor --check cable-map` with the \
                 hostfile): names of devices can change with a restart"
            }
            Cause::QueuePairs => {
                "end other programs that use it, close communicators that have lost a rank, and use fewer \
                 ranks on this machine; programs that were killed may hold theirs until the machine restarts"
            }
            Cause::Regions => {
                "use fewer and larger buffers, and end other programs that use it; programs that were \
                 killed may hold theirs until the machine restarts"
            }
            Cause::LockedMemory => {
                "raise the limit on locked memory (`ulimit -l unlimited`), or register less; see \
                 `tbccl doctor --check memlock`"
            }
            Cause::LeakedDomains => {
                "end other programs that use it; if there are none, programs that were killed have left \
                 theirs behind: restart the machine; see `tbccl doctor --check domain`"
            }
            Cause::NoDomain => {
                "see that this port is Thunderbolt 5 (`system_profiler SPThunderboltDataType`) and that RDMA \
                 is enabled (`rdma_ctl status`): Thunderbolt 4 ports never work; then end other programs \
                 that use the device, and if there are none, restart the machine: programs that were killed \
                 may have left their domains behind; see `tbccl doctor --check domain,rdma`"
            }
            Cause::Service(_) => "use another service; `tbccl devices` says which there are",
            Cause::Events => "poll instead",
            Cause::LimitExceeded => "ask for less; `tbccl devices` shows the limits",
            Cause::Unmapped => "register memory of this process only",
            Cause::Permission => {
                "see who may use the files in /dev/infiniband, or run as a user who may; see \
                 `tbccl doctor --check permission`"
            }
            Cause::DeviceRemoved => {
                "see the system's log; if the device is listed and can't be opened, restart the machine"
            }
            Cause::NoDriver => {
                "load the driver of your adapter (`modprobe`), or set TBCCL_VERBS_LIB to a library that \
                 needs none"
            }
            Cause::Overrun => "this is a fault of tbccl; please report it",
            Cause::NotEnabled => {
                "start the Mac in Recovery, choose Terminal from the menu Utilities, run `rdma_ctl \
                 enable`, and restart; that can't be done from afar; see `tbccl doctor --check rdma`"
            }
            Cause::Thunderbolt4 => {
                "RDMA needs Thunderbolt 5 and macOS 26.2; use another transport on this machine"
            }
            Cause::Unknown => "`tbccl devices` shows the state of the port; the system's log may tell more",
        }
    }

    /// Returns the reason why a working library lists no device.
    ///
    /// `is_enabled` is the answer of `rdma_ctl status`, where that program exists. It also answers "enabled"
    /// on Macs that will never have a device.
    #[must_use]
    pub const fn of_no_devices(is_enabled: Option<bool>) -> Cause {
        match is_enabled {
            Some(true) => Cause::Thunderbolt4,
            Some(false) => Cause::NotEnabled,
            None if cfg!(target_os = "macos") => Cause::NotEnabled,
            None => Cause::NoDriver,
        }
    }

    /// Returns the reason why a port with these GIDs can't be connected, as far as the GIDs show it.
    #[must_use]
    pub fn of_addresses(gids: &[(u8, Gid)], is_thunderbolt: bool) -> Option<Cause> {
        let has_ipv4 = gids.iter().any(|(_, gid)| gid.is_ipv4_mapped());
        match gids {
            [] => Some(Cause::NoAddress),
            // A bridged port shows only the address that it derives from its hardware address.
            [(0, only)] if is_thunderbolt && !has_ipv4 && only.is_link_local() => Some(Cause::Bridge),
            _ if is_thunderbolt && !has_ipv4 => Some(Cause::NoIpv4),
            _ => None,
        }
    }

    /// Returns the cause of a failed call.
    #[must_use]
    pub fn of(refusal: &Refusal) -> Cause {
        let is_down = matches!(refusal.state, Some(PortState::DOWN | PortState::NOP | PortState::INIT));
        match (&refusal.action, refusal.errno) {
            (_, Errno::EACCES | Errno::EPERM) if !matches!(refusal.action, Action::Register { .. }) => {
                Cause::Permission
            }
            (_, Errno::ENODEV | Errno::ENXIO | Errno::EIO) => Cause::DeviceRemoved,
            (Action::ListDevices, _) => Cause::NoDriver,
            (Action::Domain | Action::Connect { .. } | Action::Send | Action::QueuePair { .. }, _)
                if is_down =>
            {
                Cause::PortDown
            }
            (Action::Domain, errno) => of_domain(refusal.is_thunderbolt, errno),
            (Action::QueuePair { service }, errno) => of_queue_pair(*service, errno),
            (Action::Register { .. }, errno) => of_registration(refusal.is_thunderbolt, errno),
            (Action::Connect { gid_index, .. }, errno) => of_connection(refusal, *gid_index, errno),
            (Action::Channel | Action::Arm, _) => Cause::Events,
            (Action::CompletionQueue { .. }, Errno::EINVAL | Errno::ENOMEM) => Cause::LimitExceeded,
            (Action::Poll, _) => Cause::Overrun,
            _ => Cause::Unknown,
        }
    }
}

/// Apple's device reports domains that were left behind as `ENODATA` (mlx 3207), and a port that can't do
/// RDMA by a null pointer alone.
fn of_domain(is_thunderbolt: bool, errno: Errno) -> Cause {
    match errno {
        Errno::ENODATA | Errno::ENOMEM => Cause::LeakedDomains,
        _ if is_thunderbolt => Cause::NoDomain,
        _ => Cause::LeakedDomains,
    }
}

fn of_queue_pair(service: QpType, errno: Errno) -> Cause {
    match errno {
        // Apple's device returns EBUSY, others ENOMEM.
        Errno::EBUSY | Errno::ENOMEM | Errno::ENOSPC | Errno::EAGAIN => Cause::QueuePairs,
        Errno::EINVAL => Cause::LimitExceeded,
        errno if errno.is_unsupported() => Cause::Service(service),
        _ => Cause::Unknown,
    }
}

fn of_registration(is_thunderbolt: bool, errno: Errno) -> Cause {
    match errno {
        Errno::ENOMEM | Errno::ENOSPC if is_thunderbolt => Cause::Regions,
        Errno::ENOMEM | Errno::ENOSPC | Errno::EAGAIN | Errno::EPERM => Cause::LockedMemory,
        Errno::EFAULT => Cause::Unmapped,
        Errno::EINVAL => Cause::LimitExceeded,
        _ => Cause::Unknown,
    }
}

fn of_connection(refusal: &Refusal, gid_index: u8, errno: Errno) -> Cause {
    match errno {
        Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN => Cause::WrongCable,
        Errno::EINVAL | Errno::EADDRNOTAVAIL => of_address(refusal, gid_index),
        _ => Cause::Unknown,
    }
}

/// Returns why the local address is an invalid argument.
fn of_address(refusal: &Refusal, gid_index: u8) -> Cause {
    let gids = &refusal.gids;
    if let Some(cause) = Cause::of_addresses(gids, refusal.is_thunderbolt) {
        return cause;
    }
    match gids.iter().find(|(index, _)| *index == gid_index) {
        Some(_) => Cause::Unknown,
        None if gids.iter().any(|(_, gid)| gid.is_ipv4_mapped()) => Cause::AddressMoved,
        None => Cause::NoIpv4,
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what(), self.remedy())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { action, device, port, errno, .. } = self;
        let cause = Cause::of(self);
        match port {
            0 => write!(f, "{device}: {action} failed with {errno}: {cause}"),
            port => write!(f, "{device}/{port}: {action} failed with {errno}: {cause}"),
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().expect("an address").octets())
    }

    /// A failed call on an active port of Apple's device with all its addresses.
    fn refusal(action: Action, errno: Errno) -> Refusal {
        let gids = vec![(0, gid("fe80::1")), (1, gid("::ffff:169.254.1.1")), (2, gid("fe80::2"))];
        let device = "rdma_en2".to_owned();
        Refusal { action, device, port: 1, errno, state: Some(PortState::ACTIVE), gids, is_thunderbolt: true }
    }

    fn connect() -> Action {
        Action::Connect { peer: gid("::ffff:169.254.2.1"), gid_index: 1 }
    }

    #[test]
    fn limits_of_the_device() {
        let pair = |service| Action::QueuePair { service };
        for (action, errno, cause) in [
            (pair(QpType::UC), Errno::EBUSY, Cause::QueuePairs),
            (pair(QpType::UC), Errno::ENOMEM, Cause::QueuePairs),
            (pair(QpType::RC), Errno::EOPNOTSUPP, Cause::Service(QpType::RC)),
            (pair(QpType::UC), Errno::EINVAL, Cause::LimitExceeded),
            (Action::Register { bytes: 1 }, Errno::ENOMEM, Cause::Regions),
            (Action::Register { bytes: 1 }, Errno::EFAULT, Cause::Unmapped),
            (Action::Register { bytes: 1 }, Errno::EINVAL, Cause::LimitExceeded),
            (Action::Domain, Errno::ENODATA, Cause::LeakedDomains),
            (Action::Domain, Errno::ENOMEM, Cause::LeakedDomains),
            (Action::Channel, Errno::EOPNOTSUPP, Cause::Events),
            (Action::Arm, Errno::EINVAL, Cause::Events),
            (Action::CompletionQueue { depth: 9 }, Errno::EINVAL, Cause::LimitExceeded),
            (Action::Poll, Errno::EINVAL, Cause::Overrun),
        ] {
            assert_eq!(Cause::of(&refusal(action.clone(), errno)), cause, "{action:?} {errno}");
        }
    }

    #[test]
    fn a_thunderbolt_port_without_a_domain_may_be_one_that_can_not_do_rdma() {
        for errno in [Errno(0), Errno(2)] {
            let mac = refusal(Action::Domain, errno);
            assert!(mac.is_thunderbolt);
            assert_eq!(Cause::of(&mac), Cause::NoDomain, "{mac}");
            assert!(mac.to_string().contains("Thunderbolt 4"), "{mac}");
            let other = Refusal { is_thunderbolt: false, ..refusal(Action::Domain, errno) };
            assert_eq!(Cause::of(&other), Cause::LeakedDomains, "{other}");
        }
    }

    #[test]
    fn memory_is_limited_by_the_system_elsewhere() {
        for errno in [Errno::ENOMEM, Errno::EAGAIN, Errno::EPERM] {
            let linux = Refusal { is_thunderbolt: false, ..refusal(Action::Register { bytes: 1 }, errno) };
            assert_eq!(Cause::of(&linux), Cause::LockedMemory, "{errno}");
        }
    }

    #[test]
    fn a_port_that_is_down_explains_everything() {
        let pair = Action::QueuePair { service: QpType::UC };
        for (action, errno) in [
            (Action::Domain, Errno::ENODATA),
            (connect(), Errno::ETIMEDOUT),
            (connect(), Errno::EINVAL),
            (pair, Errno::EBUSY),
        ] {
            let down = Refusal { state: Some(PortState::DOWN), ..refusal(action, errno) };
            assert_eq!(Cause::of(&down), Cause::PortDown, "{down}");
        }
    }

    #[test]
    fn cables_that_lead_elsewhere() {
        for errno in [Errno::ETIMEDOUT, Errno::EHOSTUNREACH] {
            assert_eq!(Cause::of(&refusal(connect(), errno)), Cause::WrongCable);
        }
    }

    #[test]
    fn addresses_tell_what_an_invalid_argument_is() {
        let with = |gids: &[(u8, &str)], is_thunderbolt| {
            let gids = gids.iter().map(|(index, text)| (*index, gid(text))).collect();
            Cause::of(&Refusal { gids, is_thunderbolt, ..refusal(connect(), Errno::EINVAL) })
        };
        assert_eq!(with(&[], true), Cause::NoAddress);
        assert_eq!(with(&[(0, "fe80::1")], true), Cause::Bridge);
        // On other devices a link-local address can work, if it is the one that was used.
        let infiniband = Action::Connect { peer: gid("fe80::2"), gid_index: 0 };
        let gids = vec![(0, gid("fe80::1"))];
        let used = Refusal { gids, is_thunderbolt: false, ..refusal(infiniband, Errno::EINVAL) };
        assert_eq!((with(&[(0, "fe80::1")], false), Cause::of(&used)), (Cause::NoIpv4, Cause::Unknown));
        assert_eq!(with(&[(0, "fe80::1"), (2, "fe80::2")], true), Cause::NoIpv4);
        assert_eq!(with(&[(0, "fe80::1"), (2, "::ffff:10.0.0.1")], true), Cause::AddressMoved);
        assert_eq!(with(&[(0, "fe80::1"), (1, "::ffff:10.0.0.1")], true), Cause::Unknown);
    }

    #[test]
    fn devices_that_can_not_be_used_at_all() {
        assert_eq!(Cause::of(&refusal(Action::Open, Errno::EACCES)), Cause::Permission);
        assert_eq!(Cause::of(&refusal(Action::Open, Errno::ENODEV)), Cause::DeviceRemoved);
        assert_eq!(Cause::of(&refusal(Action::ListDevices, Errno::ENOSYS)), Cause::NoDriver);
        assert_eq!(Cause::of(&refusal(Action::Initialize, Errno::EINVAL)), Cause::Unknown);
    }

    #[test]
    fn macs_without_devices() {
        assert_eq!(Cause::of_no_devices(Some(false)), Cause::NotEnabled);
        assert!(Cause::NotEnabled.remedy().contains("Recovery"));
        assert_eq!(Cause::of_no_devices(Some(true)), Cause::Thunderbolt4);
        let unknown = if cfg!(target_os = "macos") { Cause::NotEnabled } else { Cause::NoDriver };
        assert_eq!(Cause::of_no_devices(None), unknown);
    }
}
