//! Ranks on several hosts, each with an agent: from the first connection to the last process.
//!
//! All hosts are connected at the same time. Nothing is started anywhere until every host is ready: its agent
//! runs, has the same version, and has found the program and the folder. So a job that cannot be started
//! whole leaves one line per problem, and no process.
//!
//! A host whose connection is lost counts as failed with all of its ranks. The launcher need not end them:
//! the agent sees its stdin end, or gets no message, and ends them.

mod link;
mod ssh;
mod stdin;

use super::{
    Ended, HostSpec, Hosts, LaunchError, LaunchSpec, Rendezvous, Stdin,
    environment::{self, RankIdentity},
    frame::{FromAgent, PROTOCOL, Prepare, PrepareRank, ToAgent, VERSION, Variable},
    rank_set::{Member, RankSet},
    signals::Signals,
    sink::{Sink, Unwritten},
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

pub(super) use ssh::is_here;

/// How long a host may take to say that all is ready: ssh's own limit for connecting is shorter.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long others may take to tell of their problems once one host has.
const COMPANY: Duration = Duration::from_secs(3);

/// How long the end of a conversation may take beyond the grace of ranks.
const LAST_WORDS: Duration = Duration::from_secs(8);

/// How far a host has come.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Connecting,
    /// The agent is there; how the launcher is reached from it.
    Greeted(Option<String>),
    Ready,
    Started,
    Finished,
    /// Why not, in one line.
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

/// A rank of the job.
#[derive(Clone, Debug)]
struct Rank {
    member: Member,
    ended: Option<Ended>,
}

/// The ranks of all hosts. Dropping it ends all agents, and so all ranks.
#[derive(Debug)]
pub(super) struct RemoteRanks<'a> {
    spec: &'a LaunchSpec,
    plan: &'a Hosts,
    hosts: Vec<Host>,
    ranks: Vec<Rank>,
    news: EventReceiver,
    sink: Arc<Mutex<Sink>>,
    pump: Option<Pump>,
    /// Whether ranks have been told to start.
    is_going: bool,
    /// Signals that came before all were started.
    early: Vec<i32>,
    /// Ranks that have ended since the last query.
    ended: Vec<(Member, Ended)>,
    trouble: Option<Unwritten>,
}

