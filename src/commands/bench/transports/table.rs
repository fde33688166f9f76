//! The tables: times and ratios by size, and ways of polling.

use super::{Cable, Measured, POLLED_SIZE, Round, SIZES, ranks::POLLING};
use std::fmt::Write;

/// Returns the median; not a number without values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// Returns the median of rounds at a position.
fn over(rounds: &[Round], position: usize) -> f64 {
    median(&mut rounds.iter().map(|round| round[position]).collect::<Vec<_>>())
}

/// Returns both tables.
pub(super) fn text(cable: &Cable, rounds: u32, measured: &Measured) -> String {
    let (latency, rate) = (cable.latency_us, cable.gigabits);
    let mut text = format!(
        "# pingpong of 2 ranks over a cable of {latency} us and {rate} Gb/s: half a round trip in us\n# \
         medians; rounds: {rounds}\n",
    );
    text.push_str(if cable.is_delayed {
        "# TCP: two network namespaces, delay and rate by netem; RDMA: software devices\n"
    } else {
        "# TCP: two network namespaces, and the cable's time is added, since this kernel has no netem;\n\
         # RDMA: software devices, whose cable takes that time\n"
    });
    text.push_str(
        "#    size  blocking sockets  tbccl over TCP  tbccl over RDMA  sockets / RDMA  TCP / RDMA\n",
    );
    for (position, size) in SIZES.enumerate() {
        let [sockets, tcp, rdma] =
            [&measured.sockets, &measured.tcp, &measured.rdma].map(|rounds| over(rounds, position));
        let _ = writeln!(
            text,
            "{:>9} {sockets:>17.2} {tcp:>15.2} {rdma:>16.2} {:>15.2} {:>11.2}",
            1u64 << size,
            sockets / rdma,
            tcp / rdma
        );
    }
    let _ = writeln!(text, "#\n# ways of polling, {} B over RDMA", 1u64 << POLLED_SIZE);
    let _ = writeln!(text, "# {:<28} time (us)  processor time per message (us)", "way");
    for (way, rounds) in POLLING.iter().zip(&measured.polling) {
        let time = median(&mut rounds.iter().map(|round| round.0).collect::<Vec<_>>());
        let cpu = median(&mut rounds.iter().map(|round| round.1).collect::<Vec<_>>());
        let _ = writeln!(text, "  {:<28} {time:>9.2} {cpu:>32.2}", way.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(&mut [3.0, 1.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }
}
