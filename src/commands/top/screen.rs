//! The terminal of a live view: lines in the place of what it showed, and keys without echo.
//!
//! A dropped [`Screen`] gives the terminal back as it was, and so does a panic before its message. The module
//! does not know what the lines say.

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{self, Event, KeyEvent, KeyEventKind},
    execute, queue,
    style::{ContentStyle, PrintStyledContent, StyledContent},
    terminal::{
        self, BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap,
        EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    },
};
use std::{
    io::{self, Stdout, Write},
    panic,
    time::Duration,
};

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) style: ContentStyle,
}

impl Line {
    /// Returns the line as wide as the screen, so that its style reaches the edge. Control characters, which
    /// names of hosts may have, are spaces.
    fn filled(&self, width: u16) -> StyledContent<String> {
        let width = usize::from(width);
        let text = self.text.replace(char::is_control, " ");
        StyledContent::new(self.style, format!("{text:<width$.width$}"))
    }
}

/// The terminal, which belongs to the view until this is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    out: Stdout,
    /// Width of the screen, and the lines drawn last.
    shown: (u16, Vec<Line>),
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If it can't be used.
    pub(super) fn take() -> io::Result<Screen> {
        let earlier = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            earlier(info);
        }));
        terminal::enable_raw_mode()?;
        // From here on, dropping it restores the terminal.
        let mut screen = Screen { out: io::stdout(), shown: (0, Vec::new()) };
        execute!(screen.out, EnterAlternateScreen, Hide, DisableLineWrap)?;
        Ok(screen)
    }

    /// Shows lines, as many as have room, unless it shows them already; `lines` gets the height.
    ///
    /// # Errors
    /// If the terminal can't be written.
    pub(super) fn draw(&mut self, lines: impl FnOnce(u16) -> Vec<Line>) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let lines = (width, lines(height));
        if lines == self.shown {
            return Ok(());
        }
        queue!(self.out, BeginSynchronizedUpdate)?;
        for row in 0..height {
            queue!(self.out, MoveTo(0, row))?;
            match lines.1.get(usize::from(row)) {
                Some(line) => queue!(self.out, PrintStyledContent(line.filled(width)))?,
                None => queue!(self.out, Clear(ClearType::UntilNewLine))?,
            }
        }
        queue!(self.out, EndSynchronizedUpdate)?;
        self.shown = lines;
        self.out.flush()
    }

    /// Waits for a key that is pressed, for a time at most.
    ///
    /// # Errors
    /// If the terminal can't be read.
    pub(super) fn key(&self, most: Duration) -> io::Result<Option<KeyEvent>> {
        if !event::poll(most)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => Some(key),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back; without one there is nobody to tell of an error.
fn restore() {
    let _ = execute!(io::stdout(), EnableLineWrap, Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_wide_as_the_screen() {
        let line = |text: &str| Line { text: text.to_owned(), style: ContentStyle::default() };
        assert_eq!(line("rank").filled(6).content(), "rank  ");
        assert_eq!(line("ränke").filled(3).content(), "rän");
        assert_eq!(line("").filled(0).content(), "");
    }

    #[test]
    fn a_line_does_not_control_the_terminal() {
        let line = Line { text: "mac\u{1b}[2J\n\u{9b}0".to_owned(), style: ContentStyle::default() };
        assert_eq!(line.filled(12).content(), "mac [2J  0  ");
    }
}
