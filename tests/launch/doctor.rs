//! `tbccl doctor` on several hosts, with real ssh between network namespaces.

use crate::{
    hosts::{LIST, expect_quiet},
    network::{HOSTS, network_or_return},
};
use support::Process;

#[test]
fn all_hosts_are_asked_at_the_same_time_and_compared() {
    let network = network_or_return!();
    let mut command = network.command("doctor", &network.ssh());
    command.args(["--hosts", LIST, "--check", "ssh,version,clock,subnet"]);
    let done = Process::start(command).finish();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{text}");
    assert!(text.contains(&format!("all {HOSTS} hosts answer")), "{text}");
    assert!(text.contains("clocks differ by less than 2 s"), "{text}");
    assert!(text.ends_with("0 red, 0 yellow, 4 green\n"), "{text}");
    expect_quiet(&network);
}

#[test]
fn hosts_that_ask_for_a_password_are_unknown_or_have_no_tbccl_are_told_apart() {
    let network = network_or_return!();
    let told = |ssh: &str, args: &[&str]| {
        let mut command = network.command("doctor", ssh);
        command.args(["--check", "ssh"]).args(args);
        let done = Process::start(command).finish();
        assert_eq!(done.code(), 1, "{}", done.stderr);
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let strange = format!("ssh -F {}", network.path("strange_config").display());
    let text = told(&strange, &["--hosts", "h0,h1"]);
    assert!(text.contains("h1: ssh failed") && text.contains("mend: ssh-copy-id h1"), "{text}");
    let text = told(&network.ssh(), &["--hosts", "h0,nowhere.invalid"]);
    assert!(text.contains("mend: add nowhere.invalid to /etc/hosts"), "{text}");
    let text = told(&network.ssh(), &["--hosts", "h0,h1", "--tbccl", "/no/such/tbccl"]);
    assert!(text.contains("h1: there is no /no/such/tbccl"), "{text}");
    let text = told(&network.ssh(), &["--hosts", "h0,h1", "--tbccl", "/bin/echo"]);
    assert!(text.contains("mend: install the same tbccl on h1"), "{text}");
    expect_quiet(&network);
}

#[test]
fn a_host_that_hangs_is_given_up_after_the_limit() {
    let network = network_or_return!();
    let slow = network.write("slow-tbccl", "#!/bin/sh\nexec sleep 1000\n");
    std::fs::set_permissions(&slow, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("ours");
    let mut command = network.command("doctor", &network.ssh());
    command.args(["--hosts", "h0,h1", "--check", "ssh", "--tbccl", &slow, "--limit", "2"]);
    let done = Process::start(command).finish();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.code(), 1, "{text}");
    assert!(text.contains("h1: no answer within 2s; is it overloaded?"), "{text}");
}
