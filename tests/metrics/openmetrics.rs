//! A strict reader of OpenMetrics text: it refuses what Prometheus would refuse, and more.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a series, with its name.
pub(crate) type Series = (String, BTreeMap<String, String>);

/// The samples of a scrape.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) samples: BTreeMap<Series, f64>,
    /// Type of each family.
    types: BTreeMap<String, String>,
}

/// The family whose lines are read.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: Option<String>,
    has_samples: bool,
}

impl Scrape {
    /// Reads a text.
    ///
    /// # Panics
    /// If a line is not valid at its place.
    pub(crate) fn parse(text: &str) -> Scrape {
        let body = text.strip_suffix("# EOF\n").expect("the text ends with # EOF");
        let mut scrape = Scrape { samples: BTreeMap::new(), types: BTreeMap::new() };
        let mut family = Family::default();
        for line in body.lines() {
            match line.strip_prefix("# ") {
                Some(facts) => scrape.read_facts(&mut family, facts),
                None => scrape.read_sample(&mut family, line),
            }
        }
        scrape
    }

    fn read_facts(&mut self, family: &mut Family, facts: &str) {
        let mut parts = facts.splitn(3, ' ');
        let [keyword, name, rest] = [(); 3].map(|()| parts.next().expect(facts));
        if keyword == "HELP" {
            assert!(!self.types.contains_key(name), "{name} has lines in two places");
            assert!(!rest.is_empty(), "{name} has no help");
            *family = Family { name: name.to_owned(), ..Family::default() };
            return;
        }
        assert_eq!(name, family.name, "{facts} is not with its help");
        assert!(!family.has_samples, "{facts} is behind samples");
        match keyword {
            "TYPE" => {
                assert!(["counter", "gauge", "info"].contains(&rest), "{facts}");
                self.types.insert(name.to_owned(), rest.to_owned());
                family.kind = Some(rest.to_owned());
            }
            "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{facts}: the name lacks the unit"),
            _ => panic!("no keyword: {facts}"),
        }
    }

    fn read_sample(&mut self, family: &mut Family, line: &str) {
        let kind = family.kind.as_deref().expect("a type before samples");
        family.has_samples = true;
        let (name, rest) = line.split_once('{').expect(line);
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        assert_eq!(name, format!("{}{suffix}", family.name), "{line}");
        let (labels, value) = read_labels(rest);
        let value: f64 = value.strip_prefix(' ').and_then(|value| value.parse().ok()).expect(line);
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let before = self.samples.insert((name.to_owned(), labels), value);
        assert_eq!(before, None, "twice: {line}");
    }

    /// Returns the sum of the series of a name that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.with(name, labels).map(|(_, value)| value).sum()
    }

    /// Returns the series of a name that have these labels.
    pub(crate) fn with<'s>(
        &'s self,
        name: &'s str,
        labels: &'s [(&str, &str)],
    ) -> impl Iterator<Item = (&'s BTreeMap<String, String>, f64)> {
        let has = |of: &BTreeMap<String, String>| {
            labels.iter().all(|(key, value)| of.get(*key).is_some_and(|found| found == value))
        };
        let named = self.samples.iter().filter(move |((of, _), _)| of == name);
        named.filter(move |((_, of), _)| has(of)).map(|((_, of), value)| (of, *value))
    }

    /// Returns the values of a label in the series of a name.
    pub(crate) fn values(&self, name: &str, label: &str) -> BTreeSet<String> {
        self.with(name, &[]).filter_map(|(labels, _)| labels.get(label).cloned()).collect()
    }

    /// Asserts that no counter has gone back since an earlier scrape, and none has disappeared.
    ///
    /// # Panics
    /// If one has.
    pub(crate) fn assert_follows(&self, earlier: &Scrape) {
        for ((name, labels), before) in &earlier.samples {
            let series = (name.clone(), labels.clone());
            let now = self.samples.get(&series).unwrap_or_else(|| panic!("{series:?} has disappeared"));
            assert!(!name.ends_with("_total") || now >= before, "{series:?}: {before}, then {now}");
        }
    }
}

/// Reads labels up to the closing brace; returns them and the rest of the line.
fn read_labels(text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    loop {
        let (key, after) = rest.split_once("=\"").expect(text);
        assert!(
            key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') && !key.is_empty(),
            "{key}"
        );
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().expect("an escape").1 {
                    'n' => '\n',
                    escaped @ ('"' | '\\') => escaped,
                    other => panic!("no escape: {other}"),
                }),
                (_, character) => value.push(character),
            }
        };
        assert_eq!(labels.insert(key.to_owned(), value), None, "{key} twice in {text}");
        rest = &after[end + 1..];
        match rest.split_at(1) {
            (",", more) => rest = more,
            ("}", more) => return (labels, more),
            _ => panic!("no end of labels: {text}"),
        }
    }
}

#[test]
fn the_reader_refuses_texts_that_are_wrong() {
    let facts = "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n";
    let good = &format!("{facts}a_bytes_total{{b=\"\\\"\"}} 1\n# EOF\n");
    assert_eq!(Scrape::parse(good).sum("a_bytes_total", &[("b", "\"")]), 1.0);
    for (wrong, by) in [
        ("# EOF\n", ""),
        ("# TYPE a_bytes counter\n", ""),
        ("a_bytes_total{", "a_bytes{"),
        ("bytes bytes", "bytes seconds"),
        ("} 1\n", "} 1\na_bytes_total{b=\"\\\"\"} 2\n"),
        ("} 1", "} -1"),
        ("\\\"", "\\x"),
        ("b=", "B="),
    ] {
        assert!(good.contains(wrong));
        let text = good.replacen(wrong, by, 1);
        assert!(std::panic::catch_unwind(|| Scrape::parse(&text)).is_err(), "{text}");
    }
}
