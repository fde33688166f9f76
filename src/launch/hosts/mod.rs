//! Ranks on one or more hosts, with an agent on each, from the first connection to the last process.
//!
//! All hosts are connected at the same time. No rank is started until every host is ready: its agent runs,
//! has the same version, and has found the program and the folder. A job that cannot start everywhere
//! therefore leaves one line per problem, and no process.
//!
//! A host whose connection is lost counts as failed with all of its ranks. The launcher need not end them:
//! the agent's connection ends or falls silent, and the agent ends them; where the agent is killed, its
//! keeper does. On this host the launcher ends them itself if both are killed: it finds them by the job's
//! mark.

mod ask;
mod link;
mod ssh;
mod stdin;

use super::{
    Ended, HostSpec, Hosts, LaunchError, LaunchSpec, Output, Rendezvous, Stdin,
    ending::Ending,
    environment::{self, RankIdentity},
    frame::{FromAgent, PROTOCOL, Prepare, PrepareRank, ToAgent, VERSION, Variable},
    processes::{JobMark, Scope},
    signals::Signals,
    sink::{OutputError, Sink},
};
use link::{Event, EventReceiver, Events, Link};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use stdin::Pump;

pub use ask::ask;
pub(super) use ssh::is_here;

/// Time in which a host must become ready; ssh's own connection limit is shorter.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Time in which other hosts can report their problems after the first failure.
const FAILURE_WINDOW: Duration = Duration::from_secs(3);

/// Time that the end of a connection may take beyond the ranks' grace period.
const FINISH_TIMEOUT: Duration = Duration::from_secs(8);

/// Start-up stage of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// The agent is connected; contains the launcher's address as the agent sees it.
    Greeted(Option<String>),
    Ready,
    Started,
    Finished,
    /// The start failed; the reason in one line.
    Failed(String),
}

/// A host of the job.
#[derive(Debug)]
struct Host {
    spec: HostSpec,
    link: Link,
    stage: Stage,
    ranks: Vec<u32>,
}

/// A rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// The rank.
    pub(super) rank: u32,
    /// Process id on its host.
    pub(super) pid: u32,
    /// Its host, if the job has ranks on other hosts.
    pub(super) host: Option<String>,
}

/// A rank of the job.
#[derive(Clone, Debug)]
struct Rank {
    member: Member,
    ended: Option<Ended>,
}

/// The ranks of all hosts. Dropping it ends all agents, which end their ranks.
#[derive(Debug)]
pub(super) struct HostRanks<'a> {
    spec: &'a LaunchSpec,
    plan: &'a Hosts,
    /// Whether all ranks run on this host.
    is_local_only: bool,
    /// The mark of the job's processes.
    mark: JobMark,
    hosts: Vec<Host>,
    ranks: Vec<Rank>,
    events: EventReceiver,
    sink: Arc<Mutex<Sink>>,
    pump: Option<Pump>,
    /// Whether ranks have been told to start.
    has_released: bool,
    /// Signals that arrived before all ranks were started.
    early_signals: Vec<i32>,
    /// Ranks that have ended since the last query.
    ended: Vec<(Member, Ended)>,
    output_error: Option<OutputError>,
}

