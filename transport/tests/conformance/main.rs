//! Conformance suite of links: one set of cases, run on every driver.

mod brief;
mod corruption;
mod delivery;
mod fixture;
mod flow;
mod mixed;
#[cfg(target_os = "linux")]
mod mixed_verbs;
mod prefix;
mod processes;
mod revocation;
#[cfg(target_os = "linux")]
mod shared;
mod tcp;
mod traffic;
#[cfg(target_os = "linux")]
mod verbs;

/// The software device, for tests that need devices.
#[cfg(target_os = "linux")]
#[path = "../verbs/fabric.rs"]
#[allow(dead_code, reason = "not all of its fabrics are needed here")]
mod fabric;

macro_rules! on_every_driver {
    ($($topic:ident::$case:ident),* $(,)?) => {
        mod over_local {
            $(#[test]
            fn $case() {
                crate::$topic::$case(crate::fixture::Pair::local());
            })*
        }
        mod over_shm {
            $(#[test]
            fn $case() {
                crate::$topic::$case(crate::fixture::Pair::shm());
            })*
        }
        mod over_mixed {
            $(#[test]
            fn $case() {
                crate::$topic::$case(crate::fixture::Pair::mixed());
            })*
        }
    };
}

on_every_driver! {
    delivery::every_size_arrives_whole_by_every_protocol,
    delivery::bytes_moved_and_copied_are_counted_exactly,
    delivery::a_message_that_changed_where_no_sample_is_arrives_as_it_is,
    brief::brief_messages_and_polled_ones_are_the_same,
    traffic::messages_arrive_in_order_however_the_ends_are_polled,
    prefix::what_is_there_of_a_message_is_sent_on,
    flow::a_full_ring_is_idle_and_never_overwritten,
    flow::a_lane_that_is_full_does_not_stop_another,
    flow::a_message_that_is_not_expected_stays_where_it_is,
    flow::a_source_that_is_read_in_place_is_in_use_until_it_was_received,
    flow::posted_messages_do_not_hold_up_later_ones,
    flow::unregistered_memory_is_copied_when_asked_to_be_read_in_place,
    flow::many_messages_between_two_threads_keep_their_order,
    revocation::memory_of_a_rank_that_has_failed_is_not_received,
    revocation::a_message_whose_sender_fails_during_the_read_is_not_received,
    revocation::staged_messages_of_a_rank_that_has_failed_still_arrive,
}

/// Runs the cases of links that have brief messages.
macro_rules! on_rings {
    ($($case:ident),* $(,)?) => {
        mod brief_over_local {
            $(#[test]
            fn $case() {
                crate::brief::$case(crate::fixture::Pair::local());
            })*
        }
        mod brief_over_shm {
            $(#[test]
            fn $case() {
                crate::brief::$case(crate::fixture::Pair::shm());
            })*
        }
        mod brief_over_mixed {
            $(#[test]
            fn $case() {
                crate::brief::$case(crate::fixture::Pair::mixed());
            })*
        }
    };
}

on_rings! {
    short_messages_are_brief,
    a_message_that_is_not_expected_is_no_brief_one_and_stays,
    a_brief_message_without_room_is_not_sent,
}

