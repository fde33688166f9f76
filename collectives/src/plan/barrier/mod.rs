//! No rank leaves before every rank has entered.

pub mod dissemination;
pub mod ring;
