//! Pairs of ranks of one host in a job of several hosts.

use crate::{
    fixture::*,
    tcp::{config, connect_all, open},
};
use transport::{
    BriefMessage, Link, Protocol, RecvProgress, RecvState, SendProgress, SendState,
    driver::{Endpoint, mixed::Mixed, tcp::Security},
    memory::Span,
};

impl Pair {
    pub(crate) fn mixed() -> Pair {
        let config = config("127.0.0.1", 1, Security::Authenticate);
        let ends = connect_all(2, |rank| {
            let between = open(&config, rank);
            Mixed::open(Box::new(|_| Ok(Box::new(between))), LAYOUT, rank as u32, "", PATIENCE)
                .expect("memory for a test")
        });
        let mut sides = (0..).zip(ends).map(|(rank, end)| side(end, 1 - rank));
        Pair([sides.next().expect("two"), sides.next().expect("two")])
    }
}

/// Returns this rank's side of a pair with `peer`.
pub(crate) fn side(mut end: Mixed, peer: u32) -> Side {
    Side {
        links: (0..LAYOUT.lanes).map(|lane| end.link(peer, lane)).collect(),
        slab: end.slab().clone(),
        object: None,
        #[cfg(target_os = "linux")]
        endpoint: None,
        tcp: None,
        is_resumable: false,
        kept: vec![end],
    }
}

/// Polls count the same messages: those sent and received in other ways, too.
#[test]
fn brief_messages_do_not_confirm_others() {
    let mut pair = Pair::mixed();
    let bytes = noise(40, 1);
    for round in 0..3 {
        let (a, b) = pair.ends(0);
        assert!(a.send_brief(6, Span::from(&*bytes), false));
        let mut confirmed = SendState::new(8, Protocol::Copy).with_match_ack();
        let is_sent = |sender: &mut dyn Link, state: &mut SendState| {
            sender.poll_send(state, Span::from(&*bytes)).expect("send") == SendProgress::Complete
        };
        assert!(!is_sent(a, &mut confirmed));
        assert!(matches!(b.poll_brief(6, 40, 100), BriefMessage::Whole(_)), "round {round}");
        assert!(!is_sent(a, &mut confirmed), "round {round}: nothing has been received");
        b.end_brief(40, true, None);
        assert!(!is_sent(a, &mut confirmed), "round {round}: the message before it was received");
        // The other way of receiving confirms as well.
        assert!(matches!(b.poll_brief(8, 40, 100), BriefMessage::Whole(_)), "round {round}");
        b.end_brief(40, true, None);
        assert!(is_sent(a, &mut confirmed), "round {round}");
    }
}

/// This is how a rank that only sends learns that its peer is in the same call.
#[test]
fn a_confirmed_message_is_complete_when_it_was_matched() {
    let mut pair = Pair::mixed();
    let bytes = noise(1000, 1);
    let src = registered(&pair.0[0].slab, &bytes);
    for (digest, protocol) in [(1, Protocol::Copy), (2, Protocol::Direct), (3, Protocol::Copy)] {
        let (a, b) = pair.ends(1);
        let span = if protocol == Protocol::Direct { src.span() } else { Span::from(&*bytes) };
        let mut send = SendState::new(digest, protocol).with_match_ack();
        for _ in 0..3 {
            assert_eq!(a.poll_send(&mut send, span).expect("send"), SendProgress::Posted, "{protocol:?}");
        }
        let (mut recv, mut received) = (RecvState::new(digest, bytes.len()), vec![0; bytes.len()]);
        while b.poll_recv(&mut recv, &mut CopySink(&mut received)).expect("recv") != RecvProgress::Complete {}
        assert_eq!(a.poll_send(&mut send, span).expect("send"), SendProgress::Complete, "{protocol:?}");
        assert!(received == bytes);
    }
}
