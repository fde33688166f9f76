//! Posting of sends and receives: what completes at once, what a frame announces, what waits.
//!
//! A send completes at once if its receiver's credit covers it: then its bytes are on their way, or copied. A
//! longer one is announced, and stays at its place until a receive asks for it. A receive takes a message
//! that has arrived, or waits for one.
//!
//! Nothing here waits; the engine progresses what is pending.

use super::{
    super::{
        Delivery,
        frame::{Frame, SHORT_BYTES},
        matching::Pattern,
        peer::{CREDIT_UNITS, FRAMES_AT_A_TIME, MAX_ANNOUNCED, units_of},
        queues::{Message, MessageKey},
        state::{RecvRequest, RequestInfo, SendRequest},
    },
    Engine, Posted, activate,
};
use crate::{
    call::CallKind,
    error::{Error, Result},
};
use std::sync::Arc;
use topology::Rank;
use transport::{
    TransportError,
    memory::{Span, SpanMut},
};

/// Longest message to this rank itself that is copied to the heap while no receive takes it.
const OWN_EAGER_BYTES: usize = 16 << 10;

impl Engine {
    /// Posts a send.
    pub(in crate::p2p) fn send(
        &mut self,
        to: Rank,
        context: u32,
        tag: i32,
        src: Span<'static>,
    ) -> Result<Posted> {
        self.check_peer(to)?;
        self.check()?;
        let info = self.describe(CallKind::Send, Some(to), (context, Some(tag)), src.len());
        if to == self.rank {
            return Ok(self.send_to_self((context, to, tag), src, info));
        }
        let units = units_of(src.len());
        let peer = self.peers[to.index()].as_mut().expect("checked");
        peer.latest = Some(info);
        let mut eager = src.len() <= SHORT_BYTES
            || src.len() <= peer.eager_limit(&mut self.links) && !self.links.moves_in_place(src);
        if eager && peer.credit < units {
            eager = self.await_credit(to.index(), units)?;
        }
        let sending = &mut self.queues.sends;
        let peer = self.peers[to.index()].as_mut().expect("checked");
        if !eager {
            if !peer.can_announce() {
                return Err(Error::InvalidArgument(format!(
                    "{MAX_ANNOUNCED} messages to {} wait for a receive, the most that may; wait for some of \
                     them before sending more",
                    self.links.name(to)
                )));
            }
            *sending += 1;
            peer.outstanding += 1;
            let state = self.queues.new_state(info);
            peer.request_to_send(context, tag, SendRequest::new(&state, src));
            self.flush(to.index())?;
            return Ok(Posted::Pending(state));
        }
        peer.credit -= units;
        if src.len() <= SHORT_BYTES {
            let mut frame = peer.encode_with_credit(&Frame::Short { context, tag, len: src.len() });
            SpanMut::from(Frame::short_mut(&mut frame, src.len())).copy_from(src);
            peer.queue_frame(frame, None);
            self.flush(to.index())?;
            return Ok(Posted::Done(Ok(Delivery { from: self.rank, tag, bytes: src.len() })));
        }
        let frame = peer.encode_with_credit(&Frame::Eager { context, tag, len: src.len() });
        if peer.packs(&mut self.links, src.len()) {
            peer.queue_packed(frame, src);
            self.flush(to.index())?;
            return Ok(Posted::Done(Ok(Delivery { from: self.rank, tag, bytes: src.len() })));
        }
        peer.queue_frame(frame, Some(src));
        self.flush(to.index())?;
        let peer = self.peers[to.index()].as_mut().expect("checked");
        if !peer.has_queued_frames() {
            return Ok(Posted::Done(Ok(Delivery { from: self.rank, tag, bytes: src.len() })));
        }
        self.queues.sends += 1;
        peer.outstanding += 1;
        let state = self.queues.new_state(info);
        peer.attach(SendRequest::new(&state, src));
        Ok(Posted::Pending(state))
    }

    /// Takes frames that have arrived until they have returned this credit. Returns whether they have.
    #[cold]
    fn await_credit(&mut self, at: usize, units: u32) -> Result<bool> {
        let has_credit = |engine: &Engine| engine.peers[at].as_ref().is_some_and(|peer| peer.credit >= units);
        for _ in 0..FRAMES_AT_A_TIME {
            if !self.drive_peer(at)? || has_credit(self) {
                break;
            }
        }
        Ok(has_credit(self))
    }

