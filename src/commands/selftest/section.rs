//! Sections of the test, and the choice among them.

use super::{device, pair};
use collectives::UnknownName;

/// A part of the test; sections run in the order of [`Section::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Machine,
    Devices,
    Cables,
    Assumptions,
    Speed,
    Collectives,
    Messages,
    Mlx,
    Torch,
    Unplug,
    Failures,
}

impl Section {
    /// All sections in their order. Those that may leave devices in a bad state are last.
    pub(super) const ALL: [Section; 11] = [
        Section::Machine,
        Section::Devices,
        Section::Cables,
        Section::Assumptions,
        Section::Speed,
        Section::Collectives,
        Section::Messages,
        Section::Mlx,
        Section::Torch,
        Section::Unplug,
        Section::Failures,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Section::Machine => "machine",
            Section::Devices => "devices",
            Section::Cables => "cables",
            Section::Assumptions => "assumptions",
            Section::Speed => "speed",
            Section::Collectives => "collectives",
            Section::Messages => "messages",
            Section::Mlx => "mlx",
            Section::Torch => "torch",
            Section::Unplug => "unplug",
            Section::Failures => "failures",
        }
    }

    /// Returns the sentence about the section in the help text.
    pub(super) fn help(self) -> &'static str {
        match self {
            Section::Machine => "system, memory that may be locked, verbs library, rdma_ctl",
            Section::Devices => "ports, addresses and limits, each limit tried",
            Section::Cables => "cables between the first two ranks, a message over each",
            Section::Assumptions => "behavior of queue pairs that the driver relies on, one by one",
            Section::Speed => "latency and rate of each cable, by size",
            Section::Collectives => "all collectives on all types, every element checked",
            Section::Messages => "tagged messages in random order",
            Section::Mlx => "groups of MLX, exceptions, arrays computed by Metal",
            Section::Torch => "groups of PyTorch, exceptions, tensors on mps",
            Section::Unplug => "a cable that is pulled and plugged in again, with --unplug",
            Section::Failures => "an abort and a killed rank, noticed in time; devices afterwards",
        }
    }

    fn probes(self) -> Vec<&'static str> {
        match self {
            Section::Devices => device::PROBES.iter().map(|probe| probe.name).collect(),
            Section::Assumptions => pair::PROBES.iter().map(|probe| probe.name).collect(),
            _ => Vec::new(),
        }
    }
}

/// The sections and probes that run.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    only: Vec<String>,
    skip: Vec<String>,
}

impl Selection {
    /// Creates the choice from the values of --only and --skip.
    ///
    /// # Errors
    /// An unknown name, with the nearest one.
    pub(super) fn new(only: &[String], skip: &[String]) -> Result<Selection, UnknownName> {
        for name in only.iter().chain(skip) {
            if !names().any(|known| known == name) {
                return Err(UnknownName::new("check", name, names()));
            }
        }
        Ok(Selection { only: only.to_vec(), skip: skip.to_vec() })
    }

    /// Whether a section runs, or a part of it.
    pub(super) fn has(&self, section: Section) -> bool {
        let is_named = |name: &String| name == section.name() || section.probes().contains(&name.as_str());
        (self.only.is_empty() || self.only.iter().any(is_named))
            && !self.skip.iter().any(|name| name == section.name())
    }

    /// Whether a probe of a section runs.
    pub(super) fn has_probe(&self, section: Section, probe: &str) -> bool {
        let is_named = |name: &String| name == section.name() || name == probe;
        (self.only.is_empty() || self.only.iter().any(is_named)) && !self.skip.iter().any(is_named)
    }
}

/// Returns the names of sections and probes.
fn names() -> impl Iterator<Item = &'static str> {
    Section::ALL.into_iter().map(Section::name).chain(Section::ALL.into_iter().flat_map(Section::probes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(only: &[&str], skip: &[&str]) -> Selection {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Selection::new(&owned(only), &owned(skip)).expect("known names")
    }

    #[test]
    fn sections_and_probes_are_chosen_by_name() {
        let all = chosen(&[], &["speed"]);
        assert!(all.has(Section::Mlx) && !all.has(Section::Speed));
        let one = chosen(&["order"], &[]);
        assert!(one.has(Section::Assumptions) && !one.has(Section::Devices));
        assert!(one.has_probe(Section::Assumptions, "order"));
        assert!(!one.has_probe(Section::Assumptions, "lengths"));
        let error = Selection::new(&["odrer".to_owned()], &[]).expect_err("unknown");
        assert_eq!(error.nearest, Some("order"));
    }

    #[test]
    fn no_two_checks_have_one_name() {
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
