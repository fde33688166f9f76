//! RDMA devices between ranks, as a program names them that has them in memory.

use std::sync::Arc;
use topology::DeviceMatrix;

/// RDMA devices between each two ranks that a program names; without names those of the file count.
///
/// Not an option: no variable sets it, since `TBCCL_IBV_DEVICES` names a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedDevices(Option<Arc<DeviceMatrix>>);

impl NamedDevices {
    /// Returns the matrix of the first job's ranks, if the program has named one.
    pub(crate) fn matrix(&self) -> Option<&DeviceMatrix> {
        self.0.as_deref()
    }
}

impl From<DeviceMatrix> for NamedDevices {
    fn from(matrix: DeviceMatrix) -> NamedDevices {
        NamedDevices(Some(Arc::new(matrix)))
    }
}
