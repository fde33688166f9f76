//! Losses that a message shows: each names the message before it on its queue pair.

use super::*;
use crate::driver::verbs::wire::MISSING;

/// A repeated message may follow a later one on its queue pair, which is lost if it has not come. The message
/// that shows it is the next one expected, so nothing has to wait for it; its peer must hear of the loss all
/// the same.
#[test]
fn a_loss_is_told_although_the_message_that_shows_it_is_the_next_one() {
    for bits in [3, 2, 1, 0] {
        let mut rig = Rig::new(bits);
        let mut told = Vec::new();
        for (seq, previous) in [(0, 0), (1, 0), (2, 7)] {
            rig.hear(Header { seq, previous, ..Header::new(Kind::Ended) }, &[]);
            rig.engine.drive(1, |peer, env| peer.flush(env));
            let header = |bytes: &[u8]| bytemuck::pod_read_unaligned::<Header>(&bytes[..size_of::<Header>()]);
            let sent = rig.requests().into_iter().map(|posted| header(&posted.bytes));
            told.push(sent.filter(|header| header.flags & MISSING != 0).map(|header| header.ack).next_back());
        }
        assert_eq!(told, [None, None, Some(3)], "rules {bits}");
        rig.engine.end();
    }
}
