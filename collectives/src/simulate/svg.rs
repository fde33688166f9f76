//! The outcome of a simulation as a picture: a row for each rank, time from left to right.
//!
//! A rank's row has three lines: sends, receives, and local steps. A send is drawn from its beginning until
//! its memory is free. A receive is drawn from the time when its message begins to be taken, or could have
//! been, to its end. Overlapping steps of one line are drawn on top of each other, translucent. The steps of
//! the critical path have an outline.

use super::{Outcome, Timing, critical_path};
use crate::{
    Schedule,
    schedule::{Action, Direction},
};
use std::{collections::HashSet, fmt::Write};
use topology::Rank;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 44.0;
/// Height of a line of a row, and of a row with the space below it.
const LINE: f64 = 9.0;
const ROW: f64 = 3.0 * LINE + 7.0;
/// Maximum number of drawn rows: the first ranks.
const MAX_ROWS: usize = 32;
/// Maximum number of drawn steps, so that pictures stay small: the longest.
const MAX_BARS: usize = 900;

const SEND: Look = Look { line: 0.0, class: "s", colour: "#3b6fb6", name: "send" };
const RECV: Look = Look { line: 1.0, class: "r", colour: "#4a9a5c", name: "receive" };
const RECV_REDUCE: Look = Look { line: 1.0, class: "rr", colour: "#c9772b", name: "receive and reduce" };
const COPY: Look = Look { line: 2.0, class: "c", colour: "#8a8a8a", name: "copy" };
const REDUCE: Look = Look { line: 2.0, class: "d", colour: "#a4508b", name: "reduce" };
const LOOKS: [Look; 5] = [SEND, RECV, RECV_REDUCE, COPY, REDUCE];

/// The appearance of a kind of step.
#[derive(Clone, Copy)]
struct Look {
    line: f64,
    class: &'static str,
    colour: &'static str,
    name: &'static str,
}

fn look(action: &Action) -> Look {
    let reads = action.reads().into_iter().flatten().count();
    match action.message() {
        Some((_, Direction::Out)) => SEND,
        Some((_, Direction::In)) if reads == 0 => RECV,
        Some(_) => RECV_REDUCE,
        None if reads > 1 => REDUCE,
        None => COPY,
    }
}

/// One step in the picture.
struct Bar {
    rank: usize,
    step: usize,
    from: f64,
    to: f64,
}

/// Returns the picture of an outcome, as SVG.
#[must_use]
pub fn svg(schedule: &Schedule, outcome: &Outcome, title: &str) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = draw(&mut text, schedule, outcome, title);
    text
}

