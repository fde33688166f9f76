//! Functions that a verbs library exports.
//!
//! Posting, polling and arming have no symbols; they are in the operations table of an open device.
//!
//! # Safety
//! Each symbol gets the type that the verbs manual gives the function of that name. The library is never
//! unloaded (see `library`), so the pointers stay valid.

use super::VerbsError;
use std::ffi::{c_char, c_int, c_uint, c_void};
use verbs_sys::{
    AsyncEvent, CompChannel, Context, Cq, Device, DeviceAttr, Gid, GidEntry, Mr, Pd, PortAttr, Qp, QpAttr,
    QpInitAttr,
};

macro_rules! functions {
    (
        required { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($extra:ident($($extra_argument:ty),*) $(-> $extra_result:ty)?;)* }
    ) => {
        /// The functions that this crate calls. Some libraries lack the optional ones.
        #[derive(Clone, Copy, Debug)]
        #[allow(non_snake_case, reason = "as in C")]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(super) $extra: Option<unsafe extern "C" fn($($extra_argument),*) $(-> $extra_result)?>,)*
        }

        impl Functions {
            /// Looks up all functions; `name` is the library's name, for the error.
            pub(super) fn find(library: &libloading::Library, name: &str) -> Result<Functions, VerbsError> {
                $(
                    let symbol = stringify!($name);
                    // SAFETY: the type is that of the C function.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol.as_bytes())
                    };
                    let $name = match found {
                        Ok(found) => *found,
                        Err(_) => return Err(VerbsError::Symbol { library: name.to_owned(), symbol }),
                    };
                )*
                $(
                    // SAFETY: the type is that of the C function.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($extra_argument),*) $(-> $extra_result)?>(
                            stringify!($extra).as_bytes(),
                        )
                    };
                    let $extra = found.ok().map(|found| *found);
                )*
                Ok(Functions { $($name,)* $($extra,)* })
            }
        }
    };
}

functions! {
    required {
        ibv_get_device_list(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list(*mut *mut Device);
        ibv_get_device_name(*mut Device) -> *const c_char;
        ibv_open_device(*mut Device) -> *mut Context;
        ibv_close_device(*mut Context) -> c_int;
        ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
        ibv_query_gid(*mut Context, u8, c_int, *mut Gid) -> c_int;
        ibv_alloc_pd(*mut Context) -> *mut Pd;
        ibv_dealloc_pd(*mut Pd) -> c_int;
        ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr(*mut Mr) -> c_int;
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_destroy_cq(*mut Cq) -> c_int;
        ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
        ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
        ibv_destroy_qp(*mut Qp) -> c_int;
    }
    optional {
        ibv_fork_init() -> c_int;
        ibv_get_device_guid(*mut Device) -> u64;
        ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
        _ibv_query_gid_ex(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
        ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
        ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut Cq, c_uint);
        ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event(*mut AsyncEvent);
    }
}
