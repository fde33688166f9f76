//! tbccl's hostfiles, in TOML.
//!
//! ```toml
//! backend = "jaccl"               # for MLX programs
//!
//! [env]                           # for every rank
//! TBCCL_TIMEOUT = "60"
//!
//! [[host]]
//! ssh = "mac0"
//! addresses = ["10.0.0.1"]
//! slots = 1
//! max_slots = 2
//! rdma = { mac1 = "rdma_en2", mac2 = ["rdma_en3", "rdma_en4"] }
//! env = { OMP_NUM_THREADS = 4 }   # for the ranks of this host
//! ```
//!
//! Only `ssh` is required. `rdma` names the devices that lead to each host; the k-th device of one host that
//! leads to another and the k-th of that other that leads back are the ends of one cable. It may also be a
//! list, by position, as in MLX's files: TOML has no null, so `""` or `[]` stands where no cable leads.

use super::{Format, Host, Hostfile, HostfileError, Position, check};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Keys of the whole, and of a host.
const TOP: [&str; 3] = ["host", "backend", "env"];
const OF_HOST: [&str; 6] = ["ssh", "addresses", "slots", "max_slots", "rdma", "env"];

/// The reason, and the byte to which it refers.
type Problem = (usize, String);

/// Reads a whole file.
pub(super) fn parse(text: &str) -> Result<Hostfile, HostfileError> {
    let at = |(at, what): Problem| Position::of(text, at).error(what);
    let table = DeTable::parse(text).map_err(|e| {
        let place = e.span().map_or(0, |span| span.start);
        let what = e.message().replace('\n', ", ");
        at((place, format!("{what}; this was taken for TOML")))
    })?;
    document(table.get_ref()).map_err(at)
}

fn document(table: &DeTable<'_>) -> Result<Hostfile, Problem> {
    known(table, &TOP)?;
    let backend = match table.get("backend") {
        Some(value) => Some(text(value).and_then(|name| check::backend(name).map_err(here(value)))?),
        None => None,
    };
    let env = table.get("env").map(variables).transpose()?.unwrap_or_default();
    let Some(list) = table.get("host") else {
        return Err((0, "no host; add e.g. [[host]] and, on the next line, ssh = \"mac0\"".to_owned()));
    };
    let DeValue::Array(tables) = list.get_ref() else {
        return Err(here(list)("each host is a table of its own; write [[host]] before it".to_owned()));
    };
    let mut hosts = Vec::new();
    let mut wires = Vec::new();
    for value in tables.iter() {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(here(value)("a host is a table; write e.g. { ssh = \"mac0\" }".to_owned()));
        };
        let host = one_host(table, value)?;
        check::check_unique(&hosts, &host.name)
            .map_err(|what| (place(table.get("ssh").unwrap_or(value)), what))?;
        hosts.push(host);
        wires.push(table.get("rdma"));
    }
    if hosts.is_empty() {
        return Err(here(list)(
            "there is no host in the list; write e.g. { ssh = \"mac0\" } in it".to_owned(),
        ));
    }
    let rows = wires.iter().map(|value| row(&hosts, *value)).collect::<Result<_, _>>()?;
    let first = wires.iter().flatten().next();
    let devices =
        check::devices(&hosts, rows).map_err(|what| (first.map_or(0, |value| place(value)), what))?;
    Ok(Hostfile { format: Format::Toml, hosts, backend, env, devices })
}

fn one_host(table: &DeTable<'_>, whole: &Spanned<DeValue<'_>>) -> Result<Host, Problem> {
    known(table, &OF_HOST)?;
    let name = table.get("ssh").ok_or_else(|| {
        here(whole)("a host without `ssh`; add the name that ssh takes, e.g. ssh = \"mac0\"".to_owned())
    })?;
    let mut host = Host::new(text(name).and_then(|text| check::host_name(text).map_err(here(name)))?);
    if let Some(value) = table.get("addresses") {
        host.addresses = texts(value, "a list of addresses, e.g. [\"10.0.0.1\"]")?
            .into_iter()
            .map(|(at, text)| check::address(text).map_err(|what| (at, what)))
            .collect::<Result<_, _>>()?;
    }
    host.slots = table.get("slots").map(slots).transpose()?;
    host.max_slots = table.get("max_slots").map(slots).transpose()?;
    host.env = table.get("env").map(variables).transpose()?.unwrap_or_default();
    check::check_maximum(&host).map_err(|what| (place(table.get("max_slots").unwrap_or(whole)), what))?;
    Ok(host)
}

