//! A progress bar on stderr, if stderr is a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};

/// A progress bar that can be suspended while other text is printed.
#[derive(Debug)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Returns a progress bar over `lines` lines, each of which is one of `units`.
    pub(crate) fn new(lines: usize, units: &str) -> Progress {
        let bar = (io::stderr().is_terminal() && lines > 1).then(|| ProgressBar::new(lines as u64));
        if let Some(bar) = &bar {
            let style =
                ProgressStyle::with_template(&format!("[{{elapsed}}] {{bar:40}} {{pos}}/{{len}} {units}"));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            // The bar is drawn only between measurements, since a drawing thread would be measured too.
            bar.set_position(0);
            bar.tick();
            bar.disable_steady_tick();
        }
        Progress(bar)
    }

    /// Counts one more line.
    pub(crate) fn advance(&self) {
        if let Some(bar) = &self.0 {
            bar.inc(1);
        }
    }

    /// Counts up to this line.
    pub(crate) fn reach(&self, line: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(line);
        }
    }

    /// Runs `print` with the bar hidden.
    pub(crate) fn suspended<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.0 {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
