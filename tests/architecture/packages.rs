//! Metadata of the packages that are published, the order to publish them in, and the table of dependencies.
//!
//! `cargo package` of these packages, which `.ci/run` calls, checks what cargo itself requires. This module
//! checks what registries and readers need: a description, search words, documentation and licences.

use crate::sources::{files, from_root, root};
use cargo_metadata::{DependencyKind, MetadataCommand, Package};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

/// Packages to publish, each after all that it depends on.
const PUBLISHED: [&str; 10] = [
    "tbccl-events",
    "tbccl-inventory",
    "tbccl-topology",
    "tbccl-collectives",
    "tbccl-kernels",
    "tbccl-verbs-sys",
    "tbccl-transport",
    "tbccl-bootstrap",
    "tbccl",
    "tbccl-cli",
];

fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo tells about the workspace");
    metadata.workspace_packages().into_iter().cloned().collect()
}

fn published() -> Vec<Package> {
    let mut packages = packages();
    let place = |package: &Package| PUBLISHED.iter().position(|name| *name == package.name.as_str());
    packages.retain(|package| place(package).is_some());
    packages.sort_by_key(place);
    assert_eq!(packages.len(), PUBLISHED.len(), "a package of the list is gone");
    packages
}

#[test]
fn packages_are_published_by_decision_only() {
    for package in packages() {
        let may_be = package.publish.is_none();
        let shall_be = PUBLISHED.contains(&package.name.as_str());
        assert_eq!(
            may_be, shall_be,
            "{}: say `publish = false` in its Cargo.toml, or list it here",
            package.name
        );
    }
}

#[test]
fn published_packages_depend_on_published_ones_before_them_at_their_exact_version() {
    let mut before = Vec::new();
    for package in published() {
        // Cargo leaves dependencies for tests out where they have no version.
        for dependency in package.dependencies.iter().filter(|one| one.path.is_some()) {
            let is_for_tests = dependency.kind == DependencyKind::Development;
            if is_for_tests && dependency.req.to_string() == "*" {
                continue;
            }
            assert!(before.contains(&dependency.name), "{} after {}", package.name, dependency.name);
            assert_eq!(dependency.req.to_string(), format!("={}", package.version), "{}", dependency.name);
        }
        before.push(package.name.to_string());
    }
}

#[test]
fn published_packages_have_the_metadata_of_a_registry() {
    for package in published() {
        let name = &package.name;
        let description = package.description.as_deref().unwrap_or_default();
        assert!((20..=110).contains(&description.len()), "{name}: description");
        assert!((1..=5).contains(&package.keywords.len()), "{name}: one to five keywords");
        let is_a_keyword = |word: &String| {
            word.len() <= 20 && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        assert!(package.keywords.iter().all(is_a_keyword), "{name}: {:?}", package.keywords);
        assert!((1..=5).contains(&package.categories.len()), "{name}: one to five categories");
        assert!(package.rust_version.is_some(), "{name}: rust-version");
        assert_eq!(package.license.as_deref(), Some("MIT OR Apache-2.0"), "{name}");
        let documentation = package.documentation.as_deref();
        assert_eq!(documentation, Some(format!("https://docs.rs/{name}").as_str()), "{name}");
        let targets = &package.metadata["docs"]["rs"]["targets"];
        let systems = ["linux-gnu", "apple-darwin"];
        for system in systems {
            assert!(targets.to_string().contains(system), "{name}: package.metadata.docs.rs for {system}");
        }
    }
}

/// Files that users read in the archive of a package: links to the root's, and a page of its own.
#[test]
fn published_packages_have_a_readme_and_licences() {
    for package in published() {
        let folder = package.manifest_path.parent().expect("a folder").as_std_path();
        let readme =
            fs::read_to_string(folder.join(package.readme.as_ref().expect("a readme"))).expect("text");
        assert!(readme.starts_with(&format!("# {}\n", package.name)), "{}", package.name);
        let links = readme.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default());
        for link in links {
            assert!(link.starts_with("https://"), "{}: {link} leads nowhere in a registry", package.name);
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let same = fs::read(root().join(licence)).expect("our licence");
            let found = fs::read(folder.join(licence));
            assert!(found.is_ok_and(|found| found == same), "{}: link {licence} there", package.name);
        }
    }
}

