//! Tests that compile and run C programs: those of this folder, and the examples.

mod harness;

use harness::{BuildDir, binary_dir, command, package_dir, port_from_nccl, run, tbccl};
use std::path::Path;

/// Compiles a source of this package and runs it. A passing program prints `ok` as its last line.
fn assert_passes(source: &str, arguments: &[&str]) {
    let build_dir = BuildDir::new();
    let output = run(&mut command(build_dir.program(source), arguments));
    assert!(output.stdout.ends_with("ok\n"), "{}\n{}", output.stdout, output.stderr);
}

/// Runs a program as `ranks` processes over a transport, and returns its output.
fn run_launched(program: &Path, ranks: u32, transport: &str) -> String {
    let mut tbccl = tbccl();
    tbccl.args(["run", "-n", &ranks.to_string(), "--"]).arg(program).env("TBCCL_TRANSPORT", transport);
    run(&mut tbccl).stdout
}

/// Runs a program as one process per node of a fabric of software devices, and returns its output.
#[cfg(target_os = "linux")]
fn run_on_fabric(program: &Path, fabric: &str) -> String {
    let mut tbccl = tbccl();
    let fabric = package_dir().join("../configs/fabrics").join(fabric);
    tbccl.args(["fabric", "run", "--timeout", "200", "--fabric"]).arg(fabric);
    tbccl.args(["--", "env", "TBCCL_TRANSPORT=verbs"]).arg(program).env("TBCCL", binary_dir().join("tbccl"));
    run(&mut tbccl).stdout
}

#[test]
fn what_is_compiled_into_programs_does_not_change() {
    assert_passes("tests/abi.c", &[]);
}

#[test]
fn every_call_refuses_every_bad_argument() {
    assert_passes("tests/bad_arguments.c", &[]);
}

#[test]
fn every_call_gives_what_it_is_to_give_on_threads() {
    for ranks in ["1", "2", "5"] {
        assert_passes("tests/calls.c", &[ranks]);
    }
}

