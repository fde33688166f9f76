//! tbccl
pub mod element;
pub mod kernels;
