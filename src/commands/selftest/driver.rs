//! The test itself: runs the sections in their order, and reports their checks.

use super::{
    check::{Check, Verdict},
    child::{self, End, Ended},
    device,
    finding::REPORT,
    job, machine,
    message::{Ask, Cable, Message},
    pair::{self, NO_CABLE},
    python::{self, Program},
    report::Report,
    section::{Section, Selection},
    speed,
    start::{Job, Starter},
};
use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Time within which a cable is to be pulled and plugged in again.
const UNPLUG_LIMIT: Duration = Duration::from_secs(240);
/// Time within which the programs of MLX and PyTorch start and end.
const PYTHON_LIMIT: Duration = Duration::from_secs(180);
/// Time by which a job's launcher may be late.
const LAUNCHER_DELAY: Duration = Duration::from_secs(10);

/// The options of a test.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) selection: Selection,
    pub(super) devices: Vec<String>,
    pub(super) quick: bool,
    pub(super) python: String,
    /// Whether the user is to pull a cable; if not, the reason.
    pub(super) unplug: Result<(), String>,
    /// Time limit of one probe.
    pub(super) limit: Duration,
}

/// A running test.
#[derive(Debug)]
pub(super) struct Driver<'t> {
    options: Options,
    starter: &'t Starter,
    report: Report,
    is_interrupted: &'t AtomicBool,
    devices: Vec<String>,
    /// Cables between the first two ranks; none before they are looked for.
    cables: Option<Vec<Cable>>,
    /// Check that tells why the search for cables has found none.
    search_failure: Option<Check>,
}

