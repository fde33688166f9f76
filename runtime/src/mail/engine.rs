//! One rank's mail: takes letters, drives peers, and knows when all is over.
//!
//! There is one engine behind one lock, and whoever waits drives it. Nothing here blocks. Peers are polled that a letter
//! needs, or all of them while a receive takes any sender; what others send stays in their links, which push back.
//!
//! Invariant: memory of a letter is used only while the letter is not done. Once the engine has failed or is closed, none is
//! used any more.

use super::{
    Delivery,
    books::{Address, Books, Message, Receiving, Sending},
    frame::{EAGER_BYTES, Frame, SHORT_BYTES},
    matching::Pattern,
    nap::Nap,
    peer::{BUDGET, Peer, Trouble, units_of},
    slot::{Label, Slot},
};
use crate::{
    call::CallKind,
    communicator::{About, Wires},
    error::{Error, Result},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use topology::Rank;
use transport::{
    TransportError,
    memory::{Span, SpanMut},
};

/// What has become of a letter at once.
#[derive(Debug)]
pub(super) enum Posted {
    /// It is done.
    Done(Result<Delivery>),
    /// It will be.
    Pending(Arc<Slot>),
}

/// What the thread does that moves mail while nobody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Courier {
    /// There is none.
    Absent,
    /// It sleeps until it is woken.
    Asleep,
    /// It looks every now and then.
    Awake,
    /// It is to end.
    Dismissed,
}

#[derive(Debug)]
pub(super) struct Engine {
    wires: Wires,
    rank: Rank,
    /// By rank; `None` for this one and those that there is no link to.
    peers: Vec<Option<Peer>>,
    /// Those that are polled.
    active: Vec<u32>,
    books: Books,
    failed: Option<Error>,
    /// Letters so far.
    letters: u64,
    /// The latest letter, or the latest that was long waited for.
    latest: Option<Label>,
    pub(super) courier: Courier,
}

impl Engine {
    pub(super) fn new(wires: Wires, nap: Arc<Nap>) -> Engine {
        let comm = wires.communicator();
        let rank = comm.rank();
        let books = Books::new(rank, comm.members(), nap);
        let is_peer = |peer: &Rank| *peer != rank && wires.reaches(*peer);
        let peers = (0..comm.size()).map(Rank).map(|peer| is_peer(&peer).then(|| Peer::new(peer))).collect();
        Engine {
            rank,
            peers,
            active: Vec::new(),
            books,
            failed: None,
            letters: 0,
            latest: None,
            courier: Courier::Absent,
            wires,
        }
    }

    pub(super) fn wires(&mut self) -> &mut Wires {
        &mut self.wires
    }

    /// The error that everything gives from now on, if there is one.
    pub(super) fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Is there anything that somebody has to see to?
    pub(super) fn is_busy(&self) -> bool {
        self.failed.is_none() && (self.books.pending > 0 || !self.active.is_empty())
    }

    fn label(
        &mut self,
        kind: CallKind,
        peer: Option<Rank>,
        address: (u32, Option<i32>),
        bytes: usize,
    ) -> Label {
        self.letters += 1;
        let label = Label { kind, peer, context: address.0, tag: address.1, bytes, number: self.letters };
        self.latest = Some(label);
        label
    }

    /// What stands for a letter where none is known.
    fn some_label(&self, peer: Option<Rank>) -> Label {
        Label { kind: CallKind::Recv, peer, context: 0, tag: None, bytes: 0, number: self.letters }
    }

