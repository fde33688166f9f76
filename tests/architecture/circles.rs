//! Circles of dependencies between modules.
//!
//! A path is a dependency of the module that contains it on the module that defines the item; re-exports are
//! followed. Both count at the level where their paths part: `x/a.rs` that names `y/b.rs` makes `x` depend on
//! `y`. A module and its own children may name each other. Modules compiled only for tests do not count.

use crate::sources::{code_of, root, rust_files, words};
use std::collections::{BTreeMap, BTreeSet};

/// Source folder of each package.
const SOURCES: [&str; 18] = [
    "bootstrap/src",
    "events/src",
    "benches/src",
    "collectives/src",
    "ffi/jaccl/src",
    "ffi/mlx/src",
    "ffi/mlx/table/src",
    "ffi/mpi/src",
    "ffi/src",
    "inventory/src",
    "kernels/src",
    "python/src",
    "runtime/src",
    "src",
    "topology/src",
    "transport/softrdma/src",
    "transport/src",
    "transport/verbs-sys/src",
];

type Path = Vec<String>;

/// A module: its code, and its imports and re-exports by name.
struct Module {
    code: String,
    uses: BTreeMap<String, Path>,
}

type Modules = BTreeMap<Path, Module>;

/// Returns the code without items that are compiled only for tests, the model checker or fuzzing.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(") {
        let end = rest[at..].find(']').map_or(rest.len(), |end| at + end + 1);
        let condition = &rest[at..end];
        let is_for_tests = !condition.contains("not(")
            && words(condition).any(|word| ["test", "loom", "fuzzing"].contains(&word));
        kept.push_str(&rest[..at]);
        rest = &rest[if is_for_tests { end + item_length(&rest[end..]) } else { end }..];
    }
    kept + rest
}

/// Returns the length in bytes of the item at the start of the code.
fn item_length(code: &str) -> usize {
    let mut depth = 0;
    for (at, character) in code.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' | ',' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Collects the paths of a `use` tree, each with the name that it introduces.
fn paths_of_tree(tree: &str, prefix: &[String], found: &mut Vec<(Path, String)>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut path = prefix.to_vec();
        path.extend(words(&tree[..open]).map(str::to_owned));
        let inner = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
        let mut depth = 0;
        let parts = inner.split(|character| {
            depth += i32::from(character == '{') - i32::from(character == '}');
            character == ',' && depth == 0
        });
        parts.filter(|part| !part.trim().is_empty()).for_each(|part| paths_of_tree(part, &path, found));
        return;
    }
    let (path, alias) =
        tree.split_once(" as ").map_or((tree, None), |(path, name)| (path, Some(name.trim())));
    let mut full = prefix.to_vec();
    full.extend(words(path).map(str::to_owned));
    if full.len() > 1 && full.last().is_some_and(|last| last == "self") {
        full.pop();
    }
    let name = alias.or(full.last().map(String::as_str)).unwrap_or_default().to_owned();
    found.push((full, name));
}

/// Returns the `use` declarations of the code, and the code without them.
fn uses_of(code: &str) -> (Vec<(Path, String)>, String) {
    let (mut found, mut others) = (Vec::new(), String::new());
    for statement in code.split_inclusive(';') {
        let is_start = |at: usize| {
            let before = statement[..at].chars().next_back();
            before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
        };
        match statement.match_indices("use ").map(|(at, _)| at).filter(|at| is_start(*at)).last() {
            Some(at) if statement.ends_with(';') => {
                paths_of_tree(statement[at + 4..].trim_end_matches(';'), &[], &mut found);
                others.push_str(&statement[..at]);
            }
            _ => others.push_str(statement),
        }
    }
    (found, others)
}

/// Returns the paths in the code that begin with `crate`, `super` or `self`.
fn paths_in(code: &str) -> Vec<Path> {
    let is_part = |character: char| character.is_alphanumeric() || character == '_' || character == ':';
    code.split(|character| !is_part(character))
        .filter(|token| ["crate::", "super::", "self::"].iter().any(|start| token.starts_with(start)))
        .map(|token| words(token).map(str::to_owned).collect())
        .collect()
}

fn modules_of(folder: &str) -> Modules {
    let files = rust_files(&root().join(folder)).into_iter();
    let module = |(file, source): (String, String)| {
        let file = file.strip_prefix(folder)?.trim_start_matches('/').strip_suffix(".rs")?;
        let mut path: Path = file.split('/').map(str::to_owned).collect();
        if ["bin", "main"].contains(&path[0].as_str()) {
            return None;
        }
        path.pop_if(|last| last == "mod" || last == "lib");
        let code = without_tests(&code_of(&source));
        let uses = uses_of(&code).0.into_iter().map(|(path, name)| (name, path)).collect();
        Some((path, Module { code, uses }))
    };
    files.filter_map(module).collect()
}

