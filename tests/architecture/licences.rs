//! Licences and versions of all crates that the workspace builds, against the rules of `deny.toml`.
//!
//! This module needs no program and no network. `cargo deny check` compares advisories, too.

use crate::sources::root;
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

/// The parts of `deny.toml` about licences and versions.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

impl Rules {
    fn read() -> Rules {
        let text = fs::read_to_string(root().join("deny.toml")).expect("our file");
        toml::from_str(&text).expect("rules")
    }
}

#[derive(Deserialize)]
struct Bans {
    skip: Vec<Skipped>,
}

/// A version of a crate that may be built beside a newer one: `name@version`, of the version only the numbers
/// up to the first that is not 0.
#[derive(Deserialize)]
struct Skipped {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

/// A crate that may have further licences.
#[derive(Deserialize)]
struct Exception {
    allow: Vec<String>,
    #[serde(rename = "crate")]
    name: String,
}

impl Licenses {
    /// Whether the rules allow a crate with this expression of licences.
    fn allow(&self, name: &str, expression: &str) -> bool {
        let exceptions = self.exceptions.iter().filter(|exception| exception.name == name);
        let allowed: Vec<&String> =
            self.allow.iter().chain(exceptions.flat_map(|exception| &exception.allow)).collect();
        // Crates of old write a slash for OR.
        let expression = Expression::parse_mode(expression, ParseMode::LAX);
        let is_allowed = |licence: &LicenseReq| allowed.contains(&&licence.to_string());
        expression.is_ok_and(|expression| expression.evaluate(is_allowed))
    }
}

/// Returns the licences of all crates that are built for this system, by name and version.
fn crates() -> BTreeMap<(String, String), String> {
    let version = Command::new("rustc").arg("-vV").output().expect("rustc");
    let version = String::from_utf8(version.stdout).expect("text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("the host");
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(["--locked", "--filter-platform", host].map(str::to_owned))
        .exec()
        .expect("cargo tells about the crates");
    let built = metadata.resolve.expect("a resolution").nodes;
    let of_node = |package: &cargo_metadata::Package| {
        let licence = package.license.clone().unwrap_or_default();
        ((package.name.to_string(), package.version.to_string()), licence)
    };
    metadata
        .packages
        .iter()
        .filter(|package| built.iter().any(|node| node.id == package.id))
        .map(of_node)
        .collect()
}

#[test]
fn every_crate_has_an_allowed_licence() {
    let (rules, crates) = (Rules::read().licenses, crates());
    assert!(crates.len() > 100, "{} crates", crates.len());
    let refused: Vec<_> = crates.iter().filter(|((name, _), licence)| !rules.allow(name, licence)).collect();
    assert!(refused.is_empty(), "deny.toml does not allow these licences: {refused:?}");
}

/// Returns the older versions of crates that are built in several, as `deny.toml` writes them.
fn second_versions(crates: impl Iterator<Item = (String, String)>) -> BTreeSet<String> {
    let mut versions: BTreeMap<String, BTreeSet<Vec<u64>>> = BTreeMap::new();
    for (name, version) in crates {
        let numbers = version.split(['.', '-', '+']).map_while(|part| part.parse().ok());
        versions.entry(name).or_default().insert(numbers.collect());
    }
    let mut found = BTreeSet::new();
    for (name, mut versions) in versions {
        versions.pop_last();
        for version in versions {
            let breaking = version.iter().position(|number| *number != 0).map_or(version.len(), |at| at + 1);
            let numbers: Vec<String> = version[..breaking].iter().map(u64::to_string).collect();
            found.insert(format!("{name}@{}", numbers.join(".")));
        }
    }
    found
}

/// Each further version is compiled and shipped once more.
#[test]
fn second_versions_of_crates_are_listed_with_their_reason() {
    let listed: BTreeSet<String> = Rules::read().bans.skip.into_iter().map(|one| one.name).collect();
    assert_eq!(second_versions(crates().into_keys()), listed, "built, and listed in deny.toml");
}

#[test]
fn versions_are_compared_by_number() {
    let crates = [("a", "0.10.2"), ("a", "0.9.1"), ("b", "1.2.1"), ("c", "3.0.0"), ("c", "12.1.0")];
    let crates = crates.into_iter().map(|(name, version)| (name.to_owned(), version.to_owned()));
    assert_eq!(Vec::from_iter(second_versions(crates)), ["a@0.9", "c@3"]);
}

#[test]
fn rules_hold_for_expressions_of_licences() {
    let rules = Rules::read().licenses;
    for (expression, is_allowed) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("GPL-3.0-only/MIT", true),
        ("GPL-3.0-only AND MIT", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MPL-2.0", false),
        ("", false),
        ("no licence", false),
    ] {
        assert_eq!(rules.allow("other", expression), is_allowed, "{expression:?}");
    }
    assert!(rules.allow("cbindgen", "MPL-2.0"));
}
