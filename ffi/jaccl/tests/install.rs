//! Test of `tbccl install-jaccl` on stand-ins for MLX's and JACCL's libraries.

#[allow(dead_code)] // This test uses only a part of them.
mod jobs;

use jobs::{Programs, job, package_dir, run, tbccl};
use std::{fs, path::Path, process::Command};

/// Compiles C++ text into a shared library or, without `-shared` among the options, a program.
fn compile_text(programs: &Programs, output: &Path, text: &str, options: &[&str]) {
    let source = programs.path("text.cpp");
    fs::write(&source, text).expect("our folder");
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-fPIC", "-I"]).arg(package_dir().join("cpp")).arg(source).args(options);
    run(compiler.arg("-o").arg(output));
}

/// Stand-in for JACCL's library, whose groups are null.
const THEIRS: &str = "#include \"jaccl.h\"\nnamespace jaccl {\nbool is_available() { return true; }\n\
    std::shared_ptr<Group> init(bool) { return nullptr; }\n\
    std::shared_ptr<Group> init(bool, std::function<AllGatherFn(int, int)>) { return nullptr; }\n}\n";

/// Stand-in for MLX's library, which takes the same functions as MLX.
const MLX: &str = "#include \"jaccl.h\"\nint mlx_ranks() {\n\
    auto group = jaccl::is_available() ? jaccl::init(false) : jaccl::init(false, nullptr);\n\
    return group ? group->size() : 0;\n}\n";

/// Runs `tbccl install-jaccl`, and returns whether it succeeded, and what it printed.
fn install(venv: &Path, options: &[&str]) -> (bool, String) {
    let output = tbccl().args(["install-jaccl", "--venv"]).arg(venv).args(options).output().expect("tbccl");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn an_installed_library_serves_mlx_until_it_is_undone() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the stand-ins are libraries of Linux");
        return;
    }
    let programs = Programs::new();
    let venv = programs.path("venv");
    let lib = venv.join("lib/python3.12/site-packages/mlx/lib");
    fs::create_dir_all(&lib).expect("our folder");
    let (succeeds, says) = install(&venv, &[]);
    assert!(!succeeds && says.contains("MLX is not in") && says.contains("--venv"), "{says}");

    let (folder, rpath) = (format!("-L{}", lib.display()), format!("-Wl,-rpath,{}", lib.display()));
    compile_text(&programs, &lib.join("libjaccl.so"), THEIRS, &["-shared", "-Wl,-soname,libjaccl.so"]);
    let own = "-Wl,-rpath,$ORIGIN";
    compile_text(&programs, &lib.join("libmlx.so"), MLX, &["-shared", &folder, own, "-ljaccl"]);
    let program = programs.path("ranks");
    let text =
        "#include <cstdio>\nint mlx_ranks();\nint main() { std::printf(\"ranks %d\\n\", mlx_ranks()); }\n";
    compile_text(&programs, &program, text, &[&folder, &rpath, "-lmlx"]);
    let theirs = fs::read(lib.join("libjaccl.so")).expect("compiled");
    // Cargo puts its own folder of libraries before all others.
    let ranks = || run(job(2, &program, &[]).env_remove("LD_LIBRARY_PATH")).stdout;

    let said = ranks();
    assert_eq!(said.matches("ranks 0").count(), 2, "{said}");
    for expected in ["MLX's own is kept as", "already"] {
        let (succeeds, says) = install(&venv, &[]);
        assert!(succeeds && says.contains(expected), "{says}");
    }
    let said = ranks();
    assert_eq!(said.matches("ranks 2").count(), 2, "{said}");
    for expected in ["MLX's own again", "nothing to undo"] {
        let (succeeds, says) = install(&venv, &["--undo"]);
        assert!(succeeds && says.contains(expected), "{says}");
    }
    assert_eq!(fs::read(lib.join("libjaccl.so")).expect("restored"), theirs);

    // A function that this library does not have, and an MLX without JACCL.
    let newer =
        MLX.replace("#include \"jaccl.h\"\n", "#include \"jaccl.h\"\nnamespace jaccl { bool is_new(); }\n");
    let newer = newer.replace("jaccl::is_available()", "jaccl::is_new()");
    compile_text(&programs, &lib.join("libmlx.so"), &newer, &["-shared"]);
    let (succeeds, says) = install(&venv, &[]);
    assert!(
        !succeeds && says.contains("_ZN5jaccl6is_newEv") && says.contains("nothing was changed"),
        "{says}"
    );
    compile_text(&programs, &lib.join("libmlx.so"), "int none;\n", &["-shared"]);
    let (succeeds, says) = install(&venv, &[]);
    assert!(!succeeds && says.contains("takes nothing from JACCL"), "{says}");
    fs::write(lib.join("libmlx.so"), "no library").expect("our folder");
    let (succeeds, says) = install(&venv, &[]);
    assert!(!succeeds && says.contains("is not a library"), "{says}");
    assert_eq!(fs::read(lib.join("libjaccl.so")).expect("unchanged"), theirs);
}
