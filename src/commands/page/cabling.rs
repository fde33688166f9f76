//! Picture of hosts or ranks on a circle, with the cables between them.
//!
//! Texts are placed one after the other, each at the first place at its cable where it covers no text and no
//! host. A text without such a place is left out: it is also shown when the cable is pointed at, and in the
//! table or list below the picture.

use super::boxes::{Area, TEXT_HEIGHT, text_width};
use maud::{Markup, html};
use std::f64::consts::TAU;

/// Width of the drawing, and its height where the circle has its least radius.
const WIDTH: f64 = 440.0;
/// Least radius of the circle on which hosts stand, and its growth with each host beyond [`FEW`].
const RADIUS: f64 = 150.0;
const GROWTH: f64 = 22.0;
const FEW: usize = 6;
/// Height of a host's box, and the room around its name.
const HOST_HEIGHT: f64 = 30.0;
const PADDING: f64 = 20.0;
/// Distance between cables that connect the same hosts.
const GAP: f64 = 54.0;
/// Characters of a host's name that are shown.
const NAME: usize = 12;
/// Places of a text along its cable, from 0 to 1, best first.
const MIDDLE: [f64; 9] = [0.5, 0.4, 0.6, 0.33, 0.67, 0.45, 0.55, 0.28, 0.72];
const AT_END: [f64; 8] = [0.2, 0.25, 0.17, 0.3, 0.14, 0.34, 0.38, 0.42];
/// Distances of a text from its cable, upwards and downwards, best first.
const BESIDE: [f64; 5] = [0.0, -14.0, 14.0, -20.0, 20.0];

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
    /// Names of the ports, shown near the hosts; empty where they are not shown.
    pub(in crate::commands) ports: [String; 2],
    /// Text beside the cable.
    pub(in crate::commands) label: String,
    /// Text that is shown when the cable is pointed at.
    pub(in crate::commands) text: String,
    /// Whether the cable is slow or down.
    pub(in crate::commands) is_bad: bool,
}

/// A quadratic curve: its ends, and the control point between them.
#[derive(Clone, Copy, Debug)]
struct Curve([(f64, f64); 3]);

impl Curve {
    /// Returns the point at a position from 0 to 1.
    fn at(self, t: f64) -> (f64, f64) {
        let Curve([from, control, to]) = self;
        let mix = |a: f64, c: f64, b: f64| {
            let one = 1.0 - t;
            one * one * a + 2.0 * one * t * c + t * t * b
        };
        (mix(from.0, control.0, to.0), mix(from.1, control.1, to.1))
    }
}

/// A text with the place of its middle.
#[derive(Clone, Debug)]
struct Label {
    text: String,
    area: Area,
    is_port: bool,
}

impl Cabling {
    /// Returns the picture for a page.
    pub(super) fn markup(&self) -> Markup {
        let (width, height) = self.size();
        html! {
            figure style="max-width:640px" {
                svg class="chart drawing" viewBox=(format!("0 0 {width} {height}")) role="img"
                    aria-label="cables between hosts"
                    xmlns="http://www.w3.org/2000/svg"
                {
                    (self.drawing())
                }
            }
        }
    }

    /// Returns width and height of the drawing.
    pub(in crate::commands) fn size(&self) -> (f64, f64) {
        let growth = 2.0 * (self.radius() - RADIUS);
        // Hosts in a line of two need no circle.
        let height = if self.hosts.len() <= 2 { 200.0 } else { 2.0 * RADIUS + 80.0 + growth };
        (WIDTH + growth, height)
    }

    fn radius(&self) -> f64 {
        RADIUS + GROWTH * self.hosts.len().saturating_sub(FEW) as f64
    }

    /// Returns the elements of the drawing, without the `svg` around them.
    pub(in crate::commands) fn drawing(&self) -> Markup {
        let labels = self.labels();
        html! {
            @for (index, cable) in self.cables.iter().enumerate() {
                @let Curve([(ax, ay), (cx, cy), (bx, by)]) = self.curve(index);
                path class=(if cable.is_bad { "series s1 d1" } else { "series s2" })
                    d=(format!("M{ax:.1} {ay:.1}Q{cx:.1} {cy:.1} {bx:.1} {by:.1}"))
                {
                    title { (cable.text) }
                }
            }
            @for (index, host) in self.hosts.iter().enumerate() {
                @let area = self.host(index);
                rect class="host s0" x=(rounded(area.x)) y=(rounded(area.y)) width=(rounded(area.width))
                    height=(rounded(area.height)) rx="7"
                {
                    title { (host) }
                }
                @let (x, y) = area.center();
                text class="strong" x=(rounded(x)) y=(rounded(y + 4.5)) text-anchor="middle" { (short(host)) }
            }
            @for label in &labels {
                @let (x, y) = label.area.center();
                text class=(if label.is_port { "halo soft" } else { "halo" })
                    x=(rounded(x)) y=(rounded(y + 4.5)) text-anchor="middle"
                {
                    (label.text)
                }
            }
        }
    }

    /// Returns the center of a host.
    fn place(&self, index: usize) -> (f64, f64) {
        let (width, height) = self.size();
        let angle = TAU * (index as f64 / self.hosts.len().max(1) as f64 - 0.5);
        (width / 2.0 + self.radius() * angle.cos(), height / 2.0 + self.radius() * angle.sin())
    }

