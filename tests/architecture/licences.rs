//! Licences of all crates that the workspace builds, against the rules of `deny.toml`.
//!
//! This module needs no program and no network. `cargo deny check` compares advisories, too.

use crate::sources::root;
use std::{collections::BTreeSet, fs, iter::Peekable, process::Command};

/// Rules of `deny.toml`.
struct Rules {
    allowed: BTreeSet<String>,
    /// A crate that may have one more licence.
    exception: (String, String),
}

fn rules() -> Rules {
    let text = fs::read_to_string(root().join("deny.toml")).expect("our file");
    let (_, list) = text.split_once("\nallow = [").expect("the allowed licences");
    let (list, rest) = list.split_once("\n]").expect("the end of the list");
    let (_, exception) = rest.split_once("\nexceptions = [{ allow = [").expect("the exception");
    let (exception, _) = exception.split_once("}]").expect("one exception");
    // Texts in quotes are at the odd places.
    let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let [licence, name] = quoted(exception).try_into().expect("a licence and a crate");
    Rules { allowed: quoted(list).into_iter().collect(), exception: (name, licence) }
}

impl Rules {
    /// Whether the rules allow a crate with this expression of licences.
    fn allow(&self, name: &str, expression: &str) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut words = spaced.split_whitespace().peekable();
        let is_allowed = |licence: &str| {
            self.allowed.contains(licence)
                || (name, licence) == (self.exception.0.as_str(), self.exception.1.as_str())
        };
        let holds = any(&mut words, &is_allowed);
        holds && words.next().is_none()
    }
}

/// Evaluates expressions joined by OR.
fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut holds = all(words, is_allowed);
    while words.next_if_eq(&"OR").is_some() {
        holds |= all(words, is_allowed);
    }
    holds
}

/// Evaluates expressions joined by AND.
fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    let mut holds = true;
    loop {
        let word = words.next().unwrap_or_default();
        holds &= if word == "(" {
            any(words, is_allowed) && words.next() == Some(")")
        } else if words.next_if_eq(&"WITH").is_some() {
            is_allowed(&format!("{word} WITH {}", words.next().unwrap_or_default()))
        } else {
            is_allowed(word)
        };
        if words.next_if_eq(&"AND").is_none() {
            return holds;
        }
    }
}

#[test]
fn every_crate_has_an_allowed_licence() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["tree", "--locked", "--workspace", "--prefix=none", "-f", "|{p}|{l}|"]);
    let output = cargo.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (rules, text) = (rules(), String::from_utf8_lossy(&output.stdout).into_owned());
    let crates: BTreeSet<(&str, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.split('|').skip(1);
            Some((parts.next()?.split(' ').next()?, parts.next()?))
        })
        .collect();
    assert!(crates.len() > 100, "{} crates", crates.len());
    let refused: Vec<_> = crates.iter().filter(|(name, licence)| !rules.allow(name, licence)).collect();
    assert!(refused.is_empty(), "deny.toml does not allow these licences: {refused:?}");
}

#[test]
fn expressions_of_licences_mean_what_spdx_says() {
    let rules = rules();
    for (expression, is_allowed) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
        ("MIT AND (GPL-3.0 OR GPL-2.0)", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH LLVM-exception", false),
        ("MPL-2.0", false),
        ("", false),
        ("(MIT", false),
        ("MIT GPL-3.0", false),
    ] {
        assert_eq!(rules.allow("other", expression), is_allowed, "{expression:?}");
    }
    assert!(rules.allow("cbindgen", "MPL-2.0"));
}