    /// Can anything be sent or received?
    fn check(&mut self) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.wires.is_sound() { Ok(()) } else { Err(self.fail_unsound()) }
    }

    #[cold]
    fn fail_unsound(&mut self) -> Error {
        let label = self.latest.unwrap_or(self.some_label(None));
        let about = About { record: label.record(), said: &label.said(), waited: Duration::ZERO };
        let error = self.wires.why_unsound(&about);
        self.fail(error)
    }

    /// Is there such a rank, and a link to it?
    fn check_peer(&self, peer: Rank) -> Result<()> {
        let size = self.peers.len();
        match self.peers.get(peer.index()) {
            None => Err(Error::InvalidArgument(format!("rank {peer} is not in 0..{size}"))),
            Some(None) if peer != self.rank => {
                let what = format!(
                    "no cable connects it with {}; pass the message on through ranks in between, or connect them",
                    self.wires.name(peer)
                );
                Err(TransportError::Wiring { rank: self.rank.0, what }.into())
            }
            Some(_) => Ok(()),
        }
    }

    /// Takes a letter to be sent.
    pub(super) fn send(&mut self, to: Rank, context: u32, tag: i32, src: Span<'static>) -> Result<Posted> {
        self.check_peer(to)?;
        self.check()?;
        let label = self.label(CallKind::Send, Some(to), (context, Some(tag)), src.len());
        if to == self.rank {
            return Ok(self.send_to_self((context, to, tag), src, label));
        }
        let units = units_of(src.len());
        let peer = self.peers[to.index()].as_mut().expect("checked");
        peer.latest = Some(label);
        let mut eager = src.len() <= SHORT_BYTES
            || src.len() <= peer.eager_most(&mut self.wires) && !self.wires.moves_in_place(src);
        if eager && peer.credit < units {
            // Some may have been given back.
            self.drive_peer(to.index())?;
            eager = self.peers[to.index()].as_ref().is_some_and(|peer| peer.credit >= units);
        }
        let sending = &mut self.books.sending;
        let peer = self.peers[to.index()].as_mut().expect("checked");
        if !eager {
            *sending += 1;
            peer.wanted += 1;
            let slot = self.books.new_slot(label);
            peer.offer(context, tag, Sending { slot: Arc::clone(&slot), src });
            self.flush(to.index())?;
            return Ok(Posted::Pending(slot));
        }
        peer.credit -= units;
        if src.len() <= SHORT_BYTES {
            let mut frame = peer.with_credit(&Frame::Short { context, tag, len: src.len() });
            SpanMut::from(Frame::short_mut(&mut frame, src.len())).copy_from(src);
            peer.say(frame, None);
            self.flush(to.index())?;
            return Ok(Posted::Done(Ok(Delivery { from: self.rank, tag, bytes: src.len() })));
        }
        let frame = peer.with_credit(&Frame::Eager { context, tag, len: src.len() });
        peer.say(frame, Some(src));
        self.flush(to.index())?;
        let peer = self.peers[to.index()].as_mut().expect("checked");
        if !peer.is_talking() {
            return Ok(Posted::Done(Ok(Delivery { from: self.rank, tag, bytes: src.len() })));
        }
        self.books.sending += 1;
        peer.wanted += 1;
        let slot = self.books.new_slot(label);
        peer.attach(Sending { slot: Arc::clone(&slot), src });
        Ok(Posted::Pending(slot))
    }

    /// A message to this very rank: to its receive if that is there, else to the heap or, if it is long, left where it is.
    fn send_to_self(&mut self, address: Address, src: Span<'static>, label: Label) -> Posted {
        let done = Posted::Done(Ok(Delivery { from: self.rank, tag: address.2, bytes: src.len() }));
        if self.books.own(address, src) {
            return done;
        }
        let units = units_of(src.len());
        if src.len() <= EAGER_BYTES && self.books.own + units <= BUDGET {
            self.books.own += units;
            let mut bytes = vec![0; src.len()].into_boxed_slice();
            SpanMut::from(&mut *bytes).copy_from(src);
            self.books.keep(address, Message::Held(bytes));
            return done;
        }
        let slot = self.books.new_slot(label);
        self.books.keep(address, Message::Own(Sending { slot: Arc::clone(&slot), src }));
        Posted::Pending(slot)
    }

    /// Takes a letter to be received.
    pub(super) fn recv(
        &mut self,
        from: Option<Rank>,
        context: u32,
        tag: Option<i32>,
        dst: SpanMut<'static>,
    ) -> Result<Posted> {
        from.map_or(Ok(()), |from| self.check_peer(from))?;
        self.check()?;
        let label = self.label(CallKind::Recv, from, (context, tag), dst.len());
        let pattern = Pattern { context, from: from.map(|from| from.0), tag };
        if let Some((address, message)) = self.books.take(&pattern) {
            return self.accept(address, &message, dst, label);
        }
        let slot = self.books.new_slot(label);
        self.books.post(&pattern, Receiving { slot: Arc::clone(&slot), dst });
        if let Some(peer) = from.and_then(|from| self.peers[from.index()].as_mut()) {
            peer.wanted += 1;
            peer.latest = Some(label);
            activate(&mut self.active, peer);
        }
        Ok(Posted::Pending(slot))
    }

    /// A receive takes a message that was here before it.
    fn accept(
        &mut self,
        address: Address,
        message: &Message,
        dst: SpanMut<'static>,
        label: Label,
    ) -> Result<Posted> {
        let from = address.1;
        let (result, units) = match message {
            Message::Short { len, bytes } => {
                let src = Span::from(&bytes[..usize::from(*len)]);
                (self.books.copy(address, src, dst), units_of(src.len()))
            }
            Message::Held(bytes) => {
                (self.books.copy(address, Span::from(&**bytes), dst), units_of(bytes.len()))
            }
            Message::Own(letter) => {
                let result = self.books.copy(address, letter.src, dst);
                self.books.sent(letter, from);
                return Ok(Posted::Done(result));
            }
            Message::Ready { number, len } => return self.accept_ready(address, (*number, *len), dst, label),
        };
        match &mut self.peers[from.index()] {
            None => self.books.own -= units,
            Some(peer) => {
                peer.release(units);
                if peer.has_words() {
                    self.flush(from.index())?;
                }
            }
        }
        Ok(Posted::Done(result))
    }

    fn accept_ready(
        &mut self,
        address: Address,
        (number, len): (u64, usize),
        dst: SpanMut<'static>,
        label: Label,
    ) -> Result<Posted> {
        let from = address.1;
        let peer = self.peers[from.index()].as_mut().expect("it has sent something");
        peer.wanted += 1;
        peer.latest = Some(label);
        let slot = self.books.new_slot(label);
        let letter = Receiving { slot: Arc::clone(&slot), dst };
        peer.take_ready(&mut self.wires, &mut self.books, (number, len), address.2, letter);
        self.flush(from.index())?;
        Ok(Posted::Pending(slot))
    }

    /// Says what is to be said to a peer, as far as that goes now.
    fn flush(&mut self, at: usize) -> Result<()> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        let sent = peer.send_frames(&mut self.wires, &mut self.books);
        activate(&mut self.active, peer);
        match sent {
            Ok(_) => Ok(()),
            Err(trouble) => self.may_go(at, trouble),
        }
    }

    /// Does what can be done without waiting. True when anything has moved; what goes wrong is found in
    /// [`Engine::failed`].
    pub(super) fn drive(&mut self) -> bool {
        self.check().is_ok() && self.drive_peers().unwrap_or(false)
    }

    fn drive_peers(&mut self) -> Result<bool> {
        let mut moved = false;
        if self.books.open > 0 {
            for at in 0..self.peers.len() {
                moved |= self.drive_peer(at)?;
            }
            return Ok(moved);
        }
        let mut next = 0;
        while let Some(at) = self.active.get(next).map(|at| *at as usize) {
            moved |= self.drive_peer(at)?;
            match &mut self.peers[at] {
                Some(peer) if !peer.is_active() => {
                    peer.listed = false;
                    self.active.swap_remove(next);
                }
                _ => next += 1,
            }
        }
        Ok(moved)
    }

    fn drive_peer(&mut self, at: usize) -> Result<bool> {
        let Some(peer) = self.peers[at].as_mut().filter(|peer| !peer.gone || peer.wanted > 0) else {
            return Ok(false);
        };
        let moved = peer.drive(&mut self.wires, &mut self.books);
        activate(&mut self.active, peer);
        match moved {
            Ok(moved) => Ok(moved),
            Err(trouble) => self.may_go(at, trouble).map(|()| false),
        }
    }

    /// A peer can't be served. That is no failure if it has closed its mail in good order, and nobody needs more of it than
    /// what it had sent by then.
    #[cold]
    fn may_go(&mut self, at: usize, trouble: Trouble) -> Result<()> {
        let error = match trouble {
            Trouble::Job => return Err(self.fail_unsound()),
            Trouble::Link(error) => self.explain(at, error),
        };
        if let Error::PeerLeft { peer, .. } = &error
            && let Some(peer) = &mut self.peers[peer.rank.index()]
        {
            peer.take_last(&mut self.wires, &mut self.books);
            if peer.wanted == 0 {
                return Ok(());
            }
        }
        Err(self.fail(error))
    }

    /// Looks around for a letter that somebody waits for, and has waited for so long in vain. What is found is in
    /// [`Engine::failed`].
    pub(super) fn look(&mut self, label: &Label, waited: Duration) {
        if self.failed.is_some() {
            return;
        }
        self.latest = Some(*label);
        let about = About { record: label.record(), said: &label.said(), waited };
        if let Err(error) = self.wires.look(&about) {
            // What a peer has sent before it left may have come since we last looked.
            if !self.drive() {
                self.fail(error);
            }
        }
    }

    /// Looks around for all letters, waited for or not, without regard to time.
    pub(super) fn look_at_large(&mut self) {
        let of_peers = self.peers.iter().flatten().filter(|peer| peer.wanted > 0);
        let mut labels: Vec<Label> = of_peers.filter_map(|peer| peer.latest).collect();
        if self.books.open > 0 {
            labels.push(self.some_label(None));
        }
        for label in labels {
            self.look(&label, Duration::ZERO);
        }
    }

    /// Tells others, should they wonder, which letter this rank waits for; or that it waits for none.
    pub(super) fn say_waiting(&self, label: Option<&Label>) {
        self.wires.say_waiting(label.map(Label::record).as_ref());
    }

    /// The error that it is that the link to a peer has failed.
    fn explain(&mut self, at: usize, error: TransportError) -> Error {
        let rank = Rank(at as u32);
        let latest = self.peers[at].as_ref().and_then(|peer| peer.latest);
        let label = latest.unwrap_or(self.some_label(Some(rank)));
        let about = About { record: label.record(), said: &label.said(), waited: Duration::ZERO };
        self.wires.explain(&about, rank, error)
    }

    /// Ends all use of memory, and everything else, with this error. The first one holds, and is given back.
    #[cold]
    pub(super) fn fail(&mut self, error: Error) -> Error {
        if let Some(failed) = &self.failed {
            return failed.clone();
        }
        self.wires.give_up(error.clone());
        self.forget();
        self.failed = Some(error.clone());
        error
    }

    fn forget(&mut self) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.forget(&mut self.wires));
        self.peers.iter_mut().flatten().for_each(|peer| peer.listed = false);
        self.active.clear();
        self.books.forget();
    }

    /// Closes it in good order: has its last words taken, by all that have not closed theirs and within the time limit.
    /// Messages that are only half here or there are lost, which is a failure.
    pub(super) fn close(&mut self) {
        let began = Instant::now();
        while self.failed.is_none() && self.is_talking() && began.elapsed() < self.wires.timeout() {
            if !self.drive() {
                std::thread::sleep(Duration::from_micros(100));
                self.let_leavers_go();
            }
        }
        let writing = self.peers.iter().flatten().any(Peer::is_writing);
        if self.failed.is_none() && (self.books.sending > 0 || writing || self.is_talking()) {
            let what = format!("rank {} closed its mail with messages still on their way", self.rank);
            self.fail(Error::InvalidArgument(what));
        }
        self.forget();
    }

    /// Closes the links of mail that is closed.
    pub(super) fn end(self) {
        self.wires.close();
    }

    /// Is there a rank that would still listen and has not heard all?
    fn is_talking(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.is_talking() && !peer.gone)
    }

    /// Nothing more is to be said to those that have closed their mail.
    fn let_leavers_go(&mut self) {
        for peer in self.peers.iter_mut().flatten().filter(|peer| peer.is_talking()) {
            peer.gone |= self.wires.has_left(peer.rank());
        }
    }

    /// What is kept: receives and messages that have met nothing, and messages on their way.
    #[cfg(test)]
    pub(super) fn memory(&self) -> (usize, usize, usize) {
        let (posted, arrived) = self.books.unmatched();
        (posted, arrived, self.peers.iter().flatten().map(Peer::memory).sum())
    }
}

/// Has a peer polled that has something to do.
#[inline]
fn activate(active: &mut Vec<u32>, peer: &mut Peer) {
    if !peer.listed && peer.is_active() {
        peer.listed = true;
        active.push(peer.rank().0);
    }
}
