//! Tests of the file: damage, other machines, full disks, locks and clocks.

use super::{
    super::record::tests::record,
    Calibration::{Measured, Missing},
    *,
};
use std::{
    fs::FileTimes,
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::SystemTime,
};

/// A folder with a path for a file, which is not there yet, and the fingerprint of a machine.
fn folder() -> (tempfile::TempDir, PathBuf, Fingerprint) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cache/calibration.json");
    (folder, path, record("x").fingerprint)
}

fn write(path: &Path, here: &Fingerprint) -> Calibration {
    keep(path, here, |_| Ok(Measured(record("x")))).expect("written")
}

#[test]
fn a_record_is_read_as_it_was_written_whatever_the_clock_says_and_reading_writes_nothing() {
    let (_folder, path, here) = folder();
    assert!(matches!(kept(&path, &here), Ok(Missing(_))), "there is no folder yet");
    assert!(!path.parent().expect("it has one").exists());
    assert_eq!(write(&path, &here), Measured(record("x")));
    let lock = path.with_extension("lock");
    fs::remove_file(&lock).expect("it was locked");
    for time in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_secs(1 << 30)] {
        let file = File::options().write(true).open(&path).expect("it is there");
        file.set_times(FileTimes::new().set_modified(time)).expect("our file");
        assert_eq!(kept(&path, &here).expect("readable"), Measured(record("x")));
    }
    assert!(!lock.exists() && !path.with_extension("new").exists());
}

#[test]
fn a_file_that_is_damaged_or_of_another_machine_or_version_is_replaced() {
    let (_folder, path, here) = folder();
    write(&path, &here);
    let sound = fs::read_to_string(&path).expect("written");
    let longer = format!("{sound}{}", " ".repeat(MOST_BYTES as usize));
    let version = sound.replace(&here.tbccl, "0.0.0");
    let kernel = sound.replace(&here.system, "Plan 9");
    let shorter = &sound[..sound.len() / 2];
    for (text, why) in [
        ("", "damaged"),
        (shorter, "damaged"),
        (&sound.replace("50.0", "-50.0"), "damaged"),
        (&sound.replace("line_ns", "lines"), "damaged"),
        (&version, "version"),
        (&kernel, "system"),
        (&sound.replace("\"x\"", "\"y\""), "machine"),
    ] {
        assert!(text != sound, "it is changed");
        fs::write(&path, text).expect("our file");
        let Ok(Missing(found)) = kept(&path, &here) else { panic!("{text} is used") };
        assert!(found.contains(why), "{found}");
        write(&path, &here);
        assert_eq!(fs::read_to_string(&path).expect("replaced"), sound);
    }
    fs::write(&path, longer).expect("our file");
    assert!(matches!(kept(&path, &here), Ok(Measured(_))), "no more is read than is written");
}

#[test]
fn of_several_first_jobs_one_measures_and_the_others_take_its_record() {
    let (_folder, path, here) = folder();
    let (measured, all) = (AtomicU32::new(0), Barrier::new(4));
    let job = || {
        all.wait();
        keep(&path, &here, |found| match found {
            Measured(record) => Ok(Measured(record)),
            Missing(_) => {
                measured.fetch_add(1, Relaxed);
                thread::sleep(Duration::from_millis(50));
                Ok(Measured(record("x")))
            }
        })
    };
    thread::scope(|scope| {
        let jobs: Vec<_> = (0..4).map(|_| scope.spawn(job)).collect();
        for job in jobs {
            assert_eq!(job.join().expect("no panic").expect("kept"), Measured(record("x")));
        }
    });
    assert_eq!(measured.into_inner(), 1);
}

#[test]
fn a_process_that_holds_the_lock_for_ever_is_waited_for_some_time() {
    let (_folder, path, here) = folder();
    write(&path, &here);
    let lock = File::open(path.with_extension("lock")).expect("it is there");
    lock.lock().expect("nobody has it");
    let began = Instant::now();
    let error = keep(&path, &here, Ok).expect_err("it is held");
    assert!(matches!(error, StoreError::Locked(_)), "{error}");
    assert!((LOCK_TIMEOUT..10 * LOCK_TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(matches!(kept(&path, &here), Ok(Measured(_))), "readers take no lock");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_before_anything_is_measured() {
    let (folder, _, here) = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("our folder");
    let error = keep(&file.join("tbccl/calibration.json"), &here, |_| panic!("measured in vain"));
    let error = error.expect_err("it is not a folder").to_string();
    assert!(error.contains("can't create") && error.contains("file/tbccl"), "{error}");
    let error = kept(folder.path(), &here).expect_err("it is a folder").to_string();
    assert!(error.contains("is not a file"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_the_earlier_record() {
    let (_folder, path, here) = folder();
    write(&path, &here);
    std::os::unix::fs::symlink("/dev/full", path.with_extension("new")).expect("our folder");
    let mut other = record("x");
    other.seen[0].line_ns = 70.0;
    let error = keep(&path, &here, |_| Ok(Measured(other))).expect_err("there is no space").to_string();
    assert!(error.contains("can't write") && error.contains("space"), "{error}");
    assert_eq!(kept(&path, &here).expect("readable"), Measured(record("x")));
    assert!(!path.with_extension("new").exists(), "no rest of it is left");
}

#[test]
fn a_second_job_reads_the_file_in_less_than_a_millisecond() {
    let (_folder, path, here) = folder();
    write(&path, &here);
    let read = |_| {
        let began = Instant::now();
        assert!(matches!(kept(&path, &here), Ok(Measured(_))));
        began.elapsed()
    };
    let fastest = (0..100).map(read).min().expect("some");
    assert!(fastest < Duration::from_millis(1), "{fastest:?}");
}

#[test]
fn machines_that_share_a_folder_have_files_of_their_own() {
    let here = Fingerprint::here();
    let other = Fingerprint { machine: "another".to_owned(), ..here.clone() };
    let newer = Fingerprint { system: "another".to_owned(), tbccl: "9".to_owned(), ..here.clone() };
    assert_ne!(file_name(&here), file_name(&other));
    assert_eq!(file_name(&here), file_name(&newer), "an upgrade replaces the file");
}