impl<'a> HostRanks<'a> {
    /// Starts all ranks, or none.
    pub(super) fn start(
        spec: &'a LaunchSpec,
        rendezvous: &dyn Rendezvous,
        signals: &mut Signals,
    ) -> Result<HostRanks<'a>, LaunchError> {
        let mut ranks = HostRanks::connect(spec)?;
        ranks.wait_for_stage(signals, |stage| matches!(stage, Stage::Greeted(_)))?;
        for host in &ranks.hosts {
            host.link.send(&ToAgent::Prepare(Box::new(ranks.prepare(host, rendezvous))), b"");
        }
        ranks.wait_for_stage(signals, |stage| *stage == Stage::Ready)?;
        ranks.has_released = true;
        for host in &ranks.hosts {
            host.link.send(&ToAgent::Go, b"");
        }
        ranks.wait_for_stage(signals, |stage| *stage == Stage::Started)?;
        ranks.start_pump()?;
        Ok(ranks)
    }

    fn connect(spec: &'a LaunchSpec) -> Result<HostRanks<'a>, LaunchError> {
        let plan = &spec.hosts;
        let (sender, events) = Events::new().map_err(LaunchError::system("read the ranks' output"))?;
        let sink = Arc::new(Mutex::new(Sink::open(&plan.output, spec.ranks)?));
        // The host is not named when all ranks run on this host.
        let is_local_only = plan.hosts.iter().all(|host| host.local);
        let host_of = |rank: u32| plan.hosts[plan.host_of[rank as usize]].name.clone();
        let host = |rank| (!is_local_only).then(|| host_of(rank));
        let rank = |rank| Rank { member: Member { rank, pid: 0, host: host(rank) }, ended: None };
        let mut ranks = HostRanks {
            spec,
            plan,
            is_local_only,
            mark: JobMark::new(),
            hosts: Vec::new(),
            ranks: (0..spec.ranks).map(rank).collect(),
            events,
            sink,
            pump: None,
            has_released: false,
            early_signals: Vec::new(),
            ended: Vec::new(),
            output_error: None,
        };
        // If a connection cannot be opened, dropping `ranks` closes those already open.
        for (host_index, host) in plan.hosts.iter().enumerate() {
            let link = Link::open(plan, host_index, &ranks.mark, &sender, &ranks.sink)?;
            let of_host = (0..).zip(&plan.host_of).filter(|(_, of)| **of == host_index);
            let of_host = of_host.map(|(rank, _)| rank).collect();
            ranks.hosts.push(Host { spec: host.clone(), link, stage: Stage::Connecting, ranks: of_host });
        }
        Ok(ranks)
    }

    /// Returns the processes that a host is to start.
    fn prepare(&self, host: &Host, rendezvous: &dyn Rendezvous) -> Prepare {
        let launcher_address = |host: &'_ Host| match &host.stage {
            // A local agent inherits SSH_CONNECTION from a user's login here; it does not describe this
            // connection.
            Stage::Greeted(address) if !host.spec.local => address.clone(),
            _ => None,
        };
        let bootstrap = if host.spec.local {
            rendezvous.address_here(self.hosts.iter().find_map(launcher_address).as_deref())
        } else {
            rendezvous.address_from(launcher_address(host).as_deref())
        };
        let secret = rendezvous.secret();
        let identities = RankIdentity::all(&self.plan.host_of);
        let pair = |(key, value): (&str, String)| (key.into(), value.into());
        let rank = |rank: u32| PrepareRank {
            rank,
            identity: environment::rank_variables(identities[rank as usize], &bootstrap, secret.as_deref())
                .into_iter()
                .chain([(JobMark::NAME, self.mark.value().to_owned())])
                .map(pair)
                .collect::<Vec<Variable>>(),
            own: self.spec.rank_env.get(rank as usize).cloned().unwrap_or_default(),
            stdin: self.gets_stdin(rank),
        };
        Prepare {
            ranks: host.ranks.iter().copied().map(rank).collect(),
            of: self.spec.ranks,
            program: self.spec.program.clone(),
            args: self.spec.args.clone(),
            env: self.spec.env.clone(),
            cwd: self.spec.cwd.clone(),
            files: self.plan.files.clone(),
            bind: self.spec.bind.into(),
            inherits: self.plan.output == Output::Inherited,
            mark: self.mark.clone(),
            grace_ms: u64::try_from(self.spec.grace.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Whether this process forwards its stdin to a rank.
    fn gets_stdin(&self, rank: u32) -> bool {
        self.plan.output != Output::Inherited
            && Pump::is_wanted()
            && match self.plan.stdin {
                Stdin::None => false,
                Stdin::Rank(one) => one == rank,
                Stdin::All => true,
            }
    }

    fn start_pump(&mut self) -> Result<(), LaunchError> {
        let frame_sender = |rank: u32| self.hosts[self.plan.host_of[rank as usize]].link.sender();
        let targets: Vec<_> = (0..self.spec.ranks)
            .filter(|rank| self.gets_stdin(*rank))
            .filter_map(|rank| Some((rank, frame_sender(rank)?)))
            .collect();
        if !targets.is_empty() {
            self.pump = Some(Pump::start(targets).map_err(LaunchError::system("pass stdin on"))?);
        }
        Ok(())
    }

    /// Waits until every host has reached a stage, or fails.
    fn wait_for_stage(
        &mut self,
        signals: &mut Signals,
        reached: impl Fn(&Stage) -> bool,
    ) -> Result<(), LaunchError> {
        let mut deadline = Instant::now() + READY_TIMEOUT;
        let mut has_failed = false;
        loop {
            self.take_events();
            let failed = self.hosts.iter().any(|host| matches!(host.stage, Stage::Failed(_)));
            if failed && !has_failed {
                has_failed = true;
                deadline = deadline.min(Instant::now() + FAILURE_WINDOW);
            }
            let done =
                |host: &Host| reached(&host.stage) || matches!(host.stage, Stage::Failed(_) | Stage::Started);
            if self.hosts.iter().all(done) || Instant::now() >= deadline {
                break;
            }
            let arrived = signals.wait(Some(deadline), Some(self.events.descriptor()))?;
            self.hold_signals(arrived)?;
        }
        let failed = self.hosts.iter().any(|host| matches!(host.stage, Stage::Failed(_)));
        let problem = |host: &Host| match &host.stage {
            Stage::Failed(why) => Some(self.of_host(host, why)),
            // After another host's failure, a host that has not answered yet is not reported.
            stage if failed || reached(stage) || *stage == Stage::Started => None,
            _ => Some(self.of_host(host, &format!("no answer within {READY_TIMEOUT:?}; is it overloaded?"))),
        };
        let problems: Vec<String> = self.hosts.iter().filter_map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(LaunchError::Hosts(problems)) }
    }

    /// Returns a message, preceded by its host where there are others.
    fn of_host(&self, host: &Host, text: &str) -> String {
        if self.is_local_only { text.to_owned() } else { format!("host {}: {text}", host.spec.name) }
    }

    /// Handles signals that arrive during start-up. Before the ranks are told to start, a terminating signal
    /// ends the launcher. Afterwards signals are kept for the ranks until all are started; a second
    /// terminating signal ends the launcher.
    fn hold_signals(&mut self, arrived: Vec<i32>) -> Result<(), LaunchError> {
        for signal in arrived {
            let ends = |signal: &i32| [SIGINT, SIGTERM, SIGHUP].contains(signal);
            if ends(&signal) && (!self.has_released || self.early_signals.iter().any(ends)) {
                return Err(LaunchError::Interrupted(signal));
            }
            if self.has_released {
                self.early_signals.push(signal);
            }
        }
        Ok(())
    }

    /// Handles the queued events of the hosts.
    fn take_events(&mut self) {
        for (host_index, event) in self.events.take() {
            match event {
                Event::Received(frame) => self.handle_frame(host_index, frame),
                Event::Closed(why) => self.handle_close(host_index, &why),
                Event::OutputError(why) => drop(self.output_error.get_or_insert(why)),
            }
        }
    }

    fn handle_frame(&mut self, host_index: usize, frame: FromAgent) {
        let host = &mut self.hosts[host_index];
        match frame {
            FromAgent::Hello { version, protocol, launcher } => {
                host.stage = if version == VERSION && protocol == PROTOCOL {
                    Stage::Greeted(launcher)
                } else {
                    Stage::Failed(format!(
                        "its tbccl is {version} (protocol {protocol}), and this one is {VERSION} \
                         (protocol {PROTOCOL}); install the same on both, or name another with --tbccl"
                    ))
                };
            }
            FromAgent::Ready => host.stage = Stage::Ready,
            FromAgent::Refused { why } => host.stage = Stage::Failed(why),
            FromAgent::Started { pids } => {
                host.stage = Stage::Started;
                for (rank, pid) in host.ranks.iter().zip(pids) {
                    self.ranks[*rank as usize].member.pid = pid;
                }
            }
            FromAgent::Ended { rank, how } => self.record_exit(rank, how),
            FromAgent::StdinTaken { .. } => {
                if let Some(pump) = &self.pump {
                    pump.acknowledge();
                }
            }
            FromAgent::Warning { text } => {
                let text = self.of_host(&self.hosts[host_index], &text);
                self.spec.say(&format!("warning: {text}"));
            }
            FromAgent::Finished => host.stage = Stage::Finished,
            FromAgent::Alive | FromAgent::Output { .. } => {}
        }
    }

    fn record_exit(&mut self, rank: u32, how: Ended) {
        if let Some(rank) = self.ranks.get_mut(rank as usize)
            && rank.ended.is_none()
        {
            rank.ended = Some(how);
            self.ended.push((rank.member.clone(), how));
        }
    }

    /// Handles the end of a connection.
    fn handle_close(&mut self, host_index: usize, why: &str) {
        let host = &mut self.hosts[host_index];
        if matches!(host.stage, Stage::Finished | Stage::Failed(_)) {
            return;
        }
        host.link.close();
        let (status, stderr_lines) = host.link.post_mortem(Duration::from_secs(1));
        let was_started = host.stage == Stage::Started;
        let ended = why == "the connection ended";
        let why =
            if ended { ssh::explain(self.plan, &host.spec, status, &stderr_lines) } else { why.to_owned() };
        let lost: Vec<u32> =
            host.ranks.iter().copied().filter(|rank| self.ranks[*rank as usize].ended.is_none()).collect();
        if was_started && !lost.is_empty() {
            let name = &host.spec.name;
            let names: Vec<String> = lost.iter().map(u32::to_string).collect();
            let (ranks, count) = if lost.len() == 1 { ("rank", "counts") } else { ("ranks", "count") };
            let line = format!("host {name} is lost: {why}; {ranks} {} {count} as failed", names.join(", "));
            self.spec.say(&line);
        }
        host.stage = Stage::Failed(why);
        for rank in lost.into_iter().filter(|_| was_started) {
            self.record_exit(rank, Ended::Lost);
        }
    }

    /// Ends the remaining processes on all hosts, and waits for the agents' last frames. A terminating signal
    /// ends the grace period.
    pub(super) fn finish(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        self.pump = None;
        for host in &self.hosts {
            host.link.send(&ToAgent::Finish, b"");
        }
        let deadline = Instant::now() + self.spec.grace + FINISH_TIMEOUT;
        loop {
            self.take_events();
            let done = |host: &Host| matches!(host.stage, Stage::Finished | Stage::Failed(_));
            if self.hosts.iter().all(done) || Instant::now() >= deadline {
                break;
            }
            let arrived = signals.wait(Some(deadline), Some(self.events.descriptor()))?;
            if arrived.iter().any(|signal| [SIGINT, SIGTERM, SIGHUP].contains(signal)) {
                self.signal(Signal::KILL);
            }
        }
        self.end_agents();
        self.take_events();
        let finished = self.sink.lock().unwrap_or_else(PoisonError::into_inner).finish();
        if let Err(why) = finished {
            self.output_error.get_or_insert(why);
        }
        Ok(())
    }

    /// Closes all connections, and waits for the end of the agents. Where the agent of this host and its
    /// keeper were killed, ends the processes that have the job's mark.
    fn end_agents(&mut self) {
        self.pump = None;
        for host in &mut self.hosts {
            host.link.close();
        }
        let mut has_survivors = false;
        for host in &mut self.hosts {
            // The agent of a started host that has not finished is stopped, and its keeper ends the ranks.
            let has_ranks = host.spec.local || host.stage == Stage::Started;
            let limit = if has_ranks { self.spec.grace + FINISH_TIMEOUT } else { Duration::from_secs(2) };
            let has_ended = host.link.end(limit);
            has_survivors |= host.spec.local && !has_ended;
        }
        if has_survivors {
            Ending::begin(Scope::marked(self.mark.clone()), self.spec.grace).wait();
        }
    }

    /// Returns the ranks that have ended since the last call.
    pub(super) fn newly_ended(&mut self) -> Vec<(Member, Ended)> {
        self.take_events();
        std::mem::take(&mut self.ended)
    }

    /// Returns the running ranks.
    pub(super) fn running(&self) -> Vec<Member> {
        self.ranks.iter().filter(|rank| rank.ended.is_none()).map(|rank| rank.member.clone()).collect()
    }

    /// Signals the process groups of all ranks.
    pub(super) fn signal(&mut self, signal: Signal) {
        for host in &self.hosts {
            host.link.send(&ToAgent::Signal { number: signal.as_raw() }, b"");
        }
    }

    /// Returns signals for the ranks that arrived while they were being started.
    pub(super) fn early_signals(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.early_signals)
    }

    /// Returns a descriptor that is readable when hosts have sent events.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Returns the error that lost output, once.
    pub(super) fn output_error(&mut self) -> Option<OutputError> {
        self.output_error.take()
    }
}

impl Drop for HostRanks<'_> {
    /// Ends all agents, which end their ranks; agents of other hosts notice when ssh ends.
    fn drop(&mut self) {
        self.end_agents();
    }
}
