//! Acts of another user, in a thread of a test that root runs.

/// Runs `act` as user 65534 in a thread. Returns `None` if this process may not become another user.
pub fn as_another_user<T: Send>(act: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() || !cfg!(target_os = "linux") {
        return None;
    }
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            become_nobody();
            act()
        });
        Some(stranger.join().expect("no panic"))
    })
}

/// Changes the user of this thread alone, as the system call does; the C library would change the process's.
#[cfg(target_os = "linux")]
fn become_nobody() {
    let nobody = rustix::process::Uid::from_raw(65534);
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
}

#[cfg(not(target_os = "linux"))]
fn become_nobody() {}