#[test]
fn every_call_gives_what_it_is_to_give_on_processes() {
    let build_dir = BuildDir::new();
    let program = build_dir.program("tests/calls.c");
    for transport in ["shm", "tcp"] {
        assert_eq!(run_launched(&program, 3, transport).matches("ok\n").count(), 3, "{transport}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn every_call_gives_what_it_is_to_give_on_rdma_devices() {
    let build_dir = BuildDir::new();
    let program = build_dir.program("tests/calls.c");
    for fabric in ["apple-tb5-mesh3.toml", "usb4-pair.toml"] {
        let output = run_on_fabric(&program, fabric);
        assert!(output.matches("ok\n").count() >= 2, "{fabric}: {output}");
    }
}

#[test]
fn one_thread_plays_all_ranks() {
    assert_passes("tests/one_thread.c", &[]);
}

#[test]
fn threads_share_communicators() {
    assert_passes("tests/threads.c", &[]);
}

#[test]
fn a_forked_child_is_told_that_it_is_one() {
    assert_passes("tests/fork.c", &[]);
}

#[test]
fn memory_is_what_it_is_said_to_be() {
    assert_passes("tests/memory.c", &[]);
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_no_sigpipe() {
    assert_passes("tests/sigpipe.c", &[]);
}

#[test]
fn a_handler_gets_the_events_of_the_library() {
    assert_passes("tests/log.c", &[]);
}

#[test]
fn flight_recorders_are_written_on_a_signal_and_on_errors() {
    let build_dir = BuildDir::new();
    let folder = build_dir.path().join("dumps");
    let mut program = command(build_dir.program("tests/dump.c"), &[&folder]);
    assert!(run(program.env("TBCCL_DUMP", &folder)).stdout.ends_with("ok\n"));
}

#[test]
fn a_communicator_grows_by_processes_that_come_later() {
    let build_dir = BuildDir::new();
    let program = build_dir.program("tests/grow.c");
    for transport in ["shm", "tcp"] {
        let output = run(command::<&str>(&program, &[]).env("TBCCL_TRANSPORT", transport));
        assert!(output.stdout.ends_with("ok\n"), "{transport}: {}", output.stderr);
    }
}

#[test]
fn ranks_go_on_after_an_abort() {
    assert_passes("tests/abort.c", &["200", "64"]);
}

#[test]
fn processes_go_on_after_an_abort() {
    let build_dir = BuildDir::new();
    let program = build_dir.program("tests/abort_processes.c");
    for transport in ["shm", "tcp"] {
        let output = run_launched(&program, 3, transport);
        assert_eq!(output.matches("ok\n").count(), 3, "{transport}: {output}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_with_rdma_devices_go_on_after_an_abort() {
    let build_dir = BuildDir::new();
    let output = run_on_fabric(&build_dir.program("tests/abort_processes.c"), "apple-tb5-mesh3.toml");
    assert_eq!(output.matches("ok\n").count(), 3, "{output}");
}

/// The examples with launched ranks run on every transport.
#[test]
fn examples_do_what_they_say() {
    let build_dir = BuildDir::new();
    let example = |name: &str| build_dir.program(&format!("examples/{name}.c"));
    let output = run(&mut command::<&str>(example("01_threads"), &[])).stdout;
    assert!(output.contains("the mean over 4 ranks is 1.5"), "{output}");
    for (name, says) in [
        ("02_launched", "2 ranks have done their parts; the last is 14"),
        ("03_overlap", "all 6 layers are summed over 2 ranks"),
        ("04_split", "rank 1: 1 in its row, 2 in its column, sum 3"),
        ("05_registered", "once it is registered"),
    ] {
        let program = example(name);
        for transport in ["shm", "tcp"] {
            let output = run_launched(&program, 2, transport);
            assert!(output.contains(says), "{name} over {transport}: {output}");
        }
        #[cfg(target_os = "linux")]
        {
            let output = run_on_fabric(&program, "apple-tb5-mesh2.toml");
            assert!(output.contains(says), "{name} over RDMA: {output}");
        }
    }
    let output = run_launched(&example("05_registered"), 2, "shm");
    assert!(output.contains("bytes copied: 0 of the communicator's memory"), "{output}");
    let output = run(&mut command::<&str>(example("06_survive"), &[])).stdout;
    assert_eq!(output.matches("2 ranks go on, their sum is 2").count(), 2, "{output}");
}

#[test]
fn a_program_for_nccl_needs_other_names_and_no_stream() {
    let build_dir = BuildDir::new();
    let source = build_dir.path().join("tbccl_style.c");
    port_from_nccl(&package_dir().join("examples/nccl_style.c"), &source);
    let link = ["-L.", "-ltbccl", "-Wl,-rpath,."];
    for compiler in [["cc", "-std=c11"].as_slice(), &["c++", "-x", "c++", "-std=c++17"]] {
        let program = build_dir.compile(&source, compiler, &link);
        let output = run(&mut command::<&str>(program, &[])).stdout;
        assert!(output.contains("all results are right"), "{output}");
    }
}

#[test]
fn objects_of_cxx_make_every_call_and_throw_the_errors_of_the_library() {
    let build_dir = BuildDir::new();
    let source = package_dir().join("tests/raii.cpp");
    for standard in ["-std=c++17", "-std=c++20"] {
        let compiler = ["c++", standard, "-pedantic"];
        let program = build_dir.compile(&source, &compiler, &["-L.", "-ltbccl", "-Wl,-rpath,."]);
        assert_eq!(run(&mut command::<&str>(program, &[])).stdout, "ok\n", "{standard}");
    }
}

/// Functions of the header that `tbccl.hpp` leaves to programs, with `Communicator::get`.
const NOT_IN_CXX: [&str; 6] = [
    "tbcclAllReduceQuantized",
    "tbcclAllGatherV",
    "tbcclReduceScatterV",
    "tbcclGatherV",
    "tbcclScatterV",
    "tbcclAlltoAllV",
];

#[test]
fn the_layer_for_cxx_has_all_collectives_of_the_header() {
    let read = |name: &str| std::fs::read_to_string(package_dir().join(name)).expect("our file");
    let (header, layer) = (read("tbccl.h"), read("tbccl.hpp"));
    let mut found = 0;
    for declaration in header.split("\ntbcclResult_t ").skip(1) {
        let end = declaration.find(';').expect("a declaration");
        let name = declaration.split('(').next().expect("a name");
        // tbcclBroadcast is tbcclBcast with two buffers.
        if !declaration[..end].contains("tbcclRequest_t *request") || name == "tbcclBroadcast" {
            continue;
        }
        let is_there = layer.contains(&format!("{name}("));
        assert_eq!(is_there, !NOT_IN_CXX.contains(&name), "{name}");
        found += 1;
    }
    assert!(found > 15, "{found} functions with a request");
}

#[test]
fn all_programs_are_cxx_too() {
    let build_dir = BuildDir::new();
    let link = ["-L.", "-ltbccl", "-Wl,-rpath,."];
    for folder in ["tests", "examples"] {
        for entry in std::fs::read_dir(package_dir().join(folder)).expect("our folder") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|kind| kind == "c") && !path.ends_with("nccl_style.c") {
                let program = build_dir.compile(&path, &["c++", "-x", "c++", "-std=c++17"], &link);
                if path.ends_with("one_thread.c") {
                    run(&mut command::<&str>(program, &[]));
                }
            }
        }
    }
}

/// Programs for memory checkers: they join all of their threads, and run on one host.
const CHECKED_PROGRAMS: [(&str, &[&str]); 5] = [
    ("tests/memory.c", &[]),
    ("tests/bad_arguments.c", &[]),
    ("tests/one_thread.c", &[]),
    ("tests/calls.c", &["2"]),
    ("examples/01_threads.c", &[]),
];

/// Raises the timeout and lowers the memory use, since checkers are slow and limit the address space.
/// (Valgrind's processor has no AVX-512; the kernels detect that.)
#[cfg(target_os = "linux")]
fn with_checker_limits(command: &mut std::process::Command) -> &mut std::process::Command {
    command.env("TBCCL_TIMEOUT", "200").env("TBCCL_SLAB_BYTES", "64M")
}

#[cfg(target_os = "linux")]
#[test]
fn valgrind_finds_nothing() {
    let build_dir = BuildDir::new();
    let options = [
        "-q",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    for (source, arguments) in CHECKED_PROGRAMS {
        let program = build_dir.program(source);
        let mut valgrind = command("valgrind", &options);
        run(with_checker_limits(valgrind.arg(program).args(arguments)));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn address_sanitizer_finds_nothing() {
    let build_dir = BuildDir::new();
    let library = build_dir.path().join("libtbccl.a").display().to_string();
    let link = [&library, "-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
    for (source, arguments) in CHECKED_PROGRAMS {
        let compiler = ["cc", "-std=c11", "-fsanitize=address", "-fno-omit-frame-pointer"];
        let program = build_dir.compile(&package_dir().join(source), &compiler, &link);
        run(with_checker_limits(&mut command(program, arguments)));
    }
}
