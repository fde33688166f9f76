//! Options of the process: the library's table, as the environment and the program set it.
//!
//! # Safety
//! Arguments are converted by `cast`, which says what that rests on. The only other unsafe act is to export a
//! name.

use crate::{
    boundary::{Outcome, boundary, c_string},
    cast::{out, text},
    failure::Failure,
    tbcclResult_t,
};
use std::{
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    io::Write,
    mem::MaybeUninit,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tbccl::{Config, ConfigOption, OPTIONS};

/// Options that the program has set, in this order.
static OVERRIDES: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

fn overrides() -> MutexGuard<'static, Vec<(String, String)>> {
    OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the options of a new communicator: the environment's, then those of the program, then `more`.
pub(crate) fn config_with(more: impl IntoIterator<Item = (String, String)>) -> Outcome<Config> {
    let environment =
        std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let own = overrides().clone();
    Ok(Config::from_vars(environment.chain(own).chain(more))?)
}

/// Returns the option of a name, with or without its prefix `TBCCL_`.
fn option(key: &str) -> Outcome<&'static ConfigOption> {
    let full = full_name(key);
    OPTIONS.iter().find(|option| option.env == full).ok_or_else(|| {
        let near = nearest(&full);
        Failure::argument(format!("there is no option {full}{near}"))
    })
}

/// Returns the nearest name, as the end of a sentence.
fn nearest(name: &str) -> String {
    let error = Config::from_vars([(name.to_owned(), String::new())]).err();
    error.map(|error| format!(" ({error})")).unwrap_or_default()
}

/// Returns the name as in the environment.
pub(crate) fn full_name(key: &str) -> String {
    if key.starts_with("TBCCL_") { key.to_owned() } else { format!("TBCCL_{}", key.to_ascii_uppercase()) }
}

/// Sets an option for communicators that this process makes from now on, in place of the environment's value.
/// A NULL value undoes that. Nothing changes if the value is invalid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclParamSet(key: *const c_char, value: *const c_char) -> tbcclResult_t {
    boundary(|| {
        // SAFETY: as `tbccl.h` says, these are null or texts.
        let (key, value) = unsafe { (text("key", key)?, text("value", value)?) };
        let option = option(key.ok_or_else(|| Failure::argument("key is NULL"))?)?;
        if let Some(value) = value {
            config_with([(option.env.to_owned(), value.to_owned())])?;
        }
        let mut set = overrides();
        set.retain(|(name, _)| name != option.env);
        set.extend(value.map(|value| (option.env.to_owned(), value.to_owned())));
        Ok(())
    })
}

thread_local! {
    static LAST_VALUE: RefCell<CString> = RefCell::default();
}

/// Tells an option's value for communicators that are made now, as text, and its length. Either place may be
/// NULL. The text is valid until the next such call on this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclParamGet(
    key: *const c_char,
    value: Option<&mut MaybeUninit<*const c_char>>,
    valueLen: Option<&mut MaybeUninit<c_int>>,
) -> tbcclResult_t {
    boundary(|| {
        // SAFETY: as `tbccl.h` says, it is null or a text.
        let key = unsafe { text("key", key)? }.ok_or_else(|| Failure::argument("key is NULL"))?;
        let told = c_string(&option(key)?.value(&config_with([])?));
        if let Ok(place) = out("valueLen", valueLen) {
            place.write(c_int::try_from(told.as_bytes().len()).unwrap_or(c_int::MAX));
        }
        LAST_VALUE.with(|last| *last.borrow_mut() = told);
        if let Ok(place) = out("value", value) {
            place.write(LAST_VALUE.with(|last| last.borrow().as_ptr()));
        }
        Ok(())
    })
}

/// Writes all options to the standard error output, one a line, with values and descriptions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tbcclParamDumpAll() {
    boundary(|| {
        let config = config_with([])?;
        let mut stderr = std::io::stderr().lock();
        for option in OPTIONS {
            // A closed standard error output is no error.
            let _ = writeln!(stderr, "{}={}  # {}", option.env, option.value(&config), option.doc);
        }
        Ok(())
    });
}