/// Runs the cases that need no rings, over connections of every kind.
macro_rules! on_every_connection {
    ($($topic:ident::$case:ident),* $(,)?) => {
        on_every_connection! { @ over_tcp "127.0.0.1" 1 Authenticate Never $($topic::$case),* }
        on_every_connection! { @ over_tcp_v6 "::1" 1 Authenticate Never $($topic::$case),* }
        on_every_connection! { @ over_tcp_striped "127.0.0.1" 4 Authenticate Never $($topic::$case),* }
        on_every_connection! { @ over_tcp_encrypted "127.0.0.1" 1 Encrypt Never $($topic::$case),* }
        on_every_connection! { @ over_tcp_encrypted_v6_striped "::1" 3 Encrypt Never $($topic::$case),* }
        on_every_connection! { @ over_tcp_resumable "127.0.0.1" 1 Authenticate Always $($topic::$case),* }
        on_every_connection! { @ over_tcp_resumable_striped "::1" 3 Authenticate Always $($topic::$case),* }
        on_every_connection! { @ over_tcp_resumable_sealed "127.0.0.1" 2 Encrypt Always $($topic::$case),* }
    };
    (@ $module:ident $address:literal $sockets:literal $security:ident $resume:ident
        $($topic:ident::$case:ident),*) => {
        mod $module {
            $(#[test]
            fn $case() {
                let config = crate::tcp::Config {
                    resume: transport::driver::tcp::Resume::$resume,
                    ..crate::tcp::config($address, $sockets, transport::driver::tcp::Security::$security)
                };
                crate::$topic::$case(crate::fixture::Pair::tcp(&config));
            })*
        }
    };
}

on_every_connection! {
    delivery::every_size_arrives_whole_by_every_protocol,
    delivery::bytes_moved_and_copied_are_counted_exactly,
    traffic::messages_arrive_in_order_however_the_ends_are_polled,
    prefix::what_is_there_of_a_message_is_sent_on,
    flow::a_full_link_takes_no_more_and_loses_nothing,
    flow::a_lane_that_is_full_does_not_stop_another,
    flow::a_message_that_is_not_expected_stays_where_it_is,
    flow::a_source_that_is_read_in_place_is_in_use_until_it_was_received,
    flow::posted_messages_do_not_hold_up_later_ones,
    flow::unregistered_memory_is_copied_when_asked_to_be_read_in_place,
    flow::many_messages_between_two_threads_keep_their_order,
    tcp::a_confirmed_message_is_complete_when_it_was_matched,
    tcp::a_confirmation_does_not_wait_behind_messages,
    tcp::a_confirmation_counts_though_its_sender_has_closed_since,
    tcp::a_peer_that_has_gone_is_an_error_that_names_it,
    tcp::what_a_peer_that_has_gone_did_not_take_is_not_waited_for,
    tcp::an_endpoint_closes_when_all_that_it_sent_has_arrived,
}

/// Runs the cases of all ringless drivers and the verbs driver's own cases on devices of every kind.
#[cfg(target_os = "linux")]
macro_rules! on_every_device {
    ($($topic:ident::$case:ident),* $(,)?) => {
        on_every_device! { @ over_ib "lo_ib" $($topic::$case),* }
        on_every_device! { @ over_usb4 "lo_usb4" $($topic::$case),* }
        on_every_device! { @ over_apple "lo_apple" $($topic::$case),* }
        on_every_device! { @ over_uc "lo_ib uc" $($topic::$case),* }
        on_every_device! { @ over_bad_uc "bad_ib uc" $($topic::$case),* }
        on_every_device! { @ over_bad_usb4 "bad_usb4 uc" $($topic::$case),* }
        on_every_device! { @ over_bad_apple "bad_apple" $($topic::$case),* }
        on_every_device! { @ over_shallow_ib "shallow_ib" $($topic::$case),* }
        on_every_device! { @ over_shallow_uc "shallow_ib uc" $($topic::$case),* }
        on_every_device! { @ over_shallow_apple "shallow_apple" $($topic::$case),* }
    };
    (@ $module:ident $device:literal $($topic:ident::$case:ident),*) => {
        mod $module {
            $(#[test]
            fn $case() {
                let name = concat!(stringify!($module), "::", stringify!($case));
                crate::fabric::on(name, crate::verbs::FABRIC, |_| {
                    crate::$topic::$case(crate::fixture::Pair::verbs($device));
                });
            })*
        }
    };
}

#[cfg(target_os = "linux")]
on_every_device! {
    delivery::every_size_arrives_whole_by_every_protocol,
    traffic::messages_arrive_in_order_however_the_ends_are_polled,
    prefix::what_is_there_of_a_message_is_sent_on,
    flow::unregistered_memory_is_copied_when_asked_to_be_read_in_place,
    flow::many_messages_between_two_threads_keep_their_order,
    verbs::registered_memory_is_never_copied,
    verbs::a_short_message_does_not_wait_for_its_receiver,
    verbs::pieces_of_another_operation_are_an_error,
}

