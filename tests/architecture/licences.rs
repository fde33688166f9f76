//! Licences of all crates that the workspace builds, against the rules of `deny.toml`.
//!
//! This module needs no program and no network. `cargo deny check` compares advisories, too.

use crate::sources::root;
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};
use std::{collections::BTreeMap, fs, process::Command};

/// The part of `deny.toml` about licences.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
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
    fn read() -> Licenses {
        let text = fs::read_to_string(root().join("deny.toml")).expect("our file");
        toml::from_str::<Rules>(&text).expect("rules").licenses
    }

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
    let (rules, crates) = (Licenses::read(), crates());
    assert!(crates.len() > 100, "{} crates", crates.len());
    let refused: Vec<_> = crates.iter().filter(|((name, _), licence)| !rules.allow(name, licence)).collect();
    assert!(refused.is_empty(), "deny.toml does not allow these licences: {refused:?}");
}

#[test]
fn rules_hold_for_expressions_of_licences() {
    let rules = Licenses::read();
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
