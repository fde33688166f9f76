//! The join of two sets of rows by cell: everything that a row was measured with.
//!
//! An algorithm is part of a cell only where one of the sets has several for it, since the automatic choice
//! may differ between versions. A transport is part of it only if all rows have one.

use super::{super::operation::Operation, super::rows::Row, estimate::Estimate};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Values that rows must share to be compared, in the order of the result.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Position of the operation in the help text; unknown ones come last.
    order: usize,
    pub(super) op: String,
    pub(super) ranks: u32,
    pub(super) transport: Option<String>,
    pub(super) dtype: String,
    redop: String,
    in_place: bool,
    registered: bool,
    written: bool,
    codec: Option<String>,
    calls: u32,
    average: String,
    /// The library, where the same ones are in both sets.
    peer: Option<String>,
    algorithm: Option<String>,
    pub(super) bytes: u64,
}

impl Key {
    /// Returns the operation with what is unusual about it.
    pub(super) fn label(&self) -> String {
        let mut label = self.op.clone();
        if !["sum", "none"].contains(&self.redop.as_str()) {
            label += &format!(" {}", self.redop);
        }
        let traits =
            [(self.in_place, " in place"), (self.registered, " registered"), (self.written, " written")];
        for (is_so, text) in traits {
            label += if is_so { text } else { "" };
        }
        for text in [&self.codec, &self.algorithm, &self.peer].into_iter().flatten() {
            label += &format!(" {text}");
        }
        if self.calls > 1 {
            label += &format!(" x{}", self.calls);
        }
        if self.average != "max" {
            label += &format!(" ({})", self.average);
        }
        label
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = self.transport.as_deref().map(|name| format!(", {name}")).unwrap_or_default();
        write!(f, "{}, {} ranks{transport}, {}, {} B", self.label(), self.ranks, self.dtype, self.bytes)
    }
}

/// A cell of both sets.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub(super) key: Key,
    pub(super) a: Estimate,
    pub(super) b: Estimate,
    /// The library and the algorithm of either side, if they differ.
    pub(super) remark: Option<String>,
}

/// The join of two sets of rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    pub(super) both: Vec<Compared>,
    pub(super) only_a: Vec<Key>,
    pub(super) only_b: Vec<Key>,
}

type Cells<'r> = BTreeMap<Key, Vec<&'r Row>>;

/// Joins two sets of rows; `by_peer` compares each library with itself.
pub(super) fn join(a: &[Row], b: &[Row], by_peer: bool) -> Joined {
    let has_transports = a.iter().chain(b).all(|row| row.transport.is_some());
    let key = |row: &Row| Key {
        transport: row.transport.clone().filter(|_| has_transports),
        peer: by_peer.then(|| row.peer.clone()),
        ..key_of(row)
    };
    let (mut a, mut b) = (cells(a, key), cells(b, key));
    let mixed: BTreeSet<Key> = a
        .iter()
        .chain(&b)
        .filter(|(_, rows)| algorithms(rows).len() > 1)
        .map(|(key, _)| key.clone())
        .collect();
    (a, b) = (split(a, &mixed), split(b, &mixed));
    let mut joined = Joined::default();
    for (key, rows) in &a {
        match b.get(key) {
            Some(others) => joined.both.extend(compared(key, rows, others)),
            None => joined.only_a.push(key.clone()),
        }
    }
    joined.only_b = b.into_keys().filter(|key| !a.contains_key(key)).collect();
    joined
}

fn key_of(row: &Row) -> Key {
    let op = row.operation();
    Key {
        order: Operation::names().position(|name| name == op).unwrap_or(usize::MAX),
        op: op.to_owned(),
        ranks: row.ranks,
        transport: None,
        dtype: row.dtype().to_owned(),
        redop: row.redop().to_owned(),
        in_place: row.inplace != 0,
        registered: row.registered != 0,
        written: row.written != 0,
        codec: row.codec.clone(),
        calls: row.calls.unwrap_or(1),
        average: row.average.clone().unwrap_or_else(|| "max".to_owned()),
        peer: None,
        algorithm: None,
        bytes: row.bytes,
    }
}

