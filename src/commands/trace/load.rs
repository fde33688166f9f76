//! From paths to the files of the ranks of one communicator.

use super::{
    super::{CommandError, error::warn, progress::Progress},
    format::{About, AboutMerged, AboutRank, Event, read},
};
use std::{
    collections::BTreeMap,
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
            name.starts_with("rank-") && name.ends_with(".json")
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
    Ok(files)
}

/// Reads the files of ranks, and returns those of one communicator, by rank.
pub(super) fn ranks(paths: &[PathBuf], communicator: Option<&str>) -> Result<Vec<RankFile>, CommandError> {
    let paths = files_of(paths)?;
    let progress = Progress::new(paths.len(), "files");
    let mut by_communicator: BTreeMap<String, Vec<RankFile>> = BTreeMap::new();
    for path in paths {
        let file = read(&path).map_err(|why| unreadable(&path, &why))?;
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
