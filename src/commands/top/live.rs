//! Rates in the terminal, refreshed until the user ends it.
//!
//! A thread looks at the ranks, so that keys are answered meanwhile. The terminal is restored however this
//! ends: on a key, an error, a panic, SIGTERM or SIGHUP. The last rates stay on the screen when a job ends,
//! with the reason.

use super::{
    super::CommandError,
    rates::Rates,
    sample::Sample,
    screen::{Line, Screen},
    table::{RAIL_HEAD, RANK_HEAD, aligned, rail_row, rank_row},
};
use crossterm::{
    event::{KeyCode, KeyEvent, KeyModifiers},
    style::{ContentStyle, Stylize},
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
    let screen = Screen::take().map_err(unusable)?;
    View::default().run(screen, &news, &is_ended).map_err(unusable)?;
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
    fn run(mut self, mut screen: Screen, news: &Receiver<News>, is_ended: &AtomicBool) -> io::Result<()> {
        while !is_ended.load(Relaxed) {
            for news in news.try_iter() {
                match news {
                    Ok(rates) => (self.rates, self.trouble) = (Some(rates), None),
                    Err(trouble) => self.trouble = Some(trouble),
                }
            }
            screen.draw(|height| self.lines(height.into()))?;
            if screen.key(TICK)?.is_some_and(|key| self.is_end(key)) {
                break;
            }
        }
        Ok(())
    }

    /// Acts on a key; returns whether it ends the view.
    fn is_end(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
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

    /// Returns the lines of a screen of some height, two at least: a title, ranks, rails in the lower half at
    /// most, and a hint.
    fn lines(&self, height: usize) -> Vec<Line> {
        let room = height.saturating_sub(2);
        let (mut ranks, mut rails) = (Vec::new(), Vec::new());
        if let Some(rates) = &self.rates {
            ranks = rows_of(&RANK_HEAD, rates.ranks.iter().map(rank_row).map(Vec::from));
            if let Some(last) = ranks.len().checked_sub(1) {
                // The head stays.
                ranks.drain(1..=self.scrolled.min(last));
            }
            rails = rows_of(&RAIL_HEAD, rates.rails.iter().map(rail_row).map(Vec::from));
        }
        if !rails.is_empty() {
            rails.insert(0, Line::default());
            rails.truncate(room.min(height / 2));
        }
        ranks.resize(room - rails.len(), Line::default());
        let hint = Line { text: "q ends, arrows scroll".into(), style: ContentStyle::new().dim() };
        [self.title()].into_iter().chain(ranks).chain(rails).chain([hint]).collect()
    }

    /// Returns the first line: the size of what is shown, or why nothing new is.
    fn title(&self) -> Line {
        let (text, style) = match (&self.trouble, &self.rates) {
            (Some(trouble), _) => (trouble.clone(), ContentStyle::new().red()),
            (None, None) => ("looks at the ranks ...".to_owned(), ContentStyle::new()),
            (None, Some(rates)) => {
                let mut jobs: Vec<&str> = rates.ranks.iter().map(|rank| rank.job_id.as_str()).collect();
                jobs.dedup();
                let (ranks, jobs, seconds) = (rates.ranks.len(), jobs.len(), rates.seconds);
                let text = format!("tbccl top: {ranks} ranks of {jobs} jobs, over {seconds:.1} s");
                (text, ContentStyle::new().bold())
            }
        };
        Line { text, style }
    }
}

/// Returns a table as lines, the head first; nothing without rows.
fn rows_of(head: &[(&str, bool)], rows: impl Iterator<Item = Vec<String>>) -> Vec<Line> {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let styles = rows.iter().map(|row| row_style(row));
    let styles = [ContentStyle::new().reverse()].into_iter().chain(styles);
    let lines = aligned(head, &rows);
    lines.lines().zip(styles).map(|(text, style)| Line { text: text.to_owned(), style }).collect()
}

/// Returns the style of a row: red for a rail that is down.
fn row_style(row: &[String]) -> ContentStyle {
    if row.iter().any(|cell| cell == "down") { ContentStyle::new().red() } else { ContentStyle::new() }
}

#[cfg(test)]
mod tests {
    use super::{
        super::rates::{RailRates, RankRates},
        *,
    };

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

    fn drawn(view: &View, height: usize) -> String {
        let lines = view.lines(height);
        assert_eq!(lines.len(), height.max(2));
        lines.into_iter().map(|line| line.text + "\n").collect()
    }

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn the_screen_has_a_row_for_each_rank_and_rail() {
        let screen = drawn(&view(2), 12);
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
        let screen = drawn(&view, 50);
        assert!(screen.contains("no job of this user") && screen.contains("1312"), "{screen}");
        for height in 0..50 {
            drawn(&view, height);
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
