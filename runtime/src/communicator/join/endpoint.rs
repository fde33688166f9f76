//! Joining over a driver without shared memory: ranks exchange their addresses in rounds.

use super::{
    super::{Communicator, Identifier, Parts, machine::host_name},
    failure::not_started,
    greeting::{greeting, names, rendezvous_rank},
    links, one_host,
    rejoin::Rejoin,
};
use crate::{
    Config, Transport,
    agreement::Agreement,
    calibration::Thresholds,
    error::{Error, Result},
};
use bootstrap::{Connection, Identity, Joined, ReconnectListener};
use topology::{Rank, Reach};
use transport::{TransportError, driver::Endpoint};

/// Obstacle that ranks report at the start, since they do not map each other's arenas.
const NO_MEMORY: &str = "there is no memory in common";

/// Joins over an endpoint, or reports to the other ranks why it could not be opened.
pub(super) fn join_if_opened(
    opened: Result<Box<dyn Endpoint>>,
    identity: &Identity,
    config: &Config,
    reconnect_listener: Option<ReconnectListener>,
) -> Result<Communicator> {
    match opened {
        Ok(endpoint) => join(endpoint, identity, config, reconnect_listener),
        Err(error) => {
            report_failure(&error, identity, config);
            Err(error)
        }
    }
}

/// Joins over a driver without shared memory.
pub(super) fn join(
    mut endpoint: Box<dyn Endpoint>,
    identity: &Identity,
    config: &Config,
    reconnect_listener: Option<ReconnectListener>,
) -> Result<Communicator> {
    let (rank, size, rendezvous) = (identity.rank(), identity.size(), identity.rendezvous());
    let hello = greeting(identity, config, None, &0, reconnect_listener.as_ref());
    let first = match endpoint.exchange(&[]) {
        Ok(message) => message.unwrap_or_default(),
        Err(error) => {
            let error = not_started(rank, error);
            report_failure(&error, identity, config);
            return Err(error);
        }
    };
    let (Joined { mut connection, members, id, .. }, mut received) =
        Connection::join_and_exchange(rendezvous, &hello, NO_MEMORY.to_owned(), &first)?;
    loop {
        received = match endpoint.exchange(&received) {
            Ok(Some(message)) => connection.exchange(&message)?,
            Ok(None) => break,
            Err(error) => {
                // The rendezvous adds the rank to the reason.
                let reason = match &error {
                    TransportError::Wiring { rank: of, what } if *of == rank => what.clone(),
                    error => error.to_string(),
                };
                connection.abort_start(&reason);
                return Err(not_started(rank, error));
            }
        };
    }
    if let Some(memory) = one_host::memory_of_all(&mut *endpoint, config) {
        let joined = (connection, members, id);
        return one_host::join(memory, joined, (identity, config), reconnect_listener);
    }
    let reach = Reach::new(size, |a, b| endpoint.connects(a.0, b.0));
    let schedule_reach = Reach::new(size, |a, b| endpoint.is_for_schedules(a.0, b.0));
    let parts = Parts {
        rank: Rank(rank),
        names: names(&members),
        agreement: Agreement::mirrored(Rank(rank), size)?,
        slab: endpoint.slab().clone(),
        links: links(rank, size, &reach, |peer, lane| endpoint.link(peer, lane)),
        reach,
        schedule_reach,
        connection: Some(connection),
        transport: match config.transport {
            Transport::MixedAuto => endpoint.name(),
            given => given.name(),
        },
        endpoint: Some(endpoint),
        rejoin: Rejoin::processes(reconnect_listener, &members, identity),
        rendezvous_rank: rendezvous_rank(&members),
        identifier: Identifier::of_processes(id, identity),
        is_first: !identity.has_parent(),
        thresholds: Thresholds::DEFAULT,
    };
    Ok(Communicator::assemble(parts, config))
}

/// Joins only to report why this rank cannot take part, so that the waiting ranks need not guess.
fn report_failure(error: &Error, identity: &Identity, config: &Config) {
    let hello = greeting(identity, config, None, &0, None);
    let Ok(Joined { mut connection, .. }) = Connection::join(identity.rendezvous(), &hello, None) else {
        return;
    };
    if connection.start(Some(NO_MEMORY.to_owned())).is_ok() {
        let reason = error.to_string();
        // The rendezvous adds the rank to the reason.
        let own =
            [format!("rank {}: ", identity.rank()), format!("rank {} on {}: ", identity.rank(), host_name())];
        let rest = own.iter().find_map(|own| reason.strip_prefix(own.as_str()));
        connection.abort_start(rest.unwrap_or(&reason));
    }
}