impl<'a> RemoteRanks<'a> {
    /// Starts all ranks, or none.
    pub(super) fn start(
        spec: &'a LaunchSpec,
        plan: &'a Hosts,
        rendezvous: &dyn Rendezvous,
        signals: &mut Signals,
    ) -> Result<RemoteRanks<'a>, LaunchError> {
        let mut company = RemoteRanks::connect(spec, plan)?;
        company.until(signals, |stage| matches!(stage, Stage::Greeted(_)))?;
        for host in &company.hosts {
            host.link.send(&ToAgent::Prepare(Box::new(company.prepare(host, rendezvous))), b"");
        }
        company.until(signals, |stage| *stage == Stage::Ready)?;
        company.is_going = true;
        for host in &company.hosts {
            host.link.send(&ToAgent::Go, b"");
        }
        company.until(signals, |stage| *stage == Stage::Started)?;
        company.start_pump()?;
        Ok(company)
    }

    fn connect(spec: &'a LaunchSpec, plan: &'a Hosts) -> Result<RemoteRanks<'a>, LaunchError> {
        let (sender, news) = Events::new().map_err(LaunchError::system("read the ranks' output"))?;
        let sink = Arc::new(Mutex::new(Sink::open(&plan.output, spec.ranks)?));
        // With one host only, and this one, the host of a rank need not be named.
        let is_obvious = plan.hosts.iter().all(|host| host.local);
        let host_of = |rank: u32| plan.hosts[plan.host_of[rank as usize]].name.clone();
        let host = |rank| (!is_obvious).then(|| host_of(rank));
        let rank = |rank| Rank { member: Member { rank, pid: 0, host: host(rank) }, ended: None };
        let ranks = (0..spec.ranks).map(rank).collect();
        let (pump, is_going, early, ended, trouble) = (None, false, Vec::new(), Vec::new(), None);
        let hosts = Vec::new();
        let mut company =
            RemoteRanks { spec, plan, hosts, ranks, news, sink, pump, is_going, early, ended, trouble };
        // If a connection cannot be opened, those that were are closed in order.
        for (at, host) in plan.hosts.iter().enumerate() {
            let link = Link::open(plan, at, host, &sender, &company.sink)?;
            let ranks = (0..).zip(&plan.host_of).filter(|(_, of)| **of == at).map(|(rank, _)| rank).collect();
            company.hosts.push(Host { spec: host.clone(), link, stage: Stage::Connecting, ranks });
        }
        Ok(company)
    }

    /// Returns the processes that a host is to start.
    fn prepare(&self, host: &Host, rendezvous: &dyn Rendezvous) -> Prepare {
        let told = |host: &'_ Host| match &host.stage {
            // The address in a local agent's environment is that of a user logged in here.
            Stage::Greeted(address) if !host.spec.local => address.clone(),
            _ => None,
        };
        let bootstrap = if host.spec.local {
            rendezvous.address_here(self.hosts.iter().find_map(told).as_deref())
        } else {
            rendezvous.address_from(told(host).as_deref())
        };
        let secret = rendezvous.secret();
        let seats = RankIdentity::all(&self.plan.host_of);
        let pair = |(key, value): (&str, String)| (key.into(), value.into());
        let rank = |rank: u32| PrepareRank {
            rank,
            identity: environment::of_rank(seats[rank as usize], &bootstrap, secret.as_deref())
                .into_iter()
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
            grace_ms: u64::try_from(self.spec.grace.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn gets_stdin(&self, rank: u32) -> bool {
        Pump::is_wanted()
            && match self.plan.stdin {
                Stdin::None => false,
                Stdin::Rank(one) => one == rank,
                Stdin::All => true,
            }
    }

    fn start_pump(&mut self) -> Result<(), LaunchError> {
        let way = |rank: u32| self.hosts[self.plan.host_of[rank as usize]].link.sender();
        let targets: Vec<_> = (0..self.spec.ranks)
            .filter(|rank| self.gets_stdin(*rank))
            .filter_map(|rank| Some((rank, way(rank)?)))
            .collect();
        if !targets.is_empty() {
            self.pump = Some(Pump::start(targets).map_err(LaunchError::system("pass stdin on"))?);
        }
        Ok(())
    }

    /// Waits until every host has come so far.
    fn until(&mut self, signals: &mut Signals, so_far: impl Fn(&Stage) -> bool) -> Result<(), LaunchError> {
        let mut deadline = Instant::now() + PATIENCE;
        let mut company = false;
        loop {
            self.take_events();
            let failed = self.hosts.iter().any(|host| matches!(host.stage, Stage::Failed(_)));
            if failed && !company {
                company = true;
                deadline = deadline.min(Instant::now() + COMPANY);
            }
            let done =
                |host: &Host| so_far(&host.stage) || matches!(host.stage, Stage::Failed(_) | Stage::Started);
            if self.hosts.iter().all(done) || Instant::now() >= deadline {
                break;
            }
            let arrived = signals.wait(Some(deadline), Some(self.news.descriptor()))?;
            self.hold(arrived)?;
        }
        let failed = self.hosts.iter().any(|host| matches!(host.stage, Stage::Failed(_)));
        let problem = |host: &Host| match &host.stage {
            Stage::Failed(why) => Some(format!("host {}: {why}", host.spec.name)),
            // Those that are only slower than the failure of another have no problem.
            stage if failed || so_far(stage) || *stage == Stage::Started => None,
            _ => Some(format!("host {}: no answer within {PATIENCE:?}; is it overloaded?", host.spec.name)),
        };
        let problems: Vec<String> = self.hosts.iter().filter_map(problem).collect();
        if problems.is_empty() { Ok(()) } else { Err(LaunchError::Hosts(problems)) }
    }

    /// Handles signals that arrive early. Before ranks are told to start, signals that end programs end this
    /// one. From then on they are for the ranks, which get them when all are started, unless the user
    /// insists.
    fn hold(&mut self, arrived: Vec<i32>) -> Result<(), LaunchError> {
        for signal in arrived {
            let ends = |signal: &i32| [SIGINT, SIGTERM, SIGHUP].contains(signal);
            if ends(&signal) && (!self.is_going || self.early.iter().any(ends)) {
                return Err(LaunchError::Interrupted(signal));
            }
            if self.is_going {
                self.early.push(signal);
            }
        }
        Ok(())
    }

    /// Takes note of what the hosts have told.
    fn take_events(&mut self) {
        for (at, event) in self.news.take() {
            match event {
                Event::Said(said) => self.hear(at, said),
                Event::Closed(why) => self.lose(at, &why),
                Event::Unwritten(why) => drop(self.trouble.get_or_insert(why)),
            }
        }
    }

    fn hear(&mut self, at: usize, said: FromAgent) {
        let host = &mut self.hosts[at];
        match said {
            FromAgent::Hello { version, protocol, launcher } => {
                host.stage = if version == VERSION && protocol == PROTOCOL {
                    Stage::Greeted(launcher)
                } else {
                    Stage::Failed(format!(
                        "its tbccl is {version} (protocol {protocol}), and ours {VERSION} (protocol {PROTOCOL}); install the same on both, or name another with --tbccl"
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
            FromAgent::Ended { rank, how } => self.note_end(rank, how),
            FromAgent::StdinTaken { .. } => {
                if let Some(pump) = &self.pump {
                    pump.was_taken();
                }
            }
            FromAgent::Warning { text } => {
                let text = format!("warning: host {}: {text}", host.spec.name);
                self.spec.say(&text);
            }
            FromAgent::Finished => host.stage = Stage::Finished,
            FromAgent::Alive | FromAgent::Output { .. } => {}
        }
    }

    fn note_end(&mut self, rank: u32, how: Ended) {
        if let Some(rank) = self.ranks.get_mut(rank as usize)
            && rank.ended.is_none()
        {
            rank.ended = Some(how);
            self.ended.push((rank.member.clone(), how));
        }
    }

    /// A conversation is over.
    fn lose(&mut self, at: usize, why: &str) {
        let host = &mut self.hosts[at];
        if matches!(host.stage, Stage::Finished | Stage::Failed(_)) {
            return;
        }
        host.link.close();
        let (status, said) = host.link.post_mortem(Duration::from_secs(1));
        let was_started = host.stage == Stage::Started;
        let ended = why == "the connection ended";
        let why = if ended { ssh::explain(self.plan, &host.spec, status, &said) } else { why.to_owned() };
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
            self.note_end(rank, Ended::Lost);
        }
    }

    /// Ends what is left on all hosts, and waits for their last words.
    fn finish(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        self.pump = None;
        for host in &self.hosts {
            host.link.send(&ToAgent::Finish, b"");
        }
        let until = Instant::now() + self.spec.grace + LAST_WORDS;
        loop {
            self.take_events();
            let done = |host: &Host| matches!(host.stage, Stage::Finished | Stage::Failed(_));
            if self.hosts.iter().all(done) || Instant::now() >= until {
                break;
            }
            let arrived = signals.wait(Some(until), Some(self.news.descriptor()))?;
            if arrived.iter().any(|signal| [SIGINT, SIGTERM, SIGHUP].contains(signal)) {
                break;
            }
        }
        for host in &mut self.hosts {
            host.link.end(Duration::from_secs(2));
        }
        self.take_events();
        let finished = self.sink.lock().unwrap_or_else(PoisonError::into_inner).finish();
        if let Err(why) = finished {
            self.trouble.get_or_insert(why);
        }
        Ok(())
    }
}

impl Drop for RemoteRanks<'_> {
    /// Agents whose stdin ends end their ranks; those of other hosts do so when ssh is gone.
    fn drop(&mut self) {
        for host in &mut self.hosts {
            host.link.close();
        }
        self.pump = None;
        for host in &mut self.hosts {
            let patience =
                if host.spec.local { self.spec.grace + LAST_WORDS } else { Duration::from_secs(2) };
            host.link.end(patience);
        }
    }
}

impl RankSet for RemoteRanks<'_> {
    fn newly_ended(&mut self) -> Vec<(Member, Ended)> {
        self.take_events();
        std::mem::take(&mut self.ended)
    }

    fn running(&self) -> Vec<Member> {
        self.ranks.iter().filter(|rank| rank.ended.is_none()).map(|rank| rank.member.clone()).collect()
    }

    fn signal(&mut self, signal: Signal) {
        for host in &self.hosts {
            host.link.send(&ToAgent::Signal { number: signal.as_raw() }, b"");
        }
    }

    fn early_signals(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.early)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.news.descriptor())
    }

    fn trouble(&mut self) -> Option<Unwritten> {
        self.trouble.take()
    }

    fn finish(&mut self, signals: &mut Signals) -> Result<(), LaunchError> {
        RemoteRanks::finish(self, signals)
    }
}
