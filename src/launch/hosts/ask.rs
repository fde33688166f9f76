//! One question to a host: a command of tbccl whose output is the answer.
//!
//! The host is reached as for a job, without an agent. It need not run the same version of tbccl.

use super::ssh;
use crate::launch::{HostSpec, Hosts, limited::output_within};
use std::time::Duration;

/// Runs tbccl on another host with `arguments`, which need no quotation marks. Returns its stdout.
///
/// # Errors
/// The reason why there is no answer, in one line: ssh or tbccl has failed, or `limit` has passed.
pub fn ask(plan: &Hosts, host: &HostSpec, arguments: &str, limit: Duration) -> Result<String, String> {
    let command = ssh::remote(plan, host, arguments);
    let program = command.get_program().to_string_lossy().into_owned();
    match output_within(command, limit) {
        Err(error) => Err(format!("can't run `{program}`: {error}; install it, or name another with --ssh")),
        Ok(None) => Err(format!("no answer within {limit:?}; is it overloaded?")),
        Ok(Some(output)) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(Some(output)) => {
            let lines = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
            Err(ssh::explain(plan, host, Some(output.status), &lines))
        }
    }
}
