//! Tests of hostile input at both ends: arbitrary bytes, valid messages in any order, and the fuzzing corpus.

use super::{
    super::{
        harness::{feed_handshake, feed_rank, feed_server, parse_addresses},
        snapshot::ProcessState,
        wire::{FromRank, FromServer, PROTOCOL, Word, encode},
    },
    *,
};
use proptest::prelude::*;

/// Returns a record of a script for [`feed_server`].
fn piece(which: u8, bytes: &[u8]) -> Vec<u8> {
    let mut piece = vec![which];
    piece.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    piece.extend_from_slice(bytes);
    piece
}

fn words() -> impl Strategy<Value = Vec<Word>> {
    prop::collection::vec((any::<u16>(), any::<u64>()), 0..4)
}

/// Generates messages of ranks, with too few or too many bytes behind them.
fn message_of_rank() -> impl Strategy<Value = Vec<u8>> {
    let greeting =
        (0u32..5, 2u32..5, 0u64..60_000, any::<bool>()).prop_map(|(rank, size, timeout, differs)| {
            let mut hello = hello(rank, size, timeout);
            if differs {
                hello.options.insert("TBCCL_X".into(), "1".into());
            }
            encode(&hello)
        });
    let good = (0u32..3).prop_map(|rank| encode(&hello(rank, 3, 60_000)));
    let message = prop_oneof![
        prop::option::of(".{0,20}").prop_map(|obstacle| FromRank::Probed { obstacle }),
        Just(FromRank::Probed { obstacle: None }),
        Just(FromRank::Heartbeat),
        (0u32..40).prop_map(|bytes| FromRank::Exchange { bytes }),
        any::<u32>().prop_map(|bytes| FromRank::Exchange { bytes }),
        (".{0,40}", prop::collection::vec(0u32..5, 0..3))
            .prop_map(|(why, absent)| FromRank::Abort { why, absent }),
        (any::<u64>(), words()).prop_map(|(seen, words)| FromRank::SyncBoard { seen, words }),
        words().prop_map(|words| FromRank::ReportFailure { words }),
        words().prop_map(|words| FromRank::Goodbye { words }),
        any::<bool>().prop_map(|claim| FromRank::RequestSnapshot { claim }),
        any::<u64>().prop_map(|number| FromRank::RequestTime { number }),
        (0u64..3, ".{0,20}").prop_map(|(number, text)| FromRank::Status { number, text }),
        (0u64..3, 0usize..4).prop_map(|(number, count)| FromRank::ProcessStates {
            number,
            states: vec![ProcessState::Stopped; count],
        }),
    ];
    let message = (message, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(message, bytes)| {
        let mut frame = encode(&message);
        if matches!(message, FromRank::Exchange { .. }) {
            frame.extend(bytes);
        }
        frame
    });
    let garbage = prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![2 => good, 1 => greeting, 6 => message, 1 => garbage]
}

fn message_of_server() -> impl Strategy<Value = Vec<u8>> {
    let message = prop_oneof![
        Just(FromServer::Go { obstacle: None }),
        (".{0,20}", prop::collection::vec(any::<u32>(), 0..4))
            .prop_map(|(why, absent)| FromServer::Refused { why, absent }),
        ".{0,20}".prop_map(|job| FromServer::Busy { job }),
        prop::collection::vec(any::<u32>(), 0..5).prop_map(|bytes| FromServer::Exchanged { bytes }),
        prop::collection::vec(0u32..30, 3).prop_map(|bytes| FromServer::Exchanged { bytes }),
        (any::<u64>(), prop::collection::vec((any::<u32>(), words()), 0..4))
            .prop_map(|(version, boards)| FromServer::BoardUpdate { version, boards }),
        words().prop_map(|words| FromServer::Failed { words }),
        (any::<u32>(), ".{0,20}").prop_map(|(rank, how)| FromServer::Died { rank, how }),
        Just(FromServer::Welcome { members: Vec::new() }),
        any::<u64>().prop_map(|number| FromServer::RequestStatus { number }),
        (any::<u64>(), prop::collection::vec(any::<u32>(), 0..4))
            .prop_map(|(number, pids)| FromServer::RequestProcessStates { number, pids }),
        prop::option::of(any::<u32>())
            .prop_map(|claimed_by| FromServer::Snapshot { claimed_by, snapshot: None }),
    ];
    let garbage = prop::collection::vec(any::<u8>(), 0..60);
    prop_oneof![4 => message.prop_map(|message| encode(&message)), 1 => garbage]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_words_of_ranks_in_any_order_upset_the_rendezvous(
        script in prop::collection::vec((0u8..4, message_of_rank()), 0..40)
    ) {
        feed_server(&script.iter().flat_map(|(which, message)| piece(*which, message)).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_that_begin_well_do_not_upset_it_later(
        script in prop::collection::vec((0u8..3, message_of_rank()), 0..40)
    ) {
        let handle_hello = (0..3).map(|rank| piece(rank, &encode(&hello(u32::from(rank), 3, 60_000))));
        let probed = (0..3).map(|rank| piece(rank, &encode(&FromRank::Probed { obstacle: None })));
        let later = script.iter().map(|(which, message)| piece(*which, message));
        feed_server(&handle_hello.chain(probed).chain(later).flatten().collect::<Vec<_>>());
    }

    #[test]
    fn no_words_of_a_server_upset_a_rank(message in prop::collection::vec(message_of_server(), 0..20)) {
        feed_rank(&message.concat());
    }

    #[test]
    fn arbitrary_bytes_upset_nobody(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        feed_server(&bytes);
        feed_rank(&bytes);
        feed_handshake(&bytes);
        parse_addresses(&bytes);
    }

    #[test]
    fn arbitrary_text_is_an_address_or_an_error(
        text in "(tcp://|unix:|unix-abstract:)?[a-z0-9.:,%\\[\\]/]{0,30}"
    ) {
        parse_addresses(text.as_bytes());
    }
}

#[test]
fn a_length_beyond_all_bounds_takes_no_memory_and_ends_the_connection() {
    let huge = [&u32::MAX.to_le_bytes()[..], b"{}"].concat();
    feed_rank(&huge);
    feed_server(&piece(0, &huge));
}

#[test]
fn what_fuzzing_has_found_is_replayed() {
    support::replay("bootstrap_ranks", feed_server);
    support::replay("bootstrap_server", feed_rank);
    support::replay("bootstrap_stranger", feed_handshake);
    support::replay("bootstrap_ways", parse_addresses);
}

#[test]
fn the_whole_job_of_the_corpus_speaks_the_present_protocol() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/bootstrap_ranks/a_whole_job");
    let script = std::fs::read(path).expect("readable");
    let text = String::from_utf8_lossy(&script);
    let present = format!("\"protocol\":{PROTOCOL},");
    assert_eq!(text.matches(&present).count(), 3, "write {present} into the files of this folder: {path}");
}