fn cells<'r>(rows: &'r [Row], key: impl Fn(&Row) -> Key) -> Cells<'r> {
    let mut cells = Cells::new();
    rows.iter().for_each(|row| cells.entry(key(row)).or_default().push(row));
    cells
}

fn algorithms<'r>(rows: &[&'r Row]) -> BTreeSet<Option<&'r str>> {
    rows.iter().map(|row| row.algo.as_deref()).collect()
}

/// Splits the cells that have several algorithms.
fn split<'r>(cells: Cells<'r>, mixed: &BTreeSet<Key>) -> Cells<'r> {
    let mut all = Cells::new();
    for (key, rows) in cells {
        let is_mixed = mixed.contains(&key);
        for row in rows {
            let algorithm = row.algo.clone().filter(|_| is_mixed);
            all.entry(Key { algorithm, ..key.clone() }).or_default().push(row);
        }
    }
    all
}

fn compared(key: &Key, a: &[&Row], b: &[&Row]) -> Option<Compared> {
    let differing = |name: fn(&Row) -> Option<&str>| {
        let (a, b) = (name(a.first()?)?, name(b.first()?)?);
        (a != b).then(|| format!("{a} > {b}"))
    };
    let remarks = [differing(|row| Some(&row.peer)), differing(|row| row.algo.as_deref())];
    let remark = remarks.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let remark = (!remark.is_empty()).then_some(remark);
    Some(Compared { key: key.clone(), a: Estimate::of(a)?, b: Estimate::of(b)?, remark })
}

#[cfg(test)]
mod tests {
    use super::{super::super::rows::tests::row, *};

    fn with(transport: &str, algo: &str, row: Row) -> Row {
        Row { transport: Some(transport.to_owned()), algo: Some(algo.to_owned()), ..row }
    }

    #[test]
    fn rows_join_whatever_the_spelling_and_repeats_are_one_cell() {
        let other = Row { op: "all_reduce".to_owned(), dtype: Some("float32".to_owned()), ..row(4, 3.0) };
        let joined = join(&[row(4, 1.0), row(4, 2.0), row(8, 5.0)], &[other, row(16, 1.0)], false);
        assert_eq!((joined.both.len(), joined.only_a.len(), joined.only_b.len()), (1, 1, 1));
        assert_eq!((joined.both[0].a.us, joined.both[0].b.us), (1.5, 3.0));
        assert_eq!((joined.only_a[0].bytes, joined.only_b[0].bytes), (8, 16));
    }

    #[test]
    fn other_settings_are_other_cells() {
        let in_place = Row { inplace: 1, ..row(4, 1.0) };
        let registered = Row { registered: 1, ..row(4, 1.0) };
        let written = Row { written: 1, ..row(4, 1.0) };
        for other in [in_place, registered, written, Row { ranks: 3, ..row(4, 1.0) }] {
            let joined = join(&[row(4, 1.0)], &[other], false);
            assert!(joined.both.is_empty() && joined.only_b.len() == 1, "{joined:?}");
        }
    }

    #[test]
    fn a_transport_counts_if_all_rows_have_one() {
        let (shm, tcp) = (with("shm", "ring", row(4, 1.0)), with("tcp", "ring", row(4, 2.0)));
        let only = std::slice::from_ref;
        assert!(join(only(&shm), only(&tcp), false).both.is_empty());
        assert_eq!(join(&[shm], &[row(4, 2.0)], false).both.len(), 1);
    }

    #[test]
    fn algorithms_are_compared_with_themselves_only_where_a_file_has_several() {
        let (ring, mesh) = (with("shm", "ring", row(4, 1.0)), with("shm", "mesh", row(4, 2.0)));
        let changed = join(std::slice::from_ref(&ring), std::slice::from_ref(&mesh), false);
        assert_eq!(changed.both[0].remark.as_deref(), Some("ring > mesh"));
        let both = [ring, mesh.clone()];
        let each = join(&both, &[mesh], false);
        assert_eq!((each.both.len(), each.only_a.len()), (1, 1));
        assert_eq!(each.both[0].key.label(), "all_reduce mesh");
    }
}
