//! Jobs that may span hosts and have all their ranks on one (`shm+auto`).
//!
//! Their ranks learn that only once they have joined. From then on they share memory like the ranks of a
//! launcher on one host: they have each other's boards, the thresholds of the machine's calibration, and read
//! each other's memory by system call where they may. Two more exchanges agree on that.

use super::{
    super::calibrating::leave_thresholds,
    shm::{Sharing, obstacle_to_reading, probe_of},
};
use crate::{
    Config, Transport,
    communicator::Communicator,
    error::{Error, Result},
};
use bootstrap::{Connection, Identity, Member, ReconnectListener};
use transport::driver::{Endpoint, SharedMemory};

/// Returns the memory of all ranks, if the job was left to find the best transport and needs no other one.
pub(super) fn memory_of_all(endpoint: &mut dyn Endpoint, config: &Config) -> Option<SharedMemory> {
    // Other options name the transports to use.
    if config.transport == Transport::MixedAuto { endpoint.take_shared_memory() } else { None }
}

/// Makes the communicator of ranks that have joined and have mapped each other's arenas.
pub(super) fn join(
    SharedMemory { arenas, slab }: SharedMemory,
    (mut connection, mut members, id): (Connection, Vec<Member>, u64),
    (identity, config): (&Identity, &Config),
    reconnect_listener: Option<ReconnectListener>,
) -> Result<Communicator> {
    // The others read the thresholds after an exchange to which rank 0 contributes later.
    leave_thresholds(identity, config, &arenas[0]);
    // It must not move until all ranks have tried to read it.
    let probe = probe_of(identity.rank());
    let probes = connection.exchange(&encode(&probe))?;
    for (member, message) in members.iter_mut().zip(&probes) {
        (member.probe_address, member.probe_value) = decode(message)?;
    }
    let obstacle = obstacle_to_reading(&members, identity, config).unwrap_or_default();
    let obstacles = connection.exchange(obstacle.as_bytes())?;
    drop(probe);
    let obstacle = obstacles.iter().find(|obstacle| !obstacle.is_empty());
    let obstacle = obstacle.map(|obstacle| String::from_utf8_lossy(obstacle).into_owned());
    let sharing = Sharing { connection, members, id, arenas, slab, obstacle };
    Ok(sharing.assemble(identity, config, reconnect_listener))
}

/// Returns the address and the value of a probe as a message.
fn encode(probe: &u64) -> [u8; 16] {
    let address = std::ptr::from_ref(probe) as u64;
    (u128::from(address) << 64 | u128::from(*probe)).to_le_bytes()
}

fn decode(message: &[u8]) -> Result<(u64, u64)> {
    let bytes = message.try_into().map_err(|_| {
        Error::Defect(format!("the message with the address of a probe has {} bytes", message.len()))
    })?;
    let both = u128::from_le_bytes(bytes);
    Ok(((both >> 64) as u64, both as u64))
}