/// Returns the module in which a path begins, and the rest of the path; `None` for other crates.
fn begin(modules: &Modules, at: &[String], path: &[String]) -> Option<(Path, Path)> {
    let mut base = at.to_vec();
    match path.first()?.as_str() {
        "crate" => Some((Vec::new(), path[1..].to_vec())),
        "self" => Some((base, path[1..].to_vec())),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            base.truncate(base.len().saturating_sub(ups));
            Some((base, path[ups..].to_vec()))
        }
        first => {
            let child: Path = at.iter().chain([&path[0]]).cloned().collect();
            if modules.contains_key(&child) {
                return Some((base, path.to_vec()));
            }
            let alias = modules.get(at)?.uses.get(first).filter(|alias| alias[0] != *first)?;
            begin(modules, at, &alias.iter().chain(&path[1..]).cloned().collect::<Path>())
        }
    }
}

/// Returns the module that defines the item of a path.
fn resolve(modules: &Modules, (mut base, mut rest): (Path, Path), depth: u32) -> Option<Path> {
    const DEEPEST: u32 = 12;
    while let Some(first) = rest.first() {
        let child: Path = base.iter().chain([first]).cloned().collect();
        if !modules.contains_key(&child) {
            break;
        }
        base = child;
        rest.remove(0);
    }
    let module = modules.get(&base)?;
    if let Some(path) = rest.first().and_then(|first| module.uses.get(first))
        && depth < DEEPEST
        && let Some(next) = begin(modules, &base, path)
        && let Some(found) = resolve(modules, next, depth + 1)
    {
        return Some(found);
    }
    Some(base)
}

/// Sibling modules and their dependencies among each other, by parent.
type Edges = BTreeMap<Path, BTreeMap<String, BTreeSet<String>>>;

fn edges_of(modules: &Modules) -> Edges {
    let mut edges = Edges::new();
    for (at, module) in modules {
        let (uses, others) = uses_of(&module.code);
        let glob = |(mut path, name): (Path, String)| {
            path.pop_if(|_| name == "*");
            path
        };
        for path in uses.into_iter().map(glob).chain(paths_in(&others)) {
            let Some(target) = begin(modules, at, &path).and_then(|start| resolve(modules, start, 0)) else {
                continue;
            };
            let common = at.iter().zip(&target).take_while(|(ours, theirs)| ours == theirs).count();
            if common < at.len() && common < target.len() {
                let siblings = edges.entry(at[..common].to_vec()).or_default();
                siblings.entry(at[common].clone()).or_default().insert(target[common].clone());
            }
        }
    }
    edges
}

/// Returns all modules reachable from a module.
fn reachable<'e>(from: &str, edges: &'e BTreeMap<String, BTreeSet<String>>) -> BTreeSet<&'e str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = edges.get(from).into_iter().flatten().map(String::as_str).collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(edges.get(module).into_iter().flatten().map(String::as_str));
        }
    }
    found
}

/// Describes the circles of a source folder.
fn circles_of(folder: &str, modules: &Modules) -> Vec<String> {
    let mut circles = Vec::new();
    for (parent, siblings) in edges_of(modules) {
        let parent = parent.join("::");
        let in_circles: Vec<&String> =
            siblings.keys().filter(|name| reachable(name, &siblings).contains(name.as_str())).collect();
        if !in_circles.is_empty() {
            let place = if parent.is_empty() { "at the top" } else { &parent };
            circles.push(format!("{folder}, {place}: {in_circles:?}"));
        }
    }
    circles
}

#[test]
fn modules_form_no_circle_but_a_parent_with_its_children() {
    let circles: Vec<String> =
        SOURCES.iter().flat_map(|folder| circles_of(folder, &modules_of(folder))).collect();
    assert!(
        circles.is_empty(),
        "these modules name each other; move what both need to a module of its own below them: {circles:#?}"
    );
}

#[test]
fn a_circle_is_found_through_groups_paths_and_re_exports() {
    let module = |code: &str| {
        let uses = uses_of(code).0.into_iter().map(|(path, name)| (name, path)).collect();
        Module { code: without_tests(code), uses }
    };
    let path = |text: &str| words(text).map(str::to_owned).collect::<Path>();
    let mut modules: Modules = [
        ("", "pub mod a; pub mod b; pub mod c; pub use b::inner::Thing;"),
        ("a", "use crate::{Thing, c}; fn f() {}"),
        ("b", "mod inner;"),
        ("b::inner", "pub struct Thing; impl Thing { fn f() { super::super::c::g() } }"),
        ("c", "#[cfg(test)] mod tests { use crate::a; } use std::fmt;"),
    ]
    .map(|(name, code)| (path(name), module(code)))
    .into();
    assert_eq!(circles_of("x", &modules), Vec::<String>::new());
    modules.insert(path("c"), module("use super::{a as first, b}; fn g() {}"));
    assert_eq!(circles_of("x", &modules), ["x, at the top: [\"a\", \"b\", \"c\"]"]);
}
