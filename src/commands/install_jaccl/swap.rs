//! Files of the exchange: MLX's library is kept beside tbccl's, and put back on request.
//!
//! A file is replaced by renaming, so a running program keeps the one that it has loaded, and a failure
//! leaves a complete library. Nothing is remembered elsewhere: tbccl's library is known by its contents, so
//! an update of MLX, which brings its own library again, is noticed.

use super::{
    super::CommandError,
    environment::{self, MlxFolder},
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Text that tbccl's library contains, and JACCL's does not.
const MARK: &[u8] = b"[tbccl] jaccl::init";

/// Libraries of tbccl to install.
#[derive(Debug)]
pub(super) struct Ours<'a> {
    /// `libjaccl`.
    pub(super) library: &'a Path,
    /// `libtbccl`, with the code of the other one.
    pub(super) core: &'a Path,
}

/// Puts a library in the place of MLX's, which is kept, and `libtbccl` beside it. Returns a sentence.
pub(super) fn install(folder: &MlxFolder, ours: &Ours<'_>) -> Result<String, CommandError> {
    let place = &folder.jaccl;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| refused(&path, &error)
    };
    let new = fs::read(ours.library).map_err(failed(ours.library))?;
    if !is_ours(&new) {
        return Err(CommandError::new(format_args!("{} is not tbccl's library", ours.library.display())));
    }
    let core_place = environment::core_place(place);
    let core = fs::read(ours.core).map_err(failed(ours.core))?;
    let has_core = read(&core_place)?.is_some_and(|old| old == core);
    let kept = kept(place);
    let old = read(place)?;
    match &old {
        Some(old) if *old == new && has_core => {
            return Ok(format!("{} is tbccl's already, of this version", place.display()));
        }
        Some(old) if !is_ours(old) => {
            // MLX was installed or updated: an older copy is out of date.
            write(&kept, old).map_err(failed(&kept))?;
        }
        _ => {}
    }
    // First, so that tbccl's library is never there without it.
    write(&core_place, &core).map_err(failed(&core_place))?;
    write(place, &new).map_err(failed(place))?;
    let fate = match (old, kept.is_file()) {
        (Some(_), true) => format!("; MLX's own is kept as {}", kept.display()),
        _ => String::new(),
    };
    Ok(format!("{} is tbccl's now{fate}", place.display()))
}

/// Puts MLX's library back. Returns a sentence about it.
pub(super) fn undo(folder: &MlxFolder) -> Result<String, CommandError> {
    let (place, kept) = (&folder.jaccl, kept(&folder.jaccl));
    match read(place)? {
        Some(current) if is_ours(&current) => {}
        _ => return Ok(format!("{} is not tbccl's: there is nothing to undo", place.display())),
    }
    if !kept.is_file() {
        return Err(CommandError::new(format_args!(
            "MLX's own library is not there any more ({}): reinstall MLX, e.g. \
             `pip install --force-reinstall mlx-metal`",
            kept.display()
        )));
    }
    fs::rename(&kept, place).map_err(|error| refused(place, &error))?;
    let core = environment::core_place(place);
    match fs::remove_file(&core) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(&core, &error)),
        _ => {}
    }
    Ok(format!("{} is MLX's own again", place.display()))
}

/// Returns the place in which MLX's library is kept.
fn kept(place: &Path) -> PathBuf {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(".mlx");
    place.with_file_name(name)
}

fn is_ours(library: &[u8]) -> bool {
    library.windows(MARK.len()).any(|part| part == MARK)
}

/// Reads a file that may be missing.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CommandError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refused(path, &error)),
    }
}

/// Writes an executable file beside its place, and renames it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = tempfile::Builder::new().prefix(".libjaccl").tempfile_in(folder)?;
    fs::write(file.path(), bytes)?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755))?;
    file.persist(path).map(drop).map_err(|failed| failed.error)
}

fn refused(path: &Path, error: &io::Error) -> CommandError {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; run the command as the user who installed MLX, or use an environment of your own"
        }
        _ => "",
    };
    CommandError::new(format_args!("{}: {error}{remedy}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of MLX with its own library, and libraries of tbccl.
    fn made(home: &Path) -> (MlxFolder, PathBuf, PathBuf) {
        let (ours, core) = (home.join("ours"), home.join("core"));
        fs::write(&ours, [b"one ", MARK].concat()).expect("our folder");
        fs::write(&core, "core").expect("our folder");
        let jaccl = home.join("libjaccl.dylib");
        fs::write(&jaccl, "theirs").expect("our folder");
        (MlxFolder { mlx: home.join("libmlx.dylib"), jaccl }, ours, core)
    }

    fn text(path: &Path) -> String {
        fs::read_to_string(path).expect("it is there")
    }

    #[test]
    fn mlx_s_library_is_kept_and_put_back_however_often_one_asks() {
        let home = tempfile::tempdir().expect("a folder");
        let (folder, ours, core) = made(home.path());
        let install = |folder: &MlxFolder| install(folder, &Ours { library: &ours, core: &core });
        let beside = home.path().join("libtbccl.0.dylib");
        let kept = home.path().join("libjaccl.dylib.mlx");
        assert!(undo(&folder).expect("nothing to do").contains("nothing to undo"));
        assert!(install(&folder).expect("installed").contains("is kept as"));
        assert!(install(&folder).expect("installed").contains("already"));
        assert_eq!((text(&folder.jaccl), text(&kept)), (text(&ours), "theirs".into()));
        assert_eq!(text(&beside), "core");
        // An update of tbccl leaves the kept file alone, and one of MLX replaces it.
        fs::write(&ours, [b"two ", MARK].concat()).expect("our folder");
        fs::write(&core, "newer core").expect("our folder");
        install(&folder).expect("installed");
        assert_eq!((text(&folder.jaccl), text(&kept)), (text(&ours), "theirs".into()));
        assert_eq!(text(&beside), "newer core");
        // So does one of the part beside it alone.
        fs::write(&core, "newest core").expect("our folder");
        assert!(install(&folder).expect("installed").contains("is kept as"));
        assert_eq!((text(&beside), text(&kept)), ("newest core".into(), "theirs".into()));
        fs::write(&folder.jaccl, "newer").expect("our folder");
        install(&folder).expect("installed");
        assert_eq!(text(&kept), "newer");
        assert!(undo(&folder).expect("undone").contains("MLX's own again"));
        assert!(undo(&folder).expect("nothing to do").contains("nothing to undo"));
        assert_eq!((text(&folder.jaccl), kept.exists()), ("newer".into(), false));
        assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 3, "nothing is left behind");
    }

    #[test]
    fn what_can_t_be_undone_is_said() {
        let home = tempfile::tempdir().expect("a folder");
        let (folder, ours, core) = made(home.path());
        let install = |folder: &MlxFolder, library: &Path| install(folder, &Ours { library, core: &core });
        fs::remove_file(&folder.jaccl).expect("it was there");
        assert!(!install(&folder, &ours).expect("installed").contains("is kept as"));
        let error = format!("{:?}", undo(&folder).expect_err("nothing was kept"));
        assert!(error.contains("--force-reinstall"), "{error}");
        let error = format!("{:?}", install(&folder, &folder.mlx).expect_err("no such file"));
        assert!(error.contains("libmlx.dylib"), "{error}");
        fs::write(&ours, "something").expect("our folder");
        let error = format!("{:?}", install(&folder, &ours).expect_err("not ours"));
        assert!(error.contains("is not tbccl's library"), "{error}");
    }
}
