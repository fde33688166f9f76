//! Invalid input: device matrices and libraries.

use support::{FabricJob, Finished, Shape, Wiring};

/// Runs two Macs with two cables, with the device matrix in this environment variable.
fn with_matrix(variable: &str, matrix: &str) -> Finished {
    let wiring = Wiring::pair("apple-tb5", 2);
    let env = [(variable, "$HOME_OF_TEST/matrix.json"), ("TBCCL_TIMEOUT", "10")];
    let write = |home: &std::path::Path| {
        std::fs::write(home.join("matrix.json"), matrix).expect("our folder");
    };
    FabricJob::start_with(&wiring, "", "operations 20", &env, write).finish()
}

#[test]
fn a_matrix_of_devices_is_followed() {
    let swapped = r#"[[null, ["d1", "d0"]], [["d1", "d0"], null]]"#;
    for matrix in [r#"[[null, "d1"], ["d1", null]]"#, swapped] {
        for variable in ["TBCCL_IBV_DEVICES", "MLX_IBV_DEVICES", "JACCL_IBV_DEVICES"] {
            with_matrix(variable, matrix).assert_success("done", 2);
        }
    }
}

#[test]
fn a_wrong_matrix_is_an_error_on_every_rank_that_says_what_is_wrong() {
    for (matrix, expected_text) in [
        ("[[null, \"d0\"]]", "matrix.json"),
        ("[[null, \"d0\"], [null, null]]", "matrix.json"),
        ("[[null, \"d0\"], [\"d0\"]]", "matrix.json"),
        ("{}", "matrix.json"),
        ("[[null, \"d7\"], [\"d0\", null]]", "d7"),
        // The ends of different cables.
        ("[[null, \"d0\"], [\"d1\", null]]", "cable"),
    ] {
        let done = with_matrix("TBCCL_IBV_DEVICES", matrix);
        let refused = done.all("refused");
        assert!(done.code() != 0 && refused.len() == 2, "{matrix}: {:?}\n{}", done.messages, done.stderr);
        // A rank that can't open its devices tells the others why.
        assert!(refused.iter().all(|message| message.rest.contains(expected_text)), "{matrix}: {refused:?}");
    }
}

#[test]
fn ours_goes_before_theirs() {
    let wiring = Wiring { profile: "apple-tb5", shape: Shape::Mesh, nodes: 2, cables: 1 };
    let env = [("TBCCL_IBV_DEVICES", "/nowhere/ours.json"), ("MLX_IBV_DEVICES", "/nowhere/theirs.json")];
    let done = FabricJob::run(&wiring, "", "operations 1", &env);
    assert!(!done.all("refused").is_empty(), "{:?}", done.messages);
    assert!(
        done.all("refused").iter().all(|message| message.rest.contains("/nowhere/ours.json")),
        "{:?}",
        done.messages
    );
}

#[test]
fn a_library_without_a_symbol_is_named_with_it() {
    let wiring = Wiring::pair("usb4", 1);
    for (library, expected_text) in
        [("libc.so.6", "ibv_"), ("/nowhere/libibverbs.so", "/nowhere/libibverbs.so")]
    {
        let done = FabricJob::run(&wiring, "", "operations 1", &[("TBCCL_VERBS_LIB", library)]);
        let refused = done.all("refused");
        assert!(!refused.is_empty(), "{:?}\n{}", done.messages, done.stderr);
        for message in refused {
            assert!(message.rest.contains(library) && message.rest.contains(expected_text), "{message:?}");
        }
    }
}