    /// Sends to this rank itself: to a posted receive, else to the heap within the credit, else left at the
    /// sender's address.
    fn send_to_self(&mut self, address: MessageKey, src: Span<'static>, info: RequestInfo) -> Posted {
        let done = Posted::Done(Ok(Delivery { from: self.rank, tag: address.2, bytes: src.len() }));
        if self.queues.deliver_own(address, src) {
            return done;
        }
        let units = units_of(src.len());
        if src.len() <= OWN_EAGER_BYTES && self.queues.own_units + units <= CREDIT_UNITS {
            self.queues.own_units += units;
            let mut bytes = vec![0; src.len()].into_boxed_slice();
            SpanMut::from(&mut *bytes).copy_from(src);
            self.queues.keep(address, Message::Heap(bytes));
            return done;
        }
        let state = self.queues.new_state(info);
        self.queues.keep(address, Message::OwnSend(SendRequest::new(&state, src)));
        Posted::Pending(state)
    }

    /// Posts a receive.
    pub(in crate::p2p) fn recv(
        &mut self,
        from: Option<Rank>,
        context: u32,
        tag: Option<i32>,
        dst: SpanMut<'static>,
    ) -> Result<Posted> {
        from.map_or(Ok(()), |from| self.check_peer(from))?;
        self.check()?;
        let info = self.describe(CallKind::Recv, from, (context, tag), dst.len());
        let pattern = Pattern { context, from: from.map(|from| from.0), tag };
        if let Some((address, message)) = self.queues.take(&pattern) {
            return self.accept(address, &message, dst, info);
        }
        let state = self.queues.new_state(info);
        self.queues.post(&pattern, RecvRequest { state: Arc::clone(&state), dst });
        if let Some(peer) = from.and_then(|from| self.peers[from.index()].as_mut()) {
            peer.outstanding += 1;
            peer.latest = Some(info);
            activate(&mut self.active, peer);
        }
        Ok(Posted::Pending(state))
    }

    /// Completes a receive from a message that arrived before it was posted.
    fn accept(
        &mut self,
        address: MessageKey,
        message: &Message,
        dst: SpanMut<'static>,
        info: RequestInfo,
    ) -> Result<Posted> {
        let from = address.1;
        let (result, units) = match message {
            Message::Short { len, bytes } => {
                let src = Span::from(&bytes[..usize::from(*len)]);
                (self.queues.copy(address, src, dst), units_of(src.len()))
            }
            Message::Heap(bytes) => {
                (self.queues.copy(address, Span::from(&**bytes), dst), units_of(bytes.len()))
            }
            Message::OwnSend(request) => {
                let result = self.queues.copy(address, request.src, dst);
                self.queues.sent(request, from);
                return Ok(Posted::Done(result));
            }
            Message::AtSender { number, len } => {
                return self.accept_announced(address, (*number, *len), dst, info);
            }
        };
        match &mut self.peers[from.index()] {
            None => self.queues.own_units -= units,
            Some(peer) => {
                peer.release(units);
                if peer.has_control_traffic() {
                    self.flush(from.index())?;
                }
            }
        }
        Ok(Posted::Done(result))
    }

    fn accept_announced(
        &mut self,
        address: MessageKey,
        (number, len): (u64, usize),
        dst: SpanMut<'static>,
        info: RequestInfo,
    ) -> Result<Posted> {
        let from = address.1;
        let peer = self.peers[from.index()].as_mut().expect("it has sent something");
        peer.outstanding += 1;
        peer.latest = Some(info);
        let state = self.queues.new_state(info);
        let request = RecvRequest { state: Arc::clone(&state), dst };
        peer.match_announced(&mut self.links, &mut self.queues, (number, len), address.2, request);
        self.flush(from.index())?;
        Ok(Posted::Pending(state))
    }

    fn describe(
        &mut self,
        kind: CallKind,
        peer: Option<Rank>,
        address: (u32, Option<i32>),
        bytes: usize,
    ) -> RequestInfo {
        self.requests += 1;
        let (context, tag) = address;
        let began = self.queues.records.now();
        let info = RequestInfo { kind, peer, context, tag, bytes, number: self.requests, began };
        self.latest = Some(info);
        info
    }

    /// Checks that the rank exists and that a link leads to it.
    fn check_peer(&self, peer: Rank) -> Result<()> {
        let size = self.peers.len();
        match self.peers.get(peer.index()) {
            None => Err(Error::InvalidArgument(format!("rank {peer} is not in 0..{size}"))),
            Some(None) if peer != self.rank => {
                let what = format!(
                    "no cable connects it with {}; pass the message on through ranks in between, or connect \
                     them",
                    self.links.name(peer)
                );
                Err(TransportError::Wiring { rank: self.rank.0, what }.into())
            }
            Some(_) => Ok(()),
        }
    }
}
