//! Facts about this machine, and the ways to find them.

use super::{
    check::Check,
    finding::{REPORT, check_of},
};
use rustix::{
    param::page_size,
    process::{Resource, getrlimit},
    system::uname,
};
use std::{fs, process::Command, thread};
use tbccl::Config;
use transport::verbs::Library;

/// Locked memory that the slab needs where all of it is registered beforehand.
const SLAB_BYTES: u64 = 1 << 30;

/// Returns the system's name, version and architecture.
pub(super) fn system() -> String {
    let name = uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let version = sw_version().unwrap_or_default();
    format!("{} {} {}{version}", text(name.sysname()), text(name.release()), text(name.machine()))
}

/// Returns the version of macOS.
fn sw_version() -> Option<String> {
    let output = cfg!(target_os = "macos").then(|| Command::new("sw_vers").output())?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let values = text.lines().filter_map(|line| line.split_once(':')).map(|(_, value)| value.trim());
    Some(format!(", {}", values.collect::<Vec<_>>().join(" ")))
}

/// Returns the model of the machine's processor, as far as the system tells.
pub(super) fn hardware() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let model = if cfg!(target_os = "macos") {
        ["hw.model", "machdep.cpu.brand_string"]
            .map(sysctl)
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")
    } else {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        model.map_or(String::new(), |(_, name)| name.trim().to_owned())
    };
    let model = if model.is_empty() { "unknown model".to_owned() } else { model };
    format!("{model}, {cores} cores, pages of {} KiB", page_size() >> 10)
}

fn sysctl(name: &str) -> Option<String> {
    let output = Command::new("sysctl").args(["-n", name]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Returns the checks of the machine that load no library.
pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![
        Check::pass("system", system()),
        Check::pass("hardware", hardware()),
        locked_memory(),
        open_files(),
    ];
    checks.extend(rdma_ctl());
    checks
}

/// Compares the limit on locked memory with the slab.
fn locked_memory() -> Check {
    const NAME: &str = "locked-memory";
    let relies = format!("{} MiB of registered memory for each rank", SLAB_BYTES >> 20);
    let check = match getrlimit(Resource::Memlock).current {
        None => Check::pass(NAME, "unlimited"),
        Some(bytes) if bytes >= SLAB_BYTES => Check::pass(NAME, format!("{} MiB", bytes >> 20)),
        Some(bytes) => Check::unknown(
            NAME,
            format!("{} KiB may be locked; drivers of real adapters count registered memory", bytes >> 10),
            "if registration fails, raise it with `ulimit -l unlimited`, or set TBCCL_SLAB_BYTES lower",
        ),
    };
    check.relying_on(&relies)
}

fn open_files() -> Check {
    let limit = getrlimit(Resource::Nofile).current;
    let text = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    match limit {
        Some(limit) if limit < 256 => {
            Check::fail("open-files", text, "raise it with `ulimit -n 1024`: connections need descriptors")
        }
        _ => Check::pass("open-files", text),
    }
}

/// Asks macOS whether RDMA is enabled.
fn rdma_ctl() -> Option<Check> {
    let output = match Command::new("rdma_ctl").arg("status").output() {
        Ok(output) => output,
        Err(_) if !cfg!(target_os = "macos") => return None,
        Err(error) => {
            let remedy = "RDMA over Thunderbolt needs macOS 26.2 or later";
            return Some(Check::fail("rdma_ctl", format!("can't be started: {error}"), remedy));
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let lower = said.to_lowercase();
    Some(if lower.contains("disabled") {
        Check::fail("rdma_ctl", said, transport::verbs::Cause::NotEnabled.remedy())
    } else if lower.contains("enabled") {
        Check::pass("rdma_ctl", format!("{said} (so it says on Thunderbolt 4, too)"))
    } else {
        Check::unknown("rdma_ctl", format!("says `{said}`"), REPORT)
    })
}

/// Loads the library and lists its devices: the check of the library, and the devices' names.
pub(super) fn library(config: &Config) -> (Check, Vec<String>) {
    const NAME: &str = "library";
    const RELIES: &str = "a verbs library can be loaded at run time, and lists devices";
    super::message::step("loading the verbs library");
    let library = match Library::load(config.verbs.library.as_deref()) {
        Ok(library) => library,
        Err(error) => return (check_of(NAME, RELIES, Err(error.into())), Vec::new()),
    };
    super::message::step("listing devices");
    let devices: Vec<String> = match library.devices() {
        Ok(devices) => devices.into_iter().map(|device| device.name).collect(),
        Err(error) => return (check_of(NAME, RELIES, Err(error.into())), Vec::new()),
    };
    if devices.is_empty() {
        let error = library.no_devices(is_enabled()).into();
        return (check_of(NAME, RELIES, Err(error)), devices);
    }
    let text = format!("{}, {} devices: {}", library.name(), devices.len(), devices.join(", "));
    (Check::pass(NAME, text).relying_on(RELIES), devices)
}

/// Whether `rdma_ctl` reports RDMA as enabled, where that program exists.
fn is_enabled() -> Option<bool> {
    use super::check::Verdict;
    rdma_ctl().and_then(|check| match check.verdict {
        Verdict::Pass => Some(true),
        Verdict::Fail if !check.text.starts_with("can't be started") => Some(false),
        _ => None,
    })
}

/// Returns the line about the host of a rank.
pub(super) fn host(name: &str, config: &Config) -> Check {
    let (library, devices) = library(config);
    let text = format!("tbccl {}; {}; {}", env!("CARGO_PKG_VERSION"), system(), hardware());
    let devices = if devices.is_empty() { library.text } else { format!("devices: {}", devices.join(", ")) };
    Check::pass(name, format!("{text}; {devices}"))
}
