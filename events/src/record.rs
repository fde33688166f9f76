//! Records: events as values, as lines of text and as lines of JSON.

use std::fmt::{self, Write};
use tracing::{
    Event, Level,
    field::{Field, Visit},
};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime as Rfc3339},
};

pub use serde_json::Value;

/// An event, with its fields.
#[derive(Clone, Debug)]
pub struct Record {
    /// Time of the event, as RFC 3339 writes it, in UTC.
    pub time: String,
    /// Severity.
    pub level: Level,
    /// Source; one of [`crate::target::ALL`].
    pub target: &'static str,
    /// The rank that the event is about, or that this process has.
    pub rank: Option<u32>,
    /// Message, without the fields.
    pub message: String,
    /// Further fields by name.
    pub fields: Vec<(&'static str, Value)>,
}

impl Record {
    /// Returns the record of an event; events without a rank get that of the process.
    pub(crate) fn new(event: &Event<'_>, rank: Option<u32>) -> Record {
        let metadata = event.metadata();
        let mut record = Record {
            time: now(),
            level: *metadata.level(),
            target: metadata.target(),
            rank: None,
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut record);
        record.rank = record.rank.or(rank);
        record
    }

    /// Returns the message and the fields, as `NAME=VALUE`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.message.clone();
        for (name, value) in &self.fields {
            let _ = match value {
                Value::String(value) => write!(text, " {name}={value}"),
                value => write!(text, " {name}={value}"),
            };
        }
        text
    }

    /// Returns the line of a log for people. Control characters are escaped, so that it is one line.
    pub(crate) fn line(&self, host: &str) -> String {
        let mut line = format!("{} {host}:{} ", self.time, std::process::id());
        if let Some(rank) = self.rank {
            let _ = write!(line, "rank {rank} ");
        }
        let _ = write!(line, "{} {}: ", self.level, self.target);
        push_escaped(&mut line, &self.text());
        line.push('\n');
        line
    }

    /// Returns the line of a log for programs: a JSON object.
    pub(crate) fn json(&self, host: &str) -> String {
        let fields = self.fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let object = serde_json::json!({
            "time": self.time,
            "level": self.level.as_str().to_lowercase(),
            "target": self.target,
            "host": host,
            "pid": std::process::id(),
            "rank": self.rank,
            "message": self.message,
            "fields": fields.collect::<serde_json::Map<_, _>>(),
        });
        format!("{object}\n")
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            ("rank", value) if value.as_u64().is_some_and(|rank| u32::try_from(rank).is_ok()) => {
                self.rank = value.as_u64().map(|rank| rank as u32);
            }
            (name, value) => self.fields.push((name, value)),
        }
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

/// Returns the time as RFC 3339 writes it, with microseconds, in UTC.
pub(crate) fn now() -> String {
    let mut text = String::new();
    // The clock is read without error, and a string takes all text.
    let _ = Rfc3339.format_time(&mut Writer::new(&mut text));
    text
}

fn push_escaped(line: &mut String, text: &str) {
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
}
