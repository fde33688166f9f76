//! A drawing as an SVG file of its own, with its colors.

use super::{
    Boxed, COLORS, Cabling, DRAWING,
    boxes::{TEXT_HEIGHT, wrap},
};
use maud::{Markup, PreEscaped, html};

/// Room around the drawing, and between its parts.
const MARGIN: f64 = 10.0;
/// Room before the rest of a line of text that was wrapped.
const INDENT: f64 = 16.0;
/// Pixels of a screen for a unit of the drawing, at most.
const MAX_SCALE: f64 = 1.6;

/// Parts of a drawing, each below the one before it.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct Picture {
    title: String,
    width: f64,
    height: f64,
    parts: Vec<Markup>,
}

impl Picture {
    /// Creates an empty picture, of this width at least.
    pub(in crate::commands) fn new(title: &str, width: f64) -> Picture {
        Picture { title: title.to_owned(), width, ..Picture::default() }
    }

    /// Adds hosts and cables.
    pub(in crate::commands) fn add_cabling(&mut self, cabling: &Cabling) {
        let (width, height) = cabling.size();
        self.add(width, height, &cabling.drawing());
    }

    /// Adds boxes, as wide as the picture is so far.
    pub(in crate::commands) fn add_boxes(&mut self, mut boxes: Boxed) {
        let height = boxes.arrange(self.width);
        self.add(self.width, height, &boxes.drawing());
    }

    /// Adds lines of text, wrapped where they are longer than the picture is wide.
    pub(in crate::commands) fn add_lines(&mut self, lines: &[String]) {
        let wrapped = lines.iter().flat_map(|line| wrap(line, self.width - INDENT).into_iter().enumerate());
        let lines: Vec<(usize, String)> = wrapped.collect();
        let row = |line: usize| (line as f64 + 0.8) * TEXT_HEIGHT;
        let text = html! {
            @for (index, (part, line)) in lines.iter().enumerate() {
                @let x = if *part == 0 { 0.0 } else { INDENT };
                text x=(x) y=(format!("{:.1}", row(index))) { (line) }
            }
        };
        self.add(self.width, lines.len() as f64 * TEXT_HEIGHT, &text);
    }

    fn add(&mut self, width: f64, height: f64, part: &Markup) {
        let y = MARGIN + self.height;
        self.parts.push(html! { g transform=(format!("translate({MARGIN} {y:.1})")) { (part) } });
        self.width = self.width.max(width);
        self.height += height + MARGIN;
    }

    /// Returns the file.
    pub(in crate::commands) fn to_svg(&self) -> String {
        let (width, height) = (self.width + 2.0 * MARGIN, self.height + MARGIN);
        let style = format!("width:100%;max-width:{:.0}px;height:auto", width * MAX_SCALE);
        let font = "svg{background:var(--back);font-family:system-ui,-apple-system,sans-serif}";
        let svg = html! {
            svg viewBox=(format!("0 0 {width:.0} {height:.0}")) width=(format!("{width:.0}"))
                height=(format!("{height:.0}")) style=(style) role="img" aria-label=(self.title)
                xmlns="http://www.w3.org/2000/svg"
            {
                title { (self.title) }
                style { (PreEscaped(COLORS)) (PreEscaped(DRAWING)) (font) }
                rect class="back" width="100%" height="100%" fill="var(--back)" {}
                @for part in &self.parts { (part) }
            }
        };
        svg.into_string() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_well_formed_and_its_parts_follow_each_other() {
        let name = "</text><script>\"&'";
        let mut picture = Picture::new(name, 300.0);
        picture.add_boxes(Boxed::new("machine", vec![name.to_owned()]));
        picture.add_lines(&[name.to_owned(), "second".to_owned()]);
        picture.add_cabling(&Cabling { hosts: vec![name.to_owned()], cables: Vec::new() });
        let svg = picture.to_svg();
        let document = roxmltree::Document::parse(&svg).expect("well-formed");
        assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
        let tops = document.descendants().filter_map(|node| node.attribute("transform"));
        assert_eq!(
            tops.collect::<Vec<_>>(),
            ["translate(10 10.0)", "translate(10 46.0)", "translate(10 90.0)"]
        );
    }
}
