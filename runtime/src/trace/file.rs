//! The file of a rank, as JSON for Chrome's trace viewer and Perfetto.
//!
//! Both read `traceEvents`; `tbccl trace` also reads the object `tbccl`, which comes first. Times are
//! microseconds on the host's monotonic clock, except those of clock samples, which are nanoseconds.

use super::{
    about::{About, micros},
    event::{CallEnd, CallEvent, Event, StepEvent, StepKind, TaggedEvent},
    layout::{Threads, Track, rail_threads},
    rails::Outage,
};
use crate::call::CallKind;
use events::open_own;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, BufWriter, Write},
    path::Path,
};

/// The content of a rank's file.
pub(super) struct TraceFile<'t> {
    pub(super) about: About,
    pub(super) events: &'t [Event],
    pub(super) algorithms: &'t [String],
    pub(super) outages: &'t [Outage],
    /// Time for the end of events that have none.
    pub(super) latest: u64,
    /// Outcome of calls without an end.
    pub(super) open_outcome: &'static str,
}

/// An event that lasts, as the viewers read it.
#[derive(Debug, Serialize)]
struct Slice<'s> {
    ph: &'static str,
    name: &'s str,
    cat: &'static str,
    pid: u32,
    tid: u64,
    ts: f64,
    dur: f64,
    args: &'s Value,
}

/// An event with the track and the times for its slices.
struct Timed {
    track: Track,
    begin: u64,
    end: u64,
    event: Event,
}

impl TraceFile<'_> {
    /// Writes the file, in the place of an earlier one of the same name. A file that can't be completed is
    /// removed.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = open_own(path)?;
        file.set_len(0)?;
        let mut out = BufWriter::with_capacity(1 << 16, file);
        let written = self.write_to(&mut out).and_then(|()| out.flush());
        if written.is_err() {
            // The reason of the failure is reported; this one would be the same.
            let _ = fs::remove_file(path);
        }
        written
    }

    /// Writes the content of the file.
    pub(super) fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"tbccl\":")?;
        serde_json::to_writer(&mut *out, &self.about)?;
        out.write_all(b",\n\"traceEvents\":[\n")?;
        let name = json!({ "name": format!("rank {}", self.about.rank) });
        self.write_metadata(out, "process_name", None, &name)?;
        let mut events = self.timed();
        events.sort_by_key(|timed| (timed.begin, std::cmp::Reverse(timed.end)));
        let mut threads = Threads::new(self.about.size as usize);
        for timed in &events {
            let thread = threads.place(timed.track, timed.begin, timed.end);
            self.write_event(out, timed, thread)?;
        }
        let rails = rail_threads(self.outages);
        for (outage, thread) in self.outages.iter().zip(rails.of_outages) {
            self.write_outage(out, outage, thread)?;
        }
        for thread in threads.used().chain(rails.threads) {
            let number = Some(thread.number);
            self.write_metadata(out, "thread_name", number, &json!({ "name": thread.name }))?;
            let order = json!({ "sort_index": thread.sort_index });
            self.write_metadata(out, "thread_sort_index", number, &order)?;
        }
        // An element after the last comma.
        self.write_last(out)?;
        out.write_all(b"]}\n")
    }

    /// Returns the events with their tracks. Events without an end last until the latest time.
    fn timed(&self) -> Vec<Timed> {
        let timed = |event: &Event| {
            let (track, begin, end) = match event {
                Event::Call(call) => (Track::Local, call.begin, call.end),
                Event::EntryWait(wait) => (Track::Local, wait.begin, wait.end),
                Event::Step(step) => (track_of(step), step.begin, step.end),
                Event::Tagged(message) if message.is_send => {
                    (Track::To(message.peer), message.begin, message.end)
                }
                Event::Tagged(message) => (Track::From(message.peer), message.begin, message.end),
            };
            let end = if end == 0 { self.latest } else { end };
            Timed { track, begin, end: end.max(begin), event: *event }
        };
        self.events.iter().map(timed).collect()
    }

    fn write_outage(&self, out: &mut dyn Write, outage: &Outage, thread: u64) -> io::Result<()> {
        let Outage { peer, device, peer_device, begin, end } = outage;
        let end = if *end == 0 { self.latest.max(*begin) } else { *end };
        let args = json!({ "peer": peer, "device": device, "peer_device": peer_device });
        self.write_slice(out, ("rail is down", "rail"), (thread, *begin, end), &args)
    }

    fn write_event(&self, out: &mut dyn Write, timed: &Timed, thread: u64) -> io::Result<()> {
        let Timed { begin, end, event, .. } = timed;
        match event {
            Event::Call(call) => self.write_slice(
                out,
                (&call.record.name(), "call"),
                (thread, *begin, *end),
                &self.call_args(call),
            ),
            Event::EntryWait(wait) => {
                let name = format!("wait for rank {} to enter the call", wait.peer);
                self.write_slice(
                    out,
                    (&name, "wait"),
                    (thread, *begin, *end),
                    &json!({ "peer": wait.peer.0 }),
                )
            }
            Event::Tagged(message) => {
                let (name, category) = match message.is_send {
                    true => (format!("send to rank {}, tag {}", message.peer, message.tag), "send"),
                    false => (format!("recv from rank {}, tag {}", message.peer, message.tag), "receive"),
                };
                self.write_slice(out, (&name, category), (thread, *begin, *end), &tagged_args(message))
            }
            Event::Step(step) => {
                let (name, category) = name_of(step);
                self.write_slice(out, (&name, category), (thread, *begin, *end), &step_args(step))?;
                let arrived = if step.arrived == 0 { *end } else { step.arrived.min(*end) };
                match step.message.filter(|_| category == "receive" && arrived > *begin) {
                    Some(message) => {
                        let name = format!("wait for rank {}", message.peer);
                        let args = json!({ "peer": message.peer.0 });
                        self.write_slice(out, (&name, "wait"), (thread, *begin, arrived), &args)
                    }
                    None => Ok(()),
                }
            }
        }
    }

    fn write_slice(
        &self,
        out: &mut dyn Write,
        (name, cat): (&str, &'static str),
        (tid, begin, end): (u64, u64, u64),
        args: &Value,
    ) -> io::Result<()> {
        let pid = self.about.rank;
        let (ts, dur) = (micros(begin), micros(end - begin));
        serde_json::to_writer(&mut *out, &Slice { ph: "X", name, cat, pid, tid, ts, dur, args })?;
        out.write_all(b",\n")
    }

    fn write_metadata(
        &self,
        out: &mut dyn Write,
        name: &str,
        thread: Option<u64>,
        args: &Value,
    ) -> io::Result<()> {
        let tid = thread.unwrap_or(0);
        let event = json!({ "ph": "M", "name": name, "pid": self.about.rank, "tid": tid, "args": args });
        serde_json::to_writer(&mut *out, &event)?;
        out.write_all(b",\n")
    }

    fn write_last(&self, out: &mut dyn Write) -> io::Result<()> {
        let rank = self.about.rank;
        let args = json!({ "sort_index": 2 * u64::from(rank) });
        let event = json!({ "ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": args });
        serde_json::to_writer(&mut *out, &event)?;
        out.write_all(b"\n")
    }

    fn call_args(&self, call: &CallEvent) -> Value {
        let record = &call.record;
        let outcome = match call.outcome {
            CallEnd::UnderWay => self.open_outcome,
            CallEnd::Done => "done",
            CallEnd::Failed => "failed",
        };
        let (scope, direction) = match record.kind {
            CallKind::Collective(_) => ("collective", None),
            CallKind::Send => ("message", Some("send")),
            CallKind::Recv => ("message", Some("receive")),
        };
        let mut args = json!({
            "call": record.seq,
            "scope": scope,
            "what": record.to_string(),
            "algorithm": self.algorithms.get(usize::from(call.algorithm)).map_or("", String::as_str),
            "bytes": call.bytes,
            "outcome": outcome,
        });
        if let Some(direction) = direction {
            args["direction"] = direction.into();
            args["peer"] = record.root.0.into();
        }
        args
    }
}

