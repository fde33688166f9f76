//! The time of a cell with its noise.
//!
//! Several rows of a cell are repeats: the noise is the range of their medians, without the outer tenths. One
//! row knows only the noise within its run: the range of the middle half of its samples. Benchmarks without
//! quartiles have a minimum; the noise then extends as far above the median as that lies below it.

use super::super::rows::Row;

/// A time in microseconds, and the range in which repeats of it lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    pub(super) us: f64,
    low: f64,
    high: f64,
}

impl Estimate {
    /// Returns the estimate of a cell's rows; `None` without rows.
    pub(super) fn of(rows: &[&Row]) -> Option<Estimate> {
        match rows {
            [] => None,
            [row] => Some(Estimate::of_one(row)),
            _ => {
                let mut medians: Vec<f64> = rows.iter().map(|row| row.us_median).collect();
                medians.sort_unstable_by(f64::total_cmp);
                let n = medians.len();
                let tenth = n / 10;
                let us = (medians[(n - 1) / 2] + medians[n / 2]) / 2.0;
                Some(Estimate { us, low: medians[tenth], high: medians[n - 1 - tenth] })
            }
        }
    }

    fn of_one(row: &Row) -> Estimate {
        let us = row.us_median;
        let (low, high) = match (row.us_q1, row.us_q3, row.us_min) {
            (Some(low), Some(high), _) => (low, high),
            (_, _, Some(min)) => (min, 2.0 * us - min),
            _ => (us, us),
        };
        // Rounding may put the median outside.
        Estimate { us, low: low.min(us), high: high.max(us) }
    }

    /// Returns half the width of the range, as a fraction of the time.
    pub(super) fn noise(self) -> f64 {
        (self.high - self.low) / 2.0 / self.us
    }

    /// Whether the two ranges have no time in common.
    pub(super) fn differs_from(self, other: Estimate) -> bool {
        self.high < other.low || other.high < self.low
    }
}

#[cfg(test)]
mod tests {
    use super::{super::super::rows::tests::row, *};

    #[test]
    fn repeats_tell_the_noise_between_runs() {
        let rows = [row(4, 11.0), row(4, 9.0), row(4, 10.0)];
        let estimate = Estimate::of(&rows.iter().collect::<Vec<_>>()).expect("rows");
        assert_eq!(estimate, Estimate { us: 10.0, low: 9.0, high: 11.0 });
        assert!((estimate.noise() - 0.1).abs() < 1e-9);
        let many: Vec<Row> = (0..20).map(|at| row(4, f64::from(100 + at))).collect();
        let estimate = Estimate::of(&many.iter().collect::<Vec<_>>()).expect("rows");
        assert_eq!((estimate.low, estimate.high), (102.0, 117.0));
        assert_eq!(Estimate::of(&[]), None);
    }

    #[test]
    fn one_row_has_the_noise_of_its_samples() {
        let quartiles = Row { us_q1: Some(9.5), us_q3: Some(12.0), us_min: Some(1.0), ..row(4, 10.0) };
        assert_eq!(Estimate::of(&[&quartiles]), Some(Estimate { us: 10.0, low: 9.5, high: 12.0 }));
        let peer = Row { us_min: Some(8.0), ..row(4, 10.0) };
        assert_eq!(Estimate::of(&[&peer]), Some(Estimate { us: 10.0, low: 8.0, high: 12.0 }));
        assert_eq!(Estimate::of(&[&row(4, 10.0)]).map(Estimate::noise), Some(0.0));
    }

    #[test]
    fn ranges_that_touch_do_not_differ() {
        let of = |low, high| Estimate { us: (low + high) / 2.0, low, high };
        assert!(!of(1.0, 2.0).differs_from(of(2.0, 3.0)));
        assert!(of(1.0, 2.0).differs_from(of(2.1, 3.0)) && of(2.1, 3.0).differs_from(of(1.0, 2.0)));
    }
}
