//! The last accesses of each chunk of memory, while the steps of a rank are visited in list order.
//!
//! For each chunk the last writer and its readers since are enough: earlier accesses have been ordered before
//! them, or found not to be, and order is transitive.
//!
//! The builder derives dependencies from this, and the verifier looks for races.

use crate::schedule::Memory;
use crate::schedule::{Action, ChunkRange};

/// Placeholder for no step and no reader.
const NONE: u32 = u32::MAX;

/// The memory of one rank.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    cells: Vec<Cell>,
    /// Readers of all chunks: the step, and where the next reader of the same chunk is.
    readers: Vec<(u32, u32)>,
}

/// The last accesses of a chunk.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The last step that wrote it.
    writer: u32,
    /// The first and the last step that has read the writer's value, by position in `readers`.
    first: u32,
    last: u32,
}

const UNTOUCHED: Cell = Cell { writer: NONE, first: NONE, last: NONE };

impl Touched {
    /// Resets the state for another memory.
    pub(crate) fn start(&mut self, memory: &Memory) {
        self.cells.clear();
        self.cells.resize(memory.cells(), UNTOUCHED);
        self.readers.clear();
    }

    /// Returns the steps that have touched a chunk since it was last written, the writer first.
    pub(crate) fn writer_and_readers(&self, cell: usize) -> impl Iterator<Item = u32> {
        self.writer(cell).into_iter().chain(self.readers(cell))
    }

    /// Returns the last step that wrote a chunk.
    pub(crate) fn writer(&self, cell: usize) -> Option<u32> {
        Some(self.cells[cell].writer).filter(|writer| *writer != NONE)
    }

    fn readers(&self, cell: usize) -> impl Iterator<Item = u32> {
        let mut at = self.cells[cell].first;
        std::iter::from_fn(move || {
            let (step, next) = *self.readers.get(at as usize)?;
            at = next;
            Some(step)
        })
    }

    /// Adds a step that comes after all that were added before.
    pub(crate) fn touch(&mut self, memory: &Memory, action: &Action, step: u32) {
        for range in action.reads().into_iter().flatten() {
            self.read(memory, range, step);
        }
        if let Some(range) = action.writes() {
            self.cells[memory.span(range)].fill(Cell { writer: step, ..UNTOUCHED });
        }
    }

    fn read(&mut self, memory: &Memory, range: ChunkRange, step: u32) {
        for cell in &mut self.cells[memory.span(range)] {
            let place = self.readers.len() as u32;
            self.readers.push((step, NONE));
            match cell.last {
                NONE => cell.first = place,
                last => self.readers[last as usize].1 = place,
            }
            cell.last = place;
        }
    }
}
