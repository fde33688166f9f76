//! The stream that owns the placed queues of a direction.
//!
//! Sends and receives of a placed queue match by their order, so one stream at a time may use it: a piece of
//! another one would have to wait for a piece that its rank may not send before. The receiver decides, since
//! it knows which messages its rank expects. It claims a free queue for the stream whose bulk message is
//! announced first, posts receives, and tells the sender, which sends bulk messages of that stream without
//! asking from then on. A bulk message of another stream is *relayed*: it travels in slots. The receiver then
//! takes the queue from its owner once that is idle: it asks the sender from which message on it has not
//! begun to use the queue.
//!
//! Bulk messages are numbered on their stream, at both ends in the same order.
//!
//! This module is pure.

use crate::driver::verbs::{stream::Way, wire::is_before};

/// The receiver's view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::driver::verbs) struct RecvOwner {
    state: Ownership,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Ownership {
    #[default]
    Free,
    /// A stream owns the queues, for all messages from some number on.
    Owned { stream: usize },
    /// The sender was asked to stop.
    Asked { stream: usize },
    /// The sender has not begun the messages from `until` on.
    Ending { stream: usize, until: u32 },
}

/// How an announced bulk message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver::verbs) enum Claim {
    /// By the placed queues, which the stream owned already.
    Owner,
    /// By the placed queues, which the stream owns from now on; the sender must be told.
    NewOwner,
    /// In slots; the sender must be told.
    Relay,
    /// Not known yet: the sender has been asked.
    Unknown,
}

impl RecvOwner {
    /// Decides how the bulk message `number` of a stream travels.
    pub(in crate::driver::verbs) fn claim(&mut self, stream: usize, number: u32) -> Claim {
        match self.state {
            Ownership::Free => {
                self.state = Ownership::Owned { stream };
                Claim::NewOwner
            }
            Ownership::Owned { stream: owner } if owner == stream => Claim::Owner,
            Ownership::Asked { stream: owner } if owner == stream => Claim::Unknown,
            Ownership::Ending { stream: owner, until } if owner == stream && is_before(number, until) => {
                Claim::Owner
            }
            _ => Claim::Relay,
        }
    }

    /// A message of another stream was relayed while nothing of the owner is expected. Returns the stream
    /// that the sender must be asked about.
    pub(in crate::driver::verbs) fn revoke(&mut self) -> Option<usize> {
        let Ownership::Owned { stream } = self.state else { return None };
        self.state = Ownership::Asked { stream };
        Some(stream)
    }

    /// Frees the queues if this stream has them, since it ends; returns whether it had. Then the queues must
    /// be made new: its sender may have sent pieces for which no receive is posted yet.
    pub(in crate::driver::verbs) fn forget(&mut self, ended: usize) -> bool {
        if let Ownership::Owned { stream } | Ownership::Asked { stream } | Ownership::Ending { stream, .. } =
            self.state
            && stream == ended
        {
            self.state = Ownership::Free;
            return true;
        }
        false
    }

    /// The sender's answer.
    pub(in crate::driver::verbs) fn revoked(&mut self, stream: usize, until: u32) {
        if self.state == (Ownership::Asked { stream }) {
            self.state = Ownership::Ending { stream, until };
        }
    }

    /// Frees the queues if all messages that the owner may send have been received. `announced` is the number
    /// of the owner's next message to be announced, and nothing that was announced is expected.
    pub(in crate::driver::verbs) fn end(&mut self, announced: impl Fn(usize) -> u32) {
        if let Ownership::Ending { stream, until } = self.state
            && !is_before(announced(stream), until)
        {
            self.state = Ownership::Free;
        }
    }
}

/// The sender's view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::driver::verbs) struct SendOwner {
    /// The stream that may use the queues, from this message on.
    owner: Option<(usize, u32)>,
    /// Messages that travel in slots.
    relayed: Vec<(usize, u32)>,
}

