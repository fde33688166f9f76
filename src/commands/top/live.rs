//! Rates in the terminal, refreshed until the user ends it.
//!
//! A thread looks at the ranks, so that keys are answered meanwhile. The terminal is restored however this
//! ends: on a key, an error, a panic (by a hook of `ratatui`), SIGTERM or SIGHUP. The last rates stay on the
//! screen when a job ends, with the reason.

use super::{
    super::CommandError,
    rates::Rates,
    sample::Sample,
    table::{RAIL_HEAD, RANK_HEAD, rail_row, rank_row, widths},
};
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Text},
    widgets::{Cell, Paragraph, Row, Table},
};
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    flag,
};
use std::{
    io,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest time until a key, a signal or new rates are noticed.
const TICK: Duration = Duration::from_millis(50);

/// News of the ranks: rates, or the reason why there are none.
type News = Result<Rates, String>;

/// Shows rates until the user ends it.
///
/// # Errors
/// If the terminal can't be used.
pub(super) fn show(first: Sample, job: Option<u32>, interval: Duration) -> Result<ExitCode, CommandError> {
    let unusable = |error: io::Error| {
        CommandError::new(format!("the terminal can't be used: {error}; `--once` prints text"))
    };
    let is_ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&is_ended)).map_err(unusable)?;
    }
    let (sender, news) = channel();
    thread::Builder::new()
        .name("tbccl-top".into())
        .spawn(move || look(first, job, interval, &sender))
        .map_err(unusable)?;
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let shown = View::default().run(&mut terminal, &news, &is_ended);
    ratatui::restore();
    shown.map_err(unusable)?;
    Ok(ExitCode::SUCCESS)
}

/// Looks at the ranks at each interval, until nobody receives news.
fn look(first: Sample, job: Option<u32>, interval: Duration, sender: &Sender<News>) {
    let mut earlier = first;
    let mut next = Instant::now() + interval;
    loop {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        next = (next + interval).max(Instant::now());
        let news = Sample::take(job).map_err(|error| error.message().to_owned()).map(|later| {
            let rates = Rates::between(&earlier, &later);
            earlier = later;
            rates
        });
        if sender.send(news).is_err() {
            return;
        }
    }
}

/// The state of the view.
#[derive(Debug, Default)]
struct View {
    rates: Option<Rates>,
    /// The reason why there are no newer rates.
    trouble: Option<String>,
    /// Rows above the first one that is shown.
    scrolled: usize,
}

