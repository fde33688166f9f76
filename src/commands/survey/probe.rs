//! RDMA devices of this machine, as the verbs library shows them.
//!
//! Each device is opened, and a queue pair and some memory are allocated for a moment, as by `tbccl devices`.

use crate::commands::devices::query::{self, Device, DeviceList};
use inventory::{DeviceFault, Gid, Verbs};
use tbccl::Config;
use transport::verbs::{Cause, Library, TransportType};

/// Queries all devices.
pub(super) fn verbs() -> Verbs {
    let failed = |problem: String| Verbs { problem: Some(problem), ..Verbs::default() };
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => return failed(error.to_string()),
    };
    match Library::load(config.verbs.library.as_deref()) {
        Err(error) => failed(error.to_string()),
        Ok(library) => match query::query_all(&library) {
            Ok(list) => of_list(list),
            Err(error) => {
                Verbs { library: Some(library.name().to_owned()), ..failed(error.message().to_owned()) }
            }
        },
    }
}

fn of_list(list: DeviceList) -> Verbs {
    Verbs {
        library: Some(list.library),
        problem: list.no_devices,
        devices: list.devices.iter().map(device).collect(),
    }
}

fn device(device: &Device) -> inventory::Device {
    let gids = device.gids.iter().map(|(index, gid)| Gid {
        index: *index,
        gid: gid.to_string(),
        kind: String::new(),
    });
    let causes = device.causes.iter().zip(&device.problems);
    inventory::Device {
        name: device.info.name.clone(),
        interface: None,
        link: match device.info.transport_type {
            TransportType::THUNDERBOLT => "Thunderbolt".to_owned(),
            other => format!("{other:?}"),
        },
        state: device.port.map_or("unknown", |port| port.state).to_owned(),
        gigabits: device.port.and_then(|port| port.gigabits),
        gids: gids.collect(),
        queue_pairs: device.abilities.as_ref().map(|found| found.max_queue_pairs),
        regions: device.abilities.as_ref().map(|found| found.max_regions),
        faults: causes.map(|(cause, text)| DeviceFault { cause: word(*cause), text: text.clone() }).collect(),
    }
}

/// Returns the name of a cause in one word.
fn word(cause: Option<Cause>) -> String {
    let name = cause.map_or_else(|| "Unknown".to_owned(), |cause| format!("{cause:?}"));
    name.split('(').next().unwrap_or_default().to_owned()
}
