//! All-reduce on a torus: around rings in its rows, then in its columns.
//!
//! The n ranks form the rectangle of `a` rows and `b` columns that is closest to a square, with `a <= b`;
//! rank `r` is in row `r / b`. A prime number of ranks is one row: the plan is then the plain ring.
//!
//! Chunks: n, in b groups of a. The rows reduce groups around their rings, so that column `j` of every row
//! gets group `j + 1`. The columns all-reduce the chunks of that group around their rings. Then the groups
//! travel around the rows again, each chunk as soon as its column has finished it.
//!
//! Stages: 2(a-1) + 2(b-1). Bytes sent per rank: 2(n-1)/n of the block. Cost: (2(a-1) + 2(b-1))α +
//! 2(n-1)/n·Bβ + (n-1)/n·Bγ, with `a` messages one right after the other in each of the last b-1 stages.
//!
//! Wins over a ring on many ranks: the same traffic in about 4·√n stages. It needs cables around rows and
//! columns only.
//!
//! H. Mikami, H. Suganuma, P. U-chupala, Y. Tanaka, Y. Kageyama: "Massively distributed SGD:
//! ImageNet/ResNet-50 training in a flash", arXiv 1811.05233, 2018.

use crate::builder::Builder;
use crate::plan::sub_ring::SubRing;
use crate::schedule::{Buffer, ChunkRange, Schedule};
use crate::{PlanError, Spec};
use topology::Rank;

/// A torus, as seen from the position of a rank.
#[derive(Clone, Copy, Debug)]
struct Torus {
    rows: u32,
    columns: u32,
    /// The ring through the rank's row.
    row: SubRing,
    /// The ring through the rank's column.
    column: SubRing,
}

/// Plans an all-reduce on a torus.
///
/// # Errors
/// [`PlanError::TooLarge`] for too many segments; [`PlanError::Lanes`] for too many replicas or stripes.
pub fn plan(spec: &Spec) -> Result<Schedule, PlanError> {
    let n = spec.ranks();
    let mut builder = Builder::new(spec, "torus", n, 0);
    for rank in spec.planned_ranks() {
        if n == 1 {
            builder.copy(rank, ChunkRange::input(0), ChunkRange::output(0));
        }
        let torus = Torus::of(rank, n);
        torus.reduce_scatter(&mut builder, rank);
        torus.all_gather(&mut builder, rank);
    }
    builder.finish()
}

impl Torus {
    fn of(rank: Rank, n: u32) -> Torus {
        let rows = (1..=n.isqrt()).rev().find(|rows| n.is_multiple_of(*rows)).unwrap_or(1);
        let columns = n / rows;
        let (i, j) = (rank.0 / columns, rank.0 % columns);
        let row = SubRing::through(columns, j, |j| Rank(i * columns + j));
        let column = SubRing::through(rows, i, |i| Rank(i * columns + j));
        Torus { rows, columns, row, column }
    }

    /// Returns a function to a chunk of the group that the rank's column reduces.
    fn column_chunk(&self) -> impl Fn(Buffer, u32) -> ChunkRange + use<> {
        let (group, rows) = (self.row.owned(), self.rows);
        move |buffer, part| ChunkRange::one(buffer, group * rows + part)
    }

    /// Adds the stages up to the chunk of the result that the rank computes.
    fn reduce_scatter(&self, builder: &mut Builder, rank: Rank) {
        let Torus { rows, columns, row, column } = *self;
        let group = |buffer, group: u32| ChunkRange { buffer, first: group * rows, len: rows };
        for stage in 0..columns - 1 {
            builder.stage(stage);
            row.reduce_scatter_stage(builder, rank, stage, Buffer::Input, &group);
        }
        for stage in 0..rows - 1 {
            builder.stage(columns - 1 + stage);
            column.reduce_scatter_stage(builder, rank, stage, Buffer::Output, &self.column_chunk());
        }
        if rows * columns > 1 {
            builder.mark_last(rank);
        }
    }

    /// Adds the stages that distribute the result.
    fn all_gather(&self, builder: &mut Builder, rank: Rank) {
        let Torus { rows, columns, row, column } = *self;
        for stage in 0..rows - 1 {
            builder.stage(columns - 1 + rows - 1 + stage);
            column.all_gather_stage(builder, rank, stage, &self.column_chunk());
        }
        let first_stage = columns - 1 + 2 * (rows - 1);
        for stage in 0..columns - 1 {
            for row_chunk in 0..rows {
                let part = |buffer, group: u32| ChunkRange::one(buffer, group * rows + row_chunk);
                builder.stage(first_stage + stage * rows + row_chunk);
                row.all_gather_stage(builder, rank, stage, &part);
            }
        }
    }
}
