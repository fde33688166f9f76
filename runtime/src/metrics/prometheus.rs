//! The text format of Prometheus 0.0.4, made of OpenMetrics text.
//!
//! Clients that don't ask for OpenMetrics get it, such as `curl`, `promtool check metrics`, and scrapers
//! older than OpenMetrics. The series are the same; only their descriptions differ. Type and help belong to
//! the name that samples have (`_total`, `_info`), facts are a gauge of 1, and there are no units.

/// Media type of the text.
pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns OpenMetrics text in the format of Prometheus 0.0.4. In it, the help of a family comes before its
/// type.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut converted = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let Some(described) = line.strip_prefix("# ") else {
            converted.push_str(line);
            converted.push('\n');
            continue;
        };
        let mut parts = described.splitn(3, ' ');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("HELP"), Some(_), Some(words)) => help = Some(words),
            (Some("TYPE"), Some(family), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    other => ("", other),
                };
                if let Some(words) = help.take() {
                    converted.push_str(&format!("# HELP {family}{suffix} {words}\n"));
                }
                converted.push_str(&format!("# TYPE {family}{suffix} {kind}\n"));
            }
            _ => {}
        }
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_have_the_names_of_samples_and_units_are_left_out() {
        let text = "# HELP tbccl Facts about a rank\n# TYPE tbccl info\ntbccl_info{rank=\"0\"} 1\n\
                    # HELP tbccl_sent_bytes Bytes # sent\n# TYPE tbccl_sent_bytes counter\n\
                    # UNIT tbccl_sent_bytes bytes\ntbccl_sent_bytes_total{rank=\"0\"} 4096\n\
                    # HELP tbccl_rank_up Up\n# TYPE tbccl_rank_up gauge\n\
                    tbccl_rank_up{host=\"# x\"} 1\n# EOF\n";
        let expected = "# HELP tbccl_info Facts about a rank\n# TYPE tbccl_info gauge\n\
                        tbccl_info{rank=\"0\"} 1\n\
                        # HELP tbccl_sent_bytes_total Bytes # sent\n# TYPE tbccl_sent_bytes_total counter\n\
                        tbccl_sent_bytes_total{rank=\"0\"} 4096\n\
                        # HELP tbccl_rank_up Up\n# TYPE tbccl_rank_up gauge\ntbccl_rank_up{host=\"# x\"} 1\n";
        assert_eq!(from_openmetrics(text), expected);
    }
}
