//! `tbccl rendezvous`: runs a job's rendezvous server as a separate program.

use super::{CommandError, WRONG, arguments, print};
use bootstrap::{JobStatus, Secret, Server, ServerSpec};
use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

const EXAMPLES: &str = "\
Examples:
  tbccl rendezvous --secret-file job.secret                    any free port, on all interfaces
  tbccl rendezvous --secret-file job.secret --listen 10.0.0.1:7777 -n 8

Prints the variables that ranks need: set them for every rank, with TBCCL_RANK and TBCCL_SIZE (or start
the ranks with torchrun, mpirun or srun, which set equivalent variables). The secret is read from its
file, which is created if it does not exist; the ranks of other hosts need a copy, mode 0600. It may also
come from TBCCL_SECRET. It is never printed.

Ends after the last rank has left: status 0, or 1 if the job could not start or a rank has died.";

/// Run a rendezvous server for ranks that are started by other means
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address for ranks of other hosts; port 0 for any; may be repeated (all interfaces, any port)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,

    /// Ranks of the job; by default the first rank that connects decides
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = arguments::ranks,
        allow_negative_numbers = true,
    )]
    ranks: Option<u32>,

    /// File with the job's secret, 64 hexadecimal digits; created if it does not exist
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// Runs `tbccl rendezvous`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, CommandError> {
    let (secret, line) = secret(args)?;
    let ranks = args.ranks.unwrap_or(0);
    let server = start(ranks, &args.listen, &secret)?;
    print(&format!("TBCCL_BOOTSTRAP={}\n{line}", server.bootstrap_addresses().join(",")));
    let status = server.wait_until(|_| false, Duration::MAX);
    Ok(ExitCode::from(exit_code(&status)?))
}

fn start(ranks: u32, listen: &[SocketAddr], secret: &Secret) -> Result<Server, CommandError> {
    let spec = |listen: &[SocketAddr]| ServerSpec::network(ranks, listen.to_vec(), secret.clone());
    if !listen.is_empty() {
        return Server::start(&spec(listen)).map_err(CommandError::new);
    }
    let all: [SocketAddr; 2] = [([0, 0, 0, 0], 0).into(), ([0u16; 8], 0).into()];
    // Some hosts lack IPv6.
    Server::start(&spec(&all)).or_else(|_| Server::start(&spec(&all[..1]))).map_err(CommandError::new)
}

/// Returns the secret, and the line that tells ranks its file.
fn secret(args: &Args) -> Result<(Secret, String), CommandError> {
    let file = args.secret_file.clone().or_else(|| std::env::var_os("TBCCL_SECRET_FILE").map(PathBuf::from));
    if let (Ok(digits), None) = (std::env::var("TBCCL_SECRET"), &args.secret_file) {
        let secret = Secret::from_hex(&digits);
        return Ok((
            secret.map_err(|e| CommandError::new(format_args!("TBCCL_SECRET: {e}")))?,
            String::new(),
        ));
    }
    let Some(file) = file else {
        return Err(CommandError::new(
            "ranks and the rendezvous need a shared secret: use --secret-file FILE, which is \
             created if it does not exist, or set TBCCL_SECRET",
        ));
    };
    let secret = if file.exists() {
        Secret::from_file(&file).map_err(CommandError::new)?
    } else {
        let secret = Secret::generate().map_err(CommandError::new)?;
        secret.to_new_file(&file).map_err(CommandError::new)?;
        secret
    };
    let path = std::path::absolute(&file).unwrap_or(file);
    Ok((secret, format!("TBCCL_SECRET_FILE={}\n", path.display())))
}

fn exit_code(status: &JobStatus) -> Result<u8, CommandError> {
    match &status.refused {
        Some(why) => Err(CommandError::new(why)),
        None if status.died > 0 => Ok(WRONG),
        None => Ok(0),
    }
}
