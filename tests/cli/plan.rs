//! `tbccl plan`: output and exit status.
//!
//! After a change of what the examples of `docs/selection.md` print:
//! `TBCCL_WRITE_PAGES=1 cargo test --test cli examples_of_the_page`.

use std::{path::Path, process::Output};

fn plan(args: &[&str]) -> Output {
    let mut command = support::tbccl();
    // The program refuses variables that it does not know.
    command.env_remove("TBCCL_WRITE_PAGES").arg("plan").args(args).output().expect("it runs")
}

/// Returns the stdout of a command that exits with `status`.
fn stdout(args: &[&str], status: i32) -> String {
    let output = plan(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the single stderr line of a rejected command.
fn refusal(args: &[&str]) -> String {
    let output = plan(args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert!(stderr.starts_with("tbccl: error: ") && stderr.lines().count() == 1, "{args:?}: {stderr}");
    stderr
}

/// Once the page had times of an earlier model of costs.
#[test]
fn examples_of_the_page_on_selection_are_what_the_commands_print() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/selection.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let mut wanted = page.clone();
    let is_written = std::env::var_os("TBCCL_WRITE_PAGES").is_some();
    let examples: [(&str, &[&str]); 2] = [
        ("The output of the first command,", &["explain", "all_reduce", "--ranks", "4", "--bytes", "64K"]),
        (
            "With `--hosts 4 --ports 3 --bytes 4M`:",
            &["wire", "--hosts", "4", "--ports", "3", "--bytes", "4M"],
        ),
    ];
    for (before, args) in examples {
        let after = wanted.find(before).expect("the sentence before the example");
        let begin = after + wanted[after..].find("```\n").expect("an example") + "```\n".len();
        let end = begin + wanted[begin..].find("```").expect("the end of the example");
        let printed = stdout(args, 0);
        let advice = "TBCCL_WRITE_PAGES=1 cargo test --test cli examples_of_the_page";
        assert!(is_written || wanted[begin..end] == printed, "{advice}: it prints\n{printed}");
        wanted.replace_range(begin..end, &printed);
    }
    if wanted != page {
        std::fs::write(path, wanted).expect("written");
    }
}

#[test]
fn a_plan_is_shown_rank_by_rank() {
    let text = stdout(&["show", "broadcast", "--algo", "chain", "--ranks", "3", "--root", "1"], 0);
    for rank in 0..3 {
        assert!(text.contains(&format!("\nrank {rank}\n")), "{text}");
    }
    assert!(text.lines().last().is_some_and(|line| line.starts_with("verified: ")), "{text}");
    let one =
        stdout(&["show", "broadcast", "--algo", "chain", "--ranks", "3", "--root", "1", "--rank", "2"], 0);
    assert!(
        one.contains("\nrank 2\n") && !one.contains("\nrank 0\n") && !one.contains("\nrank 1\n"),
        "{one}"
    );
    assert!(one.contains("recv output[0] from rank 1"), "{one}");
}

#[test]
fn a_plan_with_packed_messages_tells_how_often_it_packs() {
    let show = ["show", "all_reduce", "--algo", "rsag_mesh", "--ranks", "3", "--codec", "int8/64"];
    let text = stdout(&show, 0);
    assert!(text.contains("2 blocks packed as int8/64\n"), "{text}");
    assert!(text.contains("encode packed[1] = input[1]\n"), "{text}");
    assert!(text.contains("decode_reduce output[0] = input[0] + packed[0]"), "{text}");
    assert!(text.contains("packed up to 2 times"), "{text}");
}

#[test]
fn what_is_shown_as_toml_can_be_verified_and_broken() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plan.toml");
    let path = file.to_str().expect("text");
    let show =
        ["show", "all_reduce", "--algo", "ring", "--ranks", "4", "--segments", "2", "--in-place", "--toml"];
    let toml = stdout(&show, 0);
    std::fs::write(&file, &toml).expect("our folder");
    assert!(stdout(&["verify", path], 0).contains(": right: "));

    let wrong = toml.replacen("output[1]", "output[0]", 1);
    assert_ne!(wrong, toml);
    std::fs::write(&file, wrong).expect("our folder");
    assert!(stdout(&["verify", path], 1).contains(": WRONG: "));

    std::fs::write(&file, toml.replacen("send", "sned", 1)).expect("our folder");
    assert!(refusal(&["verify", path]).contains("line "));
    std::fs::write(&file, [0xff; 9]).expect("our folder");
    assert!(refusal(&["verify", path]).contains("it is not text"));
    std::fs::remove_file(&file).expect("our folder");
    assert!(refusal(&["verify", path]).contains("check the path"));
}

/// Returns a schedule file of two ranks with these steps.
fn schedule(steps: [&[&str]; 2]) -> String {
    let head = "version = 1\ncollective = \"all_reduce\"\nalgorithm = \"mine\"\nchunks = 2\n";
    let rank = |steps: &[&str]| format!("[[rank]]\nsteps = {steps:?}\n");
    format!("{head}{}{}", rank(steps[0]), rank(steps[1]))
}

#[test]
fn a_schedule_that_is_wrong_is_refused_with_the_step_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("plan.toml");
    let path = file.to_str().expect("text");
    let says = |text: &str, options: &[&str]| {
        std::fs::write(&file, text).expect("our folder");
        stdout(&[&["verify", path], options].concat(), 1)
    };
    // Each rank sends only after it has received from the other.
    let waits = |peer: u32| {
        let recv = format!("recv_reduce output[0..2] = input[0..2] + rank {peer} last");
        [recv, format!("send input[0..2] to rank {peer} after 0")]
    };
    let (first, second) = (waits(1), waits(0));
    let steps = [&first.each_ref().map(String::as_str)[..], &second.each_ref().map(String::as_str)[..]];
    let cycle = says(&schedule(steps), &[]);
    for step in
        ["deadlock", "rank 0 step 0 `recv_reduce", "rank 0 step 1 `send", "rank 1 step 0", "rank 1 step 1"]
    {
        assert!(cycle.contains(step), "{step}: {cycle}");
    }
    let right = ["send input[0..2] to rank 1", "recv_reduce output[0..2] = input[0..2] + rank 1 last"];
    let dangling = ["send input[0..2] to rank 0 after 7", right[1]];
    let dangling = says(&schedule([&right, &dangling]), &[]);
    assert!(dangling.contains("rank 1 step 0 `send input[0..2] to rank 0 after 7`"), "{dangling}");
    assert!(dangling.contains("and 7 is not"), "{dangling}");
    let outside = ["send input[1..3] to rank 0", right[1]];
    let outside = says(&schedule([&right, &outside]), &[]);
    assert!(
        outside.contains("rank 1 step 0 `send input[1..3] to rank 0`: input[1..3] is outside"),
        "{outside}"
    );
    let short = ["send input[0] to rank 0", "recv_reduce output[0..2] = input[0..2] + rank 0 last"];
    let short = says(&schedule([&right, &short]), &[]);
    assert!(short.contains("rank 1 step 0 `send input[0] to rank 0` meets rank 0 step 1"), "{short}");
}

