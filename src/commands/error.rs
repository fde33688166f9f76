//! Errors of commands, printed as one line each on stderr.

use clap::error::{ContextKind, ContextValue};
use collectives::UnknownName;
use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

/// Error of a command: bad usage, or an environment in which the command can't work.
#[derive(Debug)]
pub(crate) struct CommandError {
    /// One line per problem, with the remedy.
    message: String,
}

impl CommandError {
    /// Exit status for bad usage and unsuitable environments.
    pub(crate) const STATUS: u8 = 2;

    /// Creates an error with a message.
    pub(crate) fn new(message: impl Display) -> CommandError {
        CommandError { message: message.to_string() }
    }

    /// Returns the message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Prints the message on stderr and returns the exit status.
    pub(crate) fn report(self) -> ExitCode {
        for line in self.message.lines() {
            write_stderr(&format!("tbccl: error: {line}\n"));
        }
        ExitCode::from(CommandError::STATUS)
    }
}

/// Prints a warning on stderr.
pub(crate) fn warn(message: impl Display) {
    write_stderr(&format!("tbccl: warning: {message}\n"));
}

/// Writes a line in one write, since the ranks of a job share stderr.
fn write_stderr(line: &str) {
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints help and version; turns a usage error into one line. `commands` are the valid subcommands.
pub(crate) fn usage(error: &clap::Error, commands: &[&'static str]) -> Result<ExitCode, CommandError> {
    if !error.use_stderr() {
        // A closed stdout is not an error.
        let _ = error.print();
        return Ok(ExitCode::SUCCESS);
    }
    let text = error.render().to_string();
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(io::stderr(), "{text}");
        return Ok(ExitCode::from(CommandError::STATUS));
    }
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) {
        return Err(CommandError::new(UnknownName::new("command", given, commands.iter().copied())));
    }
    Err(CommandError::new(one_line(&text)))
}

/// Joins clap's message, without the usage, and its first tip.
fn one_line(text: &str) -> String {
    let message = text.split("\n\nUsage:").next().unwrap_or(text);
    let message = message.split("\n\nFor more information").next().unwrap_or(message);
    let (mut line, mut has_tip) = (String::new(), false);
    for part in message.lines().map(str::trim).filter(|part| !part.is_empty()) {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        let (separator, part) = match part.strip_prefix("tip: ") {
            Some(_) if has_tip => continue,
            Some(tip) => {
                has_tip = true;
                ("; ", tip)
            }
            None if line.ends_with(':') => (" ", part),
            None => (", ", part),
        };
        if !line.is_empty() {
            line.push_str(separator);
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
        let text = "error: unexpected argument '--tag' found\n\n  tip: a similar argument exists: \
        '--tag-output'\n  tip: to pass '--tag' as a value, use '-- --tag'\n\nUsage: tbccl\n";
        assert_eq!(
            one_line(text),
            "unexpected argument '--tag' found; a similar argument exists: '--tag-output'"
        );
        let text = "error: the following required arguments were not provided:\n  --ranks <N>\n  \
        <PROGRAM>\n\nUsage: x\n\nFor more information";
        assert_eq!(
            one_line(text),
            "the following required arguments were not provided: --ranks <N>, <PROGRAM>"
        );
    }
}
