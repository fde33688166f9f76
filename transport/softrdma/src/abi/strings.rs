//! Texts for numbers, as in libibverbs.
//!
//! # Safety
//! See the module above.

use std::ffi::{c_char, c_int};

macro_rules! names {
    ($(#[$doc:meta])* $function:ident, $unknown:literal, [$($text:literal),* $(,)?]) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $function(number: c_int) -> *const c_char {
            const NAMES: &[&std::ffi::CStr] = &[$($text),*];
            let known = usize::try_from(number).ok().and_then(|index| NAMES.get(index));
            known.map_or(($unknown).as_ptr(), |name| name.as_ptr())
        }
    };
}

names!(
    /// `ibv_wc_status_str`
    ibv_wc_status_str,
    c"unknown",
    [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ]
);

names!(
    /// `ibv_node_type_str`
    ibv_node_type_str,
    c"unknown",
    [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ]
);

names!(
    /// `ibv_port_state_str`
    ibv_port_state_str,
    c"unknown",
    [
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ]
);

names!(
    /// `ibv_event_type_str`
    ibv_event_type_str,
    c"unknown",
    [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ]
);

/// Rate codes, with their multiples of 2.5 Gb/s where one exists, and their megabits per second.
const RATES: &[(c_int, Option<c_int>, c_int)] = &[
    (2, Some(1), 2500),
    (5, Some(2), 5000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// `ibv_rate_to_mult`: in units of 2.5 Gb/s.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).and_then(|known| known.1).unwrap_or(-1)
}

/// `mult_to_ibv_rate`
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|known| known.1 == Some(mult)).map_or(0, |known| known.0)
}

/// `ibv_rate_to_mbps`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

/// `mbps_to_ibv_rate`
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|known| known.2 == mbps).map_or(0, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_libibverbs() {
        assert_eq!([2, 7, 11, 21, 0].map(|rate| ibv_rate_to_mult(rate)), [1, 16, -1, 160, -1]);
        assert_eq!([2, 16, 24, 25].map(|rate| ibv_rate_to_mbps(rate)), [2500, 103_125, 1_275_000, -1]);
        for rate in 2..=24 {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
        }
        assert_eq!([1, 480, 7].map(|mult| mult_to_ibv_rate(mult)), [2, 24, 0]);
    }
}
