//! Errors and limits of the verbs specification, tested through the device's C functions: one suite, on every
//! profile and both data paths.
//!
//! Each topic is a module of cases; the modules at the end of this file select the profiles of each case. The
//! C functions are wrapped by `verbs`, test fabrics come from `rig`, other processes from `children`.

mod apple;
mod asleep;
mod cables;
mod children;
mod events;
mod extended;
mod faults;
mod folders;
mod keys;
mod lifetimes;
mod memory;
mod operations;
mod placement;
mod queues;
mod receivers;
mod regions;
mod rig;
mod sends;
mod states;
mod verbs;

use apple::cross_4gib_line;

macro_rules! on {
    ($name:ident = $profile:ident, $path:ident: $($topic:ident::$case:ident,)*) => {
        mod $name {
            use crate::rig::{DataPath, Rig};
            use softrdma::profile::Profile;
            $(#[test]
            fn $case() {
                crate::$topic::$case(&Rig::new(&Profile::$profile, DataPath::$path));
            })*
        }
    };
}

/// Cases for the profile that supports everything.
macro_rules! on_ib {
    ($($cases:tt)*) => {
        on! { ib_copied = IB, Copied: $($cases)* }
        on! { ib_shared = IB, Shared: $($cases)* }
    };
}

/// Cases for the profiles with remote keys.
macro_rules! on_linux {
    ($($cases:tt)*) => {
        on_ib! { $($cases)* }
        on! { usb4_copied = USB4, Copied: $($cases)* }
        on! { usb4_shared = USB4, Shared: $($cases)* }
    };
}

/// Cases for all profiles.
macro_rules! everywhere {
    ($($cases:tt)*) => {
        on_linux! { $($cases)* }
        on! { apple_copied = APPLE_TB5, Copied: $($cases)* }
        on! { apple_shared = APPLE_TB5, Shared: $($cases)* }
    };
}

/// Cases for Apple's device.
macro_rules! on_apple {
    ($($cases:tt)*) => {
        on! { copied = APPLE_TB5, Copied: $($cases)* }
        on! { shared = APPLE_TB5, Shared: $($cases)* }
    };
}

mod every_profile {
    everywhere! {
        states::every_required_member_is_asked_for,
        states::states_are_not_skipped,
        states::a_state_that_is_claimed_must_be_the_state,
        states::work_is_refused_before_its_state,
        states::the_error_state_flushes_both_queues,
        states::reset_forgets_everything,
        states::queries_say_what_was_set,
        states::attributes_out_of_range_are_refused,
        states::queue_pairs_beyond_the_limits_are_refused,
        keys::a_region_covers_its_first_and_its_last_byte,
        keys::a_send_from_memory_that_its_key_does_not_cover_fails,
        keys::a_receive_into_memory_that_its_key_does_not_cover_fails,
        keys::a_key_of_another_domain_is_no_key,
        keys::registrations_that_make_no_sense_are_refused,
        keys::a_new_registration_has_a_new_key,
        queues::send_room_comes_back_when_completions_are_polled,
        queues::a_list_is_posted_up_to_what_does_not_fit,
        queues::receive_room_comes_back_when_completions_are_polled,
        queues::requests_that_cannot_be_are_refused,
        queues::a_completion_queue_holds_what_it_says,
        operations::sends_arrive_whole_at_every_length,
        operations::messages_without_bytes_arrive,
        operations::messages_keep_their_order,
        operations::threads_share_a_queue_pair,
        operations::silence_is_kept_until_something_fails,
        operations::a_message_that_does_not_fit_fails_the_receive,
        receivers::sends_without_a_receive_wait_or_are_lost,
        receivers::held_sends_are_carried_out_while_the_sender_sleeps,
        receivers::a_peer_that_is_not_ready_is_waited_for,
        receivers::a_peer_that_does_not_answer_is_not_noticed_by_an_unreliable_sender,
        cables::losses_are_repaired_or_kept_quiet,
        cables::damage_reaches_unreliable_receivers,
        cables::messages_take_their_time,
        cables::a_receive_in_time_is_one,
        faults::a_pulled_cable_takes_both_ports_down_until_it_is_back,
        faults::a_port_that_goes_down_takes_the_other_end_along,
        faults::queue_pairs_fail_on_command,
        faults::completion_queues_overflow_on_command,
        faults::a_stalled_node_goes_on_where_it_stopped,
        faults::addresses_that_change_are_told,
        faults::leaked_domains_are_missing,
        sends::an_unreliable_error_stops_only_sends,
        sends::a_send_queue_that_is_drained_says_so,
        sends::failures_do_not_overtake,
        regions::what_was_never_touched_costs_nothing,
        regions::regions_may_overlap,
        regions::memory_that_is_gone_is_given_back,
        regions::threads_register_and_connect_at_once,
        events::events_are_acknowledged_before_the_end,
        extended::what_is_not_offered_says_so,
        lifetimes::what_is_in_use_cannot_end,
        lifetimes::a_destroyed_queue_pair_leaves_no_completions,
        lifetimes::objects_leave_nothing_behind,
        lifetimes::fabrics_side_by_side_are_apart,
        lifetimes::two_devices_in_one_process_are_apart,
        lifetimes::a_queue_pair_can_be_its_own_peer,
        lifetimes::a_killed_peer_is_noticed,
        lifetimes::peers_killed_at_work_wedge_nobody,
    }
}

