//! Statistics of a measurement's samples, and how the ranks' times of a sample make one.

use collectives::Rank;
use std::{fmt, str::FromStr};
use tbccl::{Communicator, ReduceOp, Result};

/// How the ranks' times of a sample make one time. The numbers are those of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Average {
    /// The time of rank 0.
    Rank0,
    /// The mean over the ranks.
    Mean,
    /// The time of the fastest rank.
    Min,
    /// The time of the slowest rank.
    Max,
}

impl Average {
    const ALL: [Average; 4] = [Average::Rank0, Average::Mean, Average::Min, Average::Max];

    /// Returns the name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Average::Rank0 => "rank0",
            Average::Mean => "avg",
            Average::Min => "min",
            Average::Max => "max",
        }
    }

    /// Replaces this rank's samples by those of all ranks together, on all ranks.
    pub(super) fn combine(self, comm: &mut Communicator, samples: &mut [f64]) -> Result<()> {
        match self {
            Average::Rank0 => comm.broadcast(samples, Rank(0)),
            Average::Mean => comm.all_reduce_in_place(samples, ReduceOp::Avg),
            Average::Min => comm.all_reduce_in_place(samples, ReduceOp::Min),
            Average::Max => comm.all_reduce_in_place(samples, ReduceOp::Max),
        }
    }
}

impl fmt::Display for Average {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Average::Rank0 => "those of rank 0",
            Average::Mean => "means over the ranks",
            Average::Min => "those of the fastest rank",
            Average::Max => "those of the slowest rank",
        })
    }
}

impl FromStr for Average {
    type Err = String;

    fn from_str(text: &str) -> Result<Average, String> {
        let numbered = |(number, average): (usize, &Average)| {
            (text == number.to_string() || text == average.name()).then_some(*average)
        };
        Average::ALL.iter().enumerate().find_map(numbered).ok_or_else(|| {
            "0 (rank 0), 1 (avg, the mean over ranks), 2 (min) or 3 (max) was expected".to_owned()
        })
    }
}

/// Times of one run in microseconds, with the numbers of samples and runs behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) median: f64,
    pub(super) min: f64,
    /// First and third quartile.
    pub(super) quartiles: [f64; 2],
    pub(super) p99: f64,
    /// Standard deviation of the samples; 0 for one sample.
    pub(super) deviation: f64,
    /// Processor time of this rank.
    pub(super) cpu: f64,
    pub(super) samples: u64,
    pub(super) batch: u64,
}

impl Times {
    /// Returns the statistics of samples of `batch` runs each, of which there is at least one.
    pub(super) fn new(mut samples: Vec<f64>, batch: u64, cpu: f64) -> Times {
        samples.sort_unstable_by(f64::total_cmp);
        let n = samples.len();
        let percentile = |percent: usize| samples[(n * percent).div_ceil(100).max(1) - 1];
        Times {
            median: (samples[(n - 1) / 2] + samples[n / 2]) / 2.0,
            min: samples[0],
            quartiles: [percentile(25), percentile(75)],
            p99: percentile(99),
            deviation: deviation(&samples),
            cpu,
            samples: n as u64,
            batch,
        }
    }

    /// Returns the times of one operation, given the operations per run.
    pub(super) fn per_operation(self, per_run: u32) -> Times {
        let n = f64::from(per_run);
        Times {
            median: self.median / n,
            min: self.min / n,
            quartiles: self.quartiles.map(|time| time / n),
            p99: self.p99 / n,
            deviation: self.deviation / n,
            cpu: self.cpu / n,
            ..self
        }
    }
}

/// Returns the standard deviation of samples, as the estimate for the distribution that they are from.
fn deviation(samples: &[f64]) -> f64 {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(samples: &[f64]) -> Times {
        Times::new(samples.to_vec(), 1, 0.0)
    }

    #[test]
    fn statistics_of_odd_and_even_numbers_of_samples() {
        let times = statistics(&[9.0, 1.0, 2.0]);
        assert_eq!((times.median, times.min, times.p99), (2.0, 1.0, 9.0));
        assert_eq!(statistics(&[1.0, 2.0, 4.0, 9.0]).median, 3.0);
        let one = statistics(&[5.0]);
        assert_eq!((one.p99, one.deviation, one.quartiles), (5.0, 0.0, [5.0, 5.0]));
        let many: Vec<f64> = (1..=200).map(f64::from).collect();
        let times = statistics(&many);
        assert_eq!((times.p99, times.quartiles), (198.0, [50.0, 150.0]));
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(statistics(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).deviation, (32.0f64 / 7.0).sqrt());
        assert_eq!(statistics(&[3.0, 3.0, 3.0]).per_operation(2).deviation, 0.0);
    }

    #[test]
    fn averages_have_the_numbers_of_nccl_tests() {
        let parsed =
            ["0", "1", "2", "3", "avg", "max"].map(|text| text.parse::<Average>().expect("an average"));
        use Average::{Max, Mean, Min, Rank0};
        assert_eq!(parsed, [Rank0, Mean, Min, Max, Mean, Max]);
        assert!("4".parse::<Average>().is_err_and(|why| why.contains("rank 0")));
    }
}
