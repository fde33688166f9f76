//! Devices between ranks: their file, and the device matrix of a job.
//!
//! The file is JACCL's: a JSON array with a row for each rank, and in each row a cell for each rank with the
//! name of a device, a list of names, or null. JACCL uses as much of it as its mesh or its ring needs. A
//! matrix of tbccl must name both ends of each cable, so what only one end names is left out.
//!
//! # Safety
//! Lists pass between Rust and C++ as addresses and lengths. The side that has made a list frees it.

use crate::Failure;
use mlx_table::jaccl::{Cable, Devices};
use serde_json::Value;
use std::{
    ffi::{CStr, CString},
    path::Path,
};
use tbccl::DeviceMatrix;

/// Devices between ranks: for each rank and each other one a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceList {
    rows: Vec<Vec<Vec<String>>>,
}

impl DeviceList {
    /// Returns the number of ranks.
    pub(super) fn ranks(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A message that names the file and the cell.
    pub(super) fn read(path: &Path) -> Result<DeviceList, String> {
        let broken = |why: String| {
            format!(
                "{}: {why} (the file with the devices, JACCL_IBV_DEVICES or MLX_IBV_DEVICES)",
                path.display()
            )
        };
        let text = std::fs::read_to_string(path).map_err(|error| broken(error.to_string()))?;
        DeviceList::parse(&text).map_err(broken)
    }

    fn parse(text: &str) -> Result<DeviceList, String> {
        let Value::Array(rows) = serde_json::from_str(text).map_err(|error| error.to_string())? else {
            return Err("not an array with a row for each rank".into());
        };
        let ranks = rows.len();
        let row = |(at, row): (usize, &Value)| match row {
            Value::Array(cells) if cells.len() == ranks => {
                let names = |(to, cell)| names(cell).ok_or_else(|| not_names(at, to));
                cells.iter().enumerate().map(names).collect()
            }
            Value::Array(cells) => Err(format!(
                "row {at} has {} cells, and there are {ranks} rows: write a cell for each rank",
                cells.len()
            )),
            _ => Err(format!("row {at} is not an array")),
        };
        Ok(DeviceList { rows: rows.iter().enumerate().map(row).collect::<Result<_, _>>()? })
    }

    /// Returns the list for C++, which frees it by [`free`].
    pub(super) fn into_c(self) -> Devices {
        let ranks = self.ranks();
        let mut cables = Vec::new();
        for (from, row) in (0..).zip(self.rows) {
            for (to, names) in (0..).zip(row) {
                // Names with zeros were refused.
                let name = |name: String| CString::new(name).unwrap_or_default().into_raw();
                cables.extend(names.into_iter().map(|device| Cable { from, to, device: name(device) }));
            }
        }
        let count = cables.len();
        Devices { ranks, count, cables: Box::into_raw(cables.into_boxed_slice()).cast() }
    }
}

/// Returns the names in a cell.
fn names(cell: &Value) -> Option<Vec<String>> {
    let name = |value: &Value| value.as_str().filter(|name| !name.contains('\0')).map(str::to_owned);
    match cell {
        Value::Null => Some(Vec::new()),
        Value::Array(list) => list.iter().map(name).collect(),
        other => Some(vec![name(other)?]),
    }
}

fn not_names(row: usize, column: usize) -> String {
    format!("row {row}, column {column} (counted from 0) is not null, a name or a list of names")
}

/// Returns the devices that C++ has listed.
///
/// # Safety
/// `count` cables are readable, and their names end with zeros.
pub(super) unsafe fn list_of(devices: &Devices) -> Result<DeviceList, Failure> {
    let mut rows = vec![vec![Vec::new(); devices.ranks as usize]; devices.ranks as usize];
    // SAFETY: by this function's contract; an empty list may have no address.
    let cables = unsafe {
        if devices.count == 0 { &[] } else { std::slice::from_raw_parts(devices.cables, devices.count) }
    };
    for Cable { from, to, device } in cables {
        // SAFETY: by this function's contract.
        let name = unsafe { CStr::from_ptr(*device) }.to_string_lossy().into_owned();
        let cell = rows.get_mut(*from as usize).and_then(|row| row.get_mut(*to as usize));
        cell.ok_or_else(|| Failure::usage("a device of no rank"))?.push(name);
    }
    Ok(DeviceList { rows })
}

/// Frees a list.
///
/// # Safety
/// [`DeviceList::into_c`] has made it, and it is not used any more, or it is empty without an address.
pub(super) unsafe fn free(devices: &Devices) {
    if devices.cables.is_null() {
        return;
    }
    let cables = std::ptr::slice_from_raw_parts_mut(devices.cables.cast_mut(), devices.count);
    // SAFETY: by this function's contract.
    for cable in unsafe { Box::from_raw(cables) } {
        // SAFETY: as above.
        drop(unsafe { CString::from_raw(cable.device.cast_mut()) });
    }
}

/// Returns the device matrix of a job: of the names that both ends have, and in a ring those between
/// neighbors; `None` without any.
///
/// # Errors
/// A message that names the cell.
pub(super) fn matrix(list: &DeviceList, ring: bool) -> Result<Option<DeviceMatrix>, String> {
    let ranks = list.rows.len();
    let is_used = |from: usize, to: usize| {
        let is_neighbor = (from + 1) % ranks == to || (to + 1) % ranks == from;
        from != to && (is_neighbor || !ring)
    };
    let cell = |from: usize, to: usize| {
        let (there, back) = (&list.rows[from][to], &list.rows[to][from]);
        let both = if is_used(from, to) { there.len().min(back.len()) } else { 0 };
        there[..both].to_vec()
    };
    let rows: Vec<Vec<Vec<String>>> =
        (0..ranks).map(|from| (0..ranks).map(|to| cell(from, to)).collect()).collect();
    if rows.iter().flatten().all(Vec::is_empty) {
        return Ok(None);
    }
    DeviceMatrix::from_rows(rows).map(Some).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> DeviceList {
        DeviceList::parse(text).expect("a list")
    }

    fn rows(text: &str, ring: bool) -> String {
        matrix(&list(text), ring).expect("a matrix").map_or_else(|| "none".into(), |matrix| matrix.to_json())
    }

    #[test]
    fn names_that_only_one_end_has_are_left_out() {
        assert_eq!(rows(r#"[[null,["a","b"]],["c",null]]"#, false), r#"[[null,"a"],["c",null]]"#);
        assert_eq!(rows(r#"[["x","a"],["c",null]]"#, false), r#"[[null,"a"],["c",null]]"#);
        assert_eq!(rows("[[null,null],[[],null]]", false), "none");
    }

    #[test]
    fn a_ring_has_the_devices_between_neighbors() {
        let mesh = r#"[[null,"a","b","c"],["d",null,"e","f"],["g","h",null,"i"],["j","k","l",null]]"#;
        assert_eq!(rows(mesh, false), mesh);
        let ring = r#"[[null,"a",null,"c"],["d",null,"e",null],[null,"h",null,"i"],["j",null,"l",null]]"#;
        assert_eq!(rows(mesh, true), ring);
    }

    #[test]
    fn lists_return_from_c_as_they_were() {
        for text in [r#"[[null,["a","b"]],["c",null]]"#, "[[null,null],[null,null]]", "[]"] {
            let expected = list(text);
            let there = expected.clone().into_c();
            // SAFETY: made above.
            assert_eq!(unsafe { list_of(&there) }.ok(), Some(expected));
            // SAFETY: made above, and not used any more.
            unsafe { free(&there) };
        }
    }

    #[test]
    fn malformed_files_are_refused_with_the_place() {
        for (text, says) in [
            ("{}", "not an array with a row for each rank"),
            ("[[null", "EOF"),
            ("[[null, 1], [null, null]]", "row 0, column 1"),
            ("[[null], [null, null]]", "row 0 has 1 cells, and there are 2 rows"),
            ("[null]", "row 0 is not an array"),
            (r#"[["a\u0000b"]]"#, "row 0, column 0"),
        ] {
            let error = DeviceList::parse(text).expect_err(says);
            assert!(error.contains(says), "{error}");
        }
        let error = DeviceList::read(Path::new("/nowhere/d.json")).expect_err("no file");
        assert!(error.contains("/nowhere/d.json") && error.contains("MLX_IBV_DEVICES"), "{error}");
    }
}
