//! Programs in Python for MLX and PyTorch, which ranks run by `python -c`.
//!
//! Each prints the messages of this test. `SETUP` gives them the functions for it.

/// Functions of all programs.
const SETUP: &str = include_str!("setup.py");

/// A program.
#[derive(Debug)]
pub(super) struct Program {
    /// Name of its check, if it fails as a whole.
    pub(super) name: &'static str,
    source: &'static str,
    /// Whether a rank of it ends on purpose.
    pub(super) loses_rank: bool,
}

/// Programs of MLX and of PyTorch.
pub(super) const MLX: [Program; 2] = [
    Program { name: "groups", source: include_str!("mlx.py"), loses_rank: false },
    Program { name: "exception", source: include_str!("mlx_exception.py"), loses_rank: true },
];
pub(super) const TORCH: [Program; 2] = [
    Program { name: "groups", source: include_str!("torch.py"), loses_rank: false },
    Program { name: "exception", source: include_str!("torch_exception.py"), loses_rank: true },
];

impl Program {
    /// Returns the text of the program, for `python -c`.
    pub(super) fn text(&self) -> String {
        format!("{SETUP}\n{}", self.source)
    }
}

/// Program that tests whether a module can be imported, and prints versions.
pub(super) fn probe(module: &str) -> String {
    format!(
        "import sys\nimport tbccl\nimport {module}\nfound = sys.modules['{module}']\n\
         print('tbccl', tbccl.__version__, '{module}', getattr(found, '__version__', '?'), \
         'Python', sys.version.split()[0])\n"
    )
}
