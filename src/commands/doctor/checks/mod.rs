//! All checks. Each is a function of the hosts' inventories, without any other input.
//!
//! | module | subject |
//! |---|---|
//! | `hosts` | reaching the hosts, and what they must have in common |
//! | `network` | addresses, routes and packet sizes |
//! | `ports` | Thunderbolt ports and cables |
//! | `rdma` | RDMA devices |
//! | `system` | memory, sleep, firewall, names |

mod hosts;
mod network;
mod ports;
mod rdma;
mod system;

use super::check::Check;
pub(super) use rdma::lacks_gid;

/// All checks, in the order of the report.
pub(super) const ALL: &[Check] = &[
    Check {
        name: "ssh",
        about: "each host is reached by ssh without a password, and has tbccl",
        why: "`tbccl run` starts an agent on every host over ssh, and nobody is there to type a password",
        run: hosts::ssh,
    },
    Check {
        name: "version",
        about: "all hosts have the same version of tbccl",
        why: "ranks of different versions refuse each other",
        run: hosts::version,
    },
    Check {
        name: "clock",
        about: "the clocks of the hosts agree",
        why: "lines with times and dumps of different hosts can't be compared; no time limit depends on it",
        run: hosts::clock,
    },
    Check {
        name: "inventory",
        about: "all sources on a host can be read",
        why: "the other checks know nothing about a source that could not be read",
        run: system::inventory,
    },
    Check {
        name: "thunderbolt",
        about: "the host has Thunderbolt ports or RDMA devices",
        why: "without them ranks use TCP over the LAN",
        run: ports::thunderbolt,
    },
    Check {
        name: "generation",
        about: "cables are at ports that can do RDMA",
        why: "RDMA needs Thunderbolt 5; `rdma_ctl status` says enabled on Thunderbolt 4, too",
        run: ports::generation,
    },
    Check {
        name: "cable",
        about: "cables lead from host to host",
        why: "ranks of hosts without a cable between them use the LAN, or are relayed",
        run: ports::cable,
    },
    Check {
        name: "hub",
        about: "no hub or dock is between two hosts",
        why: "behind hubs, devices grant fewer queue pairs and are listed wrongly",
        run: ports::hub,
    },
    Check {
        name: "link-speed",
        about: "links run at the rate of their ports",
        why: "a cable of a lower class halves the bandwidth of every collective",
        run: ports::link_speed,
    },
    Check {
        name: "cable-map",
        about: "the hostfile's devices lead where their cables lead",
        why: "a job that connects the wrong devices fails with ETIMEDOUT; names can change with a restart",
        run: hosts::cable_map,
    },
    Check {
        name: "bridge",
        about: "no Thunderbolt port is in a bridge",
        why: "a bridged port has neither an IPv4 address nor a GID of its own, and loops flood the bridge",
        run: ports::bridge,
    },
    Check {
        name: "macos",
        about: "macOS is new enough for RDMA",
        why: "RDMA over Thunderbolt begins with macOS 26.2",
        run: rdma::macos,
    },
    Check {
        name: "rdma",
        about: "RDMA is switched on",
        why: "without it the Mac lists no RDMA device, and ranks use TCP",
        run: rdma::switch,
    },
    Check {
        name: "modules",
        about: "the kernel modules of cables and devices are loaded",
        why: "without thunderbolt_net a cable has no interface; without ib_uverbs no device can be opened",
        run: rdma::modules,
    },
    Check {
        name: "library",
        about: "the verbs library can be loaded",
        why: "the devices are used through it",
        run: rdma::library,
    },
    Check {
        name: "permission",
        about: "this user may open RDMA devices",
        why: "ranks run as this user",
        run: rdma::permission,
    },
    Check {
        name: "port",
        about: "the RDMA port of each cable is up",
        why: "nothing can be sent through a port that is down",
        run: rdma::port,
    },
    Check {
        name: "gid",
        about: "each RDMA port has a GID with its IPv4 address",
        why: "connections are addressed by it; it exists while the interface has an IPv4 address, and its \
              index changes when the link was down",
        run: rdma::gid,
    },
    Check {
        name: "gid-type",
        about: "Ethernet adapters have GIDs of RoCE v2",
        why: "RoCE v1 does not pass routers, and many switches do not prioritize it",
        run: rdma::gid_type,
    },
    Check {
        name: "domain",
        about: "devices give protection domains",
        why: "without one nothing can be registered; processes killed by SIGKILL can leave theirs behind, \
              and Thunderbolt 4 ports never have any",
        run: rdma::domain,
    },
    Check {
        name: "limits",
        about: "devices grant enough queue pairs and regions",
        why: "a cable takes up to three queue pairs, and a rank's memory some regions",
        run: rdma::limits,
    },
    Check {
        name: "ipv4",
        about: "the interface of each cable has an IPv4 address",
        why: "without it the port has no GID for RDMA, and TCP has the link-local IPv6 address only",
        run: network::ipv4,
    },
    Check {
        name: "subnet",
        about: "each cable has a network of its own, with an address at both ends",
        why: "the system sends all packets for a network through one interface, so cables stay unused or \
              packets go to the wrong host",
        run: network::subnet,
    },
    Check {
        name: "mtu",
        about: "both ends of a cable have the same MTU",
        why: "packets that are too large for the other end are lost",
        run: network::mtu,
    },
    Check {
        name: "wifi",
        about: "the default route is not over Wi-Fi",
        why: "without a cable's address in the hostfile, TCP follows this route",
        run: network::wifi,
    },
    Check {
        name: "memlock",
        about: "enough memory can be locked",
        why: "drivers count registered memory against this limit; each rank registers up to 1 GiB",
        run: system::memlock,
    },
    Check {
        name: "memory",
        about: "enough memory is free",
        why: "registered memory is pinned: it can't be swapped out",
        run: system::memory,
    },
    Check {
        name: "sleep",
        about: "the machine does not go to sleep",
        why: "a sleeping Mac is not woken over Thunderbolt, and its job waits until the time limit",
        run: system::sleep,
    },
    Check {
        name: "firewall",
        about: "no firewall is on",
        why: "ranks listen on ports that the system chooses, and a firewall may drop connections to them",
        run: system::firewall,
    },
    Check {
        name: "hostname",
        about: "the machine's own name has an address",
        why: "programs that start jobs look their own name up, and wait or fail",
        run: system::hostname,
    },
];
