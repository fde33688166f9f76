//! Exhaustive check of both ends of a direction: all orders of epochs, losses, a rail's fall, and the end of
//! a stream.
//!
//! Epochs, pieces and the order of control messages are those of the real code. This model takes the place of
//! rails, queue pairs and memory.
//!
//! A cable keeps its order, so pieces, trailers and control messages share a queue for each rail and
//! direction. Pieces and trailers can be lost. Control messages are sequenced: none is lost, and all are
//! taken in order. A cable that falls loses its pieces; its control messages are sent again by the other one.
//! The sender may be late to post a piece, as if the device held it. A place remembers the piece that was
//! last written to it. Without checksums, as here, only the order of messages protects from wrong pieces.
//!
//! A stream may end at either end at any time. Its places belong to somebody else from then on. The queues
//! then go to a second stream, all of whose pieces must arrive.

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
    Down {
        epoch: u32,
    },
    Ready(Ready),
    /// The first stream has ended.
    Ended,
    /// Receives are posted for the second stream.
    Given,
}

/// A message on a cable.
#[derive(Clone, Copy, Hash)]
enum Item {
    /// `place` is where the piece belongs.
    Piece {
        number: u32,
        epoch: u32,
        place: usize,
    },
    Trailer {
        number: u32,
        epoch: u32,
    },
    Control {
        number: u32,
        control: Control,
    },
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
    /// The piece that was last written to each place, by the place where it belongs.
    places: Vec<Option<usize>>,
    /// Places whose pieces have arrived.
    arrived: Vec<usize>,
    /// Places whose pieces were handed over, in order.
    handed_over: Vec<usize>,
    /// Pieces of the first stream.
    first: usize,
    /// Whether an end may still end the first stream.
    may_end: [bool; 2],
    /// Whether the receiver has announced the second stream, and whether the sender must send it.
    is_announced: bool,
    is_wanted: bool,
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
    /// An end ends the first stream.
    End(usize),
    /// The receiver announces the message of the second stream.
    Announce,
}