/// Runs cases with several communicators on devices of several kinds.
#[cfg(target_os = "linux")]
macro_rules! on_devices_by_name {
    ($($topic:ident::$case:ident),* $(,)?) => {
        on_devices_by_name! { @ shared_ib "lo_ib" $($topic::$case),* }
        on_devices_by_name! { @ shared_uc "lo_ib uc" $($topic::$case),* }
        on_devices_by_name! { @ shared_usb4 "lo_usb4" $($topic::$case),* }
        on_devices_by_name! { @ shared_apple "lo_apple" $($topic::$case),* }
        on_devices_by_name! { @ shared_apple_rails "left_apple+right_apple" $($topic::$case),* }
        on_devices_by_name! { @ shared_bad_uc "bad_ib uc" $($topic::$case),* }
        on_devices_by_name! { @ shared_bad_apple "bad_apple" $($topic::$case),* }
    };
    (@ $module:ident $device:literal $($topic:ident::$case:ident),*) => {
        mod $module {
            $(#[test]
            fn $case() {
                let name = concat!(stringify!($module), "::", stringify!($case));
                crate::fabric::on(name, crate::verbs::FABRIC, |_| crate::$topic::$case($device));
            })*
        }
    };
}

#[cfg(target_os = "linux")]
on_devices_by_name! {
    shared::a_later_communicator_uses_the_same_connections_and_messages_do_not_mix,
    shared::a_matched_message_is_confirmed_before_its_sender_asks,
    shared::an_operation_that_is_given_up_leaves_other_communicators_and_memory_alone,
    shared::nothing_is_written_by_grants_of_an_operation_that_was_given_up,
    shared::a_communicator_that_is_closed_leaves_the_network_to_others,
    shared::ranks_may_have_other_numbers,
    shared::the_queue_pairs_of_failed_communicators_serve_the_next_ones,
}