impl<'t> Driver<'t> {
    pub(super) fn new(
        options: Options,
        starter: &'t Starter,
        report: Report,
        is_interrupted: &'t AtomicBool,
    ) -> Driver<'t> {
        Driver {
            options,
            starter,
            report,
            is_interrupted,
            devices: Vec::new(),
            cables: None,
            search_failure: None,
        }
    }

    /// Runs all chosen sections; returns the report, and whether it was interrupted.
    pub(super) fn run(mut self) -> (Report, bool) {
        for section in Section::ALL {
            if self.options.selection.has(section) && !self.is_interrupted.load(Relaxed) {
                self.run_section(section);
                self.report.advance();
            }
        }
        let is_interrupted = self.is_interrupted.load(Relaxed);
        (self.report, is_interrupted)
    }

    fn run_section(&mut self, section: Section) {
        match section {
            Section::Machine => self.machine(),
            Section::Devices => self.devices(),
            Section::Cables => self.cables(),
            Section::Assumptions => self.assumptions(),
            Section::Speed => self.speed(),
            Section::Collectives => self.work(section, job::COLLECTIVES, 4),
            Section::Messages => self.work(section, job::MESSAGES, 2),
            Section::Mlx => self.python(section, "mlx.core", &python::MLX),
            Section::Torch => self.python(section, "torch", &python::TORCH),
            Section::Unplug => self.unplug(),
            Section::Failures => self.failures(),
        }
    }

    /// Adds a check under the name of its section and subject.
    fn add(&mut self, prefix: &str, check: Check) {
        add(&mut self.report, self.is_interrupted, prefix, check);
    }

    /// Runs a child; returns its end and its messages.
    fn child(&self, command: Command, limit: Duration) -> (Ended, Vec<Message>) {
        let mut messages = Vec::new();
        let ended = child::run(command, limit, self.is_interrupted, &mut |message| messages.push(message));
        (ended, messages)
    }

    /// Runs a child that makes one check; its end is the check if it makes none.
    fn probe(&mut self, prefix: &str, name: &str, relies: &str, command: Command, limit: Duration) {
        let (ended, messages) = self.child(command, limit);
        let seconds = ended.took.as_secs_f64();
        if let Some(check) = judge(name, relies, &ended, messages) {
            self.add(prefix, Check { seconds, ..check });
        }
    }

    fn machine(&mut self) {
        for check in machine::checks() {
            self.add("machine", check);
        }
        self.list_devices(true);
        if self.starter.has_hosts() {
            let job = Job::new("tcp", self.options.limit);
            let command = self.starter.selftest(&job, &["--job", job::HOSTS]);
            self.run_job("machine", "hosts", command, job.limit + LAUNCHER_DELAY);
        }
    }

    /// Loads the library in a child and notes the names of devices; `tells` adds the check.
    fn list_devices(&mut self, tells: bool) {
        let command = self.starter.probe(&["--probe", LIBRARY]);
        let (ended, messages) = self.child(command, self.options.limit);
        for message in &messages {
            if let Message::Devices(names) = message {
                let wanted = &self.options.devices;
                self.devices =
                    names.iter().filter(|name| wanted.is_empty() || wanted.contains(name)).cloned().collect();
            }
        }
        if let Some(check) = judge(LIBRARY, "", &ended, messages).filter(|_| tells) {
            self.add("machine", check);
            let missing = self.options.devices.iter().filter(|name| !self.devices.contains(name));
            let missing: Vec<String> = missing.cloned().collect();
            for name in missing {
                let remedy = "compare --devices with `tbccl devices`";
                self.add("machine", Check::fail("devices", format!("there is no device {name}"), remedy));
            }
        }
    }

    fn devices(&mut self) {
        if self.devices.is_empty() {
            let has_told = self.options.selection.has(Section::Machine);
            self.list_devices(!has_told);
        }
        if self.devices.is_empty() {
            let remedy = "`machine/library` says why";
            return self.add("devices", Check::unknown("all", "there is no RDMA device to test", remedy));
        }
        for name in self.devices.clone() {
            for probe in device::PROBES {
                if !self.options.selection.has_probe(Section::Devices, probe.name) || self.is_over() {
                    continue;
                }
                let command = self.starter.probe(&["--probe", probe.name, "--device", &name]);
                let prefix = format!("devices/{name}");
                self.probe(&prefix, probe.name, probe.relies, command, self.options.limit);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_interrupted.load(Relaxed)
    }

    fn cables(&mut self) {
        let mut told: Vec<(String, String)> = Vec::new();
        for message in self.find_cables() {
            // Both ranks may report the same.
            if let Message::Check(check) = message
                && !told.contains(&(check.name.clone(), check.text.clone()))
            {
                told.push((check.name.clone(), check.text.clone()));
                self.add("cables", check);
            }
        }
    }

    /// Looks for cables, and returns the messages.
    fn find_cables(&mut self) -> Vec<Message> {
        let limit = self.options.limit * 2;
        let job = Job { is_pair: true, ..Job::new("tcp", limit) };
        let command = self.starter.selftest(&job, &["--job", "pair:cables"]);
        let (ended, mut messages) = self.child(command, limit + LAUNCHER_DELAY);
        let cables = messages.iter().find_map(|message| match message {
            Message::Cables(cables) => Some(cables.clone()),
            _ => None,
        });
        let is_told = messages.iter().any(|message| matches!(message, Message::Check(_)));
        if cables.is_none() && !is_told {
            messages.push(Message::Check(of_end("search", &ended)));
        }
        let is_failure = |message: &Message| match message {
            Message::Check(check) if check.verdict != Verdict::Pass => Some(check.clone()),
            _ => None,
        };
        let cables = cables.unwrap_or_default();
        self.search_failure = cables.is_empty().then(|| messages.iter().find_map(is_failure)).flatten();
        self.cables = Some(cables);
        messages
    }

    /// Returns the first cable between the first two ranks.
    fn first_cable(&mut self) -> Option<Cable> {
        if self.cables.is_none() {
            self.find_cables();
        }
        self.cables.as_ref()?.first().cloned()
    }

    fn assumptions(&mut self) {
        let cable = self.first_cable();
        for probe in pair::PROBES {
            if !self.options.selection.has_probe(Section::Assumptions, probe.name) || self.is_over() {
                continue;
            }
            let Some(cable) = &cable else {
                let check = self.without_cable(probe.name);
                self.add("assumptions", check.relying_on(probe.relies));
                continue;
            };
            // One of the probes leaves the connection idle, once in each direction.
            let is_long = probe.name == pair::IDLE_PROBE && !self.options.quick;
            let limit = self.options.limit + if is_long { 2 * pair::IDLE } else { Duration::ZERO };
            let job = Job { is_pair: true, ..Job::new("tcp", limit) };
            let (name, ends) =
                (format!("{}{}", job::PAIR, probe.name), format!("{},{}", cable.ours, cable.theirs));
            let command = self.starter.selftest(&job, &["--job", &name, "--cable", &ends]);
            self.probe("assumptions", probe.name, probe.relies, command, limit + LAUNCHER_DELAY);
        }
    }

    /// Returns the check of a probe that has no cable, with the reason if the search for cables gave one.
    fn without_cable(&self, name: &str) -> Check {
        match &self.search_failure {
            None => Check::unknown(name, "no cable to test it on", NO_CABLE),
            Some(failure) => {
                let text = format!("no cable was found: {}", failure.text);
                Check { details: failure.details.clone(), ..Check::unknown(name, text, &*failure.remedy) }
            }
        }
    }

    /// Returns the transport of jobs: RDMA where a cable is there.
    fn transport(&mut self) -> &'static str {
        if self.first_cable().is_some() { "verbs" } else { self.transport_without_devices() }
    }

    fn transport_without_devices(&self) -> &'static str {
        if self.starter.has_hosts() { "shm+tcp" } else { "shm" }
    }

    fn speed(&mut self) {
        let (quick, limit) = (self.options.quick, self.options.limit * 4);
        let job = Job::new(self.transport(), limit);
        let sizes = speed::sizes(quick);
        for size in sizes {
            let command = self.starter.subcommand(&job, &speed::ping(size, quick));
            let (ended, _) = self.child(command, limit + LAUNCHER_DELAY);
            self.add_measured(&ended, speed::ping_check(size, sizes.last() == Some(size), &ended.output));
        }
        let command = self.starter.subcommand(&job, &speed::bench(quick));
        let (ended, _) = self.child(command, limit + LAUNCHER_DELAY);
        self.add_measured(&ended, speed::bench_check(&ended.output));
    }

    /// Adds the check of a measurement; a job that failed in spite of its output is a failure.
    fn add_measured(&mut self, ended: &Ended, check: Check) {
        let seconds = ended.took.as_secs_f64();
        let check = if ended.is_success() || check.verdict == Verdict::Fail && ended.output.is_empty() {
            check
        } else {
            of_end(&check.name, ended).with_details(ended.output.clone())
        };
        self.add("speed", Check { seconds, ..check });
    }

    /// Runs a job of all ranks whose checks are the section's.
    fn work(&mut self, section: Section, name: &str, times: u32) {
        let limit = self.options.limit * times;
        let job = Job::new(self.transport(), limit);
        let command = self.starter.selftest(&job, &["--job", name]);
        self.run_job(section.name(), name, command, limit + LAUNCHER_DELAY);
    }

    /// Runs a job and adds its checks as they come. Adds its end, too, if that was not in good order and no
    /// check has failed, or if no rank has reported anything.
    fn run_job(&mut self, prefix: &str, name: &str, command: Command, limit: Duration) {
        let (mut count, mut is_told) = (0, false);
        let (report, is_interrupted, starter) = (&mut self.report, self.is_interrupted, self.starter);
        let cable = self.cables.as_ref().and_then(|cables| cables.first());
        let ended = child::run(command, limit, is_interrupted, &mut |message| match message {
            Message::Check(check) => {
                count += 1;
                is_told |= check.verdict == Verdict::Fail;
                add(report, is_interrupted, prefix, check);
            }
            Message::Ask(ask) => {
                if let Some(why) = request(starter, report, cable, ask) {
                    let remedy = "see that softrdma is installed beside tbccl";
                    add(report, is_interrupted, prefix, Check::fail("request", why, remedy));
                }
            }
            _ => {}
        });
        if !ended.is_success() && !is_told {
            self.add(prefix, of_end(name, &ended));
        } else if count == 0 {
            let check = Check::fail(name, "nothing was reported", REPORT);
            self.add(prefix, check.with_details(ended.output));
        }
    }

    fn python(&mut self, section: Section, module: &str, programs: &[Program]) {
        let python = self.options.python.clone();
        let mut command = Command::new(&python);
        command.args(["-c", &python::probe(module)]);
        let (ended, _) = self.child(command, PYTHON_LIMIT);
        if !ended.is_success() {
            let text = format!("{python} can't import tbccl and {module}: {}", last_line(&ended));
            let remedy =
                "install tbccl into an environment that has it, and name its interpreter with --python";
            let check = Check::unknown("import", text, remedy).with_details(ended.output);
            return self.add(section.name(), check);
        }
        self.add(section.name(), Check::pass("import", last_line(&ended)));
        for program in programs {
            if self.is_over() {
                return;
            }
            // A rank that is killed must not hold devices: only the last section does that to them.
            let transport =
                if program.loses_rank { self.transport_without_devices() } else { self.transport() };
            let mut job = Job::new(transport, PYTHON_LIMIT);
            job.keep_going = program.loses_rank;
            let arguments = ["-c".into(), program.text().into()];
            let command = self.starter.job(&job, &python, arguments);
            self.run_job(section.name(), program.name, command, PYTHON_LIMIT + LAUNCHER_DELAY);
        }
    }

    fn unplug(&mut self) {
        if self.first_cable().is_none() {
            return self.add("unplug", Check::unknown("cable", "no cable to pull", NO_CABLE));
        }
        if let Err(why) = self.options.unplug.clone().or_else(|why| {
            // Cables of a fabric are pulled by a command.
            if self.starter.is_fabric() { Ok(()) } else { Err(why) }
        }) {
            return self.add("unplug", Check::unknown("cable", why, "run with --unplug, on a terminal"));
        }
        let mut job = Job::new("verbs", UNPLUG_LIMIT);
        // The only cable may stay unplugged for as long as the user takes.
        let wait = |seconds: u64| (UNPLUG_LIMIT.as_secs() - seconds).to_string();
        job.env = vec![("TBCCL_CABLE_WAIT", wait(40)), ("TBCCL_TIMEOUT", wait(20))];
        let command = self.starter.selftest(&job, &["--job", job::UNPLUG]);
        self.run_job("unplug", "cable", command, UNPLUG_LIMIT + LAUNCHER_DELAY);
    }

    fn failures(&mut self) {
        let limit = self.options.limit * 2;
        let had_cable = self.first_cable().is_some();
        for name in [job::ABORT, job::KILL] {
            let job = Job { keep_going: true, ..Job::new(self.transport(), limit) };
            let command = self.starter.selftest(&job, &["--job", name]);
            self.run_job("failures", name, command, limit + LAUNCHER_DELAY);
        }
        if had_cable && !self.is_over() {
            self.find_cables();
            let check = if self.first_cable().is_some() {
                Check::pass("devices-afterwards", "cables can be used after a rank was killed")
            } else {
                let remedy = "the killed process has left something behind in the driver: restart both \
                              machines, and please report it with this file";
                Check::fail("devices-afterwards", "no cable can be used after a rank was killed", remedy)
            };
            self.add("failures", check);
        }
    }
}

