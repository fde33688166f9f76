//! tbccl