impl World {
    fn new(pieces: usize) -> World {
        let stages = staging(100, 8, 1);
        let (mut send, mut recv) = (PlacedSend::new(stages.0), PlacedRecv::new(stages.1, 8));
        (0..pieces).for_each(|at| send.push(piece(0, at)));
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
            arrived: Vec::new(),
            handed_over: Vec::new(),
            first: pieces,
            may_end: [false; 2],
            is_announced: false,
            is_wanted: false,
            begins: 0,
            losses: 0,
            falls: 0,
            last_epoch: 2,
        };
        world.post_receives();
        world
    }

    /// A stream of `first` pieces that may end, and a second one.
    fn with_two_streams(first: usize, second: usize) -> World {
        let mut world = World { may_end: [true; 2], ..World::new(first) };
        world.places.resize(first + second, None);
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
        self.push_second();
    }

    /// As in `Peer::end_stream`.
    fn end(&mut self, end: usize) {
        self.may_end[end] = false;
        self.tell(1 - end, 0, Control::Ended);
        self.forget(end);
    }

    /// As in `Peer::forget_placed`.
    fn forget(&mut self, end: usize) {
        if end == RECEIVER {
            self.recv.forget(0);
            self.arrived.retain(|place| *place >= self.first);
            // The first stream has the queues.
            self.begin(RECEIVER);
        } else if self.send.forget(0) {
            self.begin(SENDER);
        }
    }

    fn announce(&mut self) {
        self.is_announced = true;
        self.recv.announce(1, 0, self.places.len() - self.first, Some(self.first));
        self.tell(SENDER, 0, Control::Given);
        self.post_receives();
    }

    /// As in `Peer::add_piece`.
    fn push_second(&mut self) {
        if self.is_wanted && self.send.is_open() {
            self.is_wanted = false;
            (self.first..self.places.len()).for_each(|at| self.send.push(piece(1, at)));
        }
    }

    /// Whether the first piece that was not handed over has arrived.
    fn can_hand_over(&self) -> bool {
        self.recv.clone().pop().is_some()
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
    fn outgoing(&self) -> Option<(u32, usize, usize)> {
        let (number, piece) = self.send.unposted().filter(|_| self.epochs[SENDER].is_up())?;
        let rail = self.epochs[SENDER].outgoing_rail(number);
        self.is_up[rail].then_some((number, rail, piece.at))
    }

    fn post(&mut self) {
        let Some((number, rail, place)) = self.outgoing() else { return };
        let epoch = self.epochs[SENDER].number();
        let items = [Item::Piece { number, epoch, place }, Item::Trailer { number, epoch }];
        self.cables[RECEIVER][rail].extend(items);
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
            Control::Ended if end == SENDER => return self.forget(SENDER),
            // What has arrived can still be received.
            Control::Ended => return,
            Control::Given => {
                self.is_wanted = true;
                return self.push_second();
            }
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
        if let Receive::Piece { at, .. } = receive {
            let is_ended = at < self.first && self.has_forgotten();
            assert!(!is_ended, "memory of a stream that has ended is written");
        }
        let is_right = match (item, receive) {
            (Item::Piece { number: piece, epoch, place }, Receive::Piece { number, at }) => {
                assert_eq!(epoch, present, "piece {piece} of an earlier epoch meets a receive");
                assert!(number >= self.recv.done(), "piece {number} is written after it has arrived");
                self.places[at] = Some(place);
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
                    let before = self.recv.done();
                    self.recv.complete(number);
                    let whole = (before..self.recv.done()).filter_map(|number| self.recv.piece(number));
                    self.arrived.extend(whole.map(|piece| piece.at));
                }
                is_complete
            }
            _ => false,
        };
        if is_right { self.post_receives() } else { self.begin(RECEIVER) }
    }

    /// Whether the first stream has ended at the receiver.
    fn has_forgotten(&self) -> bool {
        self.first < self.places.len() && !self.may_end[RECEIVER]
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
        if self.can_hand_over() {
            steps.push(Step::HandOver);
        }
        steps.extend((0..2).filter(|end| self.may_end[*end]).map(Step::End));
        if self.has_forgotten() && !self.is_announced {
            steps.push(Step::Announce);
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
                assert_eq!(self.places[at], Some(at), "the wrong piece");
                assert!(self.handed_over.last().is_none_or(|last| *last < at), "out of order");
                self.handed_over.push(at);
                self.post_receives();
            }
            Step::Fall(rail) => {
                self.falls -= 1;
                self.fall(rail);
            }
            Step::Return(rail) => self.is_up[rail] = true,
            Step::End(end) => self.end(end),
            Step::Announce => self.announce(),
        }
    }

    /// Checks that pieces that have arrived stay as they are, and that all arrive once nothing fails any
    /// more.
    fn check(&self) {
        assert!(self.known() <= self.recv.done(), "a piece is freed that has not arrived");
        for at in &self.arrived {
            assert_eq!(self.places[*at], Some(*at), "the wrong piece");
        }
        let mut world = self.clone();
        let all = if world.may_end == [true; 2] || world.places.len() == world.first {
            0..world.first
        } else {
            (0..2).filter(|end| self.may_end[*end]).for_each(|end| world.end(end));
            if !world.is_announced {
                world.announce();
            }
            world.first..world.places.len()
        };
        while let Some(end) = (0..2).find(|end| world.is_outdated(*end)) {
            world.begin(end);
        }
        world.is_up = [true; 2];
        for _ in 0..12 {
            while world.is_anything_under_way() {
                for (to, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    world.arrive(to, rail);
                }
            }
            while world.can_hand_over() {
                world.take(Step::HandOver);
            }
            world.send.arrived_before(world.recv.done());
            if world.handed_over.iter().copied().filter(|at| all.contains(at)).eq(all.clone()) {
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

/// Returns a piece of a stream, which belongs to a place.
fn piece(stream: u32, place: usize) -> SendPiece {
    SendPiece { at: place, len: 1, stage: None, stream, crc: 0, digest: 0 }
}

#[test]
fn a_stream_that_ends_leaves_memory_alone_and_the_queues_to_the_next_one() {
    explore(76_000, World { last_epoch: 3, ..World::with_two_streams(2, 2) });
    explore(64_000, World { losses: 1, last_epoch: 3, ..World::with_two_streams(1, 2) });
    explore(82_000, World { begins: 1, last_epoch: 3, ..World::with_two_streams(1, 1) });
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
