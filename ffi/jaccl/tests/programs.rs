//! Tests of the library as programs load it: its exports, and C++ programs compiled against its interface.
//!
//! Nodes of software fabrics stand for hosts with Apple's devices.

mod jobs;

use jobs::{
    Programs, command, fabric, host_and_free_port, job, job_on, library, local_coordinator, mesh,
    package_dir, passes, run,
};
use std::{fs, os::unix::process::ExitStatusExt, path::PathBuf, process::Command};

/// Functions that programs take from the library, as C++ writes them.
const EXPORTED: [&str; 19] = [
    "jaccl::Config::Config()",
    "jaccl::Config::Config()",
    "jaccl::Config::from_env()",
    "jaccl::Config::is_valid() const",
    "jaccl::Config::is_valid_mesh() const",
    "jaccl::Config::is_valid_ring() const",
    "jaccl::Config::prefer_ring(bool)",
    "jaccl::Config::set_all_gather(std::function<void (char const*, char*, unsigned long)>)",
    "jaccl::Config::set_all_gather_factory(std::function<std::function<void (char const*, char*, unsigned \
     long)> (int, int)>)",
    "jaccl::Config::set_coordinator(char const*)",
    "jaccl::Config::set_coordinator(std::string)",
    "jaccl::Config::set_devices(std::vector<std::vector<std::vector<std::string>>>)",
    "jaccl::Config::set_devices_from_file(char const*)",
    "jaccl::Config::set_rank(char const*)",
    "jaccl::Config::set_rank(int)",
    "jaccl::init(bool)",
    "jaccl::init(bool, std::function<std::function<void (char const*, char*, unsigned long)> (int, int)>)",
    "jaccl::init(jaccl::Config const&, bool)",
    "jaccl::is_available()",
];

/// Fabrics whose nodes have Apple's devices, and whether they are rings.
const FABRICS: [(&str, bool); 7] = [
    ("apple-tb5-mesh2", false),
    ("apple-tb5-mesh2-two-cables", false),
    ("apple-tb5-mesh3", false),
    ("apple-tb5-mesh3-two-cables", false),
    ("apple-tb5-mesh4", false),
    ("apple-tb5-mesh4-two-cables", false),
    ("apple-tb5-ring5", true),
];

#[test]
fn the_interface_of_jaccl_is_exported_and_nothing_else() {
    let options: &[&str] = if cfg!(target_os = "macos") { &["-gUC"] } else { &["-DC", "--defined-only"] };
    let output = run(command("nm", options).arg(library())).stdout;
    // Compilers write the types of their C++ library in different ways.
    let plain = |line: &str| {
        let name = line.splitn(3, ' ').nth(2).unwrap_or_default().replace("std::__1::", "std::");
        let text = "std::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        let mut name = name.replace("std::__cxx11::", "std::").replace(text, "std::string");
        for _ in 0..3 {
            for inner in ["std::string", "std::vector<std::string>", "std::vector<std::vector<std::string>>"]
            {
                name = name.replace(
                    &format!("std::vector<{inner}, std::allocator<{inner} > >"),
                    &format!("std::vector<{inner}>"),
                );
                name = name.replace(
                    &format!("std::vector<{inner}, std::allocator<{inner}> >"),
                    &format!("std::vector<{inner}>"),
                );
            }
        }
        name
    };
    let mut exported: Vec<String> = output.lines().map(plain).collect();
    exported.sort();
    assert_eq!(exported, EXPORTED);
}

#[test]
fn a_program_without_a_job_gets_null_or_an_error_that_says_what_is_missing() {
    let program = Programs::program();
    let mut alone = command(&program.path, &["refused"]);
    for name in ["RANK", "IBV_DEVICES", "COORDINATOR", "RING"] {
        alone.env_remove(format!("JACCL_{name}")).env_remove(format!("MLX_{name}"));
    }
    passes(alone.env_remove("MLX_JACCL_COORDINATOR").env_remove("MLX_JACCL_RING"), 1);
}

#[test]
fn a_library_without_libtbccl_throws_and_says_where_it_has_to_be() {
    let programs = Programs::new();
    let program = Programs::program();
    // The folder above the library is searched, too.
    let folder = programs.path("alone/lib");
    fs::create_dir_all(&folder).expect("our folder");
    fs::copy(library(), folder.join(library().file_name().expect("a name"))).expect("our folder");
    let path = if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    let mut alone = command(&program.path, &["fails", "install both from one package"]);
    let devices = programs.devices("pair.json", &mesh(2));
    alone.env(path, &folder).env("MLX_RANK", "0").env("MLX_IBV_DEVICES", devices);
    passes(alone.env("MLX_JACCL_COORDINATOR", local_coordinator()), 1);
}

