//! Charts as SVG: lines over two axes, with a mark at each value that shows it when pointed at.

use super::axis::{Axis, Scale};
use maud::{Markup, html};
use std::fmt::Write;

/// Size of the drawing, and its margins. Text stays readable when a phone shows it at two thirds of the size.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// Colors, after which lines are dashed in another way.
const COLORS: usize = 8;
const DASHES: usize = 4;

/// A chart.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Chart {
    pub(in crate::commands) title: String,
    pub(in crate::commands) x: Axis,
    pub(in crate::commands) y: Axis,
    pub(in crate::commands) series: Vec<Series>,
}

/// A line of a chart.
///
/// Charts of a section have the same lines in the same order, so that a line has the same color in all.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Series {
    pub(in crate::commands) name: String,
    /// Whether the line is a limit, which is dashed and has no marks.
    pub(in crate::commands) is_limit: bool,
    pub(in crate::commands) points: Vec<Point>,
}

/// A value of a line.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Point {
    pub(in crate::commands) x: f64,
    pub(in crate::commands) y: f64,
    /// Text that is shown when the mark is pointed at.
    pub(in crate::commands) text: String,
}

/// Returns the classes of lines, by their order.
fn classes(series: &[Series]) -> Vec<String> {
    let mut measured = 0;
    let class = |line: &Series| {
        if line.is_limit {
            return "limit".to_owned();
        }
        let number = measured;
        measured += 1;
        format!("s{} d{}", number % COLORS, number / COLORS % DASHES)
    };
    series.iter().map(class).collect()
}

/// Returns the legend of charts that have the same lines.
pub(super) fn legend(charts: &[Chart]) -> Markup {
    let series = charts.iter().map(|chart| &chart.series).max_by_key(|series| series.len());
    let series = series.map_or(&[][..], Vec::as_slice);
    html! {
        ul class="legend" {
            @for (line, class) in series.iter().zip(classes(series)) {
                li {
                    svg viewBox="0 0 26 10" xmlns="http://www.w3.org/2000/svg" {
                        line class=(format!("swatch {class}")) stroke-width="3"
                            x1="0" y1="5" x2="26" y2="5" {}
                    }
                    (line.name)
                }
            }
        }
    }
}

impl Chart {
    /// Returns the values that both axes can show.
    fn points<'a>(&'a self, line: &'a Series) -> impl Iterator<Item = &'a Point> + Clone {
        line.points.iter().filter(|point| self.x.has(point.x) && self.y.has(point.y))
    }

    pub(super) fn markup(&self) -> Markup {
        let all = || self.series.iter().flat_map(|line| self.points(line));
        let (x, y) = (self.x.scale(all().map(|point| point.x)), self.y.scale(all().map(|point| point.y)));
        let view = format!("0 0 {WIDTH} {HEIGHT}");
        html! {
            figure {
                h3 { (self.title) }
                svg class="chart" viewBox=(view) role="img" aria-label=(self.title)
                    xmlns="http://www.w3.org/2000/svg"
                {
                    (self.axes(&x, &y))
                    @for (line, class) in self.series.iter().zip(classes(&self.series)) {
                        (self.line(line, &class, &x, &y))
                    }
                }
            }
        }
    }

    fn axes(&self, x: &Scale, y: &Scale) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        html! {
            @for tick in &x.ticks {
                path class="grid" d=(format!("M{:.1} {TOP}V{bottom}", across(tick.at))) {}
                text x=(format!("{:.1}", across(tick.at))) y=(bottom + 17.0) text-anchor="middle" {
                    (tick.label)
                }
            }
            @for tick in &y.ticks {
                path class="grid" d=(format!("M{LEFT} {:.1}H{right}", down(tick.at))) {}
                text x=(LEFT - 7.0) y=(format!("{:.1}", down(tick.at) + 4.5)) text-anchor="end" {
                    (tick.label)
                }
            }
            text class="strong" x=((LEFT + right) / 2.0) y=(HEIGHT - 8.0) text-anchor="middle" {
                (self.x.name)
            }
            text class="strong" text-anchor="middle"
                transform=(format!("translate(14 {}) rotate(-90)", (TOP + bottom) / 2.0)) { (self.y.name) }
        }
    }

    fn line(&self, line: &Series, class: &str, x: &Scale, y: &Scale) -> Markup {
        let mut path = String::new();
        for point in self.points(line) {
            let command = if path.is_empty() { 'M' } else { 'L' };
            // Writing to a string can't fail.
            let _ = write!(path, "{command}{:.1} {:.1}", across(x.at(point.x)), down(y.at(point.y)));
        }
        html! {
            path class=(format!("series {class}")) d=(path) { title { (line.name) } }
            @if !line.is_limit {
                @for point in self.points(line) {
                    circle class=(class.split(' ').next().unwrap_or_default()) r="3"
                        cx=(format!("{:.1}", across(x.at(point.x))))
                        cy=(format!("{:.1}", down(y.at(point.y)))) { title { (point.text) } }
                }
            }
        }
    }
}

/// Returns the horizontal place of a position from 0 to 1.
fn across(position: f64) -> f64 {
    LEFT + position * (WIDTH - LEFT - RIGHT)
}

/// Returns the vertical place of a position from 0 to 1.
fn down(position: f64) -> f64 {
    HEIGHT - BOTTOM - position * (HEIGHT - TOP - BOTTOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_colors_are_dashed_and_limits_take_no_color() {
        let line = |is_limit| Series { name: String::new(), is_limit, points: Vec::new() };
        let mut series = vec![line(true)];
        series.extend((0..10).map(|_| line(false)));
        let classes = classes(&series);
        assert_eq!(
            (classes[0].as_str(), classes[1].as_str(), classes[9].as_str()),
            ("limit", "s0 d0", "s0 d1")
        );
    }
}
