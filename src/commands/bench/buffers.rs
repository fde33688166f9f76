//! Buffers of measured operations: from malloc, as most programs have them, or from the library's allocator.

use super::pattern::Value;
use tbccl::{Buffer, Communicator, Error, Result};

/// A rank's two buffers, large enough for any size.
pub(in crate::commands) struct Buffers<T: Value> {
    pub(in crate::commands) input: Memory<T>,
    pub(in crate::commands) output: Memory<T>,
}

/// Elements that begin on a page.
pub(in crate::commands) enum Memory<T: Value> {
    /// From malloc: the elements from `skipped` on.
    Plain { elements: Vec<T>, skipped: usize },
    /// From the library's allocator.
    Registered(Buffer<T>),
}

const PAGE: usize = 4096;

impl<T: Value> Memory<T> {
    fn new(comm: &Communicator, len: usize, registered: bool) -> Result<Memory<T>> {
        if registered {
            return comm.alloc(len).map(Memory::Registered);
        }
        let mut elements = Vec::new();
        let room = len.saturating_add(PAGE / size_of::<T>());
        elements.try_reserve_exact(room).map_err(|_| {
            Error::InvalidArgument(format!("no memory for a buffer of {len} {} elements", T::DTYPE))
        })?;
        elements.resize(room, T::default());
        let skipped = elements.as_ptr().align_offset(PAGE);
        Ok(Memory::Plain { elements, skipped })
    }

    /// The first elements.
    pub(in crate::commands) fn get(&self, len: usize) -> &[T] {
        match self {
            Memory::Plain { elements, skipped } => &elements[*skipped..][..len],
            Memory::Registered(buffer) => &buffer[..len],
        }
    }

    /// The first elements, to be written.
    pub(in crate::commands) fn get_mut(&mut self, len: usize) -> &mut [T] {
        match self {
            Memory::Plain { elements, skipped } => &mut elements[*skipped..][..len],
            Memory::Registered(buffer) => &mut buffer[..len],
        }
    }
}

impl<T: Value> Buffers<T> {
    /// Allocates buffers for inputs and outputs of up to this many elements.
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
