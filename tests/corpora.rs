//! Files that users write or programs measure: inputs that fuzzing has found are replayed.

#[expect(unreachable_pub, reason = "fuzz targets use it, too")]
#[path = "../fuzz/src/files.rs"]
mod files;

use support::replay;

#[test]
fn hostfiles_are_replayed() {
    replay("hostfile", files::parse_hostfile);
}

#[test]
fn device_matrices_are_replayed() {
    replay("device_matrix", files::parse_device_matrix);
}

#[test]
fn clusters_are_replayed() {
    replay("cluster_file", files::parse_cluster);
}

#[test]
fn tuning_files_are_replayed() {
    replay("tuning_file", files::parse_tuning);
}

#[test]
fn schedules_are_replayed() {
    replay("schedule_file", files::parse_schedule);
}
