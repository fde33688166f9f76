//! C programs, compiled and run: those of this folder, and the examples.

mod workshop;

use std::path::Path;
use workshop::{Workshop, command, here, ported, programs, run, tbccl};

/// Compiles a source of this folder and runs it; a passing program ends with `ok`.
fn passes(source: &str, arguments: &[&str]) {
    let workshop = Workshop::open();
    let said = run(&mut command(workshop.program(source), arguments));
    assert!(said.stdout.ends_with("ok\n"), "{}\n{}", said.stdout, said.stderr);
}

/// Runs a program as `ranks` processes over a transport; returns its output.
fn launched(program: &Path, ranks: u32, transport: &str) -> String {
    let mut tbccl = tbccl();
    tbccl.args(["run", "-n", &ranks.to_string(), "--"]).arg(program).env("TBCCL_TRANSPORT", transport);
    run(&mut tbccl).stdout
}

/// Runs a program as one process per node of a fabric of software devices; returns its output.
#[cfg(target_os = "linux")]
fn on_fabric(program: &Path, fabric: &str) -> String {
    let mut tbccl = tbccl();
    let fabric = here().join("../configs/fabrics").join(fabric);
    tbccl.args(["fabric", "run", "--timeout", "200", "--fabric"]).arg(fabric);
    tbccl.args(["--", "env", "TBCCL_TRANSPORT=verbs"]).arg(program).env("TBCCL", programs().join("tbccl"));
    run(&mut tbccl).stdout
}

#[test]
fn what_is_compiled_into_programs_does_not_change() {
    passes("tests/abi.c", &[]);
}

#[test]
fn every_call_refuses_every_bad_argument() {
    passes("tests/bad_arguments.c", &[]);
}

#[test]
fn every_call_gives_what_it_is_to_give_on_threads() {
    for ranks in ["1", "2", "5"] {
        passes("tests/calls.c", &[ranks]);
    }
}

