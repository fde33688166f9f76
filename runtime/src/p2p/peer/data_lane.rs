//! The data lane of one peer: announced messages, which travel from memory to memory.
//!
//! Messages travel in the order in which receives asked for them. The lane uses the memory of a request from
//! the clear-to-send until the request is complete, or until the lane is reset.

use super::{
    super::{
        Delivery,
        queues::Queues,
        state::{RecvRequest, SendRequest},
    },
    PeerError,
};
use crate::{communicator::LinkAccess, executor::CopySink};
use std::collections::VecDeque;
use topology::Rank;
use transport::{Link, RecvProgress, RecvState, SendProgress, SendState, TransportError, memory::SpanMut};

/// The lane of announced messages.
pub(in super::super) const DATA: u8 = 1;
/// The digest of message 0; see `FRAME_DIGEST`.
const DATA_DIGEST: u64 = 0x6d61_8000_0000_0000;

/// Returns the digest of an announced message.
pub(in super::super) fn data_digest(number: u64) -> u64 {
    DATA_DIGEST | number << 1 & 0x7fff_ffff_fffe
}

/// Receives announced to a link ahead of the current one.
const ANNOUNCED_AHEAD: usize = 8;

/// An announced message on its way to the peer.
#[derive(Debug)]
struct DataSend {
    state: SendState,
    request: SendRequest,
    posted: bool,
    is_sent: bool,
}

/// A message that this rank has asked for.
#[derive(Debug)]
struct DataRecv {
    state: RecvState,
    request: RecvRequest,
    tag: i32,
    /// The part of the receive's memory that the message fills.
    target: SpanMut<'static>,
}

/// Announced messages in flight from and to one peer.
#[derive(Debug, Default)]
pub(super) struct DataLane {
    sends: VecDeque<DataSend>,
    recvs: VecDeque<DataRecv>,
    /// Number of receives in `recvs` that have been announced to the link.
    announced_ahead: usize,
}

impl DataLane {
    /// Whether a link writes to memory of a receive.
    pub(super) fn is_receiving(&self) -> bool {
        !self.recvs.is_empty()
    }

    /// Returns the number of messages in flight, for tests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sends.len() + self.recvs.len()
    }

    /// Adds a message that the peer has asked for.
    pub(super) fn push_send(
        &mut self,
        links: &mut LinkAccess,
        peer: Rank,
        number: u64,
        request: SendRequest,
    ) {
        links.begin_use(request.src);
        let state = links.message_to_send(peer, DATA, data_digest(number), request.src);
        self.sends.push_back(DataSend { state, request, posted: false, is_sent: false });
    }

    /// Adds a message of `len` bytes that this rank asks for.
    pub(super) fn push_recv(
        &mut self,
        links: &mut LinkAccess,
        (number, len): (u64, usize),
        tag: i32,
        request: RecvRequest,
    ) {
        let target = request.dst.sub(0, len);
        links.begin_use(target.as_span());
        let state = links.to_receive(data_digest(number), len);
        self.recvs.push_back(DataRecv { state, request, tag, target });
    }

    /// Sends and receives as far as possible without waiting. Returns whether anything moved. Completed
    /// requests are subtracted from `outstanding`.
    pub(super) fn drive(
        &mut self,
        peer: Rank,
        links: &mut LinkAccess,
        queues: &mut Queues,
        outstanding: &mut u32,
    ) -> Result<bool, PeerError> {
        let sent = !self.sends.is_empty() && self.send(peer, links, queues, outstanding)?;
        let received = !self.recvs.is_empty() && self.receive(peer, links, queues, outstanding)?;
        Ok(sent | received)
    }

    /// Sends announced messages that were asked for.
    fn send(
        &mut self,
        peer: Rank,
        links: &mut LinkAccess,
        queues: &mut Queues,
        outstanding: &mut u32,
    ) -> Result<bool, PeerError> {
        let mut moved = false;
        for item in self.sends.iter_mut().filter(|item| !item.is_sent) {
            let src = item.request.src;
            let progress = links.link(peer, DATA).poll_send(&mut item.state, src)?;
            match progress {
                // A repeated `Posted` says only that the message is still in flight.
                SendProgress::Posted if item.posted => continue,
                SendProgress::Idle => break,
                SendProgress::Advanced => {
                    item.request.state.mark_progress();
                    moved = true;
                    break;
                }
                SendProgress::Posted => item.posted = true,
                SendProgress::Complete => {
                    item.is_sent = true;
                    links.end_use(src);
                    *outstanding -= 1;
                    queues.sent(&item.request, peer);
                }
            }
            item.request.state.mark_progress();
            moved = true;
        }
        while self.sends.pop_front_if(|item| item.is_sent).is_some() {}
        Ok(moved)
    }

    /// Receives messages that this rank has asked for.
    pub(super) fn receive(
        &mut self,
        peer: Rank,
        links: &mut LinkAccess,
        queues: &mut Queues,
        outstanding: &mut u32,
    ) -> Result<bool, PeerError> {
        let mut moved = false;
        loop {
            let next = self.recvs.front().map_or(0, |first| first.target.len());
            let writes = links.writes_of(next);
            let link = links.link(peer, DATA);
            announce_ahead(link, &mut self.recvs, &mut self.announced_ahead)?;
            let Some(first) = self.recvs.front_mut() else { return Ok(moved) };
            let mut sink = CopySink::new(first.target, writes);
            match link.poll_recv(&mut first.state, &mut sink)? {
                RecvProgress::Idle => return Ok(moved),
                RecvProgress::Advanced => {
                    first.request.state.mark_progress();
                    return Ok(true);
                }
                RecvProgress::Complete => {}
            }
            moved = true;
            let Some(done) = self.recvs.pop_front() else { return Ok(moved) };
            self.announced_ahead = self.announced_ahead.saturating_sub(1);
            links.end_use(done.target.as_span());
            // A peer that has failed may have reused its memory while it was read.
            if !links.is_healthy() {
                return Err(PeerError::Job);
            }
            *outstanding -= 1;
            let delivery = Delivery { from: peer, tag: done.tag, bytes: done.target.len() };
            queues.received(&done.request, Ok(delivery));
        }
    }

    /// Ends all use of memory.
    pub(super) fn reset(&mut self, links: &mut LinkAccess) {
        self.sends.iter().for_each(|item| links.end_use(item.request.src));
        self.recvs.iter().for_each(|item| links.end_use(item.target.as_span()));
        *self = DataLane::default();
    }
}

/// Announces consecutive receives to links that want that.
fn announce_ahead(
    link: &mut dyn Link,
    recvs: &mut VecDeque<DataRecv>,
    announced_ahead: &mut usize,
) -> Result<(), TransportError> {
    if link.capabilities().announced_bytes.is_none() {
        return Ok(());
    }
    while *announced_ahead < recvs.len().min(ANNOUNCED_AHEAD) {
        // A receive that has begun unannounced must end before later ones are announced.
        if *announced_ahead == 0 && recvs[0].state.received() > 0 {
            break;
        }
        let item = &mut recvs[*announced_ahead];
        let destination = (!item.target.is_empty()).then_some(item.target);
        if !link.announce(&mut item.state, destination)? {
            break;
        }
        *announced_ahead += 1;
    }
    Ok(())
}
