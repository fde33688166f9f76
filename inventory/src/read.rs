//! Recordings turned into inventories.

use crate::{Inventory, Processors, Recording, VERSION, Verbs, linux, macos};

impl Inventory {
    /// Reads a recording.
    #[must_use]
    pub fn read(recording: &Recording) -> Inventory {
        let mut inventory = match recording.system.as_str() {
            "linux" => linux::read(recording),
            "macos" => macos::read(recording),
            _ => Inventory::default(),
        };
        inventory.version = VERSION;
        let text = |name: &str| recording.output(name).map(|text| text.trim().to_owned());
        inventory.tbccl = text("tbccl --version").unwrap_or_default();
        inventory.time_ms = text("time").and_then(|text| text.parse().ok());
        inventory.resolves_itself = text("resolve").map(|text| text == "yes");
        match Processors::read(recording) {
            Ok(processors) => inventory.processors = processors,
            Err(problem) => inventory.problems.push(problem),
        }
        if let Some(text) = recording.output("verbs") {
            match serde_json::from_str::<Verbs>(text) {
                Ok(verbs) => inventory.add_verbs(verbs),
                Err(error) => inventory.problems.push(format!("the probe of RDMA devices: {error}")),
            }
        }
        inventory
    }

    /// Merges the probed devices with those that the system's files name.
    fn add_verbs(&mut self, mut verbs: Verbs) {
        for mut probed in std::mem::take(&mut verbs.devices) {
            // `rdma_en2` belongs to `en2`.
            let named = probed.name.strip_prefix("rdma_").filter(|name| self.interface(name).is_some());
            probed.interface = probed.interface.or(named.map(str::to_owned));
            match self.devices.iter_mut().find(|known| known.name == probed.name) {
                Some(known) => {
                    known.queue_pairs = probed.queue_pairs;
                    known.regions = probed.regions;
                    known.faults = probed.faults;
                    known.interface = known.interface.take().or(probed.interface);
                    if known.gids.is_empty() {
                        known.gids = probed.gids;
                    }
                }
                None => self.devices.push(probed),
            }
        }
        for port in &mut self.ports {
            let Some(interface) = &port.interface else { continue };
            let own = self.devices.iter().find(|device| device.interface.as_ref() == Some(interface));
            port.device = own.map(|device| device.name.clone());
        }
        self.verbs = verbs;
    }
}
