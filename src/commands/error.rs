//! Errors of commands, as one line on stderr.

use clap::error::{ContextKind, ContextValue};
use collectives::UnknownName;
use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// A command that could not be carried out: bad usage, or an environment in which it can't work.
#[derive(Debug)]
pub(crate) struct Failed {
    /// One line for each problem, with the remedy.
    message: String,
}

impl Failed {
    /// Exit status for bad usage and unsuitable environments.
    pub(crate) const STATUS: u8 = 2;

    /// With this message.
    pub(crate) fn new(message: impl Display) -> Failed {
        Failed { message: message.to_string() }
    }

    /// Says it on stderr.
    pub(crate) fn report(self) -> ExitCode {
        for line in self.message.lines() {
            say(&format!("tbccl: error: {line}\n"));
        }
        ExitCode::from(Failed::STATUS)
    }
}

/// Says something on stderr that keeps nothing from being done.
pub(crate) fn warn(message: impl Display) {
    say(&format!("tbccl: warning: {message}\n"));
}

/// In one piece, since the ranks of a job share a stderr.
fn say(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Help and version are printed; an error is put into one line. `commands` are all that there are.
pub(crate) fn usage(error: &clap::Error, commands: &[&'static str]) -> Result<ExitCode, Failed> {
    if !error.use_stderr() {
        // A reader that went away has seen enough.
        let _ = error.print();
        return Ok(ExitCode::SUCCESS);
    }
    let text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(io::stderr(), "{text}");
        return Ok(ExitCode::from(Failed::STATUS));
    }
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) {
        return Err(Failed::new(UnknownName::new("command", given, commands.iter().copied())));
    }
    Err(Failed::new(one_line(&text)))
}

/// Joins what clap says before it repeats the usage, with the first of its tips.
fn one_line(text: &str) -> String {
    let told = text.split("\n\nUsage:").next().unwrap_or(text);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    let (mut line, mut has_tip) = (String::new(), false);
    for part in told.lines().map(str::trim).filter(|part| !part.is_empty()) {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        let (glue, part) = match part.strip_prefix("tip: ") {
            Some(_) if has_tip => continue,
            Some(tip) => {
                has_tip = true;
                ("; ", tip)
            }
            None if line.ends_with(':') => (" ", part),
            None => (", ", part),
        };
        if !line.is_empty() {
            line.push_str(glue);
        }
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_and_its_tip_make_one_line() {
        let text = "error: unexpected argument '--tag' found\n\n  tip: a similar argument exists: '--tag-output'\n  tip: to pass '--tag' as a value, use '-- --tag'\n\nUsage: tbccl\n";
        assert_eq!(
            one_line(text),
            "unexpected argument '--tag' found; a similar argument exists: '--tag-output'"
        );
        let text = "error: the following required arguments were not provided:\n  --ranks <N>\n  <PROGRAM>\n\nUsage: x\n\nFor more information";
        assert_eq!(
            one_line(text),
            "the following required arguments were not provided: --ranks <N>, <PROGRAM>"
        );
    }
}
