//! Joining over a driver without shared memory: ranks exchange their addresses in rounds.

use super::{
    super::{Communicator, Parts},
    failure::{host_name, not_started},
    greeting::{greeting, keeper, names},
    links,
    rejoin::Rejoin,
};
use crate::{
    Config, Transport,
    agreement::Agreement,
    error::{Error, Result},
};
use bootstrap::{Connection, Identity, Joined, ReconnectListener};
use topology::{Rank, Reach};
use transport::{TransportError, driver::Endpoint};

/// Joins over an endpoint, or tells the others why there is none.
pub(super) fn join_if_opened(
    opened: Result<Box<dyn Endpoint>>,
    identity: &Identity,
    config: &Config,
    reconnect_listener: Option<ReconnectListener>,
) -> Result<Communicator> {
    match opened {
        Ok(endpoint) => join(endpoint, identity, config, reconnect_listener),
        Err(error) => {
            tell_why_not(&error, identity, config);
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
    let Identity { rank, size, rendezvous, .. } = identity;
    let hello = greeting(identity, config, None, &0, reconnect_listener.as_ref());
    let Joined { mut connection, members, .. } = Connection::join(rendezvous, &hello, None)?;
    connection.start(Some("there is no memory in common".into()))?;
    let mut heard = Vec::new();
    loop {
        match endpoint.exchange(&heard) {
            Ok(Some(word)) => heard = connection.exchange(&word)?,
            Ok(None) => break,
            Err(error) => {
                // The other ranks are told whose message it is.
                let said = match &error {
                    TransportError::Wiring { rank: of, what } if of == rank => what.clone(),
                    error => error.to_string(),
                };
                connection.abort_start(&said);
                return Err(not_started(*rank, error));
            }
        }
    }
    let reach = Reach::new(*size, |a, b| endpoint.connects(a.0, b.0));
    let parts = Parts {
        rank: Rank(*rank),
        names: names(&members),
        agreement: Agreement::mirrored(Rank(*rank), *size)?,
        slab: endpoint.slab().clone(),
        links: links(*rank, *size, &reach, |peer, lane| endpoint.link(peer, lane)),
        reach,
        connection: Some(connection),
        transport: match config.transport {
            Transport::MixedAuto => endpoint.name(),
            given => given.name(),
        },
        endpoint: Some(endpoint),
        rejoin: Rejoin::processes(reconnect_listener, &members, identity),
        keeper: keeper(&members),
        is_first: identity.parent.is_none(),
    };
    Ok(Communicator::assemble(parts, config))
}

/// Joins only to say why this rank can't take part: the others wait for it, and shall not have to guess.
fn tell_why_not(error: &Error, identity: &Identity, config: &Config) {
    let hello = greeting(identity, config, None, &0, None);
    let Ok(Joined { mut connection, .. }) = Connection::join(&identity.rendezvous, &hello, None) else {
        return;
    };
    if connection.start(Some("there is no memory in common".into())).is_ok() {
        let said = error.to_string();
        // The other ranks are told whose message it is.
        let own =
            [format!("rank {}: ", identity.rank), format!("rank {} on {}: ", identity.rank, host_name())];
        let rest = own.iter().find_map(|own| said.strip_prefix(own.as_str()));
        connection.abort_start(rest.unwrap_or(&said));
    }
}