    /// Returns the area of a host's box.
    fn host(&self, index: usize) -> Area {
        let (x, y) = self.place(index);
        let width = text_width(&short(&self.hosts[index])) + PADDING;
        Area { x: x - width / 2.0, y: y - HOST_HEIGHT / 2.0, width, height: HOST_HEIGHT }
    }

    /// Returns the curve of a cable, farther out the more cables of the same hosts came before it.
    fn curve(&self, index: usize) -> Curve {
        let [a, b] = self.cables[index].ends;
        let sorted = |[a, b]: [usize; 2]| [a.min(b), a.max(b)];
        let same = |other: &&Cable| sorted(other.ends) == sorted([a, b]);
        let (before, all) =
            (self.cables[..index].iter().filter(same).count(), self.cables.iter().filter(same).count());
        let bend = GAP * (before as f64 - (all.max(1) - 1) as f64 / 2.0) * if a > b { -1.0 } else { 1.0 };
        let ((ax, ay), (bx, by)) = (self.place(a), self.place(b));
        let length = (bx - ax).hypot(by - ay).max(1.0);
        // The control point of a quadratic curve lies twice as far out as its middle.
        let (out_x, out_y) = (-(by - ay) / length * bend * 2.0, (bx - ax) / length * bend * 2.0);
        Curve([(ax, ay), ((ax + bx) / 2.0 + out_x, (ay + by) / 2.0 + out_y), (bx, by)])
    }

    /// Returns the texts that find a place. Rates come first, since ports are known from the list, too.
    fn labels(&self) -> Vec<Label> {
        let mut taken: Vec<Area> = (0..self.hosts.len()).map(|host| self.host(host)).collect();
        let (mut labels, size) = (Vec::new(), self.size());
        let mut put = |text: &str, curve: Curve, places: &[f64], is_port| {
            let area = |(t, beside)| {
                let (x, y) = curve.at(t);
                Area::around((x, y + beside), text_width(text), TEXT_HEIGHT)
            };
            let places = BESIDE.iter().flat_map(|beside| places.iter().map(|t| (*t, *beside)));
            let free = |area: &Area| area.is_within(size) && !taken.iter().any(|other| other.overlaps(*area));
            if let Some(area) = places.map(area).find(free).filter(|_| !text.is_empty()) {
                taken.push(area);
                labels.push(Label { text: text.to_owned(), area, is_port });
            }
        };
        for (index, cable) in self.cables.iter().enumerate() {
            put(&cable.label, self.curve(index), &MIDDLE, false);
        }
        for (index, cable) in self.cables.iter().enumerate() {
            let curve = self.curve(index);
            put(&cable.ports[0], curve, &AT_END, true);
            put(&cable.ports[1], curve, &AT_END.map(|t| 1.0 - t), true);
        }
        labels
    }
}

fn rounded(value: f64) -> String {
    format!("{value:.1}")
}

/// Shortens a name to what fits into a host.
fn short(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cabling(hosts: usize, ends: &[[usize; 2]]) -> Cabling {
        let cable = |ends: &[usize; 2]| Cable {
            ends: *ends,
            ports: ["thunderbolt0".into(), "en2".into()],
            label: "12.3 us, 38.1 / 37.9 Gb/s".into(),
            text: String::new(),
            is_bad: false,
        };
        let hosts = (0..hosts).map(|host| format!("{host}: studio{host}.local")).collect();
        Cabling { hosts, cables: ends.iter().map(cable).collect() }
    }

    fn mesh(hosts: usize) -> Vec<[usize; 2]> {
        (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| [a, b])).collect()
    }

    #[test]
    fn no_text_covers_another_or_a_host_and_all_stay_inside() {
        let ring = |hosts: usize| (0..hosts).map(|a| [a, (a + 1) % hosts]).collect::<Vec<_>>();
        let doubled = vec![[0, 1], [0, 1], [1, 0]];
        let shapes = [(4, mesh(4)), (5, ring(5)), (3, vec![[0, 1], [1, 2]]), (2, doubled), (8, mesh(8))];
        for (hosts, ends) in shapes {
            let cabling = cabling(hosts, &ends);
            let mut areas: Vec<Area> = cabling.labels().iter().map(|label| label.area).collect();
            areas.extend((0..hosts).map(|host| cabling.host(host)));
            let size = cabling.size();
            for (index, area) in areas.iter().enumerate() {
                let covered = areas[..index].iter().find(|other| other.overlaps(*area));
                assert!(covered.is_none(), "{hosts} hosts: {area:?} and {covered:?}");
                assert!(area.is_within(size), "{hosts} hosts: {area:?} in {size:?}");
            }
        }
    }

    #[test]
    fn diagonals_of_a_mesh_of_four_both_have_their_rates() {
        let mut cabling = cabling(4, &mesh(4));
        cabling.cables.iter_mut().for_each(|cable| cable.label = "80 Gb/s".into());
        cabling.hosts = (0..4).map(|host| format!("studio{host}")).collect();
        let rates = cabling.labels().iter().filter(|label| !label.is_port).count();
        assert_eq!(rates, 6);
        assert_eq!(cabling.labels().len(), 18, "and all ports");
    }

    #[test]
    fn cables_of_the_same_hosts_take_different_ways() {
        let cabling = cabling(2, &[[0, 1], [1, 0]]);
        let (a, b) = (cabling.curve(0).at(0.5), cabling.curve(1).at(0.5));
        assert!((a.1 - b.1).abs() >= GAP - 1.0, "{a:?} {b:?}");
    }
}
