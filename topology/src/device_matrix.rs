//! The device matrix: which RDMA device of a rank leads to which other rank.
//!
//! The file is MLX's (`MLX_IBV_DEVICES`, `JACCL_IBV_DEVICES`): a JSON array of N rows of N cells. Row i
//! belongs to rank i; its cell j is the device of rank i whose cable leads to rank j: `null` for none, a
//! name, or a list of names for several cables. The k-th name of cell (i, j) and the k-th name of cell (j, i)
//! are the two ends of one cable.
//!
//! ```json
//! [[null, "rdma_en2"], ["rdma_en3", null]]
//! ```
//!
//! Invariants: a matrix is square, its diagonal is empty, and cells (i, j) and (j, i) have equally many
//! names. A device may occur in several cells of a row, as one adapter reaches many peers through a switch;
//! twice in one cell it would be one cable for two.
//!
//! Whether the devices exist, and whether their cables lead where they should, is checked by the driver that
//! opens them.

use crate::Rank;
use serde_json::Value;
use std::fmt;
use thiserror::Error;

/// Names that the verbs ABI has room for.
const NAME_BYTES: usize = 63;

/// A cell, for people: rows and columns are the numbers of ranks, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The rank that owns the device.
    pub row: u32,
    /// The rank that it leads to.
    pub column: u32,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}, column {}", self.row, self.column)
    }
}

/// Why a device matrix was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// The text is not JSON.
    #[error("the device matrix is not JSON: {0}")]
    Syntax(String),
    /// The document is not an array of rows.
    #[error(
        "the device matrix is {found}; write an array with a row for each rank, e.g. [[null, \"rdma_en2\"], \
         [\"rdma_en2\", null]]"
    )]
    NotAnArray {
        /// The kind of value found.
        found: &'static str,
    },
    /// The matrix has no rows.
    #[error("the device matrix is empty; write a row for each rank")]
    Empty,
    /// A row is something else than an array.
    #[error("row {row} of the device matrix is {found}; write an array with a cell for each rank")]
    NotARow {
        /// The row.
        row: u32,
        /// The kind of value found.
        found: &'static str,
    },
    /// A row has another length than there are rows.
    #[error(
        "row {row} of the device matrix has {cells} cells, but there are {rows} rows; write {rows} cells in \
         each row, null where there is no cable"
    )]
    NotSquare {
        /// The row.
        row: u32,
        /// Its length.
        cells: usize,
        /// The number of rows.
        rows: usize,
    },
    /// A cell is something else than null, a name or a list of names.
    #[error(
        "the device matrix has {found} in {cell}; write null, a name like \"rdma_en2\", or a list of names"
    )]
    NotADevice {
        /// The cell.
        cell: Cell,
        /// The kind of value found.
        found: &'static str,
    },
    /// A name that no device can have.
    #[error("the device matrix has the name {name:?} in {cell}; names are those that `tbccl devices` shows")]
    NotAName {
        /// The cell.
        cell: Cell,
        /// The name.
        name: String,
    },
    /// A rank has a device that leads to itself.
    #[error(
        "the device matrix has a device in {cell}; write null there: no cable leads from a rank to itself"
    )]
    Diagonal {
        /// The cell.
        cell: Cell,
    },
    /// A device stands twice in one cell.
    #[error("the device matrix has {name} twice in {cell}; name each cable's device once")]
    Twice {
        /// The cell.
        cell: Cell,
        /// The name.
        name: String,
    },
    /// Two ranks disagree about the cables between them.
    #[error(
        "the device matrix has {there} cable(s) in {cell} and {back} in row {}, column {}; a cable has two \
         ends: name both",
        cell.column,
        cell.row
    )]
    Asymmetric {
        /// The first of the two cells.
        cell: Cell,
        /// The cables there.
        there: usize,
        /// The cables in the other.
        back: usize,
    },
    /// The matrix is for another number of ranks.
    #[error("the device matrix is for {rows} ranks, but the job has {ranks}; write a row for each rank")]
    WrongSize {
        /// The number of rows.
        rows: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// A device that the rank does not have.
    #[error("the device matrix has {name} in {cell}, but rank {} has no such device; it has \
             {known}", cell.row)]
    NoSuchDevice {
        /// The cell.
        cell: Cell,
        /// The name.
        name: String,
        /// The devices that the rank has.
        known: String,
    },
}

