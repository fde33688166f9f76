//! The work of a job's ranks: a sequence of cases.

use crate::{case::LONG, choice::chosen, groups::groups, reproducible};
use std::{fmt, str::FromStr};
use tbccl::{Communicator, Config, Numerics, Result, ShmConfig};
use tbccl_cli::{
    reference::{Case, Exchange, Way, exact},
    with_element,
};

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Cases with all counts except the longest, in small rings.
    Short,
    /// Cases with the longest count.
    Long,
    /// Reductions whose bits depend on the order.
    Reproducible,
    /// Groups of calls.
    Groups,
}

const ALL: [Work; 4] = [Work::Short, Work::Long, Work::Reproducible, Work::Groups];

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Work, String> {
        ALL.into_iter().find(|work| work.to_string() == name).ok_or_else(|| format!("no work {name}"))
    }
}

impl Work {
    pub(crate) fn config(self) -> Config {
        let config = Config { slab_bytes: Some(64 << 20), ..Config::default() };
        match self {
            // Long messages wrap around the rings many times.
            Work::Long => config,
            // The rings are so small that messages are split and wrap around.
            _ => {
                let shm = ShmConfig { piece_bytes: 512, staging_bytes: Some(2048), ..ShmConfig::default() };
                Config { shm, ..config }
            }
        }
    }

    /// Runs the work as one rank; returns the number of cases.
    ///
    /// # Errors
    /// Errors of the library; wrong results panic.
    pub(crate) fn run(self, comm: &mut Communicator) -> Result<usize> {
        let ranks = comm.size();
        match self {
            Work::Short => all(comm, chosen(ranks).filter(|case| case.count != LONG), exactly),
            Work::Long => all(comm, chosen(ranks).filter(|case| case.count == LONG), exactly),
            Work::Reproducible => {
                comm.set_numerics(Numerics::Reproducible);
                all(comm, reproducible::cases(ranks), reproducible::run)
            }
            Work::Groups => groups(comm),
        }
    }
}

/// Runs cases one after the other, each with its algorithm.
fn all(
    comm: &mut Communicator,
    cases: impl Iterator<Item = Case>,
    run: fn(&mut Communicator, Case) -> Result<()>,
) -> Result<usize> {
    let (mut number, mut last) = (0, Way::Chosen);
    for case in cases {
        if case.kind.way != last {
            last = case.kind.way;
            match last {
                Way::Chosen => comm.set_algorithm(None, 0)?,
                Way::By(name, segments) => comm.set_algorithm(Some(name), segments)?,
            }
        }
        run(comm, case)?;
        number += 1;
    }
    Ok(number)
}

/// Runs a case with inputs that reduce exactly in any order.
fn exactly(comm: &mut Communicator, case: Case) -> Result<()> {
    with_element!(case.kind.dtype, T => {
        let mut exchange = Exchange::<T>::new(case, exact(), comm)?;
        exchange.alone(comm)?;
        exchange.check().unwrap_or_else(|wrong| panic!("{wrong}"));
    });
    Ok(())
}
