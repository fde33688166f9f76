//! The rules of the devices of a fabric file (`configs/fabrics/template.toml`).

use super::DeviceRules;
use serde::Deserialize;

/// The parts of a fabric file that affect messages. `tbccl fabric check` checks the whole file.
#[derive(Deserialize)]
struct Fabric {
    profile: Option<String>,
    #[serde(default)]
    node: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    name: String,
    #[serde(default)]
    device: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    profile: Option<String>,
    usable_depth: Option<u64>,
}

impl DeviceRules {
    /// Returns the rules of the device with the shortest messages of a fabric file.
    ///
    /// # Errors
    /// A message that says what is wrong in the file.
    pub fn of_fabric(text: &str) -> Result<DeviceRules, String> {
        let fabric: Fabric = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let mut all = Vec::new();
        for node in &fabric.node {
            for device in &node.device {
                let at = format!("device {} of node {}", device.name, node.name);
                let kind = device.profile.as_ref().or(fabric.profile.as_ref());
                let kind = kind.ok_or_else(|| format!("{at} has no `profile`"))?;
                let mut rules = DeviceRules::named(kind).map_err(|error| format!("{at}: {error}"))?;
                rules.queue_depth = device.usable_depth.unwrap_or(rules.queue_depth).min(rules.queue_depth);
                all.push(rules);
            }
        }
        all.into_iter().min_by_key(DeviceRules::limit).ok_or_else(|| "there are no devices in it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_device_of_a_fabric_decides() {
        let of = |devices: &str| {
            DeviceRules::of_fabric(&format!("profile = \"ib\"\n[[node]]\nname = \"a\"\ndevice = [{devices}]"))
        };
        assert_eq!(of("{ name = \"x\" }"), Ok(DeviceRules::IB));
        let mixed = of("{ name = \"x\" }, { name = \"y\", profile = \"apple-tb5\" }");
        assert_eq!(mixed, Ok(DeviceRules::APPLE_TB5));
        let shallow = of("{ name = \"x\", profile = \"apple-tb5\", usable_depth = 10 }").expect("a device");
        assert_eq!(shallow.limit(), 40_960);
        assert!(of("").is_err_and(|why| why.contains("no devices")));
        assert!(
            of("{ name = \"x\", profile = \"usb5\" }").is_err_and(|why| why.contains("did you mean `usb4`"))
        );
    }
}