/// Which device leads to which rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceMatrix {
    ranks: u32,
    /// Row by row.
    cells: Vec<Vec<String>>,
}

impl DeviceMatrix {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// [`MatrixError`], with the row and the column where it is wrong.
    pub fn parse(json: &str) -> Result<DeviceMatrix, MatrixError> {
        let whole: Value = serde_json::from_str(json).map_err(|e| MatrixError::Syntax(e.to_string()))?;
        let rows = whole.as_array().ok_or(MatrixError::NotAnArray { found: kind(&whole) })?;
        let ranks = u32::try_from(rows.len()).ok().filter(|ranks| *ranks > 0).ok_or(MatrixError::Empty)?;
        let mut cells = Vec::new();
        for (row, value) in (0..).zip(rows) {
            let found = value.as_array().ok_or(MatrixError::NotARow { row, found: kind(value) })?;
            if found.len() != rows.len() {
                return Err(MatrixError::NotSquare { row, cells: found.len(), rows: rows.len() });
            }
            for (column, value) in (0..).zip(found) {
                cells.push(devices(Cell { row, column }, value)?);
            }
        }
        let matrix = DeviceMatrix { ranks, cells };
        matrix.check_pairs()?;
        Ok(matrix)
    }

    /// The matrix with these names: in a row for each rank, a list of devices for each rank.
    ///
    /// # Errors
    /// [`MatrixError`], with the row and the column where it is wrong.
    pub fn from_rows(rows: Vec<Vec<Vec<String>>>) -> Result<DeviceMatrix, MatrixError> {
        let ranks = u32::try_from(rows.len()).ok().filter(|ranks| *ranks > 0).ok_or(MatrixError::Empty)?;
        let mut cells = Vec::new();
        for (row, names) in (0..).zip(rows) {
            if names.len() != ranks as usize {
                return Err(MatrixError::NotSquare { row, cells: names.len(), rows: ranks as usize });
            }
            for (column, names) in (0..).zip(names) {
                let cell = Cell { row, column };
                let names = names.into_iter().map(|name| checked(cell, &name)).collect::<Result<_, _>>()?;
                cells.push(distinct(cell, names)?);
            }
        }
        let matrix = DeviceMatrix { ranks, cells };
        matrix.check_pairs()?;
        Ok(matrix)
    }

    /// The text that [`DeviceMatrix::parse`] reads, as MLX reads it too.
    #[must_use]
    pub fn to_json(&self) -> String {
        let cell = |names: &Vec<String>| match names.as_slice() {
            [] => Value::Null,
            [name] => Value::from(name.as_str()),
            names => Value::from(names),
        };
        let rows = self.cells.chunks(self.ranks as usize);
        Value::Array(rows.map(|row| Value::Array(row.iter().map(cell).collect())).collect()).to_string()
    }

    /// The same cables with rank `order[r]` as rank `r`. Panics when `order` does not name every rank once.
    #[must_use]
    pub fn reordered(&self, order: &[u32]) -> DeviceMatrix {
        assert!(
            order.len() == self.ranks as usize && (0..self.ranks).all(|rank| order.contains(&rank)),
            "{order:?} is not an order of {} ranks",
            self.ranks
        );
        let pairs = order.iter().flat_map(|from| order.iter().map(move |to| (Rank(*from), Rank(*to))));
        DeviceMatrix {
            ranks: self.ranks,
            cells: pairs.map(|(from, to)| self.rails(from, to).to_vec()).collect(),
        }
    }

    /// Returns the matrix of ranks on the hosts of this matrix; `hosts` holds the row of each rank's host.
    /// Each rank uses the devices of its host, and ranks of one host have none between them.
    ///
    /// # Panics
    /// If a row is outside of the matrix, or there are no ranks.
    #[must_use]
    pub fn of_ranks(&self, hosts: &[u32]) -> DeviceMatrix {
        assert!(!hosts.is_empty(), "a matrix of no ranks");
        let pairs = hosts.iter().flat_map(|from| hosts.iter().map(move |to| (Rank(*from), Rank(*to))));
        DeviceMatrix {
            ranks: hosts.len() as u32,
            cells: pairs.map(|(from, to)| self.rails(from, to).to_vec()).collect(),
        }
    }

