//! Buffers of measured operations, from malloc, as in most programs, or from the library's allocator.

use super::pattern::Value;
use tbccl::{Buffer, Communicator, Error, Result};

/// A rank's two buffers, large enough for every size.
pub(in crate::commands) struct Buffers<T: Value> {
    pub(in crate::commands) input: Memory<T>,
    pub(in crate::commands) output: Memory<T>,
}

/// Elements that begin at a page boundary.
pub(in crate::commands) enum Memory<T: Value> {
    /// Memory from malloc; the elements begin at `offset`.
    Plain { elements: Vec<T>, offset: usize },
    /// Memory from the library's allocator.
    Registered(Buffer<T>),
}

const PAGE: usize = 4096;

impl<T: Value> Memory<T> {
    fn new(comm: &Communicator, len: usize, registered: bool) -> Result<Memory<T>> {
        if registered {
            return comm.alloc(len).map(Memory::Registered);
        }
        let mut elements = Vec::new();
        let capacity = len.saturating_add(PAGE / size_of::<T>());
        elements.try_reserve_exact(capacity).map_err(|_| {
            Error::InvalidArgument(format!("no memory for a buffer of {len} {} elements", T::DTYPE))
        })?;
        elements.resize(capacity, T::default());
        let offset = elements.as_ptr().align_offset(PAGE);
        Ok(Memory::Plain { elements, offset })
    }

    /// Returns the first `len` elements.
    pub(in crate::commands) fn get(&self, len: usize) -> &[T] {
        match self {
            Memory::Plain { elements, offset } => &elements[*offset..][..len],
            Memory::Registered(buffer) => &buffer[..len],
        }
    }

    /// Returns the first `len` elements for writing.
    pub(in crate::commands) fn get_mut(&mut self, len: usize) -> &mut [T] {
        match self {
            Memory::Plain { elements, offset } => &mut elements[*offset..][..len],
            Memory::Registered(buffer) => &mut buffer[..len],
        }
    }
}

impl<T: Value> Buffers<T> {
    /// Allocates buffers for inputs and outputs of at most these element counts.
    pub(in crate::commands) fn new(
        comm: &Communicator,
        input: usize,
        output: usize,
        registered: bool,
    ) -> Result<Buffers<T>> {
        Ok(Buffers {
            input: Memory::new(comm, input, registered)?,
            output: Memory::new(comm, output, registered)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tbccl::Config;

    #[test]
    fn buffers_begin_on_a_page() {
        let config = Config { slab_bytes: Some(1 << 20), ..Config::default() };
        let comm = Communicator::local(1, &config).expect("memory for a test").remove(0);
        for registered in [false, true] {
            let buffers = Buffers::<u16>::new(&comm, 10, 5000, registered).expect("memory");
            assert!(buffers.input.get(10).as_ptr().addr().is_multiple_of(PAGE));
            assert!(buffers.output.get(5000).as_ptr().addr().is_multiple_of(PAGE));
        }
    }
}