#[cfg(target_os = "linux")]
#[test]
fn a_communicator_closes_when_its_device_has_sent_all() {
    fabric::on("a_communicator_closes_when_its_device_has_sent_all", verbs::FABRIC, |_| {
        shared::a_communicator_closes_when_its_device_has_sent_all();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_far_from_the_cores_of_its_rank_has_the_last_rail() {
    fabric::on("a_device_far_from_the_cores_of_its_rank_has_the_last_rail", verbs::FABRIC, |_| {
        verbs::a_device_far_from_the_cores_of_its_rank_has_the_last_rail();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_failed_cable_had_brought_is_no_piece_too_many() {
    fabric::on("what_a_failed_cable_had_brought_is_no_piece_too_many", verbs::FABRIC, |_| {
        verbs::what_a_failed_cable_had_brought_is_no_piece_too_many();
    });
}

#[cfg(target_os = "linux")]
on_every_device! { @ alone_on_ib "lo_ib" verbs::what_is_complete_needs_its_sender_no_more }
#[cfg(target_os = "linux")]
on_every_device! { @ alone_on_uc "lo_ib uc" verbs::what_is_complete_needs_its_sender_no_more }
#[cfg(target_os = "linux")]
on_every_device! { @ alone_on_apple "lo_apple" verbs::what_is_complete_needs_its_sender_no_more }
#[cfg(target_os = "linux")]
on_every_device! { @ on_bad_uc "bad_ib uc" verbs::what_is_lost_or_damaged_is_sent_again }
#[cfg(target_os = "linux")]
on_every_device! { @ on_bad_usb4 "bad_usb4 uc" verbs::what_is_lost_or_damaged_is_sent_again }
#[cfg(target_os = "linux")]
on_every_device! { @ on_bad_apple "bad_apple" verbs::what_is_lost_or_damaged_is_sent_again }
#[cfg(target_os = "linux")]
on_every_device! { @ on_slow_ib "slow_ib" verbs::an_endpoint_closes_when_its_device_has_sent_all }
#[cfg(target_os = "linux")]
on_every_device! { @ on_shallow_ib "shallow_ib" verbs::depth_is_learnt_from_refusals }
#[cfg(target_os = "linux")]
on_every_device! { @ on_shallow_uc "shallow_ib uc" verbs::depth_is_learnt_from_refusals }
#[cfg(target_os = "linux")]
on_every_device! { @ on_shallow_apple "shallow_apple" verbs::depth_is_learnt_from_refusals }
#[cfg(target_os = "linux")]
on_every_device! { @ on_lent_ib "lo_ib uc" verbs::lent_memory_is_let_alone_once_it_was_given_back }

/// Runs the cases on two ranks of one host and one rank of another, connected by devices of every kind.
///
/// The two ranks of one host run the cases of every driver; ranks of different hosts run those of every
/// device.
#[cfg(target_os = "linux")]
macro_rules! on_every_mixture {
    ($maker:ident: $($topic:ident::$case:ident),* $(,)?) => {
        on_every_mixture! { @ ib "far_ib" $maker $($topic::$case),* }
        on_every_mixture! { @ usb4 "far_usb4" $maker $($topic::$case),* }
        on_every_mixture! { @ apple "far_apple" $maker $($topic::$case),* }
        on_every_mixture! { @ uc "far_ib uc" $maker $($topic::$case),* }
    };
    (@ $kind:ident $device:literal $maker:ident $($topic:ident::$case:ident),*) => {
        mod $kind {
            $(#[test]
            fn $case() {
                let path = module_path!().split_once("::").expect("the crate first").1;
                let name = format!("{path}::{}", stringify!($case));
                crate::fabric::on(&name, crate::verbs::FABRIC, |_| {
                    crate::$topic::$case(crate::fixture::Pair::$maker($device));
                });
            })*
        }
    };
}

/// Ranks of one host, in a job with a rank that is reached by RDMA.
#[cfg(target_os = "linux")]
mod over_mixed_verbs_within {
    on_every_mixture! { mixed_verbs_within:
        delivery::every_size_arrives_whole_by_every_protocol,
        delivery::bytes_moved_and_copied_are_counted_exactly,
        traffic::messages_arrive_in_order_however_the_ends_are_polled,
        prefix::what_is_there_of_a_message_is_sent_on,
        flow::a_full_ring_is_idle_and_never_overwritten,
        flow::a_lane_that_is_full_does_not_stop_another,
        flow::a_message_that_is_not_expected_stays_where_it_is,
        flow::a_source_that_is_read_in_place_is_in_use_until_it_was_received,
        flow::posted_messages_do_not_hold_up_later_ones,
        flow::unregistered_memory_is_copied_when_asked_to_be_read_in_place,
        flow::many_messages_between_two_threads_keep_their_order,
        revocation::memory_of_a_rank_that_has_failed_is_not_received,
        revocation::a_message_whose_sender_fails_during_the_read_is_not_received,
        revocation::staged_messages_of_a_rank_that_has_failed_still_arrive,
    }
}

/// Ranks of two hosts, one of which has another rank.
#[cfg(target_os = "linux")]
mod over_mixed_verbs {
    on_every_mixture! { mixed_verbs:
        delivery::every_size_arrives_whole_by_every_protocol,
        traffic::messages_arrive_in_order_however_the_ends_are_polled,
        prefix::what_is_there_of_a_message_is_sent_on,
        flow::unregistered_memory_is_copied_when_asked_to_be_read_in_place,
        flow::many_messages_between_two_threads_keep_their_order,
        verbs::registered_memory_is_never_copied,
        mixed_verbs::one_buffer_is_read_by_a_neighbour_and_put_into_another_host_without_a_copy,
        mixed_verbs::who_waits_for_a_neighbour_answers_other_hosts,
    }
}
