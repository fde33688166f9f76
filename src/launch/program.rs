//! Search for the program before the first process starts, so that a missing program gives one message rather
//! than one per rank.

use super::LaunchError;
use rustix::fs::{Access, access};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Returns the path that the ranks' `execvp` would find, with their `PATH` and their working folder.
pub(super) fn find(
    program: &OsStr,
    env: &[(OsString, OsString)],
    cwd: Option<&Path>,
) -> Result<PathBuf, LaunchError> {
    if program.as_bytes().contains(&b'/') {
        return check(&cwd.unwrap_or(Path::new("")).join(program));
    }
    let rank_path = env.iter().rev().find(|(key, _)| key == "PATH").map(|(_, value)| value.clone());
    let path = rank_path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    let mut unusable = None;
    for folder in std::env::split_paths(&path) {
        match check(&folder.join(program)) {
            Ok(found) => return Ok(found),
            Err(LaunchError::NotFound { .. }) => {}
            Err(other) => unusable = unusable.or(Some(other)),
        }
    }
    Err(unusable.unwrap_or_else(|| {
        let remedy = if Path::new(program).is_file() {
            format!("it is not in PATH; for the one in this folder write `./{}`", program.display())
        } else {
            "it is not in PATH; check the spelling or give its path".to_owned()
        };
        LaunchError::NotFound { program: program.to_owned(), remedy }
    }))
}

/// Checks that `path` is an executable file.
fn check(path: &Path) -> Result<PathBuf, LaunchError> {
    let not_executable = |why| Err(LaunchError::NotExecutable { program: path.to_owned(), why });
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            not_executable("its folder may not be entered; check the permissions on the way to it")
        }
        Err(_) => Err(LaunchError::NotFound {
            program: path.as_os_str().to_owned(),
            remedy: "there is no such file; check the spelling".to_owned(),
        }),
        Ok(found) if found.is_dir() => not_executable("it is a folder; name the program in it"),
        Ok(_) if access(path, Access::EXEC_OK).is_err() => {
            not_executable("it is not executable; make it so with `chmod +x`, or name its interpreter first")
        }
        Ok(_) => Ok(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_in_the_path_of_the_ranks() {
        let found =
            find(OsStr::new("sh"), &[("PATH".into(), "/nowhere:/bin".into())], None).expect("a shell");
        assert_eq!(found, Path::new("/bin/sh"));
        let error =
            find(OsStr::new("sh"), &[("PATH".into(), "/nowhere".into())], None).expect_err("not there");
        assert!(error.to_string().contains("not in PATH"), "{error}");
    }

    #[test]
    fn a_path_is_taken_from_the_folder_of_the_ranks() {
        let found = find(OsStr::new("bin/sh"), &[], Some(Path::new("/"))).expect("a shell");
        assert_eq!(found, Path::new("/bin/sh"));
    }

    #[test]
    fn folders_and_data_are_no_programs() {
        let error = find(OsStr::new("/usr"), &[], None).expect_err("a folder");
        assert!(error.to_string().contains("a folder"), "{error}");
        let data = tempfile::NamedTempFile::new().expect("a temporary file");
        let error = find(data.path().as_os_str(), &[], None).expect_err("not executable");
        assert!(error.to_string().contains("chmod +x"), "{error}");
    }
}
