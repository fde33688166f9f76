//! Matrices as people write them, and as they should not.

use super::*;
use proptest::{collection::vec, prelude::*};

fn error(json: &str) -> MatrixError {
    DeviceMatrix::parse(json).expect_err(json)
}

#[test]
fn cells_are_null_a_name_or_names() {
    let json = r#"[[null, "a", ["b", "c"]], [["d"], null, []], [["e", "a"], null, null]]"#;
    let matrix = DeviceMatrix::parse(json).expect("a matrix");
    assert_eq!(matrix.ranks(), 3);
    assert_eq!(matrix.rails(Rank(0), Rank(2)), ["b", "c"]);
    assert_eq!(matrix.rails(Rank(1), Rank(0)), ["d"]);
    assert!(matrix.rails(Rank(1), Rank(2)).is_empty() && matrix.rails(Rank(2), Rank(2)).is_empty());
    assert_eq!(matrix.devices_of(Rank(0)), ["a", "b", "c"]);
    assert_eq!(matrix.check_size(3), Ok(()));
    assert_eq!(matrix.check_size(4), Err(MatrixError::WrongSize { rows: 3, ranks: 4 }));
}

/// The example of MLX's documentation, four Macs in a full mesh.
#[test]
fn the_matrix_of_mlx_is_read() {
    let json = r#"[[null,"rdma_en5","rdma_en4","rdma_en3"],["rdma_en5",null,"rdma_en3","rdma_en4"],
        ["rdma_en4","rdma_en3",null,"rdma_en5"],["rdma_en3","rdma_en4","rdma_en5",null]]"#;
    let matrix = DeviceMatrix::parse(json).expect("a matrix");
    assert_eq!(matrix.rails(Rank(2), Rank(3)), ["rdma_en5"]);
    assert_eq!(matrix.devices_of(Rank(3)), ["rdma_en3", "rdma_en4", "rdma_en5"]);
}

