//! Pages that name metrics: the dashboard and docs/metrics.md, compared with the table of the library.
//!
//! After a change of metrics: `TBCCL_WRITE_METRICS=1 cargo test --test metrics docs`.

use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf};
use tbccl::metrics::{FAMILIES, Family, Kind};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    words.filter(|word| word.starts_with("tbccl_")).collect()
}

/// Collects the texts of a key anywhere in a value.
fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            fields.values().for_each(|field| texts(field, key, found));
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let text = fs::read_to_string(path("configs/grafana/tbccl.json")).expect("a file of the repository");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut expressions = Vec::new();
    ["expr", "query", "definition"].iter().for_each(|key| texts(&dashboard, key, &mut expressions));
    let known: BTreeSet<String> = FAMILIES.iter().map(Family::series).collect();
    let used: BTreeSet<&str> = expressions.iter().flat_map(|expression| names(expression)).collect();
    for name in &used {
        assert!(known.contains(*name), "{name} is no metric");
    }
    for part in
        ["operations", "operation_bus", "wait", "rail_up", "rail_sent", "retrans", "errors", "registered"]
    {
        assert!(used.iter().any(|name| name.contains(part)), "the dashboard shows nothing of {part}");
    }
    for expression in expressions.iter().filter(|text| text.contains("rate(")) {
        assert!(expression.contains("job_id=~\"$job_id\""), "{expression} is not of the chosen job");
    }
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<i64> = panels.iter().filter_map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len(), "numbers of panels are unique");
}

/// Returns the table of docs/metrics.md.
fn table() -> String {
    let row = |family: &Family| {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
        };
        let unit = family.unit.map_or("", |unit| unit.name()).replace('_', " ");
        format!("| `{}` | {kind} | {unit} | {} | {} |\n", family.series(), labels.join(", "), family.help)
    };
    let rows: String = FAMILIES.iter().map(row).collect();
    format!("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n{rows}")
}

#[test]
fn docs_have_every_metric() {
    let page = fs::read_to_string(path("docs/metrics.md")).expect("a file of the repository");
    let (before, rest) = page.split_once("| metric | type |").expect("the table");
    let after = rest.split_once("\n\n").expect("the end of the table").1;
    let wanted = format!("{before}{}\n{after}", table());
    if std::env::var_os("TBCCL_WRITE_METRICS").is_some() {
        fs::write(path("docs/metrics.md"), &wanted).expect("our file");
    } else {
        assert_eq!(page, wanted, "TBCCL_WRITE_METRICS=1 cargo test --test metrics docs");
    }
    // Lines about a counter name it without the suffix.
    let known = FAMILIES.iter().map(Family::series);
    let known: BTreeSet<String> =
        known.flat_map(|name| [name.trim_end_matches("_total").to_owned(), name]).collect();
    let unknown: Vec<&str> = names(&wanted).into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "docs/metrics.md names {unknown:?}, which are no metrics");
}
