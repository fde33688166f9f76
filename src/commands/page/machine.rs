//! The machine and the command that a report is of.

use serde::{Deserialize, Serialize};
use std::{fs, thread, time::SystemTime};

/// A machine with the command that measured on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Machine {
    host: String,
    system: String,
    processor: String,
    cores: usize,
    tbccl: String,
    command: String,
    time: String,
}

impl Machine {
    /// Describes this machine and this process' command line.
    pub(in crate::commands) fn of_this_process() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        let command = arguments.filter(|argument| argument != "--worker");
        let command: Vec<String> = ["tbccl".to_owned()].into_iter().chain(command).collect();
        Machine {
            host: text(uname.nodename()),
            system: [uname.sysname(), uname.release(), uname.machine()].map(text).join(" "),
            processor: processor(&cpuinfo).unwrap_or_default(),
            // A rank may be bound to some of the cores.
            cores: cores(&cpuinfo).unwrap_or_else(|| thread::available_parallelism().map_or(0, usize::from)),
            tbccl: env!("CARGO_PKG_VERSION").to_owned(),
            command: shlex::try_join(command.iter().map(String::as_str))
                .unwrap_or_else(|_| command.join(" ")),
            time: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }

    /// Returns the values with their names.
    pub(in crate::commands) fn settings(&self) -> Vec<(String, String)> {
        let processor = match (self.processor.as_str(), self.cores) {
            ("", 0) => String::new(),
            ("", cores) => format!("{cores} cores"),
            (name, cores) => format!("{name}, {cores} cores"),
        };
        let all = [
            ("host", &self.host),
            ("system", &self.system),
            ("processor", &processor),
            ("tbccl", &self.tbccl),
            ("command", &self.command),
            ("time", &self.time),
        ];
        let known = all.into_iter().filter(|(_, value)| !value.is_empty());
        known.map(|(name, value)| (name.to_owned(), value.clone())).collect()
    }

    /// Returns the line of JSON that stands before the rows of the machine.
    pub(in crate::commands) fn line(&self) -> String {
        format!("{}\n", serde_json::json!({ "machine": self }))
    }
}

/// Returns the name of the processor in Linux's cpuinfo.
fn processor(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// Returns the number of cores in Linux's cpuinfo.
fn cores(cpuinfo: &str) -> Option<usize> {
    let count =
        cpuinfo.lines().filter(|line| line.split(':').next().map(str::trim) == Some("processor")).count();
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_found_where_the_system_names_it() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: a\n";
        assert_eq!(processor(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(processor("processor : 0\n"), None);
        assert_eq!((cores(text), cores("")), (Some(1), None));
    }

    #[test]
    fn a_machine_is_read_from_its_line() {
        let machine = Machine::of_this_process();
        let value: serde_json::Value = serde_json::from_str(&machine.line()).expect("JSON");
        assert_eq!(serde_json::from_value(value["machine"].clone()).ok(), Some(machine));
        assert_eq!(Machine::default().settings(), []);
    }
}