#[test]
fn a_switch_is_reached_by_one_device() {
    let json = r#"[[null, "x", "x"], ["x", null, "x"], ["x", "x", null]]"#;
    assert_eq!(DeviceMatrix::parse(json).expect("a matrix").devices_of(Rank(1)), ["x"]);
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_a_remedy() {
    for (json, parts) in [
        ("[[null", ["not JSON", "line 1"]),
        ("{}", ["is an object", "write an array with a row for each rank"]),
        ("[]", ["is empty", "write a row"]),
        ("[null]", ["row 0 of the device matrix is null", "write an array"]),
        (r#"[[null, "a"], ["a"]]"#, ["row 1 of the device matrix has 1 cells", "write 2 cells in each row"]),
        (r#"[[null, 7], ["a", null]]"#, ["a number in row 0, column 1", "write null, a name"]),
        (r#"[[null, "a"], [["a", null], null]]"#, ["null in row 1, column 0", "write null, a name"]),
        (r#"[[null, "a"], [[["a"]], null]]"#, ["a list in a list in row 1, column 0", "or a list of names"]),
        (r#"[[null, ""], ["a", null]]"#, ["the name \"\" in row 0, column 1", "`tbccl devices`"]),
        (r#"[[null, "a b"], ["a", null]]"#, ["the name \"a b\"", "`tbccl devices`"]),
        (r#"[[null, "a"], ["a", "b"]]"#, ["a device in row 1, column 1", "write null there"]),
        (r#"[[null, ["a", "a"]], [["b", "c"], null]]"#, ["a twice in row 0, column 1", "once"]),
        (
            r#"[[null, "a"], [null, null]]"#,
            ["1 cable(s) in row 0, column 1 and 0 in row 1, column 0", "name both"],
        ),
    ] {
        let said = error(json).to_string();
        assert!(parts.iter().all(|part| said.contains(part)), "{json}: {said}");
    }
    let long = "x".repeat(64);
    assert!(matches!(
        error(&format!(r#"[[null, "{long}"], ["a", null]]"#)),
        MatrixError::NotAName { cell: Cell { row: 0, column: 1 }, .. }
    ));
}

#[test]
fn devices_that_are_not_there_are_named() {
    let matrix = DeviceMatrix::parse(r#"[[null, "a"], ["b", null]]"#).expect("a matrix");
    assert_eq!(matrix.check_devices(Rank(0), &["z", "a"]), Ok(()));
    let said = matrix.check_devices(Rank(1), &["z", "a"]).expect_err("no b").to_string();
    assert_eq!(
        said,
        "the device matrix has b in row 1, column 0, but rank 1 has no such device; it has z, a"
    );
    let said = matrix.check_devices(Rank(1), &[]).expect_err("no b").to_string();
    assert!(said.ends_with("it has none"), "{said}");
}

/// The number of cables between each pair of up to 6 ranks, and the matrix with them.
fn matrices() -> impl Strategy<Value = Vec<Vec<Vec<String>>>> {
    (1..=6usize).prop_flat_map(|n| vec(0..4usize, n * n)).prop_map(|cables| {
        let n = cables.len().isqrt();
        let rails = |i: usize, j: usize| if i == j { 0 } else { cables[i.min(j) * n + i.max(j)] };
        let names = |i, j| (0..rails(i, j)).map(|k| format!("rdma_{i}_{j}_{k}")).collect();
        (0..n).map(|i| (0..n).map(|j| names(i, j)).collect()).collect()
    })
}

/// As JSON, in one of the ways to write it.
fn written(cells: &[Vec<Vec<String>>], plain: bool) -> Value {
    let cell = |names: &Vec<String>| match names.as_slice() {
        [] if plain => Value::Null,
        [one] if plain => Value::from(one.clone()),
        names => Value::from(names.to_vec()),
    };
    Value::from(
        cells.iter().map(|row| Value::from(row.iter().map(cell).collect::<Vec<_>>())).collect::<Vec<_>>(),
    )
}

/// Any JSON that is not too deep.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 4, |inner| vec(inner, 0..4).prop_map(Value::from))
}

proptest! {
    #[test]
    fn right_matrices_are_read_as_they_are_written(cells in matrices(), plain: bool) {
        let matrix = DeviceMatrix::parse(&written(&cells, plain).to_string()).expect("a matrix");
        prop_assert_eq!(matrix.ranks() as usize, cells.len());
        for (i, row) in (0..).zip(&cells) {
            for (j, names) in (0..).zip(row) {
                prop_assert_eq!(matrix.rails(Rank(i), Rank(j)), names.as_slice());
            }
            prop_assert_eq!(matrix.devices_of(Rank(i)).len(), row.iter().map(Vec::len).sum::<usize>());
        }
    }

    /// One device more or less in one cell is found there, or in the cell across.
    #[test]
    fn one_name_too_many_or_too_few_is_found(cells in matrices(), at: (usize, usize), more: bool) {
        let (i, j) = (at.0 % cells.len(), at.1 % cells.len());
        let mut wrong = cells;
        if more {
            wrong[i][j].push("another".to_owned());
        } else {
            prop_assume!(wrong[i][j].pop().is_some());
        }
        let found = DeviceMatrix::parse(&written(&wrong, false).to_string()).expect_err("asymmetric");
        let (row, column) = (i.min(j) as u32, i.max(j) as u32);
        let place = Cell { row, column };
        let is_there = match found {
            MatrixError::Diagonal { cell } => i == j && cell == place,
            MatrixError::Asymmetric { cell, there, back } => {
                i != j && cell == place && there.abs_diff(back) == 1
            }
            _ => false,
        };
        prop_assert!(is_there, "{found}");
    }

    /// A row that is shorter or longer is named.
    #[test]
    fn a_row_of_another_length_is_found(cells in matrices(), at: usize, more: bool) {
        let mut wrong = cells;
        let row = at % wrong.len();
        if more { wrong[row].push(Vec::new()) } else { wrong[row].pop(); }
        let found = DeviceMatrix::parse(&written(&wrong, true).to_string()).expect_err("not square");
        let rows = wrong.len();
        let expected = MatrixError::NotSquare { row: row as u32, cells: wrong[row].len(), rows };
        prop_assert_eq!(found, expected);
    }

    /// Any JSON is either a matrix that keeps its invariants, or refused.
    #[test]
    fn any_json_is_a_matrix_or_refused(value in values()) {
        if let Ok(matrix) = DeviceMatrix::parse(&value.to_string()) {
            let ranks = || (0..matrix.ranks()).map(Rank);
            for (i, j) in ranks().flat_map(|i| ranks().map(move |j| (i, j))) {
                prop_assert_eq!(matrix.rails(i, j).len(), matrix.rails(j, i).len());
                prop_assert!(i != j || matrix.rails(i, j).is_empty());
                prop_assert!(matrix.rails(i, j).iter().all(|name| !name.is_empty()));
            }
        }
    }

    /// No text makes the reader panic.
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,80}") {
        let _ = DeviceMatrix::parse(&text);
    }
}
