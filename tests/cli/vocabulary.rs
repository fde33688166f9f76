//! Names and tables in documents, compared with the tables of the library.
//!
//! After a change of options: `TBCCL_WRITE_README=1 cargo test --test cli readme`. After a change of
//! collectives, element types, operations or codecs: `TBCCL_WRITE_STUB=1 cargo test --test cli python`.

use crate::TBCCL;
use std::{collections::BTreeSet, fs, path::Path, process::Command};
use tbccl::{Codec, Collective, DType, OPTIONS, ReduceOp, Transport};

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file of the repository")
}

/// Splits a text into words with the characters that names contain.
fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_alphanumeric() || "_+/-".contains(c))).collect()
}

fn help(arguments: &[&str]) -> String {
    let output = Command::new(TBCCL).args(arguments).arg("--help").output().expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

fn assert_names(text: &str, names: impl IntoIterator<Item = &'static str>) {
    let words = words(text);
    for name in names {
        assert!(words.contains(name), "{name} is missing in\n{text}");
    }
}

/// Returns the table of options, with links to documents.
fn options() -> String {
    let linked = |doc: &str| {
        let word = |word: &str| {
            let path = word.trim_end_matches([';', ',', ':', ')']);
            match path.starts_with("docs/") {
                true => format!("[{path}]({path}){}", &word[path.len()..]),
                false => word.to_owned(),
            }
        };
        doc.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
    };
    let row = |(env, doc): (&str, &str)| format!("| `{env}` | {} |\n", linked(doc));
    let rows = OPTIONS.iter().map(|option| row((option.env, option.doc)));
    format!("| variable | meaning (default) |\n|---|---|\n{}", rows.collect::<String>())
}

#[test]
fn readme_has_every_option() {
    let readme = read("README.md");
    let (before, rest) = readme.split_once("| variable | meaning (default) |").expect("the table");
    let after = rest.split_once("\n\n").expect("the end of the table").1;
    let wanted = format!("{before}{}\n{after}", options());
    if std::env::var_os("TBCCL_WRITE_README").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"), wanted).expect("our file");
    } else {
        assert_eq!(readme, wanted, "TBCCL_WRITE_README=1 cargo test --test cli readme");
    }
}

#[test]
fn help_of_bench_names_every_operation_transport_and_codec() {
    let text = help(&["bench"]);
    assert_names(&text, Collective::ALL.map(Collective::name));
    assert_names(&text, ReduceOp::ALL.map(ReduceOp::name));
    assert_names(&text, Codec::ALL.map(Codec::name));
    assert_names(&text, Transport::names());
}

#[test]
fn help_of_commands_that_take_a_transport_names_them_all() {
    for command in ["run", "ping", "tune"] {
        assert_names(&help(&[command]), Transport::names());
    }
}

#[test]
fn documents_name_every_codec_and_transport() {
    assert_names(&read("docs/collectives.md"), Codec::ALL.map(Codec::name));
    assert_names(&read("README.md"), Transport::names());
    assert_names(&read("ffi/src/options.rs"), Transport::names());
}

/// Returns the declarations of all numbers of Python's extension module.
fn python_numbers() -> String {
    let calls = Collective::ALL.map(Collective::shape).into_iter().flat_map(|shape| {
        let name = shape.names.python.map(str::to_uppercase);
        name.into_iter().flat_map(move |name| {
            let vector = shape.vector.map(|_| format!("{name}_V"));
            let quantized = shape.quantizes.then(|| format!("{name}_QUANTIZED"));
            [Some(name), vector, quantized].into_iter().flatten()
        })
    });
    let codec = |codec: Codec| format!("CODEC_{}", codec.name().to_uppercase().replace('/', "_BLOCK"));
    let declared = |title: &str, names: Vec<String>| {
        let lines: String = names.iter().map(|name| format!("{name}: int\n")).collect();
        format!("# {title}\n{lines}\n")
    };
    [
        declared("Collectives and messages.", calls.chain(["SEND", "RECV"].map(str::to_owned)).collect()),
        declared(
            "Element types, as tbccl.h numbers them.",
            DType::ALL.map(|dtype| dtype.long_name().to_uppercase()).into(),
        ),
        declared(
            "Operations, as tbccl.h numbers them.",
            ReduceOp::ALL.map(|op| op.name().to_uppercase()).into(),
        ),
        declared(
            "Codecs, as tbccl.h numbers them. ALL_REDUCE_QUANTIZED takes its codec as `root`.",
            Codec::ALL.map(codec).into(),
        ),
    ]
    .concat()
}

#[test]
fn python_declares_every_number() {
    const FILE: &str = "python/tbccl/_native.pyi";
    let stub = read(FILE);
    let (before, rest) = stub.split_once("# Collectives and messages.\n").expect("the first number");
    let (_, after) = rest.split_once("#: The same numbers").expect("the end of the numbers");
    let wanted = format!("{before}{}#: The same numbers{after}", python_numbers());
    if std::env::var_os("TBCCL_WRITE_STUB").is_some() {
        fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE), wanted).expect("our file");
    } else {
        assert_eq!(stub, wanted, "TBCCL_WRITE_STUB=1 cargo test --test cli python");
    }
}

#[test]
fn python_has_a_method_for_every_collective() {
    let calls = read("python/tbccl/_collectives.py") + &read("python/tbccl/_vector_collectives.py");
    let group = read("python/tbccl/_group.py");
    for shape in Collective::ALL.map(Collective::shape) {
        let Some(name) = shape.names.python else { continue };
        let vector = shape.vector.map(|_| format!("{name}_v"));
        for name in vector.iter().map(String::as_str).chain([name]) {
            let method = format!("    def {name}(");
            assert!(calls.contains(&method), "{name}");
            assert!(calls.contains(&format!("    def {name}_async(")), "{name}_async");
            assert!(name == "barrier" || group.contains(&method), "{name} of a group");
        }
    }
}