impl View {
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        news: &Receiver<News>,
        is_ended: &AtomicBool,
    ) -> io::Result<()> {
        while !is_ended.load(Relaxed) {
            for news in news.try_iter() {
                match news {
                    Ok(rates) => (self.rates, self.trouble) = (Some(rates), None),
                    Err(trouble) => self.trouble = Some(trouble),
                }
            }
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(TICK)?
                && let Event::Key(key) = event::read()?
                && self.is_end(key)
            {
                break;
            }
        }
        Ok(())
    }

    /// Acts on a key; returns whether it ends the view.
    fn is_end(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => false,
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => is_control,
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(10),
            KeyCode::PageUp => self.scroll(-10),
            _ => false,
        }
    }

    fn scroll(&mut self, rows: isize) -> bool {
        let most = self.rates.as_ref().map_or(0, |rates| rates.ranks.len().saturating_sub(1));
        self.scrolled = self.scrolled.saturating_add_signed(rows).min(most);
        false
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let rails = self.rates.as_ref().map_or(0, |rates| rates.rails.len());
        let height = if rails == 0 { 0 } else { (rails as u16).saturating_add(2) };
        let half = frame.area().height / 2;
        let [title, ranks, below, hint] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(height.min(half)),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        if let Some(rates) = &self.rates {
            let rows: Vec<Vec<String>> = rates.ranks.iter().map(rank_row).map(Vec::from).collect();
            draw_table(frame, ranks, &RANK_HEAD, &rows, self.scrolled);
            let rows: Vec<Vec<String>> = rates.rails.iter().map(rail_row).map(Vec::from).collect();
            if !rows.is_empty() {
                draw_table(frame, below, &RAIL_HEAD, &rows, 0);
            }
        }
        frame.render_widget(Line::from("q ends, arrows scroll").style(Modifier::DIM), hint);
    }

    /// Returns the first line: the size of what is shown, or why nothing new is.
    fn title(&self) -> Paragraph<'_> {
        match (&self.trouble, &self.rates) {
            (Some(trouble), _) => Paragraph::new(trouble.as_str()).style(Color::Red),
            (None, None) => Paragraph::new("looks at the ranks ..."),
            (None, Some(rates)) => {
                let mut jobs: Vec<&str> = rates.ranks.iter().map(|rank| rank.job_id.as_str()).collect();
                jobs.dedup();
                Paragraph::new(format!(
                    "tbccl top: {} ranks of {} jobs, over {:.1} s",
                    rates.ranks.len(),
                    jobs.len(),
                    rates.seconds
                ))
                .style(Modifier::BOLD)
            }
        }
    }
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    head: &[(&'static str, bool)],
    rows: &[Vec<String>],
    scrolled: usize,
) {
    let widths = widths(head, rows).into_iter().map(|width| Constraint::Length(width as u16));
    let cell = |text: String, is_right: bool| {
        let alignment = if is_right { Alignment::Right } else { Alignment::Left };
        Cell::from(Text::from(text).alignment(alignment))
    };
    let names = head.iter().map(|(name, is_right)| cell((*name).to_owned(), *is_right));
    let row = |row: &Vec<String>| {
        let cells = row.iter().zip(head).map(|(text, (_, is_right))| cell(text.clone(), *is_right));
        Row::new(cells).style(row_style(row))
    };
    let table = Table::new(rows.iter().skip(scrolled).map(row), widths)
        .header(Row::new(names).style(Modifier::REVERSED))
        .column_spacing(2);
    frame.render_widget(table, area);
}

/// Returns the style of a row: red for a rail that is down.
fn row_style(row: &[String]) -> Style {
    if row.iter().any(|cell| cell == "down") { Color::Red.into() } else { Style::default() }
}

#[cfg(test)]
mod tests {
    use super::{
        super::rates::{RailRates, RankRates},
        *,
    };
    use ratatui::{Terminal, backend::TestBackend};

    fn rank(rank: u32) -> RankRates {
        RankRates {
            job_id: "a".into(),
            rank,
            host: "mac0".into(),
            pid: 71,
            operations_per_second: Some(1312.0),
            received_bytes_per_second: Some(4.1e9),
            call_share: Some(0.83),
            waiting_share: Some(0.02),
            resent: Some(0),
            errors: Some(0),
            now: "all_reduce number 17".into(),
        }
    }

    fn view(ranks: u32) -> View {
        let rail = RailRates {
            job_id: "a".into(),
            rank: 0,
            peer: 1,
            device: "rdma_en2".into(),
            peer_device: "rdma_en3".into(),
            is_up: false,
            sent_bytes_per_second: None,
            received_bytes_per_second: None,
            signaling_bytes_per_second: Some(5e9),
        };
        let rates = Rates { seconds: 1.0, ranks: (0..ranks).map(rank).collect(), rails: vec![rail] };
        View { rates: Some(rates), ..View::default() }
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        terminal.draw(|frame| view.draw(frame)).expect("memory");
        terminal.backend().to_string()
    }

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn the_screen_has_a_row_for_each_rank_and_rail() {
        let screen = drawn(&view(2), 110, 12);
        for part in [
            "tbccl top: 2 ranks of 1 jobs, over 1.0 s",
            "1     mac0  71        1312  4.1 GB/s      83 %      2 %       0       0  all_reduce number 17",
            "0     rdma_en2  rdma_en3 of rank 1  down      -         -   5.0 GB/s",
            "q ends, arrows scroll",
        ] {
            assert!(screen.contains(part), "{part} is missing in\n{screen}");
        }
    }

    #[test]
    fn trouble_is_told_above_the_last_rates_and_small_screens_do_no_harm() {
        let mut view = view(40);
        view.trouble = Some("no job of this user".into());
        let screen = drawn(&view, 100, 50);
        assert!(screen.contains("no job of this user") && screen.contains("1312"), "{screen}");
        for (width, height) in [(1, 1), (3, 2), (20, 5), (500, 3)] {
            drawn(&view, width, height);
        }
    }

    #[test]
    fn keys_scroll_within_the_rows_and_end_the_view() {
        let mut view = view(3);
        for (code, scrolled) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 2),
            (KeyCode::Down, 2),
            (KeyCode::PageUp, 0),
        ] {
            assert!(!view.is_end(key(code)));
            assert_eq!(view.scrolled, scrolled, "{code:?}");
        }
        assert!(!view.is_end(key(KeyCode::Char('c'))), "without Ctrl");
        assert!(view.is_end(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(view.is_end(key(KeyCode::Char('q'))));
    }
}
