//! The series of sizes of a measurement.

use collectives::DType;

/// A series of sizes.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Sizes {
    pub(in crate::commands) min: u64,
    pub(in crate::commands) max: u64,
    pub(in crate::commands) step: Step,
}

/// The step from a size to the next.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum Step {
    Factor(u64),
    Bytes(u64),
}

impl Step {
    fn after(self, size: u64) -> Option<u64> {
        match self {
            Step::Factor(factor) => size.checked_mul(factor),
            Step::Bytes(bytes) => size.checked_add(bytes),
        }
    }
}

impl Sizes {
    /// Returns the element counts per block, ascending, for buffers of `blocks` blocks.
    pub(in crate::commands) fn counts(self, dtype: DType, blocks: u32) -> Vec<u64> {
        let unit = dtype.size() as u64 * u64::from(blocks.max(1));
        let series = std::iter::successors(Some(self.min), |size| self.step.after(*size));
        let fitting = series.take_while(|size| *size <= self.max);
        let mut counts: Vec<u64> = fitting.map(|size| size / unit).filter(|count| *count > 0).collect();
        counts.dedup();
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { min: 4, max: 100, step: Step::Factor(4) };

    #[test]
    fn sizes_grow_by_the_factor_up_to_the_largest() {
        assert_eq!(SIZES.counts(DType::F32, 1), [1, 4, 16]);
        assert_eq!(SIZES.counts(DType::F64, 1), [2, 8]);
    }

    #[test]
    fn sizes_are_rounded_down_to_whole_blocks_and_not_repeated() {
        assert_eq!(SIZES.counts(DType::F32, 3), [1, 5]);
        let dense = Sizes { min: 8, max: 31, step: Step::Factor(2) };
        assert_eq!(dense.counts(DType::F32, 4), [1]);
        let huge = Sizes { min: u64::MAX / 2, max: u64::MAX, step: Step::Factor(3) };
        assert_eq!(huge.counts(DType::U8, 1).len(), 1);
    }

    #[test]
    fn sizes_grow_by_bytes_too() {
        let sizes = Sizes { min: 8, max: 32, step: Step::Bytes(8) };
        assert_eq!(sizes.counts(DType::F32, 1), [2, 4, 6, 8]);
        let huge = Sizes { min: u64::MAX - 1, max: u64::MAX, step: Step::Bytes(4) };
        assert_eq!(huge.counts(DType::U8, 1).len(), 1);
    }
}