/// Adds a check under the name of its section and subject.
fn add(report: &mut Report, is_interrupted: &AtomicBool, prefix: &str, check: Check) {
    // An interrupt ends children; what they could not finish is no finding.
    if is_interrupted.load(Relaxed) && check.verdict == Verdict::Fail {
        return;
    }
    let name = format!("{prefix}/{}", check.name);
    report.add(Check { name, ..check });
}

/// Name of the probe that loads the library.
pub(super) const LIBRARY: &str = "library";

/// Asks the user to pull a cable or to plug it in, or has the fabric do it. Returns the problem, if any.
fn request(starter: &Starter, report: &Report, cable: Option<&Cable>, ask: Ask) -> Option<String> {
    if starter.is_fabric() {
        let fault = if ask == Ask::Pull { "unplug" } else { "replug" };
        return starter.fault(fault).err().map(|error| format!("{error:?}"));
    }
    let (ours, theirs) = cable.map_or(("?", "?"), |cable| (&cable.ours, &cable.theirs));
    report.say(&match ask {
        Ask::Pull => format!(
            ">>> now pull the cable between {ours} of rank 0 and {theirs} of rank 1, at either end; waiting \
             up to {} s",
            UNPLUG_LIMIT.as_secs() - 60
        ),
        Ask::Plug => ">>> now plug it in again, into the same port".to_owned(),
    });
    None
}