fn draw(text: &mut String, schedule: &Schedule, outcome: &Outcome, title: &str) -> std::fmt::Result {
    let rows = schedule.programs.len().min(MAX_ROWS);
    let bottom = TOP + rows as f64 * ROW;
    let height = bottom + 58.0;
    write!(text, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" ")?;
    writeln!(text, "viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"11\">")?;
    writeln!(text, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>")?;
    writeln!(text, "<text x=\"{LEFT}\" y=\"18\" font-size=\"13\">{}</text>", escaped(title))?;
    let styles = LOOKS.map(|look| format!(".{}{{fill:{};fill-opacity:.6}}", look.class, look.colour));
    writeln!(text, "<style>{}.p{{stroke:black;stroke-width:.8}}</style>", styles.concat())?;
    let scale = Scale::new(outcome.makespan);
    axis(text, &scale, bottom)?;
    for rank in 0..rows {
        let y = TOP + rank as f64 * ROW + 1.5 * LINE + 4.0;
        writeln!(text, "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">rank {rank}</text>", LEFT - 6.0)?;
    }
    let (bars, left_out) = bars(outcome, rows);
    let on_path: HashSet<(usize, usize)> =
        critical_path(outcome).iter().map(|step| (step.rank.index(), step.step as usize)).collect();
    for bar in &bars {
        let Look { line, class, .. } = look(&schedule.programs[bar.rank].steps[bar.step].action);
        let (x, width) = (scale.x(bar.from), (scale.x(bar.to) - scale.x(bar.from)).max(0.4));
        let y = TOP + bar.rank as f64 * ROW + line * LINE;
        let outline = if on_path.contains(&(bar.rank, bar.step)) { " p" } else { "" };
        write!(text, "<rect class=\"{class}{outline}\" x=\"{x:.1}\" y=\"{y:.0}\" ")?;
        writeln!(text, "width=\"{width:.1}\" height=\"{}\"/>", LINE - 1.0)?;
    }
    legend(text, bottom + 34.0)?;
    let ranks_left_out = schedule.programs.len() - rows;
    if left_out + ranks_left_out > 0 {
        let note =
            format!("not drawn: {ranks_left_out} ranks, and the {left_out} shortest steps of the others");
        writeln!(text, "<text x=\"{LEFT}\" y=\"{}\" fill=\"#666\">{note}</text>", bottom + 52.0)?;
    }
    writeln!(text, "</svg>")
}

/// Returns the drawn steps, and the number of steps left out.
fn bars(outcome: &Outcome, rows: usize) -> (Vec<Bar>, usize) {
    let mut bars = Vec::new();
    for rank in 0..rows {
        for (step, timing) in outcome.timings(Rank(rank as u32)).iter().enumerate() {
            let Timing { begin, end, .. } = *timing;
            bars.push(Bar { rank, step, from: begin, to: end });
        }
    }
    let left_out = bars.len().saturating_sub(MAX_BARS);
    if left_out > 0 {
        bars.sort_by(|a, b| {
            (b.to - b.from).total_cmp(&(a.to - a.from)).then((a.rank, a.step).cmp(&(b.rank, b.step)))
        });
        bars.truncate(MAX_BARS);
        bars.sort_by_key(|bar| (bar.rank, bar.step));
    }
    (bars, left_out)
}

/// The scale from seconds to positions, and its unit.
struct Scale {
    makespan: f64,
    unit: f64,
    name: &'static str,
}

impl Scale {
    fn new(makespan: f64) -> Scale {
        let makespan = makespan.max(1e-9);
        let units = [(1e-6, "us"), (1e-3, "ms"), (1.0, "s")];
        let (unit, name) =
            units.into_iter().rev().find(|(unit, _)| makespan >= 2.0 * unit).unwrap_or(units[0]);
        Scale { makespan, unit, name }
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.makespan * (WIDTH - LEFT - 24.0)
    }

    /// Returns a round step of the axis, in the unit; the axis has about eight.
    fn step(&self) -> f64 {
        let rough = self.makespan / self.unit / 8.0;
        let power = 10f64.powf(rough.log10().floor());
        [1.0, 2.0, 5.0, 10.0].map(|k| k * power).into_iter().find(|step| *step >= rough).unwrap_or(rough)
    }
}

fn axis(text: &mut String, scale: &Scale, bottom: f64) -> std::fmt::Result {
    let step = scale.step();
    let ticks = (scale.makespan / scale.unit / step).floor() as u32;
    for tick in 0..=ticks {
        let at = f64::from(tick) * step;
        let x = scale.x(at * scale.unit);
        writeln!(text, "<path d=\"M{x:.1} {} V{bottom}\" stroke=\"#ddd\"/>", TOP - 6.0)?;
        let number = format!("{}", (at * 1e6).round() / 1e6);
        writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{number} {}</text>",
            TOP - 10.0,
            scale.name
        )?;
    }
    let end = scale.x(scale.makespan);
    writeln!(text, "<path d=\"M{end:.1} {} V{bottom}\" stroke=\"#c00\" stroke-dasharray=\"3 2\"/>", TOP - 6.0)
}

fn legend(text: &mut String, y: f64) -> std::fmt::Result {
    let mut x = LEFT;
    for Look { class, name, .. } in LOOKS {
        writeln!(text, "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"10\" height=\"9\"/>", y - 8.0)?;
        writeln!(text, "<text x=\"{}\" y=\"{y}\">{name}</text>", x + 14.0)?;
        x += 40.0 + 6.2 * name.len() as f64;
    }
    writeln!(text, "<text x=\"{x}\" y=\"{y}\">outlined: the critical path; red: the end</text>")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
