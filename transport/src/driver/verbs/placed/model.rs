//! Exhaustive check of both ends of a direction: all orders of epochs, losses, and a rail's fall.
//!
//! Epochs, pieces and the order of control messages are those of the real code. This model takes the place of
//! rails, queue pairs and memory.
//!
//! A cable keeps its order, so pieces, trailers and control messages share a queue for each rail and
//! direction. Pieces and trailers can be lost. Control messages are sequenced: none is lost, and all are
//! taken in order. A cable that falls loses its pieces; its control messages are sent again by the other one.
//! The sender may be late to post a piece, as if the device held it. A place remembers the piece that was
//! last written to it. Without checksums, as here, only the order of messages protects from wrong pieces.

use super::{
    epoch::Epoch,
    receive::{PlacedRecv, Unposted},
    send::{PlacedSend, SendPiece},
};
use crate::driver::verbs::{
    explore::{Model, explore},
    sequence::RecvSequence,
    staging::staging,
    wire::{ANY_RAIL, Ready},
};
use std::collections::VecDeque;

const SENDER: usize = 0;
const RECEIVER: usize = 1;

/// A control message.
#[derive(Clone, Copy, Hash)]
enum Control {
    Down { epoch: u32 },
    Ready(Ready),
}

/// A message on a cable.
#[derive(Clone, Copy, Hash)]
enum Item {
    Piece { number: u32, epoch: u32 },
    Trailer { number: u32, epoch: u32 },
    Control { number: u32, control: Control },
}

/// A receive: a place for a piece, or one for a trailer.
#[derive(Clone, Copy, Hash)]
enum Receive {
    Piece { number: u32, at: usize },
    Trailer { number: u32, at: usize },
}

#[derive(Clone, Hash)]
struct World {
    epochs: [Epoch; 2],
    send: PlacedSend,
    recv: PlacedRecv,
    /// Messages on the way to an end, by rail.
    cables: [[VecDeque<Item>; 2]; 2],
    is_up: [bool; 2],
    /// Number of control messages sent to an end.
    controls: [u32; 2],
    heard: [RecvSequence<(Control, u8)>; 2],
    /// Posted receives of a rail.
    receives: [VecDeque<Receive>; 2],
    /// The piece that was last written to each place.
    places: Vec<Option<u32>>,
    /// Pieces that were handed over.
    handed_over: u32,
    /// Events that may still happen.
    begins: u8,
    losses: u8,
    falls: u8,
    /// Epoch after which the model takes no steps.
    last_epoch: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An end begins an epoch, for any reason.
    Begin(usize),
    /// An end compares the rails of its epoch with those that are up.
    Look(usize),
    /// The sender posts a piece and its trailer.
    Post,
    Arrive {
        to: usize,
        rail: usize,
    },
    Lose(usize),
    /// The sender learns that all pieces before this one have arrived.
    Done(u32),
    HandOver,
    Fall(usize),
    Return(usize),
}

impl World {
    fn new(pieces: usize) -> World {
        let stages = staging(100, 1);
        let (mut send, mut recv) = (PlacedSend::new(stages.0), PlacedRecv::new(stages.1));
        let piece = SendPiece { at: 0, len: 1, stage: None, stream: 0, crc: 0, digest: 0 };
        (0..pieces).for_each(|_| send.push(piece));
        recv.announce(0, 0, pieces, Some(0));
        let mut world = World {
            epochs: [Epoch::new(2), Epoch::new(2)],
            send,
            recv,
            cables: Default::default(),
            is_up: [true; 2],
            controls: [0; 2],
            heard: [RecvSequence::new(), RecvSequence::new()],
            receives: Default::default(),
            places: vec![None; pieces],
            handed_over: 0,
            begins: 0,
            losses: 0,
            falls: 0,
            last_epoch: 2,
        };
        world.post_receives();
        world
    }

    fn is_anything_under_way(&self) -> bool {
        self.cables.iter().flatten().any(|cable| !cable.is_empty())
    }

    /// The first piece that the sender does not know to have arrived.
    fn known(&self) -> u32 {
        self.send.end() - self.send.len() as u32
    }

    /// Mask of the rails that are up.
    fn wanted(&self) -> u32 {
        u32::from(self.is_up[0]) | u32::from(self.is_up[1]) << 1
    }

    /// As in `Peer::check_epoch`.
    fn is_outdated(&self, end: usize) -> bool {
        let epoch = &self.epochs[end];
        !epoch.needs_renewal() && (0..2).any(|rail| epoch.offers(rail) != self.is_up[rail])
    }

    fn tell(&mut self, to: usize, rail: usize, control: Control) {
        // One rail is always up in this model.
        let rail = if self.is_up[rail] { rail } else { 1 - rail };
        let number = self.controls[to];
        self.controls[to] += 1;
        self.cables[to][rail].push_back(Item::Control { number, control });
    }

