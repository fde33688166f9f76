//! The command `tbccl`.

fn main() -> std::process::ExitCode {
    tbccl_cli::main(std::env::args_os())
}
