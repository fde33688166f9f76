//! From paths to the files of the ranks of one communicator.
//!
//! A rank that was killed has left a ring of events, `rank-*.ring`, and no file or an incomplete one. A ring
//! is read only where the file of the same name is of no use.

use super::{
    super::{CommandError, error::warn, progress::Progress},
    format::{About, AboutMerged, AboutRank, Event, TraceFile, read, read_ring},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The file of a rank.
#[derive(Debug)]
pub(super) struct RankFile {
    pub(super) path: PathBuf,
    pub(super) about: AboutRank,
    pub(super) events: Vec<Event>,
}

/// Returns the error for a file.
fn unreadable(path: &Path, why: &str) -> CommandError {
    CommandError::new(format_args!("can't read `{}`: {why}", path.display()))
}

/// Returns the files of paths: those of ranks in folders, and all others that are named.
fn files_of(paths: &[PathBuf]) -> Result<Vec<PathBuf>, CommandError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).map_err(|error| unreadable(path, &error.to_string()))?;
        let is_of_rank = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("rank-") && (name.ends_with(".json") || is_ring(path))
        };
        let found = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_of_rank);
        let before = files.len();
        files.extend(found);
        if files.len() == before {
            let what = "it has no file rank-*.json; `tbccl run --trace DIR` writes them";
            return Err(unreadable(path, what));
        }
    }
    files.sort_unstable();
    files.dedup();
    // The ring is read in the place of the file, if at all.
    let rings: BTreeSet<PathBuf> = files.iter().filter(|path| is_ring(path)).cloned().collect();
    files.retain(|path| is_ring(path) || !rings.contains(&path.with_extension("ring")));
    Ok(files)
}

/// Whether the file is a ring of events.
pub(super) fn is_ring(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "ring")
}

/// Reads the file of a rank, or the ring of a rank without a complete file. `None` for a ring of no use, of
/// which a warning tells.
fn read_either(path: &Path) -> Result<Option<(PathBuf, TraceFile)>, CommandError> {
    if !is_ring(path) {
        let file = read(path).map_err(|why| unreadable(path, &why))?;
        return Ok(Some((path.to_owned(), file)));
    }
    let complete = path.with_extension("json");
    if let Ok(file) = read(&complete) {
        return Ok(Some((complete, file)));
    }
    match read_ring(path) {
        Ok(file) => Ok(Some((path.to_owned(), file))),
        Err(why) => {
            warn(format_args!("`{}` is left out: {why}", path.display()));
            Ok(None)
        }
    }
}

/// Reads the files of ranks, and returns those of one communicator, by rank.
pub(super) fn ranks(paths: &[PathBuf], communicator: Option<&str>) -> Result<Vec<RankFile>, CommandError> {
    let paths = files_of(paths)?;
    let progress = Progress::new(paths.len(), "files");
    let mut by_communicator: BTreeMap<String, Vec<RankFile>> = BTreeMap::new();
    for path in paths {
        let Some((path, file)) = read_either(&path)? else { continue };
        let Some(About::Rank(about)) = file.tbccl else {
            return Err(unreadable(
                &path,
                "it is not the file of a rank; name the files that ranks have written",
            ));
        };
        let files = by_communicator.entry(about.communicator.clone()).or_default();
        files.push(RankFile { path, about, events: file.events });
        progress.advance();
    }
    progress.finish();
    if by_communicator.is_empty() {
        return Err(CommandError::new("no file is of any use; run the job again with --trace"));
    }
    let mut files = choose(by_communicator, communicator)?;
    files.sort_by_key(|file| file.about.rank);
    check(&files)?;
    Ok(files)
}

/// Returns the files of the wanted communicator, or of the only one.
fn choose(
    mut by_communicator: BTreeMap<String, Vec<RankFile>>,
    wanted: Option<&str>,
) -> Result<Vec<RankFile>, CommandError> {
    let describe = |(name, files): (&String, &Vec<RankFile>)| {
        let about = &files[0].about;
        let made_by = if about.made_by.is_empty() { String::new() } else { format!(" by {}", about.made_by) };
        format!("{name} ({} of {} ranks{made_by})", files.len(), about.size)
    };
    let known: Vec<String> = by_communicator.iter().map(describe).collect();
    if let Some(wanted) = wanted {
        return by_communicator.remove(wanted).ok_or_else(|| {
            CommandError::new(format_args!(
                "--communicator {wanted}: no file is of it; there are {}",
                known.join(", ")
            ))
        });
    }
    match by_communicator.pop_first() {
        Some((_, files)) if by_communicator.is_empty() => Ok(files),
        _ => Err(CommandError::new(format_args!(
            "the files are of several communicators; choose one with --communicator: {}",
            known.join(", ")
        ))),
    }
}

/// Checks that each rank has one file, and warns of missing ones.
fn check(files: &[RankFile]) -> Result<(), CommandError> {
    let size = files[0].about.size;
    for pair in files.windows(2) {
        if pair[0].about.rank == pair[1].about.rank {
            return Err(CommandError::new(format_args!(
                "`{}` and `{}` are both of rank {}; remove one",
                pair[0].path.display(),
                pair[1].path.display(),
                pair[0].about.rank
            )));
        }
    }
    if let Some(file) =
        files.iter().find(|file| file.about.rank >= file.about.size || file.about.size != size)
    {
        let RankFile { path, about, .. } = file;
        let what = format!("it is of rank {} of {}, and others have {size} ranks", about.rank, about.size);
        return Err(unreadable(path, &what));
    }
    let is_missing = |rank: &u32| files.binary_search_by_key(rank, |file| file.about.rank).is_err();
    let missing: Vec<String> = (0..size).filter(is_missing).take(20).map(|rank| rank.to_string()).collect();
    if !missing.is_empty() {
        warn(format_args!(
            "no file of rank {}; copy the files of other hosts to one folder",
            missing.join(", ")
        ));
    }
    Ok(())
}

/// Reads a merged file.
pub(super) fn merged(path: &Path) -> Result<(AboutMerged, Vec<Event>), CommandError> {
    let file = read(path).map_err(|why| unreadable(path, &why))?;
    match file.tbccl {
        Some(About::Merged(about)) => Ok((about, file.events)),
        _ => Err(unreadable(path, "it is no merged trace; `tbccl trace merge DIR -o FILE` writes one")),
    }
}

/// Reads a simulated trace.
pub(super) fn simulated(path: &Path) -> Result<Vec<Event>, CommandError> {
    let file = read(path).map_err(|why| unreadable(path, &why))?;
    match file.tbccl {
        None => Ok(file.events),
        Some(_) => {
            Err(unreadable(path, "it is no simulated trace; `tbccl plan simulate --trace FILE` writes one"))
        }
    }
}