#[test]
fn ranks_of_one_host_make_every_call_on_every_type() {
    let programs = Programs::new();
    let program = Programs::program();
    for ranks in 2..=4 {
        let devices = programs.devices(&format!("{ranks}.json"), &mesh(ranks));
        let by_variables = |forms: [&str; 2]| {
            let mut job = job(ranks, &*program, &["jaccl"]);
            job.env(forms[0], &devices).env(forms[1], local_coordinator());
            job
        };
        passes(&mut by_variables(["MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR"]), ranks);
        passes(&mut job(ranks, &*program, &["launched"]), ranks);
    }
    let devices = programs.devices("pair.json", &mesh(2));
    let mut own_forms = job(2, &*program, &["jaccl"]);
    own_forms.env("JACCL_IBV_DEVICES", &devices).env("MLX_IBV_DEVICES", "/nowhere");
    own_forms.env("JACCL_COORDINATOR", local_coordinator()).env("MLX_JACCL_COORDINATOR", "nowhere:1");
    passes(&mut own_forms, 2);
    let mut held = job(2, &*program, &["held"]);
    passes(held.env("MLX_IBV_DEVICES", &devices).env("MLX_JACCL_COORDINATOR", local_coordinator()), 2);
}

#[test]
fn ranks_meet_by_the_all_gather_of_a_program() {
    let programs = Programs::new();
    let program = Programs::program();
    for (ranks, mode) in [(2, "factory"), (4, "factory"), (3, "config")] {
        let devices = programs.devices("devices.json", &mesh(ranks));
        let folder = programs.exchange(&format!("{ranks}-{mode}"));
        let mut job = job(ranks, &*program, &[mode, folder.to_str().expect("a path")]);
        passes(job.env("MLX_IBV_DEVICES", devices), ranks);
    }
}

#[test]
fn a_rank_whose_peer_is_killed_gets_an_error_that_names_it() {
    let programs = Programs::new();
    let program = Programs::program();
    let (devices, coordinator) = (programs.devices("pair.json", &mesh(2)), local_coordinator());
    let rank = |number: &str| {
        let mut rank = command(&program.path, &["survives"]);
        rank.env("MLX_RANK", number).env("MLX_IBV_DEVICES", &devices);
        rank.env("MLX_JACCL_COORDINATOR", &coordinator);
        rank
    };
    let mut killed = rank("1").spawn().expect("a process");
    passes(&mut rank("0"), 1);
    assert_eq!(killed.wait().expect("our child").signal(), Some(9));
}

#[test]
fn a_single_rank_of_a_launcher_gets_no_group() {
    let program = Programs::program();
    let mut alone = job(1, &*program, &["launched"]);
    let output = alone.output().expect("tbccl run");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("started a single rank"), "{message}");
}

#[test]
fn nodes_of_each_fabric_make_every_call_over_the_devices_of_the_matrix() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the software device is for Linux");
        return;
    }
    let programs = Programs::new();
    let program = Programs::program();
    for (name, _) in FABRICS {
        let (file, rows) = fabric(name);
        let devices = programs.devices("devices.json", &rows);
        let mut job = job_on(&file, &*program, &["jaccl"]);
        job.env("MLX_IBV_DEVICES", devices).env("MLX_JACCL_COORDINATOR", local_coordinator());
        passes(job.env("TBCCL_TRANSPORT", "verbs"), rows.len());
    }
    // A device that no node has is named, so those of the matrix are used.
    let (file, mut rows) = fabric("apple-tb5-mesh2");
    rows[0][1] = vec!["rdma_en9".to_owned()];
    let devices = programs.devices("wrong.json", &rows);
    let mut wrong = job_on(&file, &*program, &["fails", "rdma_en9"]);
    wrong.env("MLX_IBV_DEVICES", devices).env("MLX_JACCL_COORDINATOR", local_coordinator());
    passes(wrong.env("TBCCL_TRANSPORT", "verbs"), 2);
}

