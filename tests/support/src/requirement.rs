//! Tests that need something which a machine may lack.

/// Skips a test whose requirement is missing: prints why, for a test that then returns.
///
/// # Panics
/// If `TBCCL_TEST_REQUIRE_ALL=1`, which CI sets: there, a skipped test is a failed one.
pub fn missing(what: &str) {
    assert!(
        std::env::var_os("TBCCL_TEST_REQUIRE_ALL").is_none_or(|value| value != "1"),
        "TBCCL_TEST_REQUIRE_ALL=1, and this test cannot run here: {what}"
    );
    eprintln!("skipped: {what}");
}