/// Returns the check of a child: the worst that it reported, or its end.
fn judge(name: &str, relies: &str, ended: &Ended, messages: Vec<Message>) -> Option<Check> {
    let mut checks: Vec<Check> = Vec::new();
    let mut echoes = Vec::new();
    for message in messages {
        match message {
            Message::Check(check) => checks.push(check),
            Message::Echo(check) => echoes.push(check),
            _ => {}
        }
    }
    checks.sort_by_key(|check| match check.verdict {
        Verdict::Fail => 0,
        Verdict::Unknown => 1,
        Verdict::Pass => 2,
    });
    let worst = checks.into_iter().next();
    match worst {
        Some(check) if check.verdict != Verdict::Pass || ended.is_success() => Some(check),
        // A probe that does not apply reports nothing.
        None if ended.is_success() && echoes.is_empty() => None,
        None if ended.is_success() => echoes.into_iter().next(),
        _ => Some(of_end(name, ended).relying_on(relies)),
    }
}

/// Returns the check of a child that did not end in good order.
fn of_end(name: &str, ended: &Ended) -> Check {
    let check = match ended.end {
        End::Interrupted => Check::unknown(name, ended.describe(), ended.remedy()),
        _ => Check::fail(name, ended.describe(), ended.remedy()),
    };
    check.with_details(ended.output.clone())
}

/// Returns the last line of a child's output.
fn last_line(ended: &Ended) -> String {
    ended
        .output
        .iter()
        .rev()
        .find(|line| !line.trim().is_empty())
        .cloned()
        .unwrap_or_else(|| ended.describe())
}
