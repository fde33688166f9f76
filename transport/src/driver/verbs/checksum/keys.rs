//! Keys of the places in a block: numbers without a pattern, which are part of the wire's version.

/// Number of words of 64 bits in a row.
pub(super) const LANES: usize = 8;
/// Number of pairs of rows in a block.
pub(super) const PAIRS: usize = 8;

/// A row of keys, aligned as one line of a cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Row(pub(super) [u64; LANES]);

/// Keys of the rows of a block; the first two are those of the lanes of the block before.
pub(super) static ROWS: [Row; 2 + 2 * PAIRS] = {
    let numbers = numbers::<{ LANES * (2 + 2 * PAIRS) }>(0);
    let mut rows = [const { Row([0; LANES]) }; 2 + 2 * PAIRS];
    let mut at = 0;
    while at < numbers.len() {
        rows[at / LANES].0[at % LANES] = numbers[at];
        at += 1;
    }
    rows
};

/// Multipliers of the lanes, which are odd.
pub(super) static FACTORS: [u64; LANES] = numbers(1 << 32);

/// Returns numbers of the generator SplitMix64 (Steele, Lea and Flood 2014) after `seed`, with odd halves. A
/// half of zero would hide the words that it is multiplied with.
const fn numbers<const N: usize>(seed: u64) -> [u64; N] {
    let mut numbers = [0; N];
    let mut state = seed;
    let mut at = 0;
    while at < N {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = state;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        numbers[at] = (number ^ (number >> 31)) | 0x0000_0001_0000_0001;
        at += 1;
    }
    numbers
}
