//! Latency and rate: by `tbccl ping` for each cable, and by `tbccl bench` for each size.

use super::{check::Check, finding::REPORT};
use serde_json::Value;

/// Message sizes of the rate of each cable.
pub(super) fn sizes(quick: bool) -> &'static [&'static str] {
    if quick { &["64K", "1M"] } else { &["4K", "64K", "1M", "16M"] }
}

/// Returns the arguments of the ping of each cable.
pub(super) fn ping(size: &str, quick: bool) -> Vec<&str> {
    vec!["ping", "--json", "--size", size, "--time", if quick { "0.02" } else { "0.2" }]
}

/// Returns the arguments of the measurement of each size.
pub(super) fn bench(quick: bool) -> Vec<&'static str> {
    let (end, factor, time) = if quick { ("64K", "16", "0.02") } else { ("16M", "4", "0.2") };
    vec!["bench", "pingpong", "--json", "-", "-b", "8", "-e", end, "-f", factor, "--time", time]
}

/// Returns the JSON in lines of output, which begin with `[RANK] `.
fn rows(lines: &[String]) -> Vec<Value> {
    let json = |line: &String| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok();
    lines.iter().filter_map(json).filter(Value::is_object).collect()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}

/// Returns the check of a ping with messages of one size. Only the longest messages need to reach the rate of
/// the port.
pub(super) fn ping_check(size: &str, is_longest: bool, lines: &[String]) -> Check {
    let name = format!("cables-{size}");
    let rows: Vec<Value> = rows(lines).into_iter().filter(|row| row.get("us_median").is_some()).collect();
    if rows.is_empty() {
        return Check::fail(name, "no measurement", "the details in the file say why")
            .with_details(lines.to_vec());
    }
    let head = "from to  device > peer            min us  median us   p99 us    Gb/s    rate".to_owned();
    let table = std::iter::once(head).chain(rows.iter().map(line_of)).collect::<Vec<_>>();
    let best = |key: &'static str| rows.iter().map(move |row| number(row, key)).filter(|n| !n.is_nan());
    let text = format!(
        "{} directions of cables, {:.1} us at least, {:.1} to {:.1} Gb/s",
        rows.len(),
        best("us_min").fold(f64::INFINITY, f64::min),
        best("gigabits").fold(f64::INFINITY, f64::min),
        best("gigabits").fold(0.0, f64::max),
    );
    let down = rows.iter().filter(|row| row["up"] == false).count();
    let slow = rows.iter().filter(|row| is_longest && row["slow"] == true).count();
    let check = match (down, slow) {
        (0, 0) => Check::pass(name, text),
        (0, slow) => {
            let text = format!("{text}; {slow} of them carry less than 60 % of their rate");
            let remedy = "try another cable or port, if no other program uses the machines";
            Check::unknown(name, text, remedy)
        }
        (down, _) => Check::fail(
            name,
            format!("{down} directions are down; {text}"),
            "check the cable and both ports: see `tbccl devices` on both machines",
        ),
    };
    check.with_details(table)
}

fn line_of(row: &Value) -> String {
    let device = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
    let ends = format!("{} > {}", device("device"), device("peer_device"));
    format!(
        "{:>4} {:>2}  {ends:<28} {:>6.2}  {:>9.2}  {:>7.2}  {:>6.2}  {:>6}",
        row["from"],
        row["to"],
        number(row, "us_min"),
        number(row, "us_median"),
        number(row, "us_p99"),
        number(row, "gigabits"),
        row["rate"].as_f64().map_or("-".to_owned(), |rate| rate.to_string()),
    )
}

/// Returns the check of a measurement of several sizes.
pub(super) fn bench_check(lines: &[String]) -> Check {
    const NAME: &str = "sizes";
    let rows: Vec<Value> = rows(lines).into_iter().filter(|row| row.get("bytes").is_some()).collect();
    let measured: Vec<(u64, f64, f64)> = rows
        .iter()
        .filter_map(|row| Some((row["bytes"].as_u64()?, row["us_min"].as_f64()?, row["us_median"].as_f64()?)))
        .collect();
    let Some((bytes, min, median)) = measured.first().copied() else {
        return Check::fail(NAME, "no measurement", "the details in the file say why")
            .with_details(lines.to_vec());
    };
    let head = "     bytes      min us   median us    Gb/s at the median".to_owned();
    let table = measured.iter().map(|(bytes, min, median)| {
        let gigabits = *bytes as f64 * 8.0 / median / 1e3;
        format!("{bytes:>10}  {min:>10.2}  {median:>10.2}  {gigabits:>10.2}")
    });
    let table: Vec<String> = std::iter::once(head).chain(table).collect();
    let wrong: u64 = rows.iter().filter_map(|row| row["wrong"].as_u64()).sum();
    if wrong > 0 {
        return Check::fail(NAME, format!("{wrong} elements arrived wrong"), REPORT).with_details(table);
    }
    let text = format!("rank 0 to rank 1: {bytes} bytes in {min:.2} us at least, {median:.2} us the median");
    Check::pass(NAME, text).with_details(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ranks_become_a_table() {
        let line = concat!(
            r#"[0] {"from":0,"to":1,"device":"en2","peer_device":"en3","up":true,"us_min":5.0,"#,
            r#""us_median":6.0,"us_p99":9.0,"gigabits":70.5,"rate":80.0,"slow":false}"#
        );
        let check = ping_check("64K", true, &[line.to_owned(), "[0:err] # noise".to_owned()]);
        assert_eq!(
            check.line(),
            "pass     cables-64K: 1 directions of cables, 5.0 us at least, 70.5 to 70.5 Gb/s"
        );
        assert!(check.details[1].contains("en2 > en3"), "{:?}", check.details);
        assert!(ping_check("64K", true, &["[0] no".to_owned()]).line().starts_with("fail"));
    }
}
