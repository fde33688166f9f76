//! GIDs that have moved, appear late, or are missing.

use crate::fabric::on;
use std::time::{Duration, Instant};
use transport::verbs::{AddressWait, Cause, Gid, Library, VerbsError, find_gid};

/// Returns the fabric of one device of `profile`, connected to itself, with more settings of its port.
fn fabric(profile: &str, settings: &str) -> String {
    format!(
        "
        [[node]]
        name = 'a'
        device = [{{ name = 'x0', profile = '{profile}'{settings} }}]
        [[cable]]
        ends = ['a/x0', 'a/x0']
        "
    )
}

/// Runs `find_gid` and returns its result and the messages of the wait.
fn find(library: &Library, patience: Duration) -> (Result<(u8, Gid), VerbsError>, Vec<String>) {
    let context = library.open("x0").expect("a device");
    let mut text = Vec::new();
    let found = find_gid(&context, None, patience, &mut |message| text.push(message.to_owned()));
    (found, text)
}

#[test]
fn the_index_that_the_user_names_is_taken_or_what_there_is_is_told() {
    let fabric = fabric("apple-tb5", "");
    on("addresses::the_index_that_the_user_names_is_taken_or_what_there_is_is_told", &fabric, |library| {
        let context = library.open("x0").expect("a device");
        let at = |index| find_gid(&context, Some(index), Duration::ZERO, &mut |_| ());
        let (index, gid) = at(0).expect("an address");
        assert!(index == 0 && gid.is_link_local() && !gid.is_ipv4_mapped(), "{gid}");
        let error = at(9).expect_err("no such entry").to_string();
        assert!(error.starts_with("x0/1: there is no address at GID index 9 (TBCCL_GID_INDEX)"), "{error}");
        assert!(error.contains("0: fe80::") && error.contains("1: ::ffff:"), "{error}");
    });
}

#[test]
fn versions_of_roce_are_known_where_the_library_tells_them() {
    let fabric = fabric("apple-tb5", "");
    on("addresses::versions_of_roce_are_known_where_the_library_tells_them", &fabric, |library| {
        let context = library.open("x0").expect("a device");
        let versions: Vec<bool> =
            context.gids().iter().map(|(index, _)| context.is_roce_v1(*index)).collect();
        assert!(versions.contains(&true) && versions.contains(&false), "{versions:?}");
    });
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn ipv4_is_found_where_it_is() {
    let fabric = fabric("apple-tb5", ", gid_index = 3, ipv4 = '169.254.7.8'");
    on("addresses::ipv4_is_found_where_it_is", &fabric, |library| {
        let (found, text) = find(library, LONG);
        let (index, gid) = found.expect("an address");
        assert_eq!((index, gid.to_string().as_str()), (3, "::ffff:169.254.7.8"));
        assert!(text.is_empty(), "{text:?}");
    });
}

#[test]
fn ipv4_is_waited_for_on_thunderbolt() {
    let fabric = fabric("apple-tb5", ", gid = 'late', gid_after_ms = 400");
    on("addresses::ipv4_is_waited_for_on_thunderbolt", &fabric, |library| {
        let began = Instant::now();
        let (found, text) = find(library, LONG);
        let (index, gid) = found.expect("an address");
        assert!(index == 1 && gid.is_ipv4_mapped(), "{index} {gid}");
        assert!(began.elapsed() < LONG / 2, "waited on after it was there");
        assert_eq!(text, ["x0: waiting for an IPv4 address to be assigned to its port, for 30 s at most"]);
    });
}

#[test]
fn in_the_end_a_link_local_address_is_taken() {
    let fabric = fabric("apple-tb5", ", gid = 'missing'");
    on("addresses::in_the_end_a_link_local_address_is_taken", &fabric, |library| {
        let patience = Duration::from_millis(200);
        let began = Instant::now();
        let (found, text) = find(library, patience);
        let (index, gid) = found.expect("an address");
        assert!(index == 0 && gid.is_link_local() && !gid.is_ipv4_mapped(), "{index} {gid}");
        assert!(began.elapsed() >= patience && text.len() == 1, "{text:?}");
    });
}

#[test]
fn a_wait_in_parts_goes_on_where_it_was_and_ends_without_a_link_local_address_if_none_will_do() {
    let fabric = fabric("apple-tb5", ", gid = 'missing'");
    let name = "a_wait_in_parts_goes_on_where_it_was_and_ends_without_a_link_local_address_if_none_will_do";
    on(&format!("addresses::{name}"), &fabric, |library| {
        let (patience, part) = (Duration::from_millis(1500), Duration::from_millis(150));
        let context = library.open("x0").expect("a device");
        let (mut wait, mut text) = (AddressWait::new(patience, false), Vec::new());
        let began = Instant::now();
        let mut parts = 0;
        let error = loop {
            match wait.look(&context, None, part, &mut |message| text.push(message.to_owned())) {
                Ok(found) => assert_eq!(found, None),
                Err(error) => break error,
            }
            parts += 1;
            assert!(began.elapsed() >= part * parts, "{parts} parts");
        };
        assert!((2..=10).contains(&parts) && began.elapsed() >= patience, "{parts} parts");
        assert_eq!(text.len(), 1, "{text:?}");
        assert_eq!(error.cause(), Some(Cause::NoAddress), "{error}");
    });
}

#[test]
fn others_take_what_there_is_at_once() {
    let fabric = fabric("ib", ", gid = 'missing'");
    on("addresses::others_take_what_there_is_at_once", &fabric, |library| {
        let (found, text) = find(library, LONG);
        let (index, gid) = found.expect("an address");
        assert!(index == 0 && gid.is_link_local() && text.is_empty(), "{index} {gid} {text:?}");
    });
}

#[test]
fn a_port_that_stays_down_is_waited_for_by_name() {
    let fabric = fabric("apple-tb5", ", port = 'down', gid = 'missing'");
    on("addresses::a_port_that_stays_down_is_waited_for_by_name", &fabric, |library| {
        let (found, text) = find(library, Duration::from_millis(100));
        assert!(text.len() == 1 && text[0].contains("its port to come up"), "{text:?}");
        let error = found.expect_err("no cable");
        assert_eq!(error.cause(), Some(Cause::PortDown), "{error}");
    });
}