impl SendOwner {
    /// How the bulk message `number` of a stream is sent; `None` while the receiver has not told.
    pub(in crate::driver::verbs) fn way(&self, stream: usize, number: u32) -> Option<Way> {
        if self.owner.is_some_and(|(owner, from)| owner == stream && !is_before(number, from)) {
            Some(Way::Placed)
        } else {
            self.relayed.contains(&(stream, number)).then_some(Way::Relayed)
        }
    }

    /// The receiver has posted receives for a stream.
    pub(in crate::driver::verbs) fn give(&mut self, stream: usize, from: u32) {
        self.owner = Some((stream, from));
    }

    /// The receiver wants a message in slots. A rank expects few at a time.
    pub(in crate::driver::verbs) fn relay(&mut self, stream: usize, number: u32) {
        self.relayed.push((stream, number));
    }

    /// A relayed message has been sent.
    pub(in crate::driver::verbs) fn relay_sent(&mut self, stream: usize, number: u32) {
        self.relayed.retain(|relayed| *relayed != (stream, number));
    }

    /// Forgets a stream that ends.
    pub(in crate::driver::verbs) fn forget(&mut self, stream: usize) {
        self.take(stream);
        self.relayed.retain(|relayed| relayed.0 != stream);
    }

    /// The receiver wants the queues; the answer is `begun`, the first message that has not begun.
    pub(in crate::driver::verbs) fn take(&mut self, stream: usize) {
        self.owner = self.owner.filter(|(owner, _)| *owner != stream);
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stream_owns_the_queues_and_others_are_relayed() {
        let (mut recv, mut send) = (RecvOwner::default(), SendOwner::default());
        assert_eq!(send.way(1, 0), None);
        assert_eq!(recv.claim(1, 0), Claim::NewOwner);
        send.give(1, 0);
        assert_eq!((recv.claim(1, 1), send.way(1, 1)), (Claim::Owner, Some(Way::Placed)));
        assert_eq!(recv.claim(0, 0), Claim::Relay);
        send.relay(0, 0);
        assert_eq!((send.way(0, 0), send.way(0, 1)), (Some(Way::Relayed), None));
        send.relay_sent(0, 0);
        assert_eq!(send.way(0, 0), None);
    }

    #[test]
    fn a_stream_that_ends_frees_the_queues_that_it_has() {
        let (mut recv, mut send) = (RecvOwner::default(), SendOwner::default());
        assert!(!recv.forget(1), "nobody has them");
        recv.claim(1, 0);
        send.give(1, 0);
        recv.claim(0, 0);
        send.relay(0, 0);
        assert!(!recv.forget(0));
        send.forget(0);
        assert_eq!((send.way(0, 0), send.way(1, 0)), (None, Some(Way::Placed)));
        assert!(recv.forget(1));
        send.forget(1);
        assert_eq!((send.way(1, 0), recv.claim(0, 1)), (None, Claim::NewOwner));
    }

    #[test]
    fn an_idle_owner_ends_after_the_messages_that_its_sender_has_begun() {
        let (mut recv, mut send) = (RecvOwner::default(), SendOwner::default());
        recv.claim(1, 0);
        send.give(1, 0);
        assert_eq!(recv.revoke(), Some(1));
        assert_eq!(recv.revoke(), None, "asked once");
        assert_eq!(recv.claim(1, 1), Claim::Unknown);
        // The sender has begun messages 0 and 1, which this rank has not announced.
        send.take(1);
        recv.revoked(1, 2);
        assert_eq!((send.way(1, 2), recv.claim(1, 1)), (None, Claim::Owner));
        recv.end(|_| 1);
        assert_eq!(recv.claim(0, 0), Claim::Relay, "message 1 is expected");
        assert_eq!(recv.claim(1, 2), Claim::Relay);
        recv.end(|_| 2);
        assert_eq!(recv.claim(0, 1), Claim::NewOwner);
    }
}