#[test]
fn hosts_without_a_secret_meet_at_any_address_of_rank_0_and_take_rdma_by_themselves() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the software device is for Linux");
        return;
    }
    let Some((ip, _)) = host_and_free_port() else {
        eprintln!("skipped: this machine has no address but 127.0.0.1");
        return;
    };
    let programs = Programs::new();
    let program = Programs::program();
    for (name, is_ring) in [FABRICS[0], FABRICS[6]] {
        let (_, port) = host_and_free_port().expect("as before");
        let (file, rows) = fabric(name);
        let devices = programs.devices("devices.json", &rows);
        let mut job = job_on(&file, &*program, &["jaccl"]);
        job.env("MLX_IBV_DEVICES", devices).env("MLX_JACCL_COORDINATOR", format!("{ip}:{port}"));
        let says = passes(job.env("COORDINATOR_OF_RANK_0", format!("0.0.0.0:{port}")), rows.len());
        assert_eq!(says.matches("this job has no secret").count(), 1, "{says}");
        assert!(says.contains(&format!("port {port} of rank 0")) && !says.contains("by TCP"), "{says}");
        assert_eq!(says.contains("RDMA (shm+verbs)"), !is_ring, "{says}");
    }
}

#[test]
fn a_ring_is_used_as_a_ring() {
    if !cfg!(target_os = "linux") {
        eprintln!("skipped: the software device is for Linux");
        return;
    }
    let programs = Programs::new();
    let (file, mut rows) = fabric("apple-tb5-mesh4");
    // The cable between ranks that are no neighbors leads nowhere, and JACCL's ring does not use it.
    rows[0][2] = vec!["rdma_en9".to_owned()];
    let devices = programs.devices("devices.json", &rows);
    let mut job = job_on(&file, &*Programs::program(), &["jaccl"]);
    job.env("MLX_IBV_DEVICES", devices).env("MLX_JACCL_COORDINATOR", local_coordinator());
    passes(job.env("MLX_JACCL_RING", "1").env("TBCCL_TRANSPORT", "verbs"), 4);
}

/// Returns MLX's own declaration of the group, if a wheel with it is installed for tests.
fn header_of_mlx() -> Option<PathBuf> {
    let venvs = package_dir().join("../../target/venv/mlx/lib");
    let pythons = fs::read_dir(venvs).ok()?.filter_map(Result::ok);
    // Where the wheel includes JACCL, and where not.
    let folders = ["jaccl", "mlx/distributed/jaccl/lib/jaccl"];
    let headers = pythons.flat_map(|python| {
        let include = python.path().join("site-packages/mlx/include");
        folders.map(|folder| include.join(folder).join("group.h"))
    });
    headers.into_iter().find(|path| path.is_file())
}

#[test]
fn programs_compiled_against_mlx_s_own_header_run_with_this_library() {
    let Some(header) = header_of_mlx() else {
        eprintln!("skipped: no wheel of MLX with jaccl/group.h is in target/venv/mlx (tools/python-env mlx)");
        return;
    };
    let programs = Programs::new();
    let include = format!("-DJACCL_GROUP_HEADER=\"{}\"", header.display());
    let path = programs.compile("with_header", &[include, "-include".into(), "functional".into()]);
    let devices = programs.devices("devices.json", &mesh(2));
    let mut job = job(2, path, &["jaccl"]);
    passes(job.env("MLX_IBV_DEVICES", devices).env("MLX_JACCL_COORDINATOR", local_coordinator()), 2);
}

#[test]
fn virtual_functions_are_in_the_order_of_jaccl() {
    let programs = Programs::new();
    let source = programs.path("order.cpp");
    let functions = [
        "rank",
        "size",
        "all_sum",
        "all_max",
        "all_min",
        "all_gather",
        "sum_scatter",
        "send",
        "recv",
        "barrier",
    ];
    // A pointer to a virtual function is its offset in the table, plus 1; two destructors come first. On
    // processors with odd addresses of functions the 1 is in the second word.
    let check = |(at, name): (usize, &&str)| {
        format!("check({}, &jaccl::Group::{name});", (2 + at) * size_of::<usize>())
    };
    let checks: Vec<String> = functions.iter().enumerate().map(check).collect();
    let text = format!(
        "#include <cstring>\n#include \"jaccl.h\"\nstatic int wrong = 0;\n\
         template <typename F> void check(size_t offset, F function) {{ size_t words[2]; \
         static_assert(sizeof function == sizeof words, \"\"); \
         std::memcpy(words, &function, sizeof words); \
         size_t at = words[1] & 1 ? words[0] : words[0] - 1; wrong += at != offset; }}\n\
         int main() {{ {} return wrong; }}\n",
        checks.join(" ")
    );
    fs::write(&source, text).expect("our folder");
    let mut compiler = Command::new("c++");
    compiler.arg("-std=c++17").arg("-I").arg(package_dir().join("cpp")).arg(&source);
    let program = programs.path("order");
    run(compiler.arg("-o").arg(&program));
    run(&mut Command::new(program));
}