    /// As in `Peer::begin_epoch`.
    fn begin(&mut self, end: usize) {
        self.epochs[end].begin();
        let epoch = self.epochs[end].number();
        self.tell(1 - end, 0, Control::Down { epoch });
        self.renew(end);
    }

    /// As in `Peer::renew_placed`.
    fn renew(&mut self, end: usize) {
        let first = if end == SENDER {
            self.send.stop();
            0
        } else {
            self.recv.stop();
            self.receives = Default::default();
            self.recv.done()
        };
        let ready =
            Ready { epoch: self.epochs[end].number(), first, rails: self.wanted(), ..Ready::default() };
        self.epochs[end].renewed(ready);
        if ready.rails == 0 {
            self.tell(1 - end, 0, Control::Ready(Ready { via: ANY_RAIL, ..ready }));
        }
        for via in (0..2).filter(|via| ready.rails >> via & 1 == 1) {
            self.tell(1 - end, via as usize, Control::Ready(Ready { via, ..ready }));
        }
        self.resume(end);
    }

    /// As in `Peer::resume_placed`.
    fn resume(&mut self, end: usize) {
        if !self.epochs[end].is_up() {
            return;
        }
        if end == RECEIVER {
            return self.post_receives();
        }
        let first = self.epochs[end].first_outgoing().expect("the peer has told");
        assert!(self.send.resume(first).is_some(), "a piece number that it can't expect");
    }

    fn post_receives(&mut self) {
        let epoch = &self.epochs[RECEIVER];
        while epoch.is_up()
            && let Some(Unposted { number, at, .. }) = self.recv.unposted(self.places.len(), |_| 1)
        {
            self.recv.posted_both();
            let receives = &mut self.receives[epoch.incoming_rail(number)];
            receives.extend([Receive::Piece { number, at }, Receive::Trailer { number, at }]);
        }
    }

    /// The piece that the sender may post, and its rail.
    fn outgoing(&self) -> Option<(u32, usize)> {
        let (number, _) = self.send.unposted().filter(|_| self.epochs[SENDER].is_up())?;
        let rail = self.epochs[SENDER].outgoing_rail(number);
        self.is_up[rail].then_some((number, rail))
    }

    fn post(&mut self) {
        let Some((number, rail)) = self.outgoing() else { return };
        let epoch = self.epochs[SENDER].number();
        self.cables[RECEIVER][rail].extend([Item::Piece { number, epoch }, Item::Trailer { number, epoch }]);
        self.send.posted(number);
    }

    fn arrive(&mut self, to: usize, rail: usize) {
        match self.cables[to][rail].pop_front() {
            Some(Item::Control { number, control }) => {
                self.heard[to].accept(number, (control, rail as u8));
                while let Some((control, rail)) = self.heard[to].pop() {
                    self.hear(to, control, usize::from(rail));
                }
            }
            Some(item) => self.meet(rail, item),
            None => {}
        }
    }

    fn hear(&mut self, end: usize, control: Control, by_rail: usize) {
        let epoch = &mut self.epochs[end];
        let must_renew = match control {
            Control::Down { epoch: number } if epoch.peer_began(number) => true,
            Control::Down { .. } => return,
            Control::Ready(ready) => epoch.peer_renewed(ready, by_rail) && epoch.needs_renewal(),
        };
        if must_renew { self.renew(end) } else { self.resume(end) }
    }

    /// A piece or a trailer meets the next receive of its rail. Without one it is lost.
    fn meet(&mut self, rail: usize, item: Item) {
        let Some(receive) = self.receives[rail].pop_front() else { return };
        let present = self.epochs[RECEIVER].number();
        let is_right = match (item, receive) {
            (Item::Piece { number: piece, epoch }, Receive::Piece { number, at }) => {
                assert_eq!(epoch, present, "piece {piece} of an earlier epoch meets a receive");
                assert!(number >= self.recv.done(), "piece {number} is written after it has arrived");
                self.places[at] = Some(piece);
                self.recv.came(number, 1)
            }
            (Item::Trailer { epoch, .. }, Receive::Piece { number, at }) => {
                assert_eq!(epoch, present, "a trailer of an earlier epoch meets a receive");
                assert!(number >= self.recv.done(), "piece {number} is written after it has arrived");
                self.places[at] = None;
                false
            }
            (Item::Trailer { number: piece, epoch }, Receive::Trailer { number, .. }) => {
                let is_here = self.recv.piece(number).is_some_and(|piece| piece.is_here);
                let is_complete = piece == number && epoch == present && is_here;
                if is_complete {
                    self.recv.complete(number);
                }
                is_complete
            }
            _ => false,
        };
        if is_right { self.post_receives() } else { self.begin(RECEIVER) }
    }

