//! Axes of charts: the range of the values, and the ticks with their labels.

/// An axis of a chart.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Axis {
    /// Name with the unit.
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Bytes, with ticks at powers of two.
    Sizes,
    /// Values over orders of magnitude, with ticks at powers of ten.
    Logarithmic,
    /// Values from 0 on.
    Linear,
}

/// Labels on an axis, at most.
const MAX_TICKS: u32 = 8;

impl Axis {
    pub(in crate::commands) const fn sizes(name: &'static str) -> Axis {
        Axis { name, kind: Kind::Sizes }
    }

    pub(in crate::commands) const fn logarithmic(name: &'static str) -> Axis {
        Axis { name, kind: Kind::Logarithmic }
    }

    pub(in crate::commands) const fn linear(name: &'static str) -> Axis {
        Axis { name, kind: Kind::Linear }
    }

    /// Whether the axis can show a value.
    pub(super) fn has(self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || self.kind == Kind::Linear && value == 0.0)
    }

    /// Returns the scale for these values, all of which the axis can show.
    pub(super) fn scale(self, values: impl Iterator<Item = f64> + Clone) -> Scale {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(0.0, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        match self.kind {
            Kind::Sizes => sizes(low, high),
            Kind::Logarithmic => logarithmic(low, high),
            Kind::Linear => linear(high),
        }
    }
}

/// A tick with its label.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Position from 0 to 1.
    pub(super) at: f64,
    pub(super) label: String,
}

/// The map of values to positions from 0 to 1.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    pub(super) ticks: Vec<Tick>,
}

impl Scale {
    fn new(low: f64, high: f64, is_logarithmic: bool, ticks: &[f64], label: impl Fn(f64) -> String) -> Scale {
        let mut scale = Scale { low, high, is_logarithmic, ticks: Vec::new() };
        let shown = ticks.iter().filter(|tick| (low * 0.999..=high * 1.001).contains(*tick));
        scale.ticks = shown.map(|tick| Tick { at: scale.at(*tick), label: label(*tick) }).collect();
        scale
    }

    /// Returns the position of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let map = |value: f64| if self.is_logarithmic { value.ln() } else { value };
        let (low, high) = (map(self.low), map(self.high));
        if high > low { (map(value) - low) / (high - low) } else { 0.5 }
    }
}

fn sizes(low: f64, high: f64) -> Scale {
    let (low, high) = if low < high { (low, high) } else { (low / 2.0, high * 2.0) };
    let (first, last) = (low.log2().ceil() as i32, high.log2().floor() as i32);
    let step = (last - first).unsigned_abs().div_ceil(MAX_TICKS - 1).max(1);
    // Powers of 4 stay powers of 4.
    let step = if step > 1 { step.next_multiple_of(2) } else { 1 };
    let ticks: Vec<f64> = (first..=last).step_by(step as usize).map(|power| 2f64.powi(power)).collect();
    Scale::new(low, high, true, &ticks, |value| bytes(value as u64))
}

fn logarithmic(low: f64, high: f64) -> Scale {
    let (low, high) = (low / 1.15, high * 1.15);
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let step = (last - first).unsigned_abs().div_ceil(MAX_TICKS).max(1);
    // Within two orders of magnitude, powers of ten alone would be too few.
    let within: &[f64] = if high / low < 100.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last).step_by(step as usize);
    let ticks: Vec<f64> =
        powers.flat_map(|power| within.iter().map(move |n| n * 10f64.powi(power))).collect();
    Scale::new(low, high, true, &ticks, number)
}

fn linear(high: f64) -> Scale {
    let high = if high > 0.0 { high * 1.05 } else { 1.0 };
    let rough = high / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let count = (high / step).floor() as u32;
    let ticks: Vec<f64> = (0..=count).map(|n| f64::from(n) * step).collect();
    Scale::new(0.0, high, false, &ticks, number)
}

/// Formats a size with its largest whole unit.
pub(super) fn bytes(bytes: u64) -> String {
    let units = [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// Formats a tick without needless digits.
fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: Axis, values: &[f64]) -> Vec<String> {
        axis.scale(values.iter().copied()).ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        let sizes = Axis::sizes("bytes");
        assert_eq!(labels(sizes, &[4.0, 67_108_864.0]), ["4", "64", "1K", "16K", "256K", "4M", "64M"]);
        assert_eq!(labels(sizes, &[1024.0]), ["512", "1K", "2K"]);
        let time = Axis::logarithmic("us");
        assert_eq!(labels(time, &[0.2, 9000.0]), ["1", "10", "100", "1000", "10000"]);
        assert_eq!(labels(time, &[1.0, 12.0]), ["1", "2", "5", "10"]);
        assert_eq!(labels(Axis::linear("GB/s"), &[9.4]), ["0", "2", "4", "6", "8"]);
        for axis in [sizes, time, Axis::linear("x")] {
            for values in [&[][..], &[1e-9], &[1e12], &[1e-6, 1e12]] {
                let count = labels(axis, values).len();
                assert!((1..=24).contains(&count), "{axis:?} {values:?}: {count}");
            }
        }
    }

    #[test]
    fn values_of_the_range_are_within_the_chart() {
        for (axis, values) in [(Axis::sizes("x"), [8.0, 64.0]), (Axis::logarithmic("y"), [0.1, 3.0])] {
            let scale = axis.scale(values.into_iter());
            assert!(values.iter().all(|value| (0.0..=1.0).contains(&scale.at(*value))), "{scale:?}");
        }
        assert!(!Axis::sizes("x").has(0.0) && Axis::linear("y").has(0.0) && !Axis::linear("y").has(f64::NAN));
    }
}
