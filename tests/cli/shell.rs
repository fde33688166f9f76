//! Completion scripts and man pages.

use crate::TBCCL;
use std::{collections::BTreeSet, fs, process::Command};

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn script(shell: &str) -> String {
    output(Command::new(TBCCL).args(["completions", shell]))
}

/// Returns the subcommands that `--help` lists.
fn subcommands() -> BTreeSet<String> {
    let help = output(Command::new(TBCCL).arg("--help"));
    let (_, rest) = help.split_once("Commands:\n").expect("a list");
    let list = rest.split_once("\n\n").expect("its end").0;
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_shell_has_a_completion_script_with_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let text = script(shell);
        for name in subcommands() {
            assert!(text.contains(&name), "{shell}: {name}");
        }
    }
}

#[test]
fn bash_completes_subcommands_and_options() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tbccl");
    fs::write(&file, script("bash")).expect("our folder");
    for (words, current, wanted) in
        [("tbccl ca", 1, "calibrate"), ("tbccl bench --ran", 2, "--ranks"), ("tbccl plan si", 2, "simulate")]
    {
        let ask = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={current}; _tbccl tbccl \
             \"${{COMP_WORDS[$COMP_CWORD]}}\" \"${{COMP_WORDS[$((COMP_CWORD - 1))]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let found = output(Command::new("bash").args(["--norc", "-c", &ask]));
        assert!(found.lines().any(|line| line == wanted), "{words}: {found}");
    }
}

#[test]
fn every_subcommand_has_a_man_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man1");
    output(Command::new(TBCCL).arg("man").arg(&pages));
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap_or_else(|_| panic!("{name}"));
    assert!(page("tbccl.1").contains(".TH"));
    for name in subcommands() {
        let text = page(&format!("tbccl-{name}.1"));
        assert!(text.contains(".SH NAME") && text.contains(".SH OPTIONS"), "{name}: {text}");
    }
    assert!(page("tbccl-plan-simulate.1").contains(".SH SYNOPSIS"));
}
