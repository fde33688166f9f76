//! MLX's hostfiles: a list of hosts, or an object with such a list.
//!
//! ```json
//! {"backend": "jaccl", "envs": ["MLX_METAL_FAST_SYNCH=1"],
//!  "hosts": [{"ssh": "mac0", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]},
//!            {"ssh": "mac1", "ips": ["10.0.0.2"], "rdma": ["rdma_en3", null]}]}
//! ```
//!
//! Only `ssh` is required. `slots` and `max_slots` are read beside the fields that MLX writes. The file of
//! MLX's ring backend (`[["10.0.0.1:5000"], ...]`) names no hosts for ssh, and is refused with a message of
//! its own.
//!
//! Values are checked while they are read, since only then the reader knows their position.

use super::{Format, Host, Hostfile, HostfileError, Position, check};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Keys of the whole, and of a host.
const TOP: [&str; 3] = ["hosts", "backend", "envs"];
const OF_HOST: [&str; 5] = ["ssh", "ips", "rdma", "slots", "max_slots"];

/// Reads a whole file.
pub(super) fn parse(text: &str) -> Result<Hostfile, HostfileError> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let file = Document.deserialize(&mut reader).and_then(|file| reader.end().map(|()| file));
    file.map_err(|e| {
        let told = e.to_string();
        let what = told.rsplit_once(" at line ").map_or(told.as_str(), |(what, _)| what);
        let remedy = if e.is_syntax() || e.is_eof() { "; this was taken for MLX's JSON" } else { "" };
        Position::new(e.line(), e.column()).error(format!("{what}{remedy}"))
    })
}

/// A text of which something is made.
struct Text<F>(&'static str, F);

impl<'de, T, F: FnOnce(&str) -> Result<T, String>> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> Result<T, String>> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }
}

/// One of several keys.
fn key(known: &'static [&'static str]) -> Text<impl FnOnce(&str) -> Result<&'static str, String>> {
    Text("a key", move |text: &str| {
        known
            .iter()
            .find(|name| **name == text)
            .copied()
            .ok_or_else(|| format!("unknown key `{text}`; {}", check::nearest(text, known)))
    })
}

/// A list whose items are read by a seed.
struct List<F>(&'static str, F);

impl<'de, S: DeserializeSeed<'de>, F: Fn() -> S> DeserializeSeed<'de> for List<F> {
    type Value = Vec<S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de, S: DeserializeSeed<'de>, F: Fn() -> S> Visitor<'de> for List<F> {
    type Value = Vec<S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed((self.1)())? {
            items.push(item);
        }
        Ok(items)
    }
}

/// Slots.
struct Slots;

impl<'de> DeserializeSeed<'de> for Slots {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<u32, D::Error> {
        from.deserialize_any(self)
    }
}

impl Visitor<'_> for Slots {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number of slots, 1 at least")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
        check::slots(Some(number), &number.to_string()).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<u32, E> {
        check::slots(None, &number.to_string()).map_err(E::custom)
    }
}

/// The devices that lead to one host: null, a name or a list of names.
struct Devices;

impl<'de> DeserializeSeed<'de> for Devices {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<String>, D::Error> {
        from.deserialize_any(self)
    }
}

const DEVICE: &str = "null, a device like \"rdma_en2\", or a list of devices";