mod with_remote_keys {
    on_linux! {
        asleep::a_write_is_seen_when_it_arrives_and_not_before,
        asleep::writes_behind_each_other_lose_no_time,
        asleep::a_read_sees_what_is_there_when_it_arrives,
        asleep::a_sleeping_receiver_is_woken_when_its_message_arrives,
        asleep::who_arms_while_a_message_is_on_its_way_is_woken,
        asleep::a_sleeping_sender_is_woken_when_it_is_answered,
        asleep::solicited_messages_are_announced_when_they_arrive,
        asleep::a_sleeping_sender_learns_that_its_retries_ran_out,
        asleep::a_sleeping_sender_learns_that_nobody_answers,
        asleep::a_sleeping_sender_learns_of_its_peers_death,
        keys::a_peers_key_must_cover_the_memory,
        keys::a_peers_key_and_queue_pair_must_allow_the_access,
        keys::results_need_memory_that_may_be_written,
        keys::regions_can_have_addresses_of_their_own,
        queues::a_completion_queue_that_overflows_says_so,
        cables::a_cable_that_loses_everything_ends_a_reliable_connection,
        cables::what_is_read_travels_back,
        sends::a_send_queue_is_drained_when_all_has_arrived,
        events::a_channel_is_readable_once_for_each_arming,
        events::a_non_blocking_channel_says_that_it_has_no_event,
        events::solicited_arming_waits_for_what_is_solicited_or_failed,
        events::announcements_are_acknowledged_before_the_end,
        events::no_completion_is_slept_through,
        faults::a_reliable_message_outlives_a_short_break,
        lifetimes::memory_is_not_written_after_its_registration,
        operations::numbers_come_along,
        operations::reads_and_writes_touch_what_they_name,
        operations::pieces_are_gathered_and_scattered,
        receivers::a_reliable_sender_gives_up_after_its_retries,
        regions::writes_reach_every_region_over_the_memory,
        receivers::a_peer_that_does_not_answer_fails_a_reliable_connection,
    }
}

mod with_everything {
    on_ib! {
        asleep::an_atomic_operation_happens_when_it_arrives,
        queues::inline_bytes_are_taken_at_once,
        placement::no_write_is_torn,
        operations::atomic_operations_return_what_was_there,
        operations::atomic_operations_want_an_aligned_word,
        operations::atomic_operations_from_both_sides_add_up,
        operations::datagrams_come_behind_a_header_of_40_bytes,
        operations::datagrams_that_nobody_takes_are_lost,
        receivers::shared_receives_serve_all_queue_pairs,
        sends::the_last_shared_receive_is_told,
        events::events_of_shared_receives_are_acknowledged_before_the_end,
        extended::every_operation_can_be_posted_by_calls,
        extended::reads_and_atomics_can_be_posted_by_calls,
        extended::a_batch_is_posted_whole_or_not_at_all,
        extended::datagrams_can_be_posted_by_calls,
        extended::calls_that_a_kind_does_not_have_are_refused,
        extended::completions_can_be_read_by_calls,
        extended::one_thread_at_a_time_reads_by_calls,
        extended::completions_say_when_they_came,
        sends::datagrams_that_do_not_fit_are_dropped,
    }
}

mod as_on_a_mac {
    on_apple! {
        apple::only_unreliable_connections_can_be_made,
        apple::only_sends_can_be_posted,
        apple::the_eleventh_queue_pair_is_one_too_many,
        apple::registration_101_is_one_too_many,
        apple::domains_are_few,
        apple::registrations_have_their_own_addresses,
        apple::depths_count_frames,
        apple::short_messages_take_whole_frames_where_the_fabric_says_so,
        apple::both_ends_need_as_many_frames,
        apple::later_registrations_are_unknown_to_a_queue_pair,
        apple::one_piece_and_nothing_inline,
        apple::the_largest_message_has_4095_frames,
        apple::completions_are_polled,
        apple::a_send_completes_before_it_arrives,
        apple::the_ipv4_address_can_be_missing,
        apple::the_ipv4_address_can_be_late,
        apple::the_ipv4_address_can_be_elsewhere,
        apple::an_address_out_of_reach_times_out,
        apple::a_port_that_is_down_has_no_domains,
        apple::memory_across_a_4_gib_line_is_corrupted,
        apple::memory_across_a_4_gib_line_is_reported,
        apple::no_event_tells_of_a_peer,
        faults::idle_connections_stop,
        faults::queues_take_less_than_they_say,
        faults::posting_without_a_cable_crashes_when_asked_to,
        faults::a_killed_process_leaks_nothing,
    }
}