#[test]
fn a_schedule_that_breaks_the_rules_of_a_device_is_refused_with_the_step_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("our folder");
        path.to_str().expect("text").to_owned()
    };
    let show =
        |segments| ["show", "all_reduce", "--algo", "ring", "-n", "2", "--segments", segments, "--toml"];
    let (whole, cut) =
        (write("whole.toml", &stdout(&show("1"), 0)), write("cut.toml", &stdout(&show("8"), 0)));
    let fabrics = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/fabrics");
    let fabric = |name: &str| fabrics.join(name).to_str().expect("text").to_owned();
    let (macs, ib) = (fabric("apple-tb5-mesh2.toml"), fabric("ib-pair.toml"));
    for rules in [["--profile", "thunderbolt"], ["--profile", "apple-tb5"], ["--fabric", &macs]] {
        let verify = |file: &str, bytes: &str, status| {
            stdout(&[&["verify", file, "--bytes", bytes], &rules[..]].concat(), status)
        };
        let long = verify(&whole, "64M", 1);
        let says = "rank 0 step 0 `send input[0] to rank 1`: 33554432 bytes in one message, and the device \
        takes 16773120; \
                    cut chunks into ";
        assert!(long.contains("WRONG: ") && long.contains(says), "{long}");
        assert!(verify(&cut, "64M", 0).contains("no message is longer than 16773120"));
        assert!(verify(&whole, "1M", 0).contains(": right: "));
    }
    for rules in [["--profile", "ib"], ["--profile", "usb4"], ["--fabric", &ib]] {
        assert!(stdout(&[&["verify", &whole], &rules[..]].concat(), 0).contains(": right: "));
    }
    let shallow = write(
        "shallow.toml",
        "[[node]]\nname = \"a\"\ndevice = [{ name = \"d\", profile = \"apple-tb5\", usable_depth = 100 }]",
    );
    let shallow = stdout(&["verify", &whole, "--bytes", "1M", "--fabric", &shallow], 1);
    assert!(shallow.contains("the device takes 409600"), "{shallow}");
    assert!(refusal(&["verify", &whole, "--profile", "aple-tb5"]).contains("apple-tb5"));
    assert!(refusal(&["verify", &whole, "--fabric", &whole]).contains("whole.toml"));
    assert!(refusal(&["verify", "--all", "-n", "2", "--profile", "ib"]).contains("a schedule in a file"));
    assert!(refusal(&["verify", &whole, "--hosts", "2"]).contains("leave --hosts"));
}