impl<'de> Visitor<'de> for Devices {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DEVICE)
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<String>, E> {
        Ok(Vec::new())
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Vec<String>, E> {
        Ok(vec![name.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<String>, A::Error> {
        List(DEVICE, || Text(DEVICE, |name: &str| Ok(name.to_owned()))).visit_seq(list)
    }
}

/// A host, and its row of the matrix.
struct OneHost;

impl<'de> DeserializeSeed<'de> for OneHost {
    type Value = (Host, Vec<Vec<String>>);

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for OneHost {
    type Value = (Host, Vec<Vec<String>>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a host, e.g. {\"ssh\": \"mac0\", \"ips\": [\"10.0.0.1\"]}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _list: A) -> Result<Self::Value, A::Error> {
        Err(Error::custom(
            "a list stands where a host should; a file of addresses for MLX's ring names no hosts: write \
             {\"ssh\": \"mac0\", \"ips\": [\"10.0.0.1\"]} for each",
        ))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut host, mut row, mut seen) = (Host::default(), Vec::new(), Vec::new());
        while let Some(key) = map.next_key_seed(key(&OF_HOST))? {
            once(&mut seen, key)?;
            match key {
                "ssh" => {
                    host.name =
                        map.next_value_seed(Text("a host's name, e.g. \"mac0\"", check::host_name))?;
                }
                "ips" => {
                    let address = "an address, e.g. \"10.0.0.1\"";
                    let list = List("a list of addresses", || Text(address, check::address));
                    host.addresses = map.next_value_seed(list)?;
                }
                "rdma" => {
                    row = map.next_value_seed(List("a list with an entry for each host", || Devices))?;
                }
                "slots" => host.slots = Some(map.next_value_seed(Slots)?),
                _ => host.max_slots = Some(map.next_value_seed(Slots)?),
            }
        }
        if host.name.is_empty() {
            return Err(Error::custom(
                "a host without `ssh`; add the name that ssh takes, e.g. \"ssh\": \"mac0\"",
            ));
        }
        check::check_maximum(&host).map_err(Error::custom)?;
        Ok((host, row))
    }
}

/// A key may be there once.
fn once<E: Error>(seen: &mut Vec<&'static str>, key: &'static str) -> Result<(), E> {
    if seen.contains(&key) {
        return Err(E::custom(format!("`{key}` is there twice; leave one out")));
    }
    seen.push(key);
    Ok(())
}

/// All hosts, and the matrix.
struct Hosts;

type HostsAndDevices = (Vec<Host>, Option<crate::DeviceMatrix>);

impl<'de> DeserializeSeed<'de> for Hosts {
    type Value = HostsAndDevices;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<HostsAndDevices, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Hosts {
    type Value = HostsAndDevices;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of hosts, e.g. [{\"ssh\": \"mac0\"}]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<HostsAndDevices, A::Error> {
        let (mut hosts, mut rows) = (Vec::<Host>::new(), Vec::new());
        while let Some((host, row)) = list.next_element_seed(OneHost)? {
            check::check_unique(&hosts, &host.name).map_err(Error::custom)?;
            hosts.push(host);
            rows.push(row);
        }
        if hosts.is_empty() {
            return Err(Error::custom("the list of hosts is empty; write e.g. {\"ssh\": \"mac0\"} in it"));
        }
        let devices = check::devices(&hosts, rows).map_err(Error::custom)?;
        Ok((hosts, devices))
    }
}

/// Either shape.
struct Document;

impl<'de> DeserializeSeed<'de> for Document {
    type Value = Hostfile;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Hostfile, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document {
    type Value = Hostfile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of hosts, or an object with `hosts`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Hostfile, A::Error> {
        let (hosts, devices) = Hosts.visit_seq(list)?;
        Ok(Hostfile { format: Format::Json, hosts, backend: None, env: Vec::new(), devices })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Hostfile, A::Error> {
        let (mut hosts, mut backend, mut env, mut seen) = (None, None, Vec::new(), Vec::new());
        while let Some(key) = map.next_key_seed(key(&TOP))? {
            once(&mut seen, key)?;
            match key {
                "hosts" => hosts = Some(map.next_value_seed(Hosts)?),
                "backend" => {
                    let name = "a backend, e.g. \"jaccl\"";
                    backend = Some(map.next_value_seed(Text(name, check::backend))?);
                }
                _ => {
                    let variable = "a variable, e.g. \"KEY=VALUE\"";
                    env = map
                        .next_value_seed(List("a list of variables", || Text(variable, check::assignment)))?;
                }
            }
        }
        let (hosts, devices) =
            hosts.ok_or_else(|| A::Error::custom("no `hosts`; add e.g. \"hosts\": [{\"ssh\": \"mac0\"}]"))?;
        Ok(Hostfile { format: Format::Json, hosts, backend, env, devices })
    }
}
