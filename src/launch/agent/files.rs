//! Files for the ranks, named by environment variables, which exist while the agent runs.
//!
//! On Linux the files are anonymous memory (memfd) of the agent, which ranks open by the agent's descriptors
//! in `/proc`. Nothing remains when the agent is killed. Other systems use a temporary folder.

use std::{ffi::OsString, io};

/// The files of a job. Dropping it removes them.
#[derive(Debug, Default)]
pub(super) struct Files {
    #[cfg(target_os = "linux")]
    _memory: Vec<std::fs::File>,
    #[cfg(not(target_os = "linux"))]
    _folder: Option<tempfile::TempDir>,
}

impl Files {
    /// Creates a file with the given content for each variable; returns the variables with the paths.
    #[cfg(target_os = "linux")]
    pub(super) fn make(wanted: &[(String, String)]) -> io::Result<(Files, Vec<(OsString, OsString)>)> {
        use rustix::fs::{MemfdFlags, memfd_create};
        use std::{fs::File, io::Write, os::fd::AsRawFd};
        let (mut memory, mut variables) = (Vec::new(), Vec::new());
        for (variable, content) in wanted {
            let mut file = File::from(memfd_create(variable.as_str(), MemfdFlags::CLOEXEC)?);
            file.write_all(content.as_bytes())?;
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            variables.push((variable.into(), path.into()));
            memory.push(file);
        }
        Ok((Files { _memory: memory }, variables))
    }

    /// Creates a file with the given content for each variable; returns the variables with the paths.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn make(wanted: &[(String, String)]) -> io::Result<(Files, Vec<(OsString, OsString)>)> {
        if wanted.is_empty() {
            return Ok((Files::default(), Vec::new()));
        }
        let folder = tempfile::Builder::new().prefix("tbccl-").tempdir()?;
        let mut variables = Vec::new();
        for (variable, content) in wanted {
            let path = folder.path().join(variable.to_lowercase()).with_extension("json");
            std::fs::write(&path, content)?;
            variables.push((variable.into(), path.into()));
        }
        Ok((Files { _folder: Some(folder) }, variables))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_there_as_long_as_they_are_held() {
        let wanted = [("A", "one"), ("B", "two\n")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let (files, variables) = Files::make(&wanted).expect("memory");
        for ((name, path), (wanted, content)) in variables.iter().zip(&wanted) {
            assert_eq!(name, wanted.as_str());
            // Each open file description starts at offset 0.
            for _ in 0..2 {
                assert_eq!(&std::fs::read_to_string(path).expect("readable"), content);
            }
        }
        drop(files);
        assert!(std::fs::read_to_string(&variables[1].1).ok().as_deref() != Some("two\n"));
    }
}
