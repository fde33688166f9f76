//! The values of the table as OpenMetrics text, which Prometheus reads.

use super::{
    families::{FAMILIES, Family, Kind, Sample, Unit, Value},
    rank::HostMetrics,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, text},
    metrics::MetricType,
    registry::{Registry, Unit as NamedUnit},
};
use std::fmt;

/// Media type of the text.
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the metrics of a host as text.
///
/// # Errors
/// [`fmt::Error`] if the encoder refuses a value, which is a defect.
pub(super) fn encode(host: HostMetrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Values(host)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Values of a scrape, as the encoder takes them.
#[derive(Debug)]
struct Values(HostMetrics);

impl Collector for Values {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in FAMILIES {
            let series = self.series(family);
            if series.is_empty() {
                continue;
            }
            let name = match family.name {
                "" => "tbccl".to_owned(),
                name => format!("tbccl_{name}"),
            };
            let unit = family.unit.map(named);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Info => MetricType::Info,
            };
            let mut metric = encoder.encode_descriptor(&name, family.help, unit.as_ref(), kind)?;
            for (labels, value) in series {
                encode_series(&mut metric, family, &labels, value)?;
            }
        }
        Ok(())
    }
}

type Labels = Vec<(&'static str, String)>;

impl Values {
    /// Returns the series of a family, of all ranks.
    fn series(&self, family: &Family) -> Vec<(Labels, Value)> {
        let mut series = Vec::new();
        for rank in &self.0.ranks {
            let of_rank = rank_labels(rank.job, &rank.host, rank.rank);
            for Sample { labels, value } in (family.read)(rank) {
                let own = family.labels.iter().copied().zip(labels);
                series.push((of_rank.clone().into_iter().chain(own).collect(), value));
            }
        }
        if let Some(value) = family.silent {
            let silent = self.0.silent.iter();
            series.extend(silent.map(|(job, rank, _, host)| (rank_labels(*job, host, *rank).into(), value)));
        }
        series
    }
}

fn rank_labels(job: u64, host: &str, rank: u32) -> [(&'static str, String); 3] {
    let [job_id, host_name, number] = Family::RANK_LABELS;
    [(job_id, format!("{job:016x}")), (host_name, host.to_owned()), (number, rank.to_string())]
}

fn named(unit: Unit) -> NamedUnit {
    match unit {
        Unit::Bytes => NamedUnit::Bytes,
        Unit::Seconds => NamedUnit::Seconds,
        Unit::BytesPerSecond => NamedUnit::Other(unit.name().to_owned()),
    }
}

fn encode_series(
    metric: &mut MetricEncoder<'_>,
    family: &Family,
    labels: &Labels,
    value: Value,
) -> fmt::Result {
    if family.kind == Kind::Info {
        return metric.encode_info(labels);
    }
    let mut series = metric.encode_family(labels)?;
    match (family.kind, value) {
        (Kind::Counter, Value::Count(count)) => series.encode_counter::<Labels, _, f64>(&count, None),
        (Kind::Counter, Value::Number(number)) => series.encode_counter::<Labels, _, f64>(&number, None),
        (_, Value::Count(count)) => series.encode_gauge(&count),
        (_, Value::Number(number)) => series.encode_gauge(&number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{LinkMetrics, OperationMetrics, RailMetrics, RankMetrics};

    fn host() -> HostMetrics {
        let rank = |rank| RankMetrics {
            job: 0xabc,
            rank,
            size: 2,
            host: "mac \"1\"\\\n".into(),
            pid: 77,
            version: "0.1.0".into(),
            transport: "verbs".into(),
            operations: vec![OperationMetrics {
                collective: "all_reduce".into(),
                transport: "verbs".into(),
                done: 3,
                bytes: 4096,
                seconds: 0.25,
                ..OperationMetrics::default()
            }],
            links: vec![LinkMetrics { transport: "verbs".into(), ..LinkMetrics::default() }],
            rails: vec![RailMetrics { peer: 1 - rank, ours: "rdma_en2".into(), ..RailMetrics::default() }],
            ..RankMetrics::default()
        };
        HostMetrics { ranks: vec![rank(0), rank(1)], silent: vec![(0xabc, 2, 9, "mac".into())] }
    }

    #[test]
    fn a_family_has_its_facts_once_and_a_series_per_rank() {
        let text = encode(host()).expect("text");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("tbccl_operation_bytes")).collect();
        let labels = r#"job_id="0000000000000abc",host="mac \"1\"\\\n""#;
        let series = |rank: u32| {
            format!(
                "tbccl_operation_bytes_total{{{labels},rank=\"{rank}\",collective=\"all_reduce\",\
                 transport=\"verbs\"}} 4096"
            )
        };
        assert_eq!(
            lines[1..],
            [
                "# TYPE tbccl_operation_bytes counter",
                "# UNIT tbccl_operation_bytes bytes",
                &series(0),
                &series(1)
            ]
        );
        assert!(lines[0].starts_with("# HELP tbccl_operation_bytes Bytes of"), "{}", lines[0]);
        assert!(text.ends_with("\n# EOF\n"), "{text}");
    }

    #[test]
    fn facts_are_labels_and_a_silent_rank_is_down() {
        let text = encode(host()).expect("text");
        assert!(text.contains("# TYPE tbccl info\n"), "{text}");
        assert!(text.contains(r#",version="0.1.0",size="2",transport="verbs",pid="77"} 1"#), "{text}");
        assert!(
            text.contains("tbccl_rank_up{job_id=\"0000000000000abc\",host=\"mac\",rank=\"2\"} 0\n"),
            "{text}"
        );
        assert!(!text.contains("tbccl_rail_sent"), "it has no series: {text}");
    }
}