/// Each archive has the sources, the manifest, the page and the licences, and nothing of tests between
/// packages, builds or other languages.
#[test]
fn archives_of_packages_contain_the_package_only() {
    for name in PUBLISHED {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(root()).args(["package", "--offline", "--allow-dirty", "--list", "-p", name]);
        let output = cargo.output().expect("cargo");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        for needed in ["Cargo.toml", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"] {
            assert!(list.lines().any(|line| line == needed), "{name}: no {needed}");
        }
        assert!(list.contains("README.md"), "{name}: no README.md");
        let folders = ["src/", "tests/", "benches/"];
        for line in list.lines().filter(|line| line.contains('/')) {
            assert!(folders.iter().any(|folder| line.starts_with(folder)), "{name}: {line} is not of it");
        }
    }
}

#[test]
fn the_table_of_dependencies_is_that_of_the_manifests() {
    let mut named = BTreeSet::new();
    for package in packages() {
        named.extend(package.dependencies.into_iter().filter(|one| one.path.is_none()).map(|one| one.name));
    }
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("our file");
    let (_, section) = page.split_once("\n## Dependencies\n").expect("the section");
    let section = section.split("\n## ").next().expect("a text");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rows: BTreeSet<String> = rows.map(str::to_owned).collect();
    let missing: Vec<_> = named.difference(&rows).collect();
    assert!(missing.is_empty(), "say in ARCHITECTURE.md what these are for: {missing:?}");
    let gone: Vec<_> = rows.difference(&named).collect();
    assert!(gone.is_empty(), "no package depends on these any more: {gone:?}");
}

#[test]
fn every_dependency_is_used() {
    // Named for their features only, as the manifests say.
    let for_features = ["either", "num-traits", "once_cell", "serde_core"];
    let library = |package: &Package| {
        let library = package.targets.iter().find(|target| target.src_path.ends_with("src/lib.rs"))?;
        Some((package.name.to_string(), library.name.clone()))
    };
    let libraries: BTreeMap<_, _> = packages().iter().filter_map(library).collect();
    for package in packages() {
        let folder = package.manifest_path.parent().expect("a folder").as_std_path();
        let sources: String = ["src", "tests", "benches", "examples", "build.rs"]
            .iter()
            .map(|part| folder.join(part))
            .filter(|path| path.exists())
            .flat_map(|path| if path.is_dir() { files(&path, &["rs"]) } else { vec![read(&path)] })
            .map(|(_, source)| source)
            .collect();
        for dependency in package.dependencies {
            let name = dependency.rename.unwrap_or(dependency.name);
            let in_code = libraries.get(&name).unwrap_or(&name).replace('-', "_");
            let is_used = sources.contains(&in_code);
            let is_listed = for_features.contains(&name.as_str());
            assert!(is_used || is_listed, "{} does not use {name}", package.name);
        }
    }
}

fn read(path: &Path) -> (String, String) {
    (from_root(path), fs::read_to_string(path).expect("text"))
}

/// Workflows for other hosts call what can be run here: targets of the Makefile, and no address.
#[test]
fn workflows_call_targets_of_the_makefile() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("our file");
    let mut targets = 0;
    for (path, workflow) in files(&root().join(".github/workflows"), &["yml"]) {
        assert!(!workflow.contains("://"), "{path} names a host");
        for line in workflow.lines().filter_map(|line| line.trim().strip_prefix("run: make ")) {
            // The other words set variables.
            for target in line.split(' ').filter(|word| !word.contains('=')) {
                assert!(makefile.contains(&format!("\n{target}: ")), "{path}: make {target}");
                targets += 1;
            }
        }
    }
    assert!(targets >= 8, "the workflows call {targets} targets");
}
