//! Fabric files of the software device.

use softrdma::fabric::Fabric;
use std::path::Path;

/// Parses the file of a fabric: positions of errors lie in the text, and cables have two ends.
pub fn parse_fabric(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match Fabric::parse(text, Path::new("fabric.toml")) {
        Ok(fabric) => {
            assert!(fabric.nodes.iter().all(|node| node.ports.end <= fabric.devices.len()));
            let ends = fabric.cables.iter().flat_map(|cable| cable.ports);
            assert!(ends.into_iter().all(|port| fabric.devices[port].cable_end.is_some()));
            assert!(
                fabric
                    .devices
                    .iter()
                    .all(|device| fabric.peer(device).is_some() == device.cable_end.is_some())
            );
        }
        Err(error) => {
            let lines = text.matches('\n').count() + 1;
            assert!(error.position.is_some_and(|(line, column)| line <= lines && column >= 1), "{error}");
        }
    }
}