/// A host's row of the matrix.
fn row(hosts: &[Host], value: Option<&Spanned<DeValue<'_>>>) -> Result<Vec<Vec<String>>, Problem> {
    let mut row = vec![Vec::new(); hosts.len()];
    let Some(value) = value else { return Ok(row) };
    match value.get_ref() {
        DeValue::Table(peers) => {
            for (peer, devices) in peers.iter() {
                let name = peer.get_ref().as_ref();
                let Some(at) = hosts.iter().position(|host| host.name == name) else {
                    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
                    let what = format!("no host `{name}` in this file; {}", check::nearest(name, &names));
                    return Err((peer.span().start, what));
                };
                row[at] = names(devices)?;
            }
            Ok(row)
        }
        DeValue::Array(list) => list.iter().map(names).collect(),
        _ => Err(here(value)("devices are named by host; write e.g. { mac1 = \"rdma_en2\" }".to_owned())),
    }
}

/// A device, several, or none.
fn names(value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, Problem> {
    if let DeValue::String(name) = value.get_ref() {
        return Ok(if name.is_empty() { Vec::new() } else { vec![name.clone().into_owned()] });
    }
    let names = texts(value, "a device like \"rdma_en2\", or a list of devices")?;
    Ok(names.into_iter().map(|(_, name)| name.to_owned()).collect())
}

fn texts<'a>(value: &'a Spanned<DeValue<'_>>, expected: &str) -> Result<Vec<(usize, &'a str)>, Problem> {
    let DeValue::Array(list) = value.get_ref() else {
        return Err(here(value)(format!("{} stands where {expected} should", kind(value))));
    };
    list.iter().map(|item| text(item).map(|text| (place(item), text))).collect()
}

fn text<'a>(value: &'a Spanned<DeValue<'_>>) -> Result<&'a str, Problem> {
    match value.get_ref() {
        DeValue::String(text) if text.contains('\0') => {
            Err(here(value)("a text with a zero in it; leave it out".to_owned()))
        }
        DeValue::String(text) => Ok(text),
        _ => Err(here(value)(format!(
            "{} stands where a text should; write it in quotation marks",
            kind(value)
        ))),
    }
}

fn slots(value: &Spanned<DeValue<'_>>) -> Result<u32, Problem> {
    let DeValue::Integer(number) = value.get_ref() else {
        return Err(here(value)(format!(
            "{} stands where a number of slots should; write e.g. 4",
            kind(value)
        )));
    };
    check::slots(u64::from_str_radix(number.as_str(), number.radix()).ok(), number.as_str())
        .map_err(here(value))
}

/// Variables; numbers and truth values are taken as they are written.
fn variables(value: &Spanned<DeValue<'_>>) -> Result<Vec<(String, String)>, Problem> {
    let DeValue::Table(table) = value.get_ref() else {
        return Err(here(value)("variables are a table; write e.g. { KEY = \"value\" }".to_owned()));
    };
    let mut env = Vec::new();
    for (key, value) in table.iter() {
        check::variable(key.get_ref()).map_err(|what| (key.span().start, what))?;
        let text = match value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(truth) => truth.to_string(),
            _ => text(value)?.to_owned(),
        };
        env.push((key.get_ref().clone().into_owned(), text));
    }
    Ok(env)
}

/// Refuses keys that nothing reads.
fn known(table: &DeTable<'_>, known: &[&str]) -> Result<(), Problem> {
    match table.keys().find(|key| !known.contains(&key.get_ref().as_ref())) {
        Some(key) => {
            let name = key.get_ref();
            Err((key.span().start, format!("unknown key `{name}`; {}", check::nearest(name, known))))
        }
        None => Ok(()),
    }
}

fn place(value: &Spanned<DeValue<'_>>) -> usize {
    value.span().start
}

fn here(value: &Spanned<DeValue<'_>>) -> impl Fn(String) -> Problem {
    let at = place(value);
    move |what| (at, what)
}

/// Returns the kind of a value, for people.
fn kind(value: &Spanned<DeValue<'_>>) -> &'static str {
    match value.get_ref() {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
