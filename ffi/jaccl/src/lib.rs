//! `libjaccl`: the C++ interface of JACCL, MLX's library for RDMA, on tbccl.
//!
//! MLX's wheel for macOS loads `@rpath/libjaccl.dylib`, and takes three functions from it. With this library
//! in that place, programs that ask for the backend `jaccl` run on tbccl, with their environment and without
//! a change. Programs compiled against JACCL's own headers do as well.
//!
//! ```text
//! program -> exports (mangled names) -> cpp/ (Config, Group, exceptions) -> internal
//!         -> mlx-core, in libtbccl
//! ```
//!
//! | part | contents |
//! |---|---|
//! | `cpp/jaccl.h` | the interface: classes, signatures, layout |
//! | `cpp/config.cpp`, `cpp/group.cpp` | its C++ side, which throws the exceptions |
//! | `exports` | the mangled names |
//! | `internal` | names by which C++ calls the functions of `libtbccl`, which lies beside this library |
//!
//! Invariants: the library exports the names in `exports` and nothing else. No exception passes through Rust
//! code, and no panic through C++ code. JACCL's other classes (its rings, meshes and sockets), which its
//! headers show but no program needs, are not here.

/// Returns the instruction that jumps to the operand `target`.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {target}"
    };
}

/// Returns the instruction that jumps to the operand `target`.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {target}"
    };
}

mod exports;
mod internal;
