//! Exported names: those that C++ compilers give the functions of `namespace jaccl`.
//!
//! A library that rustc links exports only functions of Rust. Each of these is one instruction: a jump to the
//! C++ function of the same name in `namespace inner`. It leaves arguments, the address of the result and the
//! stack as they are, so signatures do not matter here.
//!
//! Names with types of the C++ library differ between libstdc++ (Linux) and libc++ (macOS).
//!
//! # Safety
//! Nothing in Rust calls these functions. The target of each has the same signature, which `cpp/jaccl.h`
//! declares once for both namespaces.
#![allow(non_snake_case)]

use std::arch::naked_asm;

/// Defines functions that jump to the C++ functions of the same names in another namespace. A name is given
/// as its parts before and after the namespace.
macro_rules! exports {
    ($($function:ident: $before:literal, $after:literal;)*) => {
        $(
            mod $function {
                // SAFETY: `cpp/config.cpp` and `cpp/group.cpp` define the functions of these names.
                unsafe extern "C" {
                    #[link_name = concat!($before, "5inner", $after)]
                    pub(super) fn target();
                }
            }

            // SAFETY: the body is one jump, to a function with the signature of this name. No other library
            // of a process has these names but JACCL, which this one replaces.
            #[unsafe(naked)]
            #[unsafe(export_name = concat!($before, "5jaccl", $after))]
            unsafe extern "C" fn $function() {
                naked_asm!(jump!(), target = sym $function::target);
            }
        )*
    };
}

exports! {
    is_available: "_ZN", "12is_availableEv";
    init: "_ZN", "4initEb";
    init_by_config: "_ZN", "4initERKNS_6ConfigEb";
    config: "_ZN", "6ConfigC1Ev";
    config_base: "_ZN", "6ConfigC2Ev";
    set_rank: "_ZN", "6Config8set_rankEi";
    set_rank_text: "_ZN", "6Config8set_rankEPKc";
    set_coordinator_text: "_ZN", "6Config15set_coordinatorEPKc";
    set_devices_from_file: "_ZN", "6Config21set_devices_from_fileEPKc";
    prefer_ring: "_ZN", "6Config11prefer_ringEb";
    is_valid_mesh: "_ZNK", "6Config13is_valid_meshEv";
    is_valid_ring: "_ZNK", "6Config13is_valid_ringEv";
    is_valid: "_ZNK", "6Config8is_validEv";
    from_env: "_ZN", "6Config8from_envEv";
}

#[cfg(not(target_vendor = "apple"))]
exports! {
    init_by_factory: "_ZN", "4initEbSt8functionIFS0_IFvPKcPcmEEiiEE";
    set_coordinator: "_ZN", "6Config15set_coordinatorENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    set_devices: "_ZN", "6Config11set_devicesESt6vectorIS1_IS1_INSt7__cxx1112basic_stringIcSt11char_traits\
        IcESaIcEEESaIS7_EESaIS9_EESaISB_EE";
    set_all_gather: "_ZN", "6Config14set_all_gatherESt8functionIFvPKcPcmEE";
    set_all_gather_factory: "_ZN", "6Config22set_all_gather_factoryESt8functionIFS1_IFvPKcPcmEEiiEE";
}

#[cfg(target_vendor = "apple")]
exports! {
    init_by_factory: "_ZN", "4initEbNSt3__18functionIFNS1_IFvPKcPcmEEEiiEEE";
    set_coordinator: "_ZN", "6Config15set_coordinatorENSt3__112basic_stringIcNS1_11char_traitsIcEENS1_9all\
        ocatorIcEEEE";
    set_devices: "_ZN", "6Config11set_devicesENSt3__16vectorINS2_INS2_INS1_12basic_stringIcNS1_11char_trai\
        tsIcEENS1_9allocatorIcEEEENS6_IS8_EEEENS6_ISA_EEEENS6_ISC_EEEE";
    set_all_gather: "_ZN", "6Config14set_all_gatherENSt3__18functionIFvPKcPcmEEE";
    set_all_gather_factory: "_ZN", "6Config22set_all_gather_factoryENSt3__18functionIFNS2_IFvPKcPcmEEEiiEEE";
}
