//! `tbccl trace merge`: one file from the files of a job's ranks, on one clock.

use super::{
    super::{CommandError, error::warn, progress::Progress},
    clocks::{Fit, Sample},
    format::{
        About, AboutMerged, Category, Event, EventArgs, FORMAT, MergedClock, MergedRank, Phase, SIMULATED,
        micros,
    },
    load::{self, RankFile},
    matching::{Matching, match_messages},
};
use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tempfile::NamedTempFile;

const EXAMPLES: &str = "\
Examples:
  tbccl trace merge traces -o job.json            all files of the folder traces
  tbccl trace merge a/*.json b/*.json -o job.json files copied from several hosts
  tbccl trace merge traces -o job.json --with plan.json --at 12
                       a trace of `tbccl plan simulate --trace plan.json`, from the begin of call 12

Open the result at https://ui.perfetto.dev or chrome://tracing. A process is a rank; its threads are
the directions of messages. Arrows lead from sends to receives. The clocks of hosts are aligned by
samples that each rank takes from the rendezvous; the largest error is printed and is in the file.
The events of ranks that were killed are read from rank-*.ring.";

/// Merge the files of ranks into one, on one clock
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Files of ranks, or folders with files rank-*.json and rank-*.ring
    #[arg(value_name = "DIR|FILE", required = true)]
    paths: Vec<PathBuf>,

    /// The merged file; one that exists is replaced
    #[arg(short = 'o', long, value_name = "FILE")]
    output: PathBuf,

    /// Name of the communicator, where files are of several
    #[arg(long, value_name = "NAME")]
    communicator: Option<String>,

    /// Trace of `tbccl plan simulate --trace` to lay over the real one
    #[arg(long, value_name = "FILE")]
    with: Option<PathBuf>,

    /// Number of the collective at whose begin the simulated trace begins (the first one)
    #[arg(long, value_name = "CALL", requires = "with")]
    at: Option<u64>,
}

/// A merged trace.
struct Merged {
    about: AboutMerged,
    events: Vec<Event>,
}

/// Runs `tbccl trace merge`.
pub(super) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let files = load::ranks(&args.paths, args.communicator.as_deref())?;
    let simulated = args.with.as_deref().map(load::simulated).transpose()?;
    for RankFile { about, .. } in files.iter().filter(|file| load::is_ring(&file.path)) {
        let error = about.error.as_deref().unwrap_or_default();
        warn(format_args!("rank {} has left no complete trace: {error}", about.rank));
    }
    let (mut merged, matching) = merge(files)?;
    if let Some(simulated) = simulated {
        lay_over(&mut merged.events, simulated, args.at)?;
    }
    let about = &merged.about;
    let lost: u64 = about.ranks.iter().map(|rank| rank.lost).sum();
    if lost > 0 {
        warn(format_args!(
            "{lost} early events are not in the files; TBCCL_TRACE_EVENTS sets how many are kept"
        ));
    }
    write(&args.output, &merged)?;
    let line = format!(
        "{} ranks, {} events, {} messages; clocks of hosts agree within {:.1} us\n",
        about.ranks.len(),
        merged.events.len(),
        matching.pairs.len(),
        about.clock_error_us
    );
    // A closed stderr is not an error.
    let _ = io::stderr().write_all(line.as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Merges files: aligns their clocks, and adds an arrow per message.
fn merge(files: Vec<RankFile>) -> Result<(Merged, Matching), CommandError> {
    let fits = fits(&files)?;
    let fit_of = |file: &RankFile| fits[&file.about.clock.name];
    let begin = |file: &RankFile| Some(fit_of(file).reference(span(file)?.0));
    let origin = files.iter().filter_map(begin).min().unwrap_or(0);
    let about = about(&files, &fits, origin);
    let mut events = Vec::new();
    for file in files {
        let fit = fits[&file.about.clock.name];
        let at = |local: u64| u64::try_from(fit.reference(local) - origin).unwrap_or(0);
        events.extend(file.events.into_iter().map(|mut event| {
            if let Some((begin, end)) = event.times() {
                event.set_times(at(begin), at(end));
            }
            event
        }));
    }
    let matching = match_messages(&events, |rank| lost_until(&about, rank));
    let flows: Vec<Event> = (1..)
        .zip(&matching.pairs)
        .flat_map(|(id, (send, receive))| arrow(id, &events[*send], &events[*receive]))
        .collect();
    events.extend(flows);
    Ok((Merged { about, events }, matching))
}

/// Returns the time of the latest end among the lost events of a rank, in nanoseconds of the merged file.
pub(super) fn lost_until(about: &AboutMerged, rank: u32) -> u64 {
    let rank = about.ranks.iter().find(|one| one.rank == rank);
    let until = rank.and_then(|rank| rank.lost_until).unwrap_or(0.0);
    (until.max(0.0) * 1e3).round() as u64
}

/// Returns the local times of the first and the last event.
fn span(file: &RankFile) -> Option<(u64, u64)> {
    let times = || file.events.iter().filter_map(Event::times);
    Some((times().map(|(begin, _)| begin).min()?, times().map(|(_, end)| end).max()?))
}

/// Fits the clock of each host. Where all ranks have one clock, that is the reference.
fn fits(files: &[RankFile]) -> Result<BTreeMap<String, Fit>, CommandError> {
    let mut by_clock: BTreeMap<&str, Vec<&RankFile>> = BTreeMap::new();
    for file in files {
        by_clock.entry(&file.about.clock.name).or_default().push(file);
    }
    let is_one = by_clock.len() == 1;
    let fit = |(name, files): (&str, Vec<&RankFile>)| {
        let spans: Vec<(u64, u64)> = files.iter().filter_map(|file| span(file)).collect();
        let first = spans.iter().map(|span| span.0).min().unwrap_or(0);
        let last = spans.iter().map(|span| span.1).max().unwrap_or(0);
        let fit = if is_one { Some(Fit::EXACT) } else { Fit::new(&samples(&files), (first, last)) };
        let fit = fit.ok_or_else(|| {
            CommandError::new(format_args!(
                "`{}`: it has no samples of the rendezvous' clock, so its host can't be aligned with others; \
                 merge the files of each host by themselves",
                files[0].path.display()
            ))
        })?;
        Ok((name.to_owned(), fit))
    };
    by_clock.into_iter().map(fit).collect()
}

/// Returns the nanoseconds by which times of events are off their host's clock at most.
fn event_error(files: &[&RankFile]) -> f64 {
    files.iter().map(|file| file.about.clock.event_error).max().unwrap_or(0) as f64
}

fn samples(files: &[&RankFile]) -> Vec<Sample> {
    let samples = files.iter().flat_map(|file| &file.about.clock.samples);
    samples
        .map(|[sent, server, received]| Sample { sent: *sent, server: *server, received: *received })
        .collect()
}

/// Returns the description of the merged file, whose times begin at `origin` of the reference.
fn about(files: &[RankFile], fits: &BTreeMap<String, Fit>, origin: i128) -> AboutMerged {
    let first = &files[0].about;
    let mut clocks = Vec::new();
    for (name, fit) in fits {
        let own: Vec<&RankFile> = files.iter().filter(|file| file.about.clock.name == *name).collect();
        let begin = own.iter().filter_map(|file| span(file)).map(|span| span.0).min().unwrap_or(0);
        let event_error = event_error(&own);
        clocks.push(MergedClock {
            ranks: own.iter().map(|file| file.about.rank).collect(),
            offset_us: fit.offset_at(begin) as f64 / 1e3,
            drift_ppm: fit.drift * 1e6,
            error_us: (fit.error + event_error) / 1e3,
            event_error_us: event_error / 1e3,
            samples: samples(&own).len(),
        });
    }
    // Two ranks of a host may be off its clock in opposite directions, as clocks of two hosts may.
    let errors = clocks.iter().flat_map(|clock| [clock.error_us, clock.event_error_us]);
    let mut errors: Vec<f64> = errors.collect();
    errors.sort_by(f64::total_cmp);
    AboutMerged {
        format: FORMAT,
        size: first.size,
        communicator: first.communicator.clone(),
        made_by: first.made_by.clone(),
        transport: first.transport.clone(),
        clock_error_us: errors.iter().rev().take(2).sum(),
        clocks,
        ranks: files.iter().map(|file| merged_rank(file, &fits[&file.about.clock.name], origin)).collect(),
    }
}

fn merged_rank(file: &RankFile, fit: &Fit, origin: i128) -> MergedRank {
    let about = &file.about;
    let until = fit.reference((about.lost_until * 1e3).round() as u64) - origin;
    MergedRank {
        rank: about.rank,
        host: about.host.clone(),
        process: about.process,
        lost: about.lost,
        lost_until: (about.lost > 0).then(|| until as f64 / 1e3),
        error: about.error.clone(),
    }
}

/// Returns the two events of an arrow, which belong to the slices at whose begin and end they are.
fn arrow(id: u64, send: &Event, receive: &Event) -> Vec<Event> {
    let end = |event: &Event, ph: Phase, at: u64| Event {
        ph,
        name: "message".into(),
        cat: Some(Category::Message),
        pid: event.pid,
        tid: event.tid,
        ts: Some(micros(at)),
        dur: None,
        id: Some(id),
        bp: (ph == Phase::FlowEnd).then(|| "e".into()),
        args: None,
    };
    let (Some((begin, _)), Some((received, until))) = (send.times(), receive.times()) else {
        return Vec::new();
    };
    // The last nanosecond of the receive is inside of it.
    let last = until.saturating_sub(1).max(received);
    vec![end(send, Phase::FlowStart, begin), end(receive, Phase::FlowEnd, last)]
}

/// Adds a simulated trace, from the begin of a call on. Simulated ranks are processes beside the real ones.
fn lay_over(events: &mut Vec<Event>, simulated: Vec<Event>, call: Option<u64>) -> Result<(), CommandError> {
    let is_call = |event: &&Event| {
        let args = event.args.as_ref();
        let number = args.filter(|args| args.direction.is_none()).and_then(|args| args.call);
        event.cat == Some(Category::Call) && number.is_some() && call.is_none_or(|call| number == Some(call))
    };
    let begins = events.iter().filter(is_call).filter_map(|event| event.times().map(|(begin, _)| begin));
    let Some(begin) = begins.min() else {
        let which = call.map_or_else(|| "a collective".to_owned(), |call| format!("collective {call}"));
        return Err(CommandError::new(format_args!(
            "the simulated trace has no place: {which} is not in the files; name another with --at"
        )));
    };
    for mut event in simulated {
        if let Some((from, until)) = event.times() {
            event.set_times(from + begin, until + begin);
        }
        if event.name == "process_name" {
            let args = EventArgs { sort_index: Some(2 * u64::from(event.pid) + 1), ..EventArgs::default() };
            let order =
                Event { name: "process_sort_index".into(), args: Some(Box::new(args)), ..event.clone() };
            events.push(Event { pid: order.pid + SIMULATED, ..order });
            let name = Some(format!("rank {} (simulated)", event.pid));
            event.args = Some(Box::new(EventArgs { name, ..EventArgs::default() }));
        }
        event.pid += SIMULATED;
        events.push(event);
    }
    Ok(())
}

/// Writes a merged file. It takes the place of an earlier one only when it is complete.
fn write(path: &Path, merged: &Merged) -> Result<(), CommandError> {
    let failed = |error: &dyn std::fmt::Display| {
        CommandError::new(format_args!("can't write `{}`: {error}; name another file", path.display()))
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = NamedTempFile::new_in(folder).map_err(|error| failed(&error))?;
    write_to(&mut BufWriter::with_capacity(1 << 16, &file), merged).map_err(|error| failed(&error))?;
    file.persist(path).map_err(|error| failed(&error.error))?;
    Ok(())
}

fn write_to(out: &mut impl Write, merged: &Merged) -> io::Result<()> {
    const LINES: usize = 10_000;
    let progress = Progress::new(merged.events.len() / LINES, "blocks of events");
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"tbccl\":")?;
    serde_json::to_writer(&mut *out, &About::Merged(merged.about.clone()))?;
    out.write_all(b",\n\"traceEvents\":[")?;
    for (at, event) in merged.events.iter().enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, event)?;
        if at % LINES == LINES - 1 {
            progress.advance();
        }
    }
    progress.finish();
    out.write_all(b"\n]}\n")?;
    out.flush()
}
