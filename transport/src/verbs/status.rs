//! Meanings of completion statuses, and advice.

use verbs_sys::WcStatus;

/// Returns the meaning of a status and advice to the user.
#[must_use]
pub const fn explain(status: WcStatus) -> (&'static str, &'static str) {
    match status {
        WcStatus::SUCCESS => ("it went well", "there is nothing to do"),
        WcStatus::LOC_LEN_ERR => (
            "the message does not fit into its receive, or has another number of frames",
            "see that all ranks run the same version and call the same operations with the same sizes",
        ),
        WcStatus::LOC_PROT_ERR => (
            "a local key does not cover the memory",
            "memory was freed or registered anew during the operation; keep buffers until their requests \
             are done",
        ),
        WcStatus::WR_FLUSH_ERR => {
            ("the queue pair had failed before", "the first error of this connection says why")
        }
        WcStatus::LOC_ACCESS_ERR => (
            "the peer wrote where it may not",
            "see that all ranks run the same version; this is a fault of tbccl otherwise",
        ),
        WcStatus::REM_INV_REQ_ERR => (
            "the peer's device found the message invalid: it is larger than the receive that it met",
            "see that all ranks run the same version and call the same operations with the same sizes",
        ),
        WcStatus::REM_ACCESS_ERR => (
            "the peer's key does not allow it: the region is gone or another one",
            "the peer freed memory during the operation, or has left the job",
        ),
        WcStatus::REM_OP_ERR => {
            ("the peer's device could not carry it out", "see the system's log on the peer's machine")
        }
        WcStatus::RETRY_EXC_ERR => (
            "the peer does not answer",
            "its process has ended, its machine sleeps, or the cable is unplugged; see the state of both \
             ports (`tbccl devices`)",
        ),
        WcStatus::RNR_RETRY_EXC_ERR => (
            "the peer has posted no receive",
            "the peer is stuck or in another operation; its own error says more",
        ),
        WcStatus::LOC_QP_OP_ERR => (
            "the queue pair can't carry it out",
            "the device lacks an operation that it was believed to have; please report it with `tbccl \
             devices --json`",
        ),
        WcStatus::BAD_RESP_ERR | WcStatus::RESP_TIMEOUT_ERR => (
            "the peer's device answered wrongly or too late",
            "check the cable; both machines should run the same version of their driver",
        ),
        WcStatus::FATAL_ERR => {
            ("the device has failed", "see the system's log; restart the machine if it stays so")
        }
        _ => ("the device gives no reason", "see the system's log on both machines"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_has_words_of_its_own() {
        let explained = [
            WcStatus::LOC_LEN_ERR,
            WcStatus::LOC_PROT_ERR,
            WcStatus::WR_FLUSH_ERR,
            WcStatus::LOC_ACCESS_ERR,
            WcStatus::REM_INV_REQ_ERR,
            WcStatus::REM_ACCESS_ERR,
            WcStatus::REM_OP_ERR,
            WcStatus::RETRY_EXC_ERR,
            WcStatus::RNR_RETRY_EXC_ERR,
            WcStatus::LOC_QP_OP_ERR,
            WcStatus::FATAL_ERR,
        ];
        let causes: std::collections::BTreeSet<_> =
            explained.iter().map(|status| explain(*status).0).collect();
        assert_eq!(causes.len(), explained.len());
        let rest = explain(WcStatus(99));
        assert!(explained.iter().all(|status| explain(*status) != rest) && explain(WcStatus::TM_ERR) == rest);
    }
}
