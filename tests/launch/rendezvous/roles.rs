//! The roles of ranks in these tests.

use std::{
    io::Write,
    time::{Duration, Instant, SystemTime},
};
use tbccl::{Communicator, Config, ReduceOp, Result, UniqueId};

/// Plays the role of this process, if it has one; not a test.
#[test]
fn play() {
    let Ok(role) = std::env::var("ROLE") else { return };
    let has_id = std::env::var_os("ID_FILE").is_some();
    let made = if has_id { by_unique_id() } else { Communicator::from_env() };
    let mut comm = match made {
        Ok(comm) => comm,
        Err(error) => {
            print(&format!("\n@refused {error}\n"));
            std::process::exit(3);
        }
    };
    print(&format!("\n@joined {} of {}\n", comm.rank(), comm.size()));
    match role.as_str() {
        "split" => super::scenarios::split(comm),
        "ladder" => super::scenarios::ladder(comm, 5, 2, super::scenarios::LARGE),
        "grow" => super::scenarios::grow(comm),
        "barrier" => until_it_fails(&mut comm),
        "compute" => compute(&mut comm),
        _ => sum(&mut comm),
    }
}

/// Prints in one write, so that lines of ranks do not mix.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
    let _ = std::io::stdout().flush();
}

/// Returns milliseconds since the epoch, a clock that processes share.
pub(crate) fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_millis()
}

fn sum(comm: &mut Communicator) {
    let mut ranks = [f64::from(comm.rank().0)];
    comm.all_reduce_in_place(&mut ranks, ReduceOp::Sum).expect("all take part");
    print(&format!("\n@sum {}\n", ranks[0]));
}

/// Rank 0 creates an id and writes it to a file, for which the others wait.
fn by_unique_id() -> Result<Communicator> {
    let var = |name: &str| std::env::var(name).expect("set by the test");
    let (rank, size): (u32, u32) =
        (var("ID_RANK").parse().expect("a rank"), var("ID_SIZE").parse().expect("a size"));
    let path = std::path::PathBuf::from(var("ID_FILE"));
    let id = if rank == 0 {
        let id = UniqueId::create()?;
        let part = path.with_extension("part");
        std::fs::write(&part, id.as_bytes()).expect("written");
        std::fs::rename(&part, &path).expect("in its place");
        id
    } else {
        let until = Instant::now() + Duration::from_secs(30);
        while !path.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        UniqueId::from_bytes(std::fs::read(&path).expect("rank 0 made it").try_into().expect("128 bytes"))?
    };
    Communicator::from_unique_id(&id, rank, size, &Config::from_env()?)
}

/// Repeats barriers until one fails, and prints a line each second; then prints the time and the error.
fn until_it_fails(comm: &mut Communicator) {
    let mut said = None;
    loop {
        if let Err(error) = comm.barrier() {
            return print(&format!("\n@error {} {error}\n", now()));
        }
        if said.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(1)) {
            print("\n@going\n");
            said = Some(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes one barrier, and then no call for a long time.
fn compute(comm: &mut Communicator) {
    comm.barrier().expect("all take part");
    print("\n@going\n");
    std::thread::sleep(Duration::from_secs(60));
}
