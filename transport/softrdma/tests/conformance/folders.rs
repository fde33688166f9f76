//! Fabrics that can't be joined: the program gets an error, and never crashes.

use crate::{
    rig::{DataPath, Rig},
    verbs::{Errno, Work},
};
use softrdma::profile::Profile;
use std::fs;
use verbs_sys::WcStatus;

/// Damages a fabric that no process has joined, and returns the error of opening its device.
fn open_error_after(damage: impl FnOnce(&std::path::Path)) -> Option<Errno> {
    let rig = Rig::new(&Profile::IB, DataPath::Copied);
    damage(&rig.location().home);
    rig.location().open("a").err()
}

#[test]
fn a_folder_that_is_none_is_refused() {
    assert_eq!(
        open_error_after(|home| fs::write(home.join("run"), "").expect("a file")),
        Some(libc::ENOTDIR)
    );
    let missing = open_error_after(|home| {
        std::os::unix::fs::symlink(home.join("x/y"), home.join("run")).expect("a link");
    });
    assert_eq!(missing, Some(libc::ENOENT));
}

#[test]
fn a_fabrics_file_that_is_wrong_is_refused() {
    assert_eq!(
        open_error_after(|home| fs::remove_file(home.join("fabric.toml")).expect("ours")),
        Some(libc::EINVAL)
    );
    assert_eq!(
        open_error_after(|home| fs::write(home.join("fabric.toml"), "[[nod]]").expect("ours")),
        Some(libc::EINVAL)
    );
    let rig = Rig::new(&Profile::IB, DataPath::Copied);
    assert_eq!(rig.location().open("nobody").err(), Some(libc::EINVAL));
}

#[test]
fn a_folder_of_another_fabric_or_version_is_refused() {
    let rig = Rig::new(&Profile::IB, DataPath::Copied);
    let (a, b) = rig.pair(verbs_sys::QpType::RC);
    let text = fs::read_to_string(rig.location().home.join("fabric.toml")).expect("ours");
    fs::write(rig.location().home.join("fabric.toml"), format!("{text}# changed\n")).expect("ours");
    assert_eq!(rig.location().open("a").err(), Some(libc::ESTALE));
    // Processes that have joined continue.
    b.receive(1, 0, 8);
    a.post(&Work::send(&[a.sge(0, 8)]));
    assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    let garbage = |home: &std::path::Path| {
        fs::create_dir(home.join("run")).expect("a folder");
        fs::write(home.join("run/fabric"), vec![7; 1 << 20]).expect("a file");
    };
    assert_eq!(open_error_after(garbage), Some(libc::EBADMSG));
    let short = |home: &std::path::Path| {
        fs::create_dir(home.join("run")).expect("a folder");
        fs::write(home.join("run/fabric"), "short").expect("a file");
    };
    assert!(open_error_after(short).is_some_and(|errno| errno != 0));
}

#[test]
fn files_of_the_dead_and_of_strangers_do_not_hinder() {
    let rig = Rig::new(&Profile::IB, DataPath::Copied);
    let run = rig.location().home.join("run");
    fs::create_dir(&run).expect("a folder");
    for name in ["p0", "m0", "w0.1", "w0.77", "p1"] {
        fs::write(run.join(name), "left").expect("a file");
    }
    fs::write(run.join("notes"), "of somebody").expect("a file");
    let (a, b) = rig.pair(verbs_sys::QpType::UC);
    b.receive(1, 0, 8);
    a.send(0, 0, 8);
    assert_eq!((a.sent(), b.received()), ((0, WcStatus::SUCCESS), (1, WcStatus::SUCCESS)));
    drop((a, b));
    assert_eq!(rig.files(), ["notes"]);
}
