//! Open MPI's hostfiles: a host per line, with its slots.
//!
//! ```text
//! # comment
//! mac0 slots=4 max-slots=8
//! mac1:2
//! user@mac2
//! ```
//!
//! As in Open MPI, a host that is named again has the slots of all its lines together, and a line without
//! slots counts as one then. The slots of a host that is named once, without slots, stay unknown. `slots` may
//! be called `cpu` or `count`, and the maximum `max_slots`, `max-slots`, `slots_max` or `slots-max`.
//!
//! Excluded hosts (`^mac0`) and relative names (`+n1`) have no meaning without a resource manager, and are
//! refused.

use super::{Format, Host, Hostfile, HostfileError, Position, check};

/// The keys that may follow a host's name.
const KEYS: [&str; 11] = [
    "slots",
    "cpu",
    "count",
    "max-slots",
    "max_slots",
    "slots-max",
    "slots_max",
    "user",
    "username",
    "user-name",
    "user_name",
];

/// Reads a whole file.
pub(super) fn parse(text: &str) -> Result<Hostfile, HostfileError> {
    let mut lines = Lines::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let fail = |at: usize, what: String| Position::on_line(number, line, at).error(what);
        let words = words(line);
        let Some(((at, first), rest)) = words.split_first() else { continue };
        lines.add(first, rest).map_err(|(word, what)| fail(word.unwrap_or(*at), what))?;
    }
    lines.finish().map_err(|what| Position::START.error(what))
}

/// Reads `a,b:2,c`.
pub(super) fn parse_list(list: &str) -> Result<Hostfile, HostfileError> {
    let mut lines = Lines::default();
    let mut at = 0;
    for item in list.split(',') {
        let fail = |what: String| Position::of(list, at).error(what);
        if item.is_empty() {
            return Err(fail("a host's name is empty; write e.g. a,b:2,c".to_owned()));
        }
        lines.add(item, &[]).map_err(|(_, what)| fail(what))?;
        at += item.len() + 1;
    }
    lines.finish().map_err(|what| Position::START.error(what))
}

/// The words of a line, with their places.
fn words(line: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return words;
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        words.push((line.len() - rest.len(), &rest[..end]));
        rest = &rest[end..];
    }
}

/// A host with what its lines say.
#[derive(Debug)]
struct CountedHost {
    host: Host,
    /// How many lines name it.
    lines: u32,
    /// The slots that are stated, and one for each line that states none.
    slots: u64,
    /// Whether any line has stated slots.
    stated: bool,
}

/// The hosts of the lines read so far.
#[derive(Debug, Default)]
struct Lines {
    named: Vec<CountedHost>,
}

/// The reason, and the word to which it refers if that is not the host's name.
type Problem = (Option<usize>, String);

impl Lines {
    fn add(&mut self, first: &str, rest: &[(usize, &str)]) -> Result<(), Problem> {
        let of_name = |what| (None, what);
        if let Some(sign @ ('^' | '+')) = first.chars().next() {
            return Err((
                None,
                format!(
                    "`{sign}` before a host has no meaning here; leave out the hosts that are not wanted"
                ),
            ));
        }
        let (name, short) = split_slots(first);
        let mut name = check::host_name(name).map_err(of_name)?;
        let mut slots =
            short.map(|text| check::slots(text.parse().ok(), text)).transpose().map_err(of_name)?;
        let mut max_slots = None;
        for (at, word) in rest {
            let here = |what| (Some(*at), what);
            let (key, value) = word.split_once('=').ok_or_else(|| {
                here(format!(
                    "`{word}` is not understood after a host; write e.g. slots=4, and each host on \
                              a line of its own"
                ))
            })?;
            match key {
                "slots" | "cpu" | "count" => {
                    if slots.is_some() {
                        return Err(here("the slots are given twice on this line; leave one out".to_owned()));
                    }
                    slots = Some(check::slots(value.parse().ok(), value).map_err(here)?);
                }
                "max-slots" | "max_slots" | "slots-max" | "slots_max" => {
                    max_slots = Some(check::slots(value.parse().ok(), value).map_err(here)?);
                }
                "user" | "username" | "user-name" | "user_name" => {
                    name = check::host_name(&format!("{value}@{name}")).map_err(here)?;
                }
                _ => return Err(here(format!("unknown key `{key}`; {}", check::nearest(key, &KEYS)))),
            }
        }
        self.count(name, slots, max_slots).map_err(of_name)
    }

    fn count(&mut self, name: String, slots: Option<u32>, max_slots: Option<u32>) -> Result<(), String> {
        let at = match self.named.iter().position(|named| named.host.name == name) {
            Some(at) => at,
            None => {
                check::check_room(self.named.len())?;
                self.named.push(CountedHost { host: Host::new(name), lines: 0, slots: 0, stated: false });
                self.named.len() - 1
            }
        };
        let named = &mut self.named[at];
        named.lines += 1;
        named.slots += u64::from(slots.unwrap_or(1));
        named.stated |= slots.is_some();
        named.host.max_slots = max_slots.or(named.host.max_slots);
        if named.stated || named.lines > 1 {
            named.host.slots = Some(check::slots(Some(named.slots), &named.slots.to_string())?);
        }
        check::check_maximum(&named.host)
    }

    fn finish(self) -> Result<Hostfile, String> {
        let hosts = self.named.into_iter().map(|named| named.host).collect();
        Ok(Hostfile { format: Format::Text, hosts, backend: None, env: Vec::new(), devices: None })
    }
}

/// `mac0:4` into its parts. The colons of an IPv6 address separate nothing, unless it is in brackets.
fn split_slots(word: &str) -> (&str, Option<&str>) {
    if let Some((address, rest)) = word.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, rest.strip_prefix(':'));
    }
    match word.split_once(':') {
        Some((name, slots)) if !slots.contains(':') => (name, Some(slots)),
        _ => (word, None),
    }
}