#[test]
fn plans_for_hosts_copied_and_striped_are_shown_verified_and_explained() {
    let show = ["show", "all_reduce", "--algo", "hierarchical", "--ranks", "8", "--hosts", "3,5"];
    let text = stdout(&show, 0);
    assert!(text.contains("send input[0..2] to rank 3") || text.contains("to rank 3"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.starts_with("verified: ")), "{text}");
    let flat = stdout(&show[..6], 0);
    assert_ne!(flat, text, "hosts make another plan");
    let both = ["--replicas", "2", "--weights", "3:1"];
    let lanes = stdout(&[&show[..], &both].concat(), 0);
    assert!(lanes.contains("lane 3") && lanes.contains("verified: "), "{lanes}");
    let verify = ["verify", "all_reduce", "--algo", "hierarchical", "--ranks", "8", "--hosts", "3,5"];
    let rows = stdout(&[&verify[..], &both].concat(), 0);
    assert!(rows.contains("\n2 plans, 0 wrong"), "{rows}");
    assert!(
        refusal(&["show", "all_reduce", "--algo", "ring", "-n", "7", "--hosts", "3,5"])
            .contains("are not 7 ranks")
    );
    assert!(refusal(&["verify", "--all", "-n", "7", "--hosts", "3,5"]).contains("are not 7 ranks"));
    assert!(
        refusal(&["show", "all_reduce", "--algo", "ring", "-n", "8", "--hosts", "3,0"]).contains("turns:2")
    );
    assert!(
        refusal(&["show", "all_reduce", "--algo", "ring", "-n", "8", "--weights", "0:1"]).contains("3:1")
    );
    assert!(
        refusal(&["show", "all_reduce", "--algo", "ring", "-n", "8", "--replicas", "17"]).contains("to 16")
    );
}

#[test]
fn a_choice_between_hosts_is_explained_by_the_cluster_or_as_asked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("cluster.toml");
    let link = "link = { latency_us = 5.0, bandwidth_gbps = 75.0 }";
    std::fs::write(&file, format!("shape = \"mesh\"\nhosts = 2\nranks_per_host = 4\n{link}"))
        .expect("our folder");
    let path = file.to_str().expect("text");
    let args = ["all_reduce", "--ranks", "8", "--bytes", "16M", "--cluster", path];
    let explained = explained(&args, &[]);
    assert_eq!(explained["hosts"], "hosts of 4 ranks", "{explained}");
    assert_eq!(explained["taken"]["algorithm"], "hierarchical", "{explained}");
    let flat = explained["candidates"]
        .as_array()
        .and_then(|all| all.iter().find(|one| one["algorithm"] == "rsag_mesh"));
    let (flat, taken) = (flat.expect("it can")["bound_us"].as_f64(), explained["taken"]["us"].as_f64());
    assert!(flat > taken.map(|us| 2.0 * us), "what one host alone would take: {explained}");
    // A numbering of ranks that differs from the cluster's is slower.
    let us = |hosts: &str| {
        self::explained(&[&args[..], &["--hosts", hosts]].concat(), &[])["candidates"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["algorithm"] == "hierarchical")?["bound_us"].as_f64())
            .expect("a bound")
    };
    assert!(us("turns:2") > us("4,4") && us("4,4") == us("4"));
    assert!(refusal(&["explain", "all_reduce", "-n", "8", "--hosts", "4,5"]).contains("are not 8 ranks"));
}

