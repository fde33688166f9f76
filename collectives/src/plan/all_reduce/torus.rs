//! All-reduce on a torus: round rings in its rows, then in its columns.
//!
//! The n ranks are a rectangle of `a` rows and `b` columns as square as can be, `a <= b`; rank `r` is in row `r / b`. A
//! prime number of ranks is one row: then this is the plain ring.
//!
//! Chunks: n, in b groups of a. The rows add up groups round their rings, so that in every row column `j` has group
//! `j + 1`. The columns all-reduce the chunks of that group round theirs. Then the groups go round the rows again, chunk
//! by chunk, each as soon as it has come down its column.
//!
//! Stages: 2(a-1) + 2(b-1). Bytes sent per rank: 2(n-1)/n of the block. Cost: (2(a-1) + 2(b-1))α + 2(n-1)/n·Bβ +
//! (n-1)/n·Bγ, with `a` messages one right after the other in each of the last b-1 stages.
//!
//! Wins over a ring on many ranks: the same traffic in about 4·√n stages. Its messages need cables round rows and columns
//! only.
//!
//! H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama: "Massively distributed SGD: ImageNet/ResNet-50 training
//! in a flash", arXiv 1811.05233, 2018.

use crate::builder::Builder;
use crate::plan::circle::Circle;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// A torus and the place of a rank on it.
#[derive(Clone, Copy, Debug)]
struct Torus {
    rows: u32,
    columns: u32,
    /// The ring through the own row.
    row: Circle,
    /// The ring through the own column.
    column: Circle,
}

/// Plans an all-reduce on a torus.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "torus", n, 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let torus = Torus::around(rank, n);
        torus.add_up(&mut builder, rank);
        torus.pass_on(&mut builder, rank);
    }
    builder.finish()
}

impl Torus {
    fn around(rank: Rank, n: u32) -> Torus {
        let rows = (1..=n.isqrt()).rev().find(|rows| n.is_multiple_of(*rows)).unwrap_or(1);
        let columns = n / rows;
        let (i, j) = (rank.0 / columns, rank.0 % columns);
        let row = Circle::through(columns, j, |j| Rank(i * columns + j));
        let column = Circle::through(rows, i, |i| Rank(i * columns + j));
        Torus { rows, columns, row, column }
    }

    /// A chunk of the group that the own column has.
    fn of_column(&self) -> impl Fn(Buffer, u32) -> ChunkRange + use<> {
        let (group, rows) = (self.row.owned(), self.rows);
        move |buffer, part| ChunkRange::one(buffer, group * rows + part)
    }

    /// Everything up to the chunk of the result that the rank computes.
    fn add_up(&self, builder: &mut Builder, rank: Rank) {
        let Torus { rows, columns, row, column } = *self;
        let group = |buffer, group: u32| ChunkRange { buffer, first: group * rows, len: rows };
        for stage in 0..columns - 1 {
            builder.stage(stage);
            row.add(builder, rank, stage, Buffer::Input, &group);
        }
        for stage in 0..rows - 1 {
            builder.stage(columns - 1 + stage);
            column.add(builder, rank, stage, Buffer::Output, &self.of_column());
        }
        if rows * columns > 1 {
            builder.mark_last(rank);
        }
    }

    /// From there to all of it.
    fn pass_on(&self, builder: &mut Builder, rank: Rank) {
        let Torus { rows, columns, row, column } = *self;
        for stage in 0..rows - 1 {
            builder.stage(columns - 1 + rows - 1 + stage);
            column.pass(builder, rank, stage, &self.of_column());
        }
        let before = columns - 1 + 2 * (rows - 1);
        for stage in 0..columns - 1 {
            for within in 0..rows {
                let part = |buffer, group: u32| ChunkRange::one(buffer, group * rows + within);
                builder.stage(before + stage * rows + within);
                row.pass(builder, rank, stage, &part);
            }
        }
    }
}
