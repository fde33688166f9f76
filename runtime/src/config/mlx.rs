//! Options of groups of MLX.

use std::{fmt, str::FromStr};

/// Whether `tbccl.mlx.install()` gives groups of MLX's own kind, which the user's C++ compiler compiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MlxNative {
    /// On Linux, where all ranks can compile them; otherwise groups through MLX's MPI interface.
    #[default]
    Auto,
    /// Groups through MLX's MPI interface.
    Off,
}

impl FromStr for MlxNative {
    type Err = String;

    fn from_str(text: &str) -> Result<MlxNative, String> {
        match text {
            "auto" => Ok(MlxNative::Auto),
            "off" => Ok(MlxNative::Off),
            _ => Err("expected auto or off".to_owned()),
        }
    }
}

impl fmt::Display for MlxNative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MlxNative::Auto => "auto",
            MlxNative::Off => "off",
        })
    }
}
