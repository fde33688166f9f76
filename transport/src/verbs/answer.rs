//! Answers of drivers within a time limit.
//!
//! A driver that has lost a process in the midst of its work may hang in the kernel: then listing or opening
//! its devices never returns, and no signal ends that. So these calls run on a thread of their own. If it
//! does not answer, the caller gets an error that says so, and the thread is left behind.
//!
//! Later calls on an open device are not limited.

use super::{Action, VerbsError};
use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Time for an answer. Devices of many ports take some tenths of a second.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Makes a call on another thread, and returns its result if it comes within the limit.
///
/// # Errors
/// That of the call, or [`VerbsError::Hangs`] with `device`, which may be the name of the library.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    device: &str,
    action: Action,
    call: impl FnOnce() -> Result<T, VerbsError> + Send + 'static,
) -> Result<T, VerbsError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // An answer that comes after the limit is dropped, which frees what it holds.
    let answer = move || drop(sender.send(call()));
    let thread = match thread::Builder::new().name("tbccl-verbs-open".into()).spawn(answer) {
        Ok(thread) => thread,
        Err(error) => return Err(VerbsError::NoThread { action, reason: error.to_string() }),
    };
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            Err(VerbsError::Hangs { device: device.to_owned(), action, waited: limit })
        }
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("the thread has sent its result"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that hangs in the kernel hung each rank that listed or opened its devices.
    #[test]
    fn a_driver_that_does_not_answer_is_an_error_with_the_remedy() {
        let (release, held) = mpsc::channel::<()>();
        let call = move || {
            let _ = held.recv();
            Ok(())
        };
        let error = within(Duration::from_millis(20), "rdma_en2", Action::Open, call).expect_err("no answer");
        drop(release);
        assert_eq!(error.device(), Some("rdma_en2"));
        let said = error.to_string();
        assert!(said.starts_with("rdma_en2: opening the device has not returned for 0.0 s: "), "{said}");
        assert!(said.contains("restart this machine") && !said.contains('\n'), "{said}");
    }

    #[test]
    fn an_answer_is_the_result_of_the_call() {
        let unknown = || VerbsError::UnknownDevice { name: "a".into(), advice: String::new() };
        assert_eq!(within(LIMIT, "a", Action::Open, || Ok(7)), Ok(7));
        assert_eq!(within::<()>(LIMIT, "a", Action::Open, move || Err(unknown())), Err(unknown()));
    }
}
