//! `tbccl why`, without a job. Reports of jobs are tested where jobs hang: in `tests/failure`, `tests/verbs`
//! and `tests/launch`.

use support::tbccl;

/// Returns the error of `tbccl why` with wrong arguments.
fn error(args: &[&str]) -> String {
    let output = tbccl().arg("why").args(args).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.starts_with("tbccl: error: ") && text.lines().count() == 1, "{args:?}: {text}");
    text
}

#[test]
fn a_process_that_belongs_to_no_job_is_named() {
    let pid = std::process::id().to_string();
    let text = error(&["--job", &pid]);
    assert!(text.contains(&format!("process {pid} belongs to no job of this user")), "{text}");
}

#[test]
fn times_that_are_none_are_refused() {
    for time in ["--wait=-1", "--wait=nan", "--wait=soon"] {
        assert!(error(&[time]).contains("a time in seconds was expected"), "{time}");
    }
}