fn tagged_args(message: &TaggedEvent) -> Value {
    json!({
        "scope": "tagged",
        "request": message.request,
        "peer": message.peer.0,
        "context": message.context,
        "tag": message.tag,
        "bytes": message.bytes,
    })
}

fn track_of(step: &StepEvent) -> Track {
    match step.message {
        Some(message) if step.kind == StepKind::Send => Track::To(message.peer),
        Some(message) => Track::From(message.peer),
        None => Track::Local,
    }
}

/// Returns the name and the category of a step; categories are those of simulated traces.
fn name_of(step: &StepEvent) -> (String, &'static str) {
    let word = match step.kind {
        StepKind::Send => "send",
        StepKind::Recv => "recv",
        StepKind::RecvReduce => "recv_reduce",
        StepKind::Copy => "copy",
        StepKind::Reduce => "reduce",
        StepKind::Encode => "encode",
        StepKind::Decode => "decode",
        StepKind::DecodeReduce => "decode_reduce",
    };
    match (step.message, step.kind) {
        (Some(message), StepKind::Send) => (format!("{word} to rank {}", message.peer), "send"),
        (Some(message), _) => (format!("{word} from rank {}", message.peer), "receive"),
        (None, _) => (word.to_owned(), "local"),
    }
}

fn step_args(step: &StepEvent) -> Value {
    let scope = if step.call.is_message { "message" } else { "collective" };
    let mut args = json!({
        "step": step.step,
        "call": step.call.seq,
        "scope": scope,
        "bytes": step.bytes,
    });
    if let Some(message) = step.message {
        args["peer"] = message.peer.0.into();
        args["lane"] = message.lane.into();
        args["index"] = message.index.into();
    }
    if step.end == 0 {
        args["outcome"] = "unfinished".into();
    }
    args
}
