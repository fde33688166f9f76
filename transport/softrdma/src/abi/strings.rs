//! Names of numbers, as libibverbs gives them.
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

names!(
    /// `ibv_wc_opcode_str`
    ibv_wc_opcode_str,
    c"unknown",
    [
        c"IBV_WC_SEND",
        c"IBV_WC_RDMA_WRITE",
        c"IBV_WC_RDMA_READ",
        c"IBV_WC_COMP_SWAP",
        c"IBV_WC_FETCH_ADD",
        c"IBV_WC_BIND_MW",
        c"IBV_WC_LOCAL_INV",
        c"IBV_WC_TSO",
    ]
);

/// `ibv_rate_to_mult`: in units of 2.5 Gb/s.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    match rate {
        2 => 1,
        5 => 2,
        3 => 4,
        6 => 8,
        4 => 12,
        7 => 16,
        8 => 24,
        9 => 32,
        10 => 48,
        _ => -1,
    }
}

/// `mult_to_ibv_rate`
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    (2..=10).find(|&rate| ibv_rate_to_mult(rate) == mult).unwrap_or(0)
}