#[test]
fn every_call_gives_what_it_is_to_give_on_processes() {
    let workshop = Workshop::open();
    let program = workshop.program("tests/calls.c");
    for transport in ["shm", "tcp"] {
        assert_eq!(launched(&program, 3, transport).matches("ok\n").count(), 3, "{transport}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn every_call_gives_what_it_is_to_give_on_rdma_devices() {
    let workshop = Workshop::open();
    let program = workshop.program("tests/calls.c");
    for fabric in ["apple-tb5-mesh3.toml", "usb4-pair.toml"] {
        let said = on_fabric(&program, fabric);
        assert!(said.matches("ok\n").count() >= 2, "{fabric}: {said}");
    }
}

#[test]
fn one_thread_plays_all_ranks() {
    passes("tests/one_thread.c", &[]);
}

#[test]
fn threads_share_communicators() {
    passes("tests/threads.c", &[]);
}

#[test]
fn a_forked_child_is_told_that_it_is_one() {
    passes("tests/fork.c", &[]);
}

#[test]
fn memory_is_what_it_is_said_to_be() {
    passes("tests/memory.c", &[]);
}

#[test]
fn a_peer_that_is_gone_is_an_error_and_no_sigpipe() {
    passes("tests/sigpipe.c", &[]);
}

#[test]
fn flight_recorders_are_written_on_a_signal_and_on_errors() {
    let workshop = Workshop::open();
    let folder = workshop.path().join("dumps");
    let mut program = command(workshop.program("tests/dump.c"), &[&folder]);
    assert!(run(program.env("TBCCL_DUMP", &folder)).stdout.ends_with("ok\n"));
}

#[test]
fn a_communicator_grows_by_processes_that_come_later() {
    let workshop = Workshop::open();
    let program = workshop.program("tests/grow.c");
    for transport in ["shm", "tcp"] {
        let said = run(command::<&str>(&program, &[]).env("TBCCL_TRANSPORT", transport));
        assert!(said.stdout.ends_with("ok\n"), "{transport}: {}", said.stderr);
    }
}

#[test]
fn ranks_go_on_after_an_abort() {
    passes("tests/abort.c", &["200", "64"]);
}

#[test]
fn processes_go_on_after_an_abort() {
    let workshop = Workshop::open();
    let program = workshop.program("tests/abort_processes.c");
    for transport in ["shm", "tcp"] {
        let said = launched(&program, 3, transport);
        assert_eq!(said.matches("ok\n").count(), 3, "{transport}: {said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ranks_with_rdma_devices_go_on_after_an_abort() {
    let workshop = Workshop::open();
    let said = on_fabric(&workshop.program("tests/abort_processes.c"), "apple-tb5-mesh3.toml");
    assert_eq!(said.matches("ok\n").count(), 3, "{said}");
}

/// Launched examples run on every transport.
#[test]
fn examples_do_what_they_say() {
    let workshop = Workshop::open();
    let example = |name: &str| workshop.program(&format!("examples/{name}.c"));
    let said = run(&mut command::<&str>(example("01_threads"), &[])).stdout;
    assert!(said.contains("the mean over 4 ranks is 1.5"), "{said}");
    for (name, says) in [
        ("02_launched", "2 ranks have done their parts; the last is 14"),
        ("03_overlap", "all 6 layers are summed over 2 ranks"),
        ("04_split", "rank 1: 1 in its row, 2 in its column, sum 3"),
        ("05_registered", "once it is registered"),
    ] {
        let program = example(name);
        for transport in ["shm", "tcp"] {
            let said = launched(&program, 2, transport);
            assert!(said.contains(says), "{name} over {transport}: {said}");
        }
        #[cfg(target_os = "linux")]
        {
            let said = on_fabric(&program, "apple-tb5-mesh2.toml");
            assert!(said.contains(says), "{name} over RDMA: {said}");
        }
    }
    let said = launched(&example("05_registered"), 2, "shm");
    assert!(said.contains("bytes copied: 0 of the communicator's memory"), "{said}");
    let said = run(&mut command::<&str>(example("06_survive"), &[])).stdout;
    assert_eq!(said.matches("2 ranks go on, their sum is 2").count(), 2, "{said}");
}

#[test]
fn a_program_for_nccl_needs_other_names_and_no_stream() {
    let workshop = Workshop::open();
    let source = workshop.path().join("tbccl_style.c");
    ported(&here().join("examples/nccl_style.c"), &source);
    let link = ["-L.", "-ltbccl", "-Wl,-rpath,."];
    for compiler in [["cc", "-std=c11"].as_slice(), &["c++", "-x", "c++", "-std=c++17"]] {
        let program = workshop.compile(&source, compiler, &link);
        let said = run(&mut command::<&str>(program, &[])).stdout;
        assert!(said.contains("all results are right"), "{said}");
    }
}

#[test]
fn all_programs_are_cxx_too() {
    let workshop = Workshop::open();
    let link = ["-L.", "-ltbccl", "-Wl,-rpath,."];
    for folder in ["tests", "examples"] {
        for entry in std::fs::read_dir(here().join(folder)).expect("our folder") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|kind| kind == "c") && !path.ends_with("nccl_style.c") {
                let program = workshop.compile(&path, &["c++", "-x", "c++", "-std=c++17"], &link);
                if path.ends_with("one_thread.c") {
                    run(&mut command::<&str>(program, &[]));
                }
            }
        }
    }
}

/// Programs for memory checkers: they end with all of their threads, on one host.
const CHECKED: [(&str, &[&str]); 5] = [
    ("tests/memory.c", &[]),
    ("tests/bad_arguments.c", &[]),
    ("tests/one_thread.c", &[]),
    ("tests/calls.c", &["2"]),
    ("examples/01_threads.c", &[]),
];

/// Gives a program time and address space for checkers, which are slow and have less. (Valgrind's processor
/// has no AVX-512; the kernels detect that.)
#[cfg(target_os = "linux")]
fn with_time_and_room(command: &mut std::process::Command) -> &mut std::process::Command {
    command.env("TBCCL_TIMEOUT", "200").env("TBCCL_SLAB_BYTES", "64M")
}

#[cfg(target_os = "linux")]
#[test]
fn valgrind_finds_nothing() {
    let workshop = Workshop::open();
    let options = [
        "-q",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--fair-sched=yes",
    ];
    for (source, arguments) in CHECKED {
        let program = workshop.program(source);
        let mut valgrind = command("valgrind", &options);
        run(with_time_and_room(valgrind.arg(program).args(arguments)));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn address_sanitizer_finds_nothing() {
    let workshop = Workshop::open();
    let library = workshop.path().join("libtbccl.a").display().to_string();
    let link = [&library, "-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];
    for (source, arguments) in CHECKED {
        let compiler = ["cc", "-std=c11", "-fsanitize=address", "-fno-omit-frame-pointer"];
        let program = workshop.compile(&here().join(source), &compiler, &link);
        run(with_time_and_room(&mut command(program, arguments)));
    }
}
