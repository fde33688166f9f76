//! Boxes within boxes, as SVG: sizes from texts, places from sizes.
//!
//! A box has lines of text at its top, and below them other boxes in rows, each row as wide as the box. The
//! widths of texts are estimates on the wide side, since the reader's fonts are not known.

use maud::{Markup, html};

/// Height of a line of text, and mean width of a character.
pub(super) const TEXT_HEIGHT: f64 = 17.0;
const CHARACTER: f64 = 7.3;
/// Room between boxes, and between a box and what is in it.
const GAP: f64 = 6.0;

/// Width of a cable beside its text.
const CABLE: f64 = 22.0;

/// Returns the width of a text, estimated.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// A rectangle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    /// Returns the rectangle around a point.
    pub(super) fn around((x, y): (f64, f64), width: f64, height: f64) -> Area {
        Area { x: x - width / 2.0, y: y - height / 2.0, width, height }
    }

    pub(super) fn center(self) -> (f64, f64) {
        (self.x + self.width / 2.0, self.y + self.height / 2.0)
    }

    /// Whether the rectangle lies in a drawing of this width and height.
    pub(super) fn is_within(self, (width, height): (f64, f64)) -> bool {
        let is_behind_start = self.x >= 0.0 && self.y >= 0.0;
        is_behind_start && self.x + self.width <= width && self.y + self.height <= height
    }

    pub(super) fn overlaps(self, other: Area) -> bool {
        let apart = self.x + self.width <= other.x
            || other.x + other.width <= self.x
            || self.y + self.height <= other.y
            || other.y + other.height <= self.y;
        !apart
    }
}

/// A box with others in it.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct Boxed {
    /// Class of its colors: `machine`, `package`, `memory`, `cache`, `core`, `device`, `remote`.
    class: &'static str,
    /// Texts at its top, wrapped where they are too long.
    lines: Vec<String>,
    /// Boxes in it.
    inner: Vec<Boxed>,
    /// Text on a cable that leads to the box after this one in the same row.
    cable: Option<String>,
    area: Area,
    wrapped: Vec<String>,
}

impl Boxed {
    /// Creates a box without others in it.
    pub(in crate::commands) fn new(class: &'static str, lines: Vec<String>) -> Boxed {
        Boxed { class, lines, ..Boxed::default() }
    }

    /// Puts boxes into this one.
    pub(in crate::commands) fn with(mut self, inner: impl IntoIterator<Item = Boxed>) -> Boxed {
        self.inner.extend(inner);
        self
    }

    /// Draws a cable with a text to the box that follows this one in the same box.
    pub(in crate::commands) fn with_cable(mut self, text: String) -> Boxed {
        self.cable = Some(text);
        self
    }

    /// Gives all boxes their places, within a width; returns the height.
    pub(in crate::commands) fn arrange(&mut self, width: f64) -> f64 {
        self.place(0.0, 0.0, width);
        self.area.height
    }

    /// Returns the width that the box would like to have.
    fn wish(&self) -> f64 {
        let text = self.lines.iter().map(|line| text_width(line)).fold(0.0, f64::max);
        let inner: f64 = self.inner.iter().map(|inner| inner.wish() + inner.room_for_cable() + GAP).sum();
        text.max(inner - GAP) + 2.0 * GAP
    }

    /// Returns the width of the cable behind the box.
    fn room_for_cable(&self) -> f64 {
        self.cable.as_ref().map_or(0.0, |text| text_width(text) + CABLE)
    }

    fn place(&mut self, x: f64, y: f64, width: f64) {
        let inside = width - 2.0 * GAP;
        self.wrapped = self.lines.iter().flat_map(|line| wrap(line, inside)).collect();
        let mut at = y + GAP + self.wrapped.len() as f64 * TEXT_HEIGHT;
        let mut from = 0;
        while from < self.inner.len() {
            let count = row(&self.inner[from..], inside);
            let height = place_row(&mut self.inner[from..from + count], x + GAP, at, inside);
            at += height + GAP;
            from += count;
        }
        let at = if self.inner.is_empty() { at + GAP / 2.0 } else { at };
        self.area = Area { x, y, width, height: at - y };
    }

    /// Returns the elements of the box and of those in it.
    pub(in crate::commands) fn drawing(&self) -> Markup {
        let Area { x, y, width, height } = self.area;
        html! {
            rect class=(format!("box {}", self.class)) x=(rounded(x)) y=(rounded(y)) rx="4"
                width=(rounded(width)) height=(rounded(height)) {}
            @for (line, text) in self.wrapped.iter().enumerate() {
                text class=(if line == 0 { "strong" } else { "soft" }) x=(rounded(x + GAP))
                    y=(rounded(y + GAP / 2.0 + (line as f64 + 0.8) * TEXT_HEIGHT))
                {
                    (text)
                }
            }
            @for (index, inner) in self.inner.iter().enumerate() {
                (inner.drawing())
                @if let Some((text, next)) = inner.cable.as_ref().zip(self.inner.get(index + 1)) {
                    (cable(inner.area, next.area, text))
                }
            }
        }
    }

