//! Links of the pages of documentation, and the chapters of the book that `make book` makes of them.

use crate::sources::{files, root};
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

/// The list of chapters.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns the text without blocks and pieces of code, in which brackets are no links.
fn without_code(text: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.extend(line.split('`').step_by(2));
        }
        prose.push('\n');
    }
    prose
}

/// Returns the targets of links to files and headings, not those to other sites.
fn links(text: &str) -> Vec<String> {
    let prose = without_code(text);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.contains(' ')).map(str::to_owned).collect()
}

/// Returns the anchors of a page's headings, as hosts of repositories and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        found.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
    }
    found
}

/// Returns the path from the root of a link in a page.
fn resolved(page: &str, target: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in Path::new(page).parent().unwrap_or(Path::new("")).join(target).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

/// Returns the pages that readers browse; texts in data of tests are none.
fn pages() -> Vec<(String, String)> {
    let mut pages = files(root(), &["md"]);
    pages.retain(|(path, _)| !path.starts_with("tests/data/") && !path.starts_with("fuzz/"));
    pages
}

#[test]
fn links_of_pages_lead_to_files_and_headings() {
    let pages = pages();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = if target.is_empty() { PathBuf::from(page) } else { resolved(page, target) };
            let is_there = root().join(&path).exists();
            let headings =
                || pages.iter().find(|(page, _)| Path::new(page) == path).map(|(_, text)| anchors(text));
            let is_heading = anchor.is_empty() || headings().is_some_and(|all| all.contains(anchor));
            if !is_there || !is_heading {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_summary_names_every_page_once() {
    let summary = fs::read_to_string(root().join(SUMMARY)).expect("our file");
    let chapters: Vec<PathBuf> = links(&summary).iter().map(|link| resolved(SUMMARY, link)).collect();
    let named: BTreeSet<&Path> = chapters.iter().map(PathBuf::as_path).collect();
    assert_eq!(named.len(), chapters.len(), "{SUMMARY} names a page twice");
    let pages = pages();
    let in_docs = pages.iter().map(|(page, _)| Path::new(page)).filter(|page| page.starts_with("docs"));
    let missing: Vec<_> =
        in_docs.filter(|page| *page != Path::new(SUMMARY) && !named.contains(page)).collect();
    assert!(missing.is_empty(), "{SUMMARY} does not name {missing:?}");
}

/// A chapter that links to a page which is no chapter would lead out of the book.
#[test]
fn chapters_link_to_chapters_only() {
    let summary = fs::read_to_string(root().join(SUMMARY)).expect("our file");
    let chapters: BTreeSet<PathBuf> = links(&summary).iter().map(|link| resolved(SUMMARY, link)).collect();
    for (page, text) in pages().iter().filter(|(page, _)| chapters.contains(Path::new(page))) {
        for link in links(text) {
            let target = link.split('#').next().unwrap_or_default();
            let path = resolved(page, target);
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            assert!(
                !is_page || chapters.contains(&path),
                "{page}: {SUMMARY} does not name {}",
                path.display()
            );
        }
    }
}

#[test]
fn quick_starts_can_be_tried() {
    let mut tried = 0;
    for (page, text) in pages().iter().filter(|(page, _)| page.starts_with("docs/quickstart-")) {
        for block in ["```sh\n", "```text\n"] {
            assert!(text.contains(block), "{page} has no block that begins with {block}: see tools/try-page");
        }
        tried += 1;
    }
    assert_eq!(tried, 4, "quick starts for MLX, PyTorch, C and Rust");
}

#[test]
fn links_and_headings_are_read_as_hosts_read_them() {
    let text = "# A `B` in C++: [x](y.md#z)\n[a](b.md) `[c](d.md)`\n```\n# no [e](f.md)\n```\n\
        [g](https://h) [i](#j)\n";
    assert_eq!(links(text), ["y.md#z", "b.md", "#j"]);
    assert_eq!(
        anchors("# A `B` in C++\n## d, e_f\n```\n# g\n```\n"),
        ["a-b-in-c", "d-e_f"].map(String::from).into()
    );
    assert_eq!(resolved("docs/a.md", "../ffi/b.md"), Path::new("ffi/b.md"));
}