    /// Both ends of every cable must be named, and no cable leads from a rank to itself.
    fn check_pairs(&self) -> Result<(), MatrixError> {
        for row in 0..self.ranks {
            for column in row..self.ranks {
                let cell = Cell { row, column };
                let there = self.rails(Rank(row), Rank(column)).len();
                let back = self.rails(Rank(column), Rank(row)).len();
                if row == column && there > 0 {
                    return Err(MatrixError::Diagonal { cell });
                }
                if there != back {
                    return Err(MatrixError::Asymmetric { cell, there, back });
                }
            }
        }
        Ok(())
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the devices of rank `from` that lead to rank `to`, one for each cable between them.
    ///
    /// # Panics
    /// If a rank is outside of the matrix.
    #[must_use]
    pub fn rails(&self, from: Rank, to: Rank) -> &[String] {
        assert!(from.0 < self.ranks && to.0 < self.ranks, "rank {from} or {to} of {}", self.ranks);
        &self.cells[from.index() * self.ranks as usize + to.index()]
    }

    /// The devices of a rank, each once, in the order of its row.
    #[must_use]
    pub fn devices_of(&self, rank: Rank) -> Vec<&str> {
        let mut devices: Vec<&str> = Vec::new();
        for name in (0..self.ranks).flat_map(|to| self.rails(rank, Rank(to))) {
            if !devices.contains(&name.as_str()) {
                devices.push(name);
            }
        }
        devices
    }

    /// Checks that the matrix is for a job of `ranks` ranks.
    ///
    /// # Errors
    /// [`MatrixError::WrongSize`].
    pub fn check_size(&self, ranks: u32) -> Result<(), MatrixError> {
        if ranks == self.ranks { Ok(()) } else { Err(MatrixError::WrongSize { rows: self.ranks, ranks }) }
    }

    /// Checks that all devices of a rank are among those that it has.
    ///
    /// # Errors
    /// [`MatrixError::NoSuchDevice`] for the first missing one.
    pub fn check_devices(&self, rank: Rank, known: &[&str]) -> Result<(), MatrixError> {
        for column in 0..self.ranks {
            for name in self.rails(rank, Rank(column)) {
                if !known.contains(&name.as_str()) {
                    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                    let cell = Cell { row: rank.0, column };
                    return Err(MatrixError::NoSuchDevice { cell, name: name.clone(), known });
                }
            }
        }
        Ok(())
    }
}

/// The names in a cell.
fn devices(cell: Cell, value: &Value) -> Result<Vec<String>, MatrixError> {
    let names = match value {
        Value::Null => return Ok(Vec::new()),
        Value::String(name) => vec![checked(cell, name)?],
        Value::Array(list) => list
            .iter()
            .map(|value| match value {
                Value::String(name) => checked(cell, name),
                Value::Array(_) => Err(MatrixError::NotADevice { cell, found: "a list in a list" }),
                other => Err(MatrixError::NotADevice { cell, found: kind(other) }),
            })
            .collect::<Result<_, _>>()?,
        other => return Err(MatrixError::NotADevice { cell, found: kind(other) }),
    };
    distinct(cell, names)
}

/// Refuses a name that stands twice in a cell.
fn distinct(cell: Cell, names: Vec<String>) -> Result<Vec<String>, MatrixError> {
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, name)) => Err(MatrixError::Twice { cell, name: name.clone() }),
        None => Ok(names),
    }
}

fn checked(cell: Cell, name: &str) -> Result<String, MatrixError> {
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES && name.chars().all(|c| c.is_ascii_graphic());
    if is_name { Ok(name.to_owned()) } else { Err(MatrixError::NotAName { cell, name: name.to_owned() }) }
}

/// Returns the kind of a value, for people.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