#[test]
fn a_choice_for_blocks_of_unequal_lengths_is_explained() {
    let args = ["all_gather", "--ranks", "4", "--bytes", "16M", "--uneven"];
    let uneven = explained(&args, &[]);
    assert_eq!(uneven["uneven"], true);
    let names = |key: &str| -> Vec<String> {
        let all = uneven[key].as_array().expect("a list").iter();
        all.map(|one| one["algorithm"].as_str().expect("a name").to_owned()).collect()
    };
    let mut able = names("candidates");
    able.sort();
    assert_eq!(able, ["direct", "hierarchical", "ring"]);
    assert!(names("excluded").contains(&"bruck".to_owned()));
    let text = stdout(&[&["explain"], &args[..]].concat(), 0);
    assert!(text.starts_with("all_gather_v of "), "{text}");
    assert!(text.contains("  bruck: ") && text.contains("unequal lengths"), "{text}");
    assert!(refusal(&["explain", "barrier", "-n", "4", "--uneven"]).contains("leave --uneven out"));
}

#[test]
fn all_plans_are_verified_and_summed_up() {
    let text = stdout(&["verify", "--all", "--ranks", "1..8", "--segments", "1,3"], 0);
    for algorithm in collectives::plan::ALGORITHMS {
        let is_row = |line: &&str| {
            let mut words = line.split_whitespace();
            words.next() == Some(algorithm.collective.name()) && words.next() == Some(algorithm.name)
        };
        let row = text.lines().find(is_row).unwrap_or_else(|| panic!("no {} in {text}", algorithm.name));
        assert!(row.contains(" 1..8 ") && row.ends_with("  right"), "{row}");
    }
    let sum = text.lines().last().expect("a sum");
    assert!(sum.contains(" plans, 0 wrong, ") && !sum.starts_with("0 "), "{sum}");
}

#[test]
fn plans_can_be_chosen() {
    let all_roots = stdout(&["verify", "bcast", "--algo", "binomial", "--ranks", "5-6"], 0);
    assert!(all_roots.contains("\n22 plans, 0 wrong"), "{all_roots}");
    let one_root =
        stdout(&["verify", "broadcast", "--algo", "binomial", "--ranks", "5..=6", "--root", "3"], 0);
    assert!(one_root.contains("\n4 plans, 0 wrong"), "{one_root}");
}

#[test]
fn plans_are_simulated_on_every_cluster_of_the_samples() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/clusters");
    let files = ["mac-mesh4", "mac-ring5", "mac-ring8", "template", "two-tiers", "hypercube8", "torus16"];
    for file in files {
        let path = folder.join(format!("{file}.toml"));
        // Few plans run on a whole torus or hypercube; their first four hosts form a ring, or nearly one.
        let some: &[&str] =
            if ["hypercube8", "torus16"].contains(&file) { &["-n", "4", "--size", "1M"] } else { &[] };
        let operation = if file == "hypercube8" { "all_reduce" } else { "barrier" };
        let args = ["simulate", operation, "--cluster", path.to_str().expect("text")];
        let text = stdout(&[&args[..], some].concat(), 0);
        assert!(text.contains("# bound: ") && text.contains("of bound"), "{file}: {text}");
    }
    let fat = folder.join("fat-tree.toml");
    let args = ["simulate", "all_reduce", "--cluster", fat.to_str().expect("text"), "--size", "4K"];
    let text = stdout(&[&args[..], &["--algo", "recursive_doubling"]].concat(), 0);
    assert!(text.contains("critical path, ") && text.contains(", up"), "{text}");
}

#[test]
fn a_simulation_is_drawn_and_traced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let cluster = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/fabrics/ib-slow3.toml");
    let (svg, trace) = (file("plan.svg"), file("plan.json"));
    let args = ["simulate", "all_reduce", "--algo", "ring", "--svg", &svg, "--trace", &trace, "--cluster"];
    let text = stdout(&[&args[..], &[cluster.to_str().expect("text")]].concat(), 0);
    assert!(text.contains("host 0 to host 1"), "{text}");
    assert!(std::fs::read_to_string(svg).expect("written").contains("rank 2"));
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(trace).expect("written")).expect("JSON");
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 3));
    let costs = file("costs.toml");
    std::fs::write(&costs, "send_us = 1000.0").expect("our folder");
    let args = ["simulate", "sendrecv", "--size", "4", "--costs", &costs, "--cluster"];
    let slow = stdout(&[&args[..], &[cluster.to_str().expect("text")]].concat(), 0);
    assert!(slow.contains(" 3000."), "{slow}");
}

