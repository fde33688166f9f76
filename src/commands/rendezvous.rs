//! `tbccl rendezvous`: the rendezvous of a job's ranks as a program of its own.

use super::{Failed, WRONG, arguments, print};
use bootstrap::{JobStatus, Secret, Server, ServerSpec};
use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

const EXAMPLES: &str = "\
Examples:
  tbccl rendezvous --secret-file job.secret                    any free port, on all interfaces
  tbccl rendezvous --secret-file job.secret --listen 10.0.0.1:7777 -n 8

It prints the variables that ranks need: set them for every rank, with TBCCL_RANK and TBCCL_SIZE (or
start the ranks with torchrun, mpirun or srun, which say as much). The secret is read from its file, or
made and written there if there is no such file; the ranks of other hosts need a copy, mode 0600. It may
also come from TBCCL_SECRET. It is never printed.

Ends when the last rank has gone: status 0, or 1 if the job could not start or a rank has died.";

/// Open the place where ranks that are started by other means find each other
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Address for ranks of other hosts; port 0 for any; may be repeated (all interfaces, any port)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,

    /// How many ranks the job has; without it the first rank that comes says so
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = arguments::ranks, allow_negative_numbers = true)]
    ranks: Option<u32>,

    /// The file with the job's secret, 64 hexadecimal digits; made if it is not there
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

/// Carries out `tbccl rendezvous`.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failed> {
    let (secret, line) = secret(args)?;
    let ranks = args.ranks.unwrap_or(0);
    let server = start(ranks, &args.listen, &secret)?;
    print(&format!("TBCCL_BOOTSTRAP={}\n{line}", server.bootstrap_addresses().join(",")));
    let status = server.wait_until(|_| false, Duration::MAX);
    Ok(ExitCode::from(exit_code(&status)?))
}

fn start(ranks: u32, listen: &[SocketAddr], secret: &Secret) -> Result<Server, Failed> {
    let spec = |listen: &[SocketAddr]| ServerSpec::network(ranks, listen.to_vec(), secret.clone());
    if !listen.is_empty() {
        return Server::start(&spec(listen)).map_err(Failed::new);
    }
    let all: [SocketAddr; 2] = [([0, 0, 0, 0], 0).into(), ([0u16; 8], 0).into()];
    // Not every host has both families.
    Server::start(&spec(&all)).or_else(|_| Server::start(&spec(&all[..1]))).map_err(Failed::new)
}

/// The secret, and the line that says where ranks find it.
fn secret(args: &Args) -> Result<(Secret, String), Failed> {
    let file = args.secret_file.clone().or_else(|| std::env::var_os("TBCCL_SECRET_FILE").map(PathBuf::from));
    if let (Ok(digits), None) = (std::env::var("TBCCL_SECRET"), &args.secret_file) {
        let secret = Secret::from_hex(&digits);
        return Ok((secret.map_err(|e| Failed::new(format_args!("TBCCL_SECRET: {e}")))?, String::new()));
    }
    let Some(file) = file else {
        return Err(Failed::new(
            "ranks and rendezvous need a secret in common: say --secret-file FILE, which is made if it is not there, or \
             set TBCCL_SECRET",
        ));
    };
    let secret = if file.exists() {
        Secret::from_file(&file).map_err(Failed::new)?
    } else {
        let secret = Secret::generate().map_err(Failed::new)?;
        secret.to_new_file(&file).map_err(Failed::new)?;
        secret
    };
    let path = std::path::absolute(&file).unwrap_or(file);
    Ok((secret, format!("TBCCL_SECRET_FILE={}\n", path.display())))
}

fn exit_code(status: &JobStatus) -> Result<u8, Failed> {
    match &status.refused {
        Some(why) => Err(Failed::new(why)),
        None if status.died > 0 => Ok(WRONG),
        None => Ok(0),
    }
}
