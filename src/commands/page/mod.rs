//! Reports as one HTML page each: settings, charts and tables, without scripts and without anything from the
//! network.
//!
//! A command describes a [`Page`] of sections; this module turns it into text and writes it. Colors follow
//! the reader's preference for dark or light pages. All text of others, such as names of devices, is escaped.
//!
//! | module | purpose |
//! |---|---|
//! | `axis` | ticks of an axis |
//! | `boxes` | boxes within boxes |
//! | `cabling` | picture of hosts and cables |
//! | `chart` | charts as SVG |
//! | `folder` | the folder of a report |
//! | `machine` | the machine that a report is of |
//! | `picture` | a drawing as a file of its own |

mod axis;
mod boxes;
mod cabling;
mod chart;
mod folder;
mod machine;
mod picture;

pub(super) use axis::Axis;
pub(super) use boxes::Boxed;
pub(super) use cabling::{Cable, Cabling};
pub(super) use chart::{Chart, Point, Series};
pub(super) use folder::Folder;
pub(super) use machine::Machine;
pub(super) use picture::Picture;

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Colors for light and dark, rules for drawings, and rules for the rest of a page.
const COLORS: &str = include_str!("colors.css");
const DRAWING: &str = include_str!("drawing.css");
const STYLE: &str = include_str!("style.css");

/// A page.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) title: String,
    /// Names and values above the sections.
    pub(super) settings: Vec<(String, String)>,
    pub(super) sections: Vec<Section>,
}

/// Charts with the same lines, and the table of their values.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) cabling: Option<Cabling>,
    pub(super) charts: Vec<Chart>,
    pub(super) table: Table,
    pub(super) notes: Vec<String>,
}

/// A table. Numbers are aligned to the right.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) is_number: bool,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    /// Whether the value is a fault.
    pub(super) is_bad: bool,
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell { text: value.to_string(), is_bad: false }
    }
}

impl Page {
    /// Returns the page as HTML.
    pub(super) fn to_html(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(COLORS)) (PreEscaped(DRAWING)) (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    dl {
                        @for (name, value) in &self.settings { dt { (name) } dd { (value) } }
                    }
                    @for section in &self.sections { (section.markup()) }
                    footer { "Made by tbccl " (env!("CARGO_PKG_VERSION")) }
                }
            }
        };
        page.into_string() + "\n"
    }
}

impl Section {
    fn markup(&self) -> Markup {
        html! {
            section {
                h2 { (self.title) }
                @if let Some(cabling) = &self.cabling { (cabling.markup()) }
                @if !self.charts.is_empty() {
                    div class="charts" {
                        @for chart in &self.charts { (chart.markup()) }
                    }
                    (chart::legend(&self.charts))
                }
                @for note in &self.notes { p class="note" { (note) } }
                (self.table.markup())
            }
        }
    }
}

