//! Settings of rounds: a transport, the fabric of software devices that it runs on, and the way to start.

use std::{fmt, str::FromStr};
use tbccl::Transport;

/// Profiles of software devices.
pub(super) const PROFILES: [&str; 3] = ["ib", "usb4", "apple-tb5"];

/// Transports of rounds. `auto` and `shm+auto` choose among them.
const TRANSPORTS: [Transport; 5] =
    [Transport::Shm, Transport::Tcp, Transport::Mixed, Transport::Verbs, Transport::MixedVerbs];

/// The transport of a round, and its fabric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) transport: Transport,
    /// The fabric; none where the transport needs no devices.
    pub(super) fabric: Option<FabricChoice>,
}

/// A fabric of software devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FabricChoice {
    /// A new fabric in each round, whose devices have this profile.
    Profile(&'static str),
    /// A fabric file.
    File {
        path: String,
        /// Ports of the cables, as `NODE/DEVICE`, and the numbers of their nodes.
        cables: Vec<[(String, u32); 2]>,
        nodes: u32,
    },
}

impl Setting {
    /// Returns all settings of these transports and profiles; empty lists select all.
    pub(super) fn all(transports: &[Transport], profiles: &[&'static str]) -> Vec<Setting> {
        let is_chosen = |transport: &Transport| transports.is_empty() || transports.contains(transport);
        let profiles = if profiles.is_empty() { &PROFILES[..] } else { profiles };
        let mut settings = Vec::new();
        for transport in TRANSPORTS.into_iter().filter(is_chosen) {
            if has_devices(transport) {
                settings.extend(
                    profiles
                        .iter()
                        .map(|profile| Setting { transport, fabric: Some(FabricChoice::Profile(profile)) }),
                );
            } else {
                settings.push(Setting { transport, fabric: None });
            }
        }
        settings
    }

    /// Whether the transport runs on devices.
    pub(super) fn has_devices(&self) -> bool {
        has_devices(self.transport)
    }

    /// Whether connections of TCP carry messages.
    pub(super) fn has_tcp(&self) -> bool {
        matches!(self.transport, Transport::Tcp | Transport::Mixed)
    }

    /// Whether ranks of one host share memory.
    pub(super) fn shares_memory(&self) -> bool {
        matches!(self.transport, Transport::Shm | Transport::Mixed | Transport::MixedVerbs)
    }

    /// Returns the name of the devices' profile, or the path of the fabric file.
    pub(super) fn fabric_name(&self) -> Option<&str> {
        match self.fabric.as_ref()? {
            FabricChoice::Profile(name) => Some(name),
            FabricChoice::File { path, .. } => Some(path),
        }
    }

    /// Returns the options that select this setting alone.
    pub(super) fn options(&self) -> String {
        let transport = format!("--transport {}", self.transport);
        self.fabric_name().map_or(transport.clone(), |fabric| format!("{transport} --fabric {fabric}"))
    }
}

/// The way by which ranks are started and meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// `tbccl run`, or `tbccl fabric run`.
    Run,
    /// `tbccl run` with an agent for each host.
    Hosts,
    /// A separate `tbccl rendezvous`.
    Rendezvous,
    /// A unique id, whose rendezvous is in rank 0.
    Id,
}

impl Start {
    /// Whether a launcher supervises the ranks.
    pub(super) fn has_launcher(self) -> bool {
        matches!(self, Start::Run | Start::Hosts)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Start::Run => "run",
            Start::Hosts => "hosts",
            Start::Rendezvous => "rendezvous",
            Start::Id => "id",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transport)?;
        self.fabric_name().map_or(Ok(()), |fabric| write!(f, " on {fabric}"))
    }
}

/// Parses the transport of rounds.
pub(super) fn transport(text: &str) -> Result<Transport, String> {
    let transport = Transport::from_str(text).map_err(|error| error.to_string())?;
    if text != "auto" && TRANSPORTS.contains(&transport) {
        return Ok(transport);
    }
    let names: Vec<String> = TRANSPORTS.iter().map(ToString::to_string).collect();
    Err(format!("rounds run on {}", names.join(", ")))
}

fn has_devices(transport: Transport) -> bool {
    matches!(transport, Transport::Verbs | Transport::MixedVerbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_selected_alone_by_its_options() {
        let all = Setting::all(&[], &[]);
        assert_eq!(all.len(), 3 + 2 * PROFILES.len());
        for setting in &all {
            let Some(FabricChoice::Profile(profile)) = setting.fabric else { continue };
            assert_eq!(Setting::all(&[setting.transport], &[profile]), std::slice::from_ref(setting));
            assert!(setting.options().ends_with(profile), "{setting}");
        }
        assert_eq!(Setting::all(&[Transport::Shm], &["ib"]).len(), 1, "it has no devices");
    }

    #[test]
    fn transports_that_choose_another_one_are_refused() {
        assert_eq!(transport("shm+tcp"), Ok(Transport::Mixed));
        for text in ["auto", "shm+auto", "pigeon"] {
            assert!(transport(text).is_err(), "{text}");
        }
    }
}