    /// Returns the areas of all boxes without others in them.
    #[cfg(test)]
    fn leaves(&self) -> Vec<Area> {
        match self.inner.as_slice() {
            [] => vec![self.area],
            inner => inner.iter().flat_map(Boxed::leaves).collect(),
        }
    }
}

/// Draws a cable between two boxes of a row.
fn cable(from: Area, to: Area, text: &str) -> Markup {
    let (left, right) = (from.x + from.width, to.x);
    let y = from.y + from.height.min(to.height) / 2.0;
    html! {
        path class="series s2" d=(format!("M{left:.1} {y:.1}H{right:.1}")) {}
        text class="halo" x=(rounded((left + right) / 2.0)) y=(rounded(y + 4.5)) text-anchor="middle" {
            (text)
        }
    }
}

/// Returns the number of boxes in the first row. Boxes with a cable between them stay together, and a row of
/// equal boxes is as long as the others.
fn row(boxes: &[Boxed], width: f64) -> usize {
    if boxes[0].cable.is_some() {
        return boxes.len().min(2);
    }
    let alike = boxes.iter().take_while(|next| next.class == boxes[0].class && next.cable.is_none());
    let mut used = -GAP;
    let mut count = 0;
    for next in alike.clone() {
        used += next.wish() + GAP;
        if used > width && count > 0 {
            break;
        }
        count += 1;
    }
    // Of 10 boxes, rows of 5 and 5 are easier to count than rows of 7 and 3.
    let all = alike.count();
    all.div_ceil(all.div_ceil(count))
}

/// Gives the boxes of a row their places; returns the row's height.
fn place_row(boxes: &mut [Boxed], x: f64, y: f64, width: f64) -> f64 {
    let cables: f64 = boxes.iter().map(Boxed::room_for_cable).sum();
    let room = width - cables - GAP * (boxes.len() - 1) as f64;
    let room = if boxes[0].cable.is_some() { width - cables } else { room };
    let wishes: f64 = boxes.iter().map(Boxed::wish).sum();
    let (widest, equal) = (boxes.iter().map(Boxed::wish).fold(0.0, f64::max), room / boxes.len() as f64);
    let mut at = x;
    for own in boxes.iter_mut() {
        // Boxes without a cable between them are equally wide where that suffices for all.
        let is_equal = cables == 0.0 && widest <= equal;
        let width = if is_equal { equal } else { own.wish() * room / wishes };
        own.place(at, y, width);
        at += width + own.cable.as_ref().map_or(GAP, |_| own.room_for_cable());
    }
    let height = boxes.iter().map(|own| own.area.height).fold(0.0, f64::max);
    boxes.iter_mut().for_each(|own| own.area.height = height);
    height
}

/// Breaks a text at spaces, so that its lines are no wider than this. A longer word has a line of its own.
pub(super) fn wrap(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + CHARACTER <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(pieces(word, width)),
        }
    }
    lines
}

/// Breaks a word that is too wide for a line.
fn pieces(word: &str, width: f64) -> Vec<String> {
    let fitting = ((width / CHARACTER) as usize).max(4);
    let letters: Vec<char> = word.chars().collect();
    match letters.len() {
        0 => vec![String::new()],
        _ => letters.chunks(fitting).map(|piece| piece.iter().collect()).collect(),
    }
}

fn rounded(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_neither_overlap_nor_leave_the_one_around_them() {
        let core = |number: usize| Boxed::new("core", vec![format!("{number},{}", number + 64)]);
        let cache = |cores: std::ops::Range<usize>| {
            Boxed::new("cache", vec!["L3 32 MiB".into()]).with(cores.map(core))
        };
        let port = Boxed::new("device", vec!["Thunderbolt 1, en2, rdma_en2".into()]);
        let port = port.with_cable("80 Gb/s".into());
        let remote = Boxed::new("remote", vec!["a-machine-with-a-very-long-name.example.org".into()]);
        let title = "a title that is far too long for one line of this width";
        let inner = [cache(0..3), cache(3..64), port, remote];
        let mut machine = Boxed::new("machine", vec![title.into()]).with(inner);
        let height = machine.arrange(400.0);
        let leaves = machine.leaves();
        assert_eq!(leaves.len(), 66);
        for (index, area) in leaves.iter().enumerate() {
            assert!(area.x >= GAP && area.x + area.width <= 400.0 - GAP + 0.01, "{area:?}");
            assert!(area.y > TEXT_HEIGHT && area.y + area.height <= height, "{area:?} in {height}");
            assert!(leaves[..index].iter().all(|other| !other.overlaps(*area)), "{area:?}");
        }
    }

    #[test]
    fn long_texts_are_broken_at_spaces_and_long_words_within() {
        assert_eq!(wrap("one two three", 60.0), ["one two", "three"]);
        assert_eq!(wrap("abcdefghijklmnopqr", 73.1), ["abcdefghij", "klmnopqr"]);
        assert_eq!(wrap("", 10.0), [""]);
    }
}