impl Table {
    /// Leaves out columns without any text.
    pub(super) fn without_empty_columns(mut self) -> Table {
        let is_empty = |column: usize| self.rows.iter().all(|row| row[column].text.is_empty());
        for column in (0..self.columns.len()).rev().filter(|column| is_empty(*column)).collect::<Vec<_>>() {
            self.columns.remove(column);
            self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
        self
    }

    fn markup(&self) -> Markup {
        let class = |column: &Column, cell: Option<&Cell>| {
            let is_bad = cell.is_some_and(|cell| cell.is_bad);
            match (column.is_number, is_bad) {
                (true, true) => Some("n bad"),
                (true, false) => Some("n"),
                (false, true) => Some("bad"),
                (false, false) => None,
            }
        };
        html! {
            div class="scroll" {
                table {
                    thead { tr {
                        @for column in &self.columns { th class=[class(column, None)] { (column.name) } }
                    } }
                    tbody {
                        @for row in &self.rows { tr {
                            @for (column, cell) in self.columns.iter().zip(row) {
                                td class=[class(column, Some(cell))] { (cell.text) }
                            }
                        } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Closes the tags that HTML leaves open, so that a parser of XML reads the page.
    fn as_xml(html: &str) -> String {
        let mut text = String::new();
        for (index, part) in html.split("<meta").enumerate() {
            match part.split_once('>') {
                Some((attributes, rest)) if index > 0 => text += &format!("<meta{attributes}/>{rest}"),
                _ => text += part,
            }
        }
        text.replacen("<!DOCTYPE html>", "", 1)
    }

    fn page(name: &str) -> Page {
        let point = |x: u64, y: f64| Point { x: x as f64, y, text: format!("{name}: {x}") };
        let series = |name: &str| Series {
            name: name.to_owned(),
            is_limit: false,
            points: vec![point(4, 0.2), point(64, 0.4), point(1 << 20, 80.0)],
        };
        let limit = Series { is_limit: true, ..series("limit") };
        let chart = Chart {
            title: "latency".to_owned(),
            x: Axis::sizes("bytes"),
            y: Axis::logarithmic("us"),
            series: vec![series(name), series("other"), limit],
        };
        let column = |name| Column { name, is_number: true };
        let table = Table {
            columns: vec![column("bytes"), column("name")],
            rows: vec![vec![4.into(), name.into()], vec![64.into(), name.into()]],
        };
        let cabling = Cabling {
            hosts: vec![name.to_owned(), "b".to_owned(), "c".to_owned()],
            cables: vec![Cable {
                ends: [0, 1],
                ports: Default::default(),
                label: name.to_owned(),
                text: name.to_owned(),
                is_bad: true,
            }],
        };
        let section = Section { title: name.to_owned(), charts: vec![chart], table, ..Section::default() };
        let section = Section { cabling: Some(cabling), notes: vec![name.to_owned()], ..section };
        Page {
            title: name.to_owned(),
            settings: vec![("host".to_owned(), name.to_owned())],
            sections: vec![section],
        }
    }

    #[test]
    fn a_page_is_well_formed_and_has_a_line_for_each_series_and_a_row_for_each_value() {
        let html = page("ring").to_html();
        let text = as_xml(&html);
        let document = roxmltree::Document::parse(&text).expect("well-formed");
        let count =
            |is: &dyn Fn(roxmltree::Node<'_, '_>) -> bool| document.descendants().filter(|n| is(*n)).count();
        let classed = |class: &'static str| {
            move |node: roxmltree::Node<'_, '_>| {
                node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class))
            }
        };
        assert_eq!(
            count(
                &|node| node.has_tag_name(("http://www.w3.org/2000/svg", "path")) && classed("series")(node)
            ),
            3 + 1,
            "lines, and a cable"
        );
        assert_eq!(
            count(&|node| node.tag_name().name() == "circle"
                && node.children().any(|c| c.tag_name().name() == "title")),
            6,
            "marks"
        );
        assert_eq!(count(&|node| node.has_tag_name("td")), 4);
        assert!(
            !html.contains("<script") && !html.contains("http://cdn") && !html.contains("https:"),
            "{html}"
        );
    }

    #[test]
    fn names_with_markup_stay_text() {
        let name = "</title></svg><script>alert(\"&'1\")</script><!--";
        let html = page(name).to_html();
        let text = as_xml(&html);
        let document = roxmltree::Document::parse(&text).expect("well-formed");
        assert!(document.descendants().all(|node| node.tag_name().name() != "script"));
        let heading = document.descendants().find(|node| node.has_tag_name("h1")).expect("a heading");
        assert_eq!(heading.text(), Some(name));
    }

    #[test]
    fn a_page_without_values_is_a_page() {
        let text = as_xml(&Page::default().to_html());
        assert!(roxmltree::Document::parse(&text).is_ok());
        let chart = Chart { series: Vec::new(), ..page("x").sections[0].charts[0].clone() };
        let section = Section { charts: vec![chart], ..Section::default() };
        let text = as_xml(&Page { sections: vec![section], ..Page::default() }.to_html());
        assert!(roxmltree::Document::parse(&text).is_ok(), "{text}");
    }
}
