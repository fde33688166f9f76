//! Text forms of option values: how a value is read from an environment variable and written back.
//!
//! Values of options that must be equal on all ranks are compared in their written form.

use collectives::{
    parse_bytes,
    select::{Names, Overrides, Rule, Tuned, price::Model},
};
use std::{
    fmt::{Debug, Display},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};
use transport::driver::tcp::{Bind, Security};

/// A text form of values of type `T`. Implementors are empty types that name a form.
pub(super) trait Form<T> {
    /// Reads a value; the error is the rest of a sentence that begins with the text.
    fn parse(text: &str) -> Result<T, String>;

    /// Writes a value.
    fn print(value: &T) -> String;
}

/// The form that the type itself has (`FromStr` and `Display`).
pub(super) struct Plain;

impl<T: FromStr<Err: Display> + Display> Form<T> for Plain {
    fn parse(text: &str) -> Result<T, String> {
        text.parse().map_err(|error: T::Err| error.to_string())
    }

    fn print(value: &T) -> String {
        value.to_string()
    }
}

/// An optional value: nothing, or `auto`, lets the library decide.
pub(super) struct Auto<F>(F);

impl<T, F: Form<T>> Form<Option<T>> for Auto<F> {
    fn parse(text: &str) -> Result<Option<T>, String> {
        match text {
            "" | "auto" => Ok(None),
            _ => F::parse(text).map(Some),
        }
    }

    fn print(value: &Option<T>) -> String {
        value.as_ref().map(F::print).unwrap_or_default()
    }
}

/// An optional value: nothing lets the library decide; `auto` is a value of the type.
pub(super) struct OrNothing<F>(F);

impl<T, F: Form<T>> Form<Option<T>> for OrNothing<F> {
    fn parse(text: &str) -> Result<Option<T>, String> {
        if text.is_empty() { Ok(None) } else { F::parse(text).map(Some) }
    }

    fn print(value: &Option<T>) -> String {
        Auto::<F>::print(value)
    }
}

/// A number of bytes, as `64K` or `1G`.
pub(super) struct Bytes;

impl Form<u64> for Bytes {
    fn parse(text: &str) -> Result<u64, String> {
        parse_bytes(text)
    }

    fn print(value: &u64) -> String {
        value.to_string()
    }
}

impl Form<usize> for Bytes {
    fn parse(text: &str) -> Result<usize, String> {
        let bytes = parse_bytes(text)?;
        usize::try_from(bytes).map_err(|_| "is more than memory can hold".into())
    }

    fn print(value: &usize) -> String {
        value.to_string()
    }
}

/// A number of seconds, optionally with a fraction.
pub(super) struct Seconds;

impl Form<Duration> for Seconds {
    fn parse(text: &str) -> Result<Duration, String> {
        let seconds: f64 = Plain::parse(text)?;
        Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
    }

    fn print(value: &Duration) -> String {
        value.as_secs_f64().to_string()
    }
}

/// A number of microseconds, optionally with a fraction.
pub(super) struct Microseconds;

impl Form<Duration> for Microseconds {
    fn parse(text: &str) -> Result<Duration, String> {
        let microseconds: f64 = Plain::parse(text)?;
        Duration::try_from_secs_f64(microseconds * 1e-6).map_err(|error| error.to_string())
    }

    fn print(value: &Duration) -> String {
        (value.as_secs_f64() * 1e6).to_string()
    }
}

/// One of two words; the second one is `true`.
macro_rules! switch {
    ($(#[$doc:meta])* $name:ident: $off:literal, $on:literal) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Form<bool> for $name {
            fn parse(text: &str) -> Result<bool, String> {
                match text {
                    $off => Ok(false),
                    $on => Ok(true),
                    _ => Err(concat!("must be ", $off, " or ", $on).into()),
                }
            }

            fn print(value: &bool) -> String {
                if *value { $on.into() } else { $off.into() }
            }
        }
    };
}

switch! {
    /// `1` for on, `0` for off.
    Flag: "0", "1"
}

switch! {
    /// The service of RDMA connections: `rc` is reliable, `uc` is not.
    Service: "uc", "rc"
}

/// Text as it is.
pub(super) struct Text;

impl Form<String> for Text {
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// The path of a file or folder.
pub(super) struct FilePath;

impl Form<PathBuf> for FilePath {
    fn parse(text: &str) -> Result<PathBuf, String> {
        Ok(text.into())
    }

    fn print(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

/// Names of algorithms, in order of preference, or excluded after `^`.
pub(super) struct AlgorithmNames;

impl Form<String> for AlgorithmNames {
    fn parse(text: &str) -> Result<String, String> {
        Names::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
    }

    fn print(value: &String) -> String {
        value.clone()
    }
}

/// An interface or an address of this host.
pub(super) struct Interface;

impl Form<Bind> for Interface {
    fn parse(text: &str) -> Result<Bind, String> {
        text.parse().map_err(|never: std::convert::Infallible| match never {})
    }

    fn print(value: &Bind) -> String {
        value.to_string()
    }
}

/// The protection of TCP connections.
pub(super) struct Protection;

impl Form<Security> for Protection {
    fn parse(text: &str) -> Result<Security, String> {
        match text {
            "" | "authenticate" => Ok(Security::Authenticate),
            "encrypt" => Ok(Security::Encrypt),
            _ => Err("must be authenticate or encrypt".into()),
        }
    }

    fn print(value: &Security) -> String {
        match value {
            Security::Authenticate => "authenticate".into(),
            Security::Encrypt => "encrypt".into(),
        }
    }
}

/// A file of selection rules. Ranks compare the rules, not the path.
pub(super) struct RulesFile;

impl Form<Vec<Rule>> for RulesFile {
    fn parse(text: &str) -> Result<Vec<Rule>, String> {
        let read = |text: &str| Overrides::rules_from_toml(text).map_err(|error| error.to_string());
        if text.is_empty() { Ok(Vec::new()) } else { read_file(text, read) }
    }

    fn print(value: &Vec<Rule>) -> String {
        if value.is_empty() { String::new() } else { digest_of(value) }
    }
}

/// A file written by `tbccl tune`.
pub(super) struct TuningFile;

impl Form<Tuned> for TuningFile {
    fn parse(text: &str) -> Result<Tuned, String> {
        read_file(text, |text| Tuned::from_toml(text).map_err(|error| error.to_string()))
    }

    fn print(value: &Tuned) -> String {
        digest_of(value)
    }
}

/// A file that describes machines and cables.
pub(super) struct ModelFile;

impl Form<Model> for ModelFile {
    fn parse(text: &str) -> Result<Model, String> {
        read_file(text, Model::from_toml)
    }

    fn print(value: &Model) -> String {
        digest(&value.canonical())
    }
}

fn read_file<T>(path: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("can't read {path}: {error}"))?;
    read(&text).map_err(|error| format!("{path}: {error}"))
}

fn digest_of(value: &impl Debug) -> String {
    digest(&format!("{value:?}"))
}

fn digest(text: &str) -> String {
    format!("#{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}