    /// Lets a cable fall. Its control messages are sent again by the other one.
    fn fall(&mut self, rail: usize) {
        self.is_up[rail] = false;
        for to in 0..2 {
            let controls = std::mem::take(&mut self.cables[to][rail]).into_iter();
            let controls = controls.filter(|item| matches!(item, Item::Control { .. }));
            self.cables[to][1 - rail].extend(controls);
        }
        self.receives[rail].clear();
    }

    /// Whether the receiver learns that a piece was lost, as in `Peer::was_sent`.
    fn is_lost(&self) -> bool {
        let are_up = self.epochs.iter().all(Epoch::is_up);
        let is_same = self.epochs[SENDER].number() == self.epochs[RECEIVER].number();
        are_up && is_same && self.send.is_posted(self.recv.done())
    }
}

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.epochs.iter().any(|epoch| epoch.number() > self.last_epoch) {
            return steps;
        }
        for end in 0..2 {
            if self.begins > 0 {
                steps.push(Step::Begin(end));
            }
            if self.is_outdated(end) {
                steps.push(Step::Look(end));
            }
            for rail in 0..2 {
                if !self.cables[end][rail].is_empty() {
                    steps.push(Step::Arrive { to: end, rail });
                }
            }
        }
        if self.outgoing().is_some() {
            steps.push(Step::Post);
        }
        for rail in 0..2 {
            let is_data = |item: &Item| !matches!(item, Item::Control { .. });
            if self.losses > 0 && self.cables[RECEIVER][rail].front().is_some_and(is_data) {
                steps.push(Step::Lose(rail));
            }
            if !self.is_up[rail] {
                // Both ends see the fall first.
                if !(0..2).any(|end| self.is_outdated(end)) {
                    steps.push(Step::Return(rail));
                }
            } else if self.falls > 0 && self.is_up[1 - rail] {
                steps.push(Step::Fall(rail));
            }
        }
        steps.extend((self.known() + 1..=self.recv.done()).map(Step::Done));
        if self.recv.done() > self.handed_over {
            steps.push(Step::HandOver);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin(end) => {
                self.begins -= 1;
                self.begin(end);
            }
            Step::Look(end) => self.begin(end),
            Step::Post => self.post(),
            Step::Arrive { to, rail } => self.arrive(to, rail),
            Step::Lose(rail) => {
                self.losses -= 1;
                self.cables[RECEIVER][rail].pop_front();
            }
            Step::Done(number) => self.send.arrived_before(number),
            Step::HandOver => {
                let at = self.recv.pop().expect("it has arrived").at;
                assert_eq!((at, self.places[at]), (self.handed_over as usize, Some(self.handed_over)));
                self.handed_over += 1;
                self.post_receives();
            }
            Step::Fall(rail) => {
                self.falls -= 1;
                self.fall(rail);
            }
            Step::Return(rail) => self.is_up[rail] = true,
        }
    }

    /// Checks that pieces that have arrived stay as they are, and that all arrive once nothing fails any
    /// more.
    fn check(&self) {
        assert!(self.known() <= self.recv.done(), "a piece is freed that has not arrived");
        for at in 0..self.recv.done() {
            assert_eq!(self.places[at as usize], Some(at), "the wrong piece");
        }
        let mut world = self.clone();
        while let Some(end) = (0..2).find(|end| world.is_outdated(*end)) {
            world.begin(end);
        }
        world.is_up = [true; 2];
        let pieces = world.places.len() as u32;
        for _ in 0..10 {
            while world.is_anything_under_way() {
                for (to, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    world.arrive(to, rail);
                }
            }
            while world.recv.done() > world.handed_over {
                world.take(Step::HandOver);
            }
            world.send.arrived_before(world.recv.done());
            if world.handed_over == pieces {
                assert!(world.send.is_idle(), "the sender does not know");
                return;
            }
            if let Some(end) = (0..2).find(|end| world.is_outdated(*end)) {
                world.begin(end);
            } else if world.outgoing().is_some() {
                world.post();
            } else if world.is_lost() {
                world.begin(RECEIVER);
            }
        }
        panic!("pieces do not arrive");
    }
}

#[test]
fn pieces_arrive_once_and_unmixed_whichever_end_begins_epochs() {
    explore(19_000, World { begins: 2, ..World::new(2) });
}

#[test]
fn pieces_arrive_once_and_unmixed_whatever_is_lost() {
    explore(9_000, World { begins: 0, losses: 2, ..World::new(3) });
    explore(51_000, World { begins: 1, losses: 1, ..World::new(3) });
}

#[test]
fn pieces_arrive_once_and_unmixed_whichever_rail_falls() {
    explore(63_000, World { falls: 1, ..World::new(2) });
    explore(26_000, World { falls: 1, losses: 1, ..World::new(1) });
}
