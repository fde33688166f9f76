//! Picture of hosts or ranks on a circle, with the cables between them.

use maud::{Markup, html};
use std::f64::consts::TAU;

const SIZE: f64 = 520.0;
const HEIGHT: f64 = 440.0;
/// Radius of the circle on which hosts stand, and of a host.
const CIRCLE: f64 = 160.0;
const HOST: f64 = 26.0;
/// Distance between cables that connect the same hosts.
const GAP: f64 = 54.0;

/// Hosts with the cables between them.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Cabling {
    pub(in crate::commands) hosts: Vec<String>,
    pub(in crate::commands) cables: Vec<Cable>,
}

/// A cable between two hosts.
#[derive(Clone, Debug)]
pub(in crate::commands) struct Cable {
    /// Positions of the hosts.
    pub(in crate::commands) ends: [usize; 2],
    /// Text beside the cable.
    pub(in crate::commands) label: String,
    /// Text that is shown when the cable is pointed at.
    pub(in crate::commands) text: String,
    /// Whether the cable is slow or down.
    pub(in crate::commands) is_bad: bool,
}

impl Cabling {
    pub(super) fn markup(&self) -> Markup {
        html! {
            figure style="max-width:640px" {
                svg class="chart" viewBox=(format!("0 0 {SIZE} {HEIGHT}")) role="img"
                    aria-label="cables between hosts"
                    xmlns="http://www.w3.org/2000/svg"
                {
                    @for (index, cable) in self.cables.iter().enumerate() { (self.cable(index, cable)) }
                    @for (index, host) in self.hosts.iter().enumerate() {
                        @let (x, y) = self.place(index);
                        circle class="s0" cx=(rounded(x)) cy=(rounded(y)) r=(HOST) { title { (host) } }
                        text class="strong" x=(rounded(x)) y=(rounded(y + 4.5)) text-anchor="middle" {
                            (short(host))
                        }
                    }
                }
            }
        }
    }

    /// Returns the center of a host.
    fn place(&self, index: usize) -> (f64, f64) {
        let angle = TAU * (index as f64 / self.hosts.len().max(1) as f64 - 0.5);
        (SIZE / 2.0 + CIRCLE * angle.cos(), HEIGHT / 2.0 + CIRCLE * angle.sin())
    }

    /// Draws a cable as an arc, farther out the more cables of the same hosts came before it.
    fn cable(&self, index: usize, cable: &Cable) -> Markup {
        let [a, b] = cable.ends;
        let same = |other: &&Cable| other.ends == cable.ends;
        let (before, all) =
            (self.cables[..index].iter().filter(same).count(), self.cables.iter().filter(same).count());
        let bend = GAP * (before as f64 - (all.max(1) - 1) as f64 / 2.0);
        let ((ax, ay), (bx, by)) = (self.place(a), self.place(b));
        let length = (bx - ax).hypot(by - ay).max(1.0);
        let (mx, my) =
            ((ax + bx) / 2.0 - (by - ay) / length * bend, (ay + by) / 2.0 + (bx - ax) / length * bend);
        // The control point of a quadratic curve lies twice as far out as its middle.
        let (cx, cy) = (2.0 * mx - (ax + bx) / 2.0, 2.0 * my - (ay + by) / 2.0);
        let class = if cable.is_bad { "series s1 d1" } else { "series s2" };
        html! {
            path class=(class) d=(format!("M{ax:.1} {ay:.1}Q{cx:.1} {cy:.1} {bx:.1} {by:.1}")) {
                title { (cable.text) }
            }
            text class="halo" x=(rounded(mx)) y=(rounded(my + 4.5)) text-anchor="middle" { (cable.label) }
        }
    }
}

fn rounded(value: f64) -> String {
    format!("{value:.1}")
}

/// Shortens a name to what fits into a host.
fn short(name: &str) -> String {
    const FITTING: usize = 6;
    match name.char_indices().nth(FITTING) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