/// Returns the JSON of `tbccl plan explain` with these variables.
fn explained(args: &[&str], vars: &[(&str, &str)]) -> serde_json::Value {
    let mut command = support::tbccl();
    let output = command.args(["plan", "explain", "--json"]).args(args).envs(vars.iter().copied()).output();
    let output = output.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}; {stderr}"))
}

#[test]
fn a_choice_is_explained_with_what_was_out() {
    let text = stdout(&["explain", "all_reduce", "--ranks", "5", "--bytes", "16M", "--cluster", "ring"], 0);
    assert!(text.contains("fastest: bidirectional_ring in "), "{text}");
    let mesh = text.lines().find(|line| line.starts_with("  mesh: ")).expect("mesh is out");
    assert!(mesh.contains("from rank 0 to rank 2"), "{mesh}");
    assert!(
        text.contains("no plan takes less than: latency ") && text.contains("the fastest takes "),
        "{text}"
    );
    let small = explained(&["all_reduce", "--ranks", "4", "--bytes", "4K"], &[]);
    assert!(
        ["mesh", "recursive_doubling"].iter().any(|name| small["fastest"]["algorithm"] == *name),
        "{small}"
    );
    assert!(small["above_bound_percent"].as_f64().is_some_and(|percent| percent >= 0.0), "{small}");
    // The host's own memory connects all ranks.
    let shm = explained(&["all_to_all", "--ranks", "3", "--cluster", "shm", "--in-place"], &[]);
    assert!(shm["excluded"].as_array().is_some_and(Vec::is_empty), "{shm}");
    let barrier = stdout(&["explain", "barrier", "--ranks", "4"], 0);
    assert!(barrier.starts_with("barrier on 4 ranks of: "), "{barrier}");
}

#[test]
fn bounds_rule_out_what_is_not_the_fastest_anyway() {
    let args = ["all_reduce", "--ranks", "4", "--bytes", "16M"];
    let (some, all) = (explained(&args, &[]), explained(&[&args[..], &["--exhaustive"]].concat(), &[]));
    assert_eq!(some["fastest"], all["fastest"]);
    let simulated = |whole: &serde_json::Value| {
        let candidates = whole["candidates"].as_array().expect("a list");
        (candidates.iter().filter(|one| one["us"].is_number()).count(), candidates.len())
    };
    let ((few, listed), (many, all)) = (simulated(&some), simulated(&all));
    assert!(few < listed && listed == all && many == all, "{few} of {listed}, {many} of {all}");
}

#[test]
fn what_a_job_takes_follows_the_options() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("our folder");
        path.to_str().expect("text").to_owned()
    };
    let rules =
        file("rules.toml", "version = 1\n[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"torus\"");
    let link = "link = { latency_us = 5.0, bandwidth_gbps = 75.0 }";
    let model = file("model.toml", &format!("shape = \"mesh\"\nhosts = 4\n{link}\ncosts = \"rdma-held\""));
    let args = ["all_reduce", "--ranks", "4", "--bytes", "16M"];
    let taken = |vars: &[(&str, &str)]| explained(&args, vars)["taken"].clone();
    assert_eq!(taken(&[("TBCCL_RULES", &rules), ("TBCCL_MODEL", &model)])["algorithm"], "torus");
    assert_eq!(taken(&[("TBCCL_ALGO", "ring")])["algorithm"], "ring");
    let by_model = explained(&args, &[("TBCCL_MODEL", &model)]);
    assert_eq!(by_model["taken"]["segments"], by_model["fastest"]["segments"], "{by_model}");
    assert!(by_model["taken"]["why"].as_str().is_some_and(|why| why.contains("simulated")), "{by_model}");
    let without = explained(&args, &[("TBCCL_ALGO", "^rsag_mesh")]);
    assert_ne!(without["fastest"]["algorithm"], "rsag_mesh");
    let fails = explained(&[&args[..], &["--cluster", "ring"]].concat(), &[("TBCCL_ALGO", "mesh")]);
    assert!(fails["taken"]["error"].as_str().is_some_and(|why| why.contains("no cable")), "{fails}");
}

