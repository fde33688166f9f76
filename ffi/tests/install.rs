//! Test of `make install`: another project finds the library by pkg-config and by CMake.

#[allow(dead_code)] // This test uses only a part of the harness.
mod harness;

use harness::{binary_dir, command, package_dir, run};
use std::fs;

#[test]
fn an_installed_library_is_found_by_pkg_config_and_cmake() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let prefix = folder.path().join("it");
    run(&mut command(package_dir().join("install.sh"), &[binary_dir(), &prefix]));
    assert!(run(&mut command(prefix.join("bin/tbccl"), &["--version"])).stdout.starts_with("tbccl "));
    for file in ["bash-completion/completions/tbccl", "zsh/site-functions/_tbccl", "man/man1/tbccl-run.1"] {
        assert!(fs::read_to_string(prefix.join("share").join(file)).expect(file).contains("tbccl"), "{file}");
    }

    let pkg_config = |arguments: &[&str]| {
        let mut command = command("pkg-config", arguments);
        let output = run(command.arg("tbccl").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))).stdout;
        output.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let example = package_dir().join("examples/01_threads.c");
    let flags = pkg_config(&["--cflags", "--libs"]);
    let program = folder.path().join("by_pkg_config");
    run(command("cc", &["-pthread", "-o"]).arg(&program).arg(&example).args(flags));
    let mut by_pkg_config = command::<&str>(program, &[]);
    run(by_pkg_config.env("LD_LIBRARY_PATH", prefix.join("lib")));
    let version = run(command("pkg-config", &["--modversion", "tbccl"])
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")));
    assert_eq!(version.stdout.trim(), env!("CARGO_PKG_VERSION"));

    let project = folder.path().join("project");
    fs::create_dir(&project).expect("our folder");
    fs::copy(&example, project.join("main.c")).expect("our folder");
    let lists = "cmake_minimum_required(VERSION 3.16)\nproject(test C)\nfind_package(tbccl 0.1 REQUIRED)\n\
                 find_package(Threads REQUIRED)\n\
                 add_executable(shared main.c)\nadd_executable(static main.c)\n\
                 target_link_libraries(shared tbccl::tbccl Threads::Threads)\n\
                 target_link_libraries(static tbccl::static Threads::Threads)\n";
    fs::write(project.join("CMakeLists.txt"), lists).expect("our folder");
    let build = folder.path().join("build");
    let mut configure = command("cmake", &["-S"]);
    configure.arg(&project).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())));
    run(command("cmake", &["--build"]).arg(&build));
    for name in ["shared", "static"] {
        let output = run(&mut command::<&str>(build.join(name), &[])).stdout;
        assert!(output.contains("the mean over 4 ranks"), "{output}");
    }
}
