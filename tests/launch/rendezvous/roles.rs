//! The roles of ranks in these tests.

use std::{
    io::Write,
    time::{Duration, Instant, SystemTime},
};
use tbccl::{Communicator, Config, ReduceOp, Result, SharedCommunicator, UniqueId};

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
        role if role.starts_with("end_report ") => end_report(comm, role),
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

/// Whether the file exists that ends a report.
fn is_over() -> bool {
    std::env::var_os("END_FILE").is_some_and(|file| std::path::Path::new(&file).exists())
}

fn wait_until_over() {
    while !is_over() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 0 makes a call in which it is alone, and prints its error. When it is over, rank 1 aborts, or a
/// thread of rank 0, or rank 0 is interrupted.
fn end_report(mut comm: Communicator, role: &str) {
    comm.barrier().expect("all take part");
    let (rank, case) = (comm.rank().0, role.rsplit_once(' ').map_or("", |(_, case)| case));
    let comm = SharedCommunicator::new(comm);
    print("\n@ready \n");
    match (rank, case) {
        (0, "abort") => {
            let control = comm.clone();
            std::thread::spawn(move || {
                wait_until_over();
                control.abort();
            });
        }
        (0, "interrupt") => comm.set_interrupt_check(is_over),
        (1, "failure") => {
            wait_until_over();
            comm.abort();
            // The communicator tells the others of the abort in its next call.
            let _ = comm.with(|comm| comm.barrier());
        }
        _ => {}
    }
    if rank > 0 {
        return std::thread::sleep(Duration::from_secs(60));
    }
    let error =
        comm.with(|comm| comm.barrier()).and_then(|result| result).expect_err("the others are outside");
    print(&format!("\n@error {error}\n"));
}