#[test]
fn cables_are_advised() {
    let wire = |hosts, ports| stdout(&["wire", "--hosts", hosts, "--ports", ports, "--bytes", "4M"], 0);
    let four = wire("4", "3");
    assert!(four.contains("advised: mesh, 6 cables"), "{four}");
    assert_eq!(four.lines().filter(|line| line.contains(" -- host ")).count(), 6, "{four}");
    let five = wire("5", "3");
    assert!(five.contains("advised: ring, 5 cables"), "{five}");
    assert!(five.contains("  mesh: it takes 4 ports per host, and there are 3"), "{five}");
    let two = wire("2", "3");
    assert!(
        two.contains("advised: mesh x3, 3 cables") && two.contains("host 0 port 2 -- host 1 port 2"),
        "{two}"
    );
    let eight = wire("8", "3");
    let advised = eight.lines().find(|line| line.starts_with("advised: ")).expect("advice");
    assert!(
        advised.contains("hypercube") || advised.contains("ring") || advised.contains("torus"),
        "{advised}"
    );
}

#[test]
fn bad_usage_is_one_line_with_a_way_out() {
    for (args, expected) in [
        (&["show", "all_reduc", "--algo", "ring", "--ranks", "4"][..], "did you mean `all_reduce`?"),
        (&["show", "all_reduce", "--algo", "rign", "--ranks", "4"], "did you mean `ring`?"),
        (&["show", "all_reduce", "--ranks", "4"], "recursive_doubling"),
        (
            &["show", "broadcast", "--algo", "chain", "--ranks", "4", "--codec", "bf16"],
            "only those of all_reduce",
        ),
        (&["show", "all_reduce", "--algo", "ring", "--ranks", "0"], "at least one rank"),
        (&["show", "all_reduce", "--algo", "mesh", "--ranks", "1000"], "at most 256 ranks"),
        (&["show", "all_reduce", "--algo", "ring", "--ranks", "4", "--rank", "4"], "the last one is 3"),
        (&["show", "broadcast", "--algo", "chain", "--ranks", "4", "--root", "4"], "the last one is 3"),
        (&["show", "all_reduce", "--algo", "ring", "--ranks", "4", "--segments", "0"], "ask for 1"),
        (&["show", "all_reduce", "--alog", "ring", "--ranks", "4"], "'--algo'"),
        (&["verify", "all_reduce"], "--ranks 1..64"),
        (&["verify", "--all", "--ranks", "64..1"], "did you mean 1..64?"),
        (&["verify", "--all", "--ranks", "3", "--root", "3"], "the last one is 2"),
        (&["verify", "allreduec", "--ranks", "3"], "did you mean `all_reduce`?"),
        (&["verify", "allreduec"], "did you mean `all_reduce`?"),
        (&["verify"], "OP|FILE.toml"),
        (&["simulate", "all_reduce"], "--cluster <FILE>"),
        (&["simulate", "all_reduce", "--cluster", "none.toml"], "check the path"),
        (&["simulate", "all_reduce", "--cluster", "configs/hosts/openmpi.txt"], "openmpi.txt"),
        (
            &["simulate", "all_reduce", "--cluster", "configs/clusters/mac-ring5.toml", "--costs", "dear"],
            "ideal, rdma, rdma-held or jaccl",
        ),
        (
            &["simulate", "all_reduce", "--cluster", "configs/clusters/mac-ring5.toml", "--algo", "mesh"],
            "nothing connects them",
        ),
        (&["explain", "all_reduce"], "--ranks <N>"),
        (&["explain", "all_reduce", "--ranks", "65"], "thresholds decide"),
        (&["explain", "all_reduce", "--ranks", "4", "--cluster", "mash"], "choose mesh, ring"),
        (&["explain", "all_reduce", "--ranks", "6", "--cluster", "hypercube"], "power of two"),
        (&["explain", "broadcast", "--ranks", "4", "--root", "4"], "the last one is 3"),
        (
            &["explain", "all_reduce", "--ranks", "9", "--cluster", "configs/clusters/mac-ring5.toml"],
            "the model has 5 ranks",
        ),
        (&["wire", "--hosts", "4"], "--ports <P>"),
        (&["wire", "--hosts", "1", "--ports", "3"], "2 to 32 hosts"),
        (&["wire", "--hosts", "3", "--ports", "1"], "more ports per host"),
    ] {
        let line = refusal(args);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
}
