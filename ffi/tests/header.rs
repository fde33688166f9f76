//! Comparison of `tbccl.h` with the sources that it is generated from.
//!
//! After a change: `TBCCL_WRITE_HEADER=1 cargo test -p tbccl-ffi --test header`.

use std::{fs, path::Path};
use tbccl::{Codec, DType, ReduceOp};
use tbccl_c::codes::{ResultCode, c_enum};

fn initializer(name: &str, structure: &str, fields: &[&str]) -> String {
    format!(
        "#define TBCCL_{name}_INITIALIZER \\\n  \
         {{ sizeof({structure}), TBCCL_{name}_MAGIC, TBCCL_VERSION_CODE, \\\n    {} }}\n",
        fields.join(", ")
    )
}

/// Returns the parts of the header that are neither functions nor structures.
fn enums() -> String {
    [
        "#define TBCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))\n\n#define TBCCL_COMM_NULL NULL\n\
         #define TBCCL_REQUEST_NULL NULL\n#define TBCCL_CONFIG_UNDEF_PTR NULL\n"
            .to_owned(),
        c_enum::<ResultCode>("Result of most functions. Numbers below 1000 are those of nccl.h."),
        c_enum::<DType>("Element types. Numbers below 1000 are those of nccl.h."),
        c_enum::<ReduceOp>(
            "Reduction operations. Numbers below 1000 are those of nccl.h.\n * \
             tbcclRedOpCreatePreMulSum makes further operations.",
        ),
        c_enum::<Codec>(
            "Codecs of tbcclAllReduceQuantized: int8 with a scale per block, or bf16.\n * \
             Blocks have 128 elements, unless the name gives another length.",
        ),
        "/**\n * Location of the scalar of tbcclRedOpCreatePreMulSum.\n * \
         The scalar is read at once in both cases.\n */\ntypedef enum {\n  tbcclScalarDevice = 0,\n  \
         tbcclScalarHostImmediate = 1,\n} tbcclScalarResidence_t;\n"
            .to_owned(),
    ]
    .join("\n")
}

fn initializers() -> String {
    let undefined = "TBCCL_CONFIG_UNDEF_INT";
    [
        initializer("CONFIG", "tbcclConfig_t", &[undefined, undefined, "0", "NULL", "NULL"]),
        initializer("CALL_OPTIONS", "tbcclCallOptions_t", &["0", "NULL", "0", undefined]),
        initializer(
            "ERROR_INFO",
            "tbcclErrorInfo_t",
            &["tbcclSuccess", "-1", "-1", "{0}", "{0}", "{0}", "{0}", "{0}"],
        ),
        initializer(
            "STATS",
            "tbcclStats_t",
            &["0", "0", "0", "0", "0", "0", "0", "0", "0", "0", "0", "{0}", "0", "0", "0"],
        ),
        initializer("LINK_STATS", "tbcclLinkStats_t", &["0", "0", "0", "0", "0", "0", "0"]),
    ]
    .join("\n")
}

fn header() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("a configuration");
    config.after_includes = Some(format!("\n{}\n{}", enums(), initializers()));
    let written = cbindgen::Builder::new().with_crate(root).with_config(config).generate();
    let mut text = Vec::new();
    written.expect("a header").write(&mut text);
    String::from_utf8(text).expect("text")
}

#[test]
fn the_header_is_what_the_sources_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tbccl.h");
    let text = header();
    if std::env::var_os("TBCCL_WRITE_HEADER").is_some() {
        fs::write(&path, &text).expect("a header");
    }
    let committed = fs::read_to_string(&path).expect("a header");
    assert!(
        text == committed,
        "tbccl.h is out of date; regenerate it with: \
         TBCCL_WRITE_HEADER=1 cargo test -p tbccl-ffi --test header"
    );
}
