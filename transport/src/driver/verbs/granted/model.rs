//! Exhaustive check of both ends of a stream: all orders of grants, writes, losses, damage, repeats, and of
//! rails that fall and come back.
//!
//! Grants, pieces and the order of sequenced messages are those of the real code. This model takes the place
//! of rails, queue pairs, completion queues and memory.
//!
//! A queue pair keeps its order, so writes and messages share a queue for each rail and direction. What
//! leaves it is in the receiver's memory, and the receiver finds it later, in the completion queue of the
//! rail. Messages are sequenced: they are repeated while they may be lost, and are taken in order and once.
//! An end that falls drops its completions, and everything on its way to it; what it has sent itself may
//! still arrive in part. The device reads the bytes of a piece when it writes them.

use super::{
    receive::{Came, GrantedRecv},
    send::{GrantedSend, SendPiece},
};
use crate::driver::verbs::{
    explore::{Model, explore},
    sequence::RecvSequence,
    staging::no_staging,
    wire::{Grant, Mark, is_before},
};
use bytemuck::Zeroable;
use std::collections::VecDeque;

const SENDER: usize = 0;
const RECEIVER: usize = 1;
const ENDS: [usize; 2] = [SENDER, RECEIVER];
const RAILS: usize = 2;
const DIGEST: u64 = 7;

/// A sequenced message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Control {
    Grant(Grant),
    Sent(Mark),
    Arrived(Mark),
    Down { rail: u8, life: u8 },
}

/// A request on its way, or its completion at the receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Item {
    Write { grant: Grant, is_whole: bool },
    Control { number: u32, control: Control },
}

/// A sequenced message that the peer has not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Unheard {
    number: u32,
    control: Control,
    pinned: Option<u8>,
    /// The rail by which it was last sent.
    sent_by: Option<usize>,
}

/// Bytes of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    Nothing,
    Damaged,
    /// The piece of this number.
    Piece(u32),
}

#[derive(Clone, Hash)]
struct World {
    is_reliable: bool,
    has_checksums: bool,
    /// Whether the place of a message that was heard takes the next message even while a copy of the first is
    /// queued, as it did once: the device then sends the next message in place of the copy.
    reuses_places: bool,
    pieces: u32,
    window: usize,
    send: GrantedSend,
    recv: GrantedRecv,
    /// Items on their way to an end, by rail.
    ways: [[VecDeque<Item>; RAILS]; 2],
    /// Completions that an end has not polled, by rail.
    completions: [[VecDeque<Item>; RAILS]; 2],
    /// Pieces whose writes have completed at the sender, by rail.
    confirmed: [VecDeque<u32>; RAILS],
    is_up: [[bool; RAILS]; 2],
    lives: [u8; RAILS],
    /// Number of messages that an end has sent.
    controls: [u32; 2],
    /// Messages of an end.
    unheard: [Vec<Unheard>; 2],
    heard: [RecvSequence<(Control, usize)>; 2],
    /// The rail that the receiver grants next, if it is up.
    turn: usize,
    places: Vec<Content>,
    is_complete: Vec<bool>,
    handed_over: u32,
    /// Events that may still happen.
    losses: u8,
    damages: u8,
    repeats: u8,
    falls: u8,
    turns: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The sender posts what it may.
    Post,
    /// The device delivers the first item of a rail to an end.
    Arrive {
        to: usize,
        rail: usize,
    },
    Damage {
        rail: usize,
    },
    Lose {
        to: usize,
        rail: usize,
    },
    /// An end takes the first completion of a rail.
    Poll {
        end: usize,
        rail: usize,
    },
    /// The sender takes the first completion of its writes.
    Confirm(usize),
    /// The sender learns how many pieces have arrived.
    Done,
    HandOver,
    /// An end repeats its message at an index.
    Repeat {
        end: usize,
        index: usize,
    },
    /// An end falls. Of the items that it has sent `kept` may still arrive.
    Fall {
        end: usize,
        rail: usize,
        kept: usize,
    },
    Return(usize),
    /// Another rail is granted next.
    Turn,
}

impl World {
    fn new(pieces: u32, is_reliable: bool, has_checksums: bool) -> World {
        let (send, recv) = no_staging();
        let mut world = World {
            is_reliable,
            has_checksums,
            reuses_places: false,
            pieces,
            window: 2,
            send: GrantedSend::new(send),
            recv: GrantedRecv::new(recv),
            ways: Default::default(),
            completions: Default::default(),
            confirmed: Default::default(),
            is_up: [[true; RAILS]; 2],
            lives: [0; RAILS],
            controls: [0; 2],
            unheard: Default::default(),
            heard: [RecvSequence::new(), RecvSequence::new()],
            turn: 0,
            places: vec![Content::Nothing; pieces as usize],
            is_complete: vec![false; pieces as usize],
            handed_over: 0,
            losses: 0,
            damages: 0,
            repeats: 0,
            falls: 0,
            turns: 1,
        };
        assert_eq!(world.recv.announce(DIGEST, pieces as usize, Some(0)), 0);
        world.grant_more();
        world
    }

    /// As in `Rules::completions_confirm`.
    fn completions_confirm(&self) -> bool {
        self.is_reliable && !self.has_checksums
    }

    /// As in `Peer::active`.
    fn active(&self, end: usize) -> Option<usize> {
        (0..RAILS).find(|rail| self.is_up[end][*rail])
    }

    fn tell(&mut self, end: usize, control: Control, pinned: Option<u8>) {
        let number = self.controls[end];
        self.controls[end] += 1;
        if self.reuses_places {
            self.reuse_place(end, Item::Control { number, control });
        }
        self.unheard[end].push(Unheard { number, control, pinned, sent_by: None });
        self.flush(end);
    }

    /// Puts a message into the place of one that was heard, of which a copy is queued.
    fn reuse_place(&mut self, end: usize, next: Item) {
        let heard = &self.heard[1 - end];
        let is_copy = |item: &&mut Item| matches!(item, Item::Control { number, .. } if heard.has(*number));
        if let Some(item) = self.ways[1 - end].iter_mut().flatten().find(is_copy) {
            *item = next;
        }
    }

    /// As in `Peer::post_unsent`.
    fn flush(&mut self, end: usize) {
        let active = self.active(end);
        for unheard in self.unheard[end].iter_mut().filter(|unheard| unheard.sent_by.is_none()) {
            let pinned = unheard.pinned.map(usize::from).filter(|rail| self.is_up[end][*rail]);
            let Some(rail) = pinned.or(active) else { return };
            unheard.sent_by = Some(rail);
            let Unheard { number, control, .. } = *unheard;
            self.ways[1 - end][rail].push_back(Item::Control { number, control });
        }
    }

    /// Whether a message is on its way, so that its repeat is a second copy.
    fn is_under_way(&self, end: usize, number: u32) -> bool {
        let to = 1 - end;
        let items = self.ways[to].iter().chain(&self.completions[to]).flatten();
        let is_it = |item: &Item| matches!(item, Item::Control { number: other, .. } if *other == number);
        items.copied().any(|item| is_it(&item)) || self.heard[to].has(number)
    }

    /// As in `Peer::best_rail`.
    fn best_rail(&self) -> Option<usize> {
        let up = |rail: &usize| self.is_up[RECEIVER][*rail];
        [self.turn, 1 - self.turn].into_iter().find(up)
    }

    /// As in `Peer::grant_piece`.
    fn grant_piece(&mut self, number: u32, rail: usize) {
        let life = self.lives[rail];
        let Some((piece, message)) = self.recv.grant(number, rail as u8, life) else { return };
        let grant = Grant {
            address: piece.at as u64,
            digest: message.digest,
            offset: piece.offset as u64,
            total: message.total as u64,
            piece: number,
            len: piece.len as u32,
            rail: piece.rail,
            attempt: piece.attempt,
            life: piece.life,
            ..Grant::zeroed()
        };
        self.tell(RECEIVER, Control::Grant(grant), None);
    }

    /// As in `Peer::grant_again`.
    fn grant_again(&mut self, number: u32) {
        if self.recv.begin_attempt(number).is_none() {
            return;
        }
        match self.best_rail() {
            Some(rail) => self.grant_piece(number, rail),
            None => self.recv.hold(number),
        }
    }

    /// As in `Peer::grant_more`.
    fn grant_more(&mut self) {
        while let (Some(number), Some(rail)) = (self.recv.first_held(), self.best_rail()) {
            self.grant_piece(number, rail);
        }
        while self.recv.first_held().is_none()
            && let Some((index, ..)) = self.recv.ungranted(0, self.window)
            && let Some(rail) = self.best_rail()
            && let Some(number) = self.recv.divide(index, 1)
        {
            self.grant_piece(number, rail);
        }
    }

    /// As in `Peer::regrant_rail`.
    fn regrant_rail(&mut self, rail: usize) {
        for number in self.recv.numbers() {
            if self.recv.is_void(number, rail, (self.lives[rail], self.is_up[RECEIVER][rail])) {
                self.grant_again(number);
            }
        }
        self.grant_more();
    }

    /// As in `Peer::settle`.
    fn settle_piece(&mut self, number: u32) {
        let Some((piece, crc)) = self.recv.unsettled(number) else { return };
        if self.has_checksums {
            if crc.is_none() {
                return;
            }
            if self.places[piece.at] != Content::Piece(number) {
                return self.grant_again(number);
            }
        }
        self.recv.complete(number);
        self.is_complete[number as usize] = true;
        self.grant_more();
    }

    /// Whether the sender may use a grant now.
    fn is_in_force(&self, grant: &Grant) -> bool {
        let rail = usize::from(grant.rail);
        self.is_up[SENDER][rail] && self.lives[rail] == grant.life
    }

    /// As in `Peer::post_piece`.
    fn post_piece(&mut self, grant: Grant) {
        self.ways[RECEIVER][usize::from(grant.rail)].push_back(Item::Write { grant, is_whole: true });
        if !self.is_reliable || self.has_checksums {
            let mark =
                Mark { piece: grant.piece, crc: grant.piece, stream: 0, attempt: grant.attempt.into() };
            self.tell(SENDER, Control::Sent(mark), Some(grant.rail));
        }
    }

    /// As in `Peer::repeat_pieces`; false when nothing can be done.
    fn repeat_piece(&mut self) -> bool {
        let Some(grant) = self.send.next_repetition() else { return false };
        match self.send.piece(grant.piece) {
            Some(piece) if !piece.has_arrived && piece.attempt != grant.attempt => {}
            Some(piece) if !piece.has_arrived && self.lives[usize::from(grant.rail)] != grant.life => {}
            Some(piece) if !piece.has_arrived => {
                if !self.is_in_force(&grant) {
                    return false;
                }
                self.post_piece(grant);
                self.send.repeated(&grant);
            }
            _ if self.completions_confirm() => self.tell_arrived(&grant),
            _ => {}
        }
        self.send.end_repetition(&grant);
        true
    }

    /// As in `Peer::send_piece`; false when nothing can be done.
    fn send_piece(&mut self) -> bool {
        let Some(grant) = self.send.next_grant() else { return false };
        if !self.is_in_force(&grant) || self.send.has_repetitions() {
            return false;
        }
        self.send.push(SendPiece {
            at: grant.piece as usize,
            len: 1,
            stage: None,
            has_arrived: false,
            digest: DIGEST,
            total: self.pieces.into(),
            crc: grant.piece,
            attempt: grant.attempt,
            rail: grant.rail,
        });
        self.post_piece(grant);
        self.send.end_grant(grant.piece);
        true
    }

    fn tell_arrived(&mut self, grant: &Grant) {
        let mark = Mark { piece: grant.piece, crc: 0, stream: 0, attempt: grant.attempt.into() };
        self.tell(SENDER, Control::Arrived(mark), None);
    }

    /// As in `Peer::take_grant`.
    fn take_grant(&mut self, grant: Grant) {
        if !is_before(grant.piece, self.send.end()) {
            assert!(self.send.keep_grant(grant));
            return;
        }
        match self.send.note_attempt(&grant) {
            Some(piece) if !piece.has_arrived => self.send.repeat(grant),
            piece => {
                assert!(self.completions_confirm(), "a grant for piece {} that it has had", grant.piece);
                assert!(piece.is_some() || self.send.is_freed(grant.piece));
                self.tell_arrived(&grant);
            }
        }
    }

    /// Executes the first item of a rail: its bytes are in memory then. An end that is down takes none.
    fn arrive(&mut self, to: usize, rail: usize) {
        let Some(item) = self.ways[to][rail].pop_front() else { return };
        if !self.is_up[to][rail] {
            return;
        }
        if let Item::Write { grant, is_whole } = item {
            let number = grant.piece;
            assert!(!self.is_complete[number as usize], "piece {number} is written after it has arrived");
            assert!(self.send.piece(number).is_some(), "piece {number} is read from memory in other use");
            let content = if is_whole { Content::Piece(number) } else { Content::Damaged };
            self.places[grant.address as usize] = content;
            if self.completions_confirm() && self.is_up[SENDER][rail] {
                self.confirmed[rail].push_back(number);
            }
        }
        self.completions[to][rail].push_back(item);
    }

    /// Takes the first completion of a rail.
    fn poll(&mut self, end: usize, rail: usize) {
        match self.completions[end][rail].pop_front() {
            Some(Item::Write { grant, .. }) => self.written(grant.piece, rail),
            Some(Item::Control { number, control }) => {
                self.unheard[1 - end].retain(|unheard| unheard.number != number);
                self.heard[end].accept(number, (control, rail));
                while let Some((control, rail)) = self.heard[end].pop() {
                    self.hear(end, control, rail);
                }
            }
            None => {}
        }
    }

    /// As in `Peer::written`.
    fn written(&mut self, number: u32, rail: usize) {
        assert!(self.recv.piece(number).is_some(), "piece {number} was not granted");
        assert!(self.recv.written(number, rail).is_some(), "piece {number} has arrived twice");
        self.settle_piece(number);
    }

    fn hear(&mut self, end: usize, control: Control, rail: usize) {
        match control {
            Control::Grant(grant) => self.take_grant(grant),
            Control::Sent(mark) => match self.recv.was_sent(&mark, rail) {
                Came::Stale => {}
                Came::Lost => self.grant_again(mark.piece),
                Came::Noted => self.settle_piece(mark.piece),
            },
            Control::Arrived(mark) => {
                if self.recv.had_arrived(mark.piece).is_some() {
                    self.settle_piece(mark.piece);
                }
            }
            Control::Down { rail, life } => {
                let rail = usize::from(rail);
                if self.is_up[end][rail] && self.lives[rail] == life {
                    self.fence(end, rail, 0);
                    self.go_on_without(end, rail);
                }
            }
        }
    }

    /// Makes the queue pair of an end dead.
    fn fence(&mut self, end: usize, rail: usize, kept: usize) {
        self.is_up[end][rail] = false;
        self.ways[end][rail].clear();
        self.completions[end][rail].clear();
        self.ways[1 - end][rail].truncate(kept);
        for unheard in &mut self.unheard[end] {
            unheard.sent_by = unheard.sent_by.filter(|sent_by| *sent_by != rail);
        }
        if end == SENDER {
            self.send.forget_rail(rail);
            self.confirmed[rail].clear();
        }
    }

    /// As in `Peer::go_on_without`.
    fn go_on_without(&mut self, end: usize, rail: usize) {
        if end == RECEIVER {
            self.regrant_rail(rail);
        }
        self.flush(end);
    }

    /// As in `Peer::take_down`.
    fn fall(&mut self, end: usize, rail: usize, kept: usize) {
        self.fence(end, rail, kept);
        self.tell(end, Control::Down { rail: rail as u8, life: self.lives[rail] }, None);
        self.go_on_without(end, rail);
    }

    /// Makes a rail new at both ends. The handshake has told the end that did not know.
    fn come_back(&mut self, rail: usize) {
        for end in ENDS {
            if self.is_up[end][rail] {
                self.fence(end, rail, 0);
                self.go_on_without(end, rail);
            }
        }
        self.ways.iter_mut().for_each(|ways| ways[rail].clear());
        self.lives[rail] += 1;
        ENDS.into_iter().for_each(|end| self.is_up[end][rail] = true);
        self.regrant_rail(rail);
        ENDS.into_iter().for_each(|end| self.flush(end));
    }

    fn repeat(&mut self, end: usize, index: usize) {
        let number = self.unheard[end][index].number;
        if self.is_under_way(end, number) {
            self.repeats -= 1;
        }
        self.unheard[end][index].sent_by = None;
        self.flush(end);
    }

    /// Hands over the next piece, if it has arrived.
    fn hand_over(&mut self) -> bool {
        let Some(piece) = self.recv.pop(Some(0)) else { return false };
        assert_eq!((piece.offset, piece.at), (self.handed_over as usize, self.handed_over as usize));
        assert_eq!(self.places[piece.at], Content::Piece(self.handed_over), "bytes that are handed over");
        self.handed_over += 1;
        self.grant_more();
        true
    }

    /// Lets nothing fail any more, and checks that all pieces arrive.
    fn settle(mut self) {
        for _ in 0..20 {
            for rail in 0..RAILS {
                if ENDS.iter().any(|end| !self.is_up[*end][rail]) {
                    self.come_back(rail);
                }
                for end in ENDS {
                    (0..self.ways[end][rail].len()).for_each(|_| self.arrive(end, rail));
                    (0..self.completions[end][rail].len()).for_each(|_| self.poll(end, rail));
                }
                (0..self.confirmed[rail].len()).for_each(|_| self.confirm(rail));
            }
            while self.repeat_piece() || self.send_piece() || self.hand_over() {}
            for end in ENDS {
                for index in 0..self.unheard[end].len() {
                    if !self.is_under_way(end, self.unheard[end][index].number) {
                        self.repeat(end, index);
                    }
                }
            }
            self.send.arrived_before(self.recv.done());
        }
        assert!(self.handed_over == self.pieces && self.send.is_idle(), "pieces do not arrive");
    }

    /// As in `Queue::complete`.
    fn confirm(&mut self, rail: usize) {
        if let Some(number) = self.confirmed[rail].pop_front() {
            self.send.arrived(number, rail);
        }
    }

    /// The first piece that the sender keeps.
    fn known(&self) -> u32 {
        (0..self.pieces).find(|number| !self.send.is_freed(*number)).unwrap_or(self.pieces)
    }
}

impl Model for World {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut posted = self.clone();
        if posted.repeat_piece() || posted.send_piece() {
            steps.push(Step::Post);
        }
        for rail in 0..RAILS {
            for end in ENDS {
                let way = &self.ways[end][rail];
                if let Some(first) = way.front() {
                    steps.push(Step::Arrive { to: end, rail });
                    if self.losses > 0 {
                        steps.push(Step::Lose { to: end, rail });
                    }
                    if self.damages > 0 && matches!(first, Item::Write { is_whole: true, .. }) {
                        steps.push(Step::Damage { rail });
                    }
                }
                if !self.completions[end][rail].is_empty() {
                    steps.push(Step::Poll { end, rail });
                }
                if self.falls > 0 && self.is_up[end][rail] {
                    let kept = 0..=self.ways[1 - end][rail].len();
                    steps.extend(kept.map(|kept| Step::Fall { end, rail, kept }));
                }
            }
            if !self.confirmed[rail].is_empty() {
                steps.push(Step::Confirm(rail));
            }
            if ENDS.iter().any(|end| !self.is_up[*end][rail]) {
                steps.push(Step::Return(rail));
            }
        }
        if !self.completions_confirm() && is_before(self.known(), self.recv.done()) {
            steps.push(Step::Done);
        }
        if self.recv.clone().pop(Some(0)).is_some() {
            steps.push(Step::HandOver);
        }
        for end in ENDS {
            for (index, unheard) in self.unheard[end].iter().enumerate() {
                let is_lost = !self.is_under_way(end, unheard.number);
                if unheard.sent_by.is_some() && (is_lost || self.repeats > 0) {
                    steps.push(Step::Repeat { end, index });
                }
            }
        }
        if self.turns > 0 {
            steps.push(Step::Turn);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Post => _ = self.repeat_piece() || self.send_piece(),
            Step::Arrive { to, rail } => self.arrive(to, rail),
            Step::Damage { rail } => {
                self.damages -= 1;
                if let Some(Item::Write { is_whole, .. }) = self.ways[RECEIVER][rail].front_mut() {
                    *is_whole = false;
                }
            }
            Step::Lose { to, rail } => {
                self.losses -= 1;
                self.ways[to][rail].pop_front();
            }
            Step::Poll { end, rail } => self.poll(end, rail),
            Step::Confirm(rail) => self.confirm(rail),
            Step::Done => self.send.arrived_before(self.recv.done()),
            Step::HandOver => _ = self.hand_over(),
            Step::Repeat { end, index } => self.repeat(end, index),
            Step::Fall { end, rail, kept } => {
                self.falls -= 1;
                self.fall(end, rail, kept);
            }
            Step::Return(rail) => self.come_back(rail),
            Step::Turn => {
                self.turns -= 1;
                self.turn = 1 - self.turn;
            }
        }
    }

    fn check(&self) {
        self.clone().settle();
    }
}

#[test]
fn pieces_arrive_once_and_whole_whatever_is_lost_damaged_and_repeated() {
    explore(7_700, World { losses: 1, repeats: 1, ..World::new(2, false, true) });
    explore(1_300, World { losses: 2, repeats: 1, ..World::new(1, false, true) });
    explore(1_690, World { damages: 1, losses: 1, repeats: 1, ..World::new(1, false, true) });
    explore(1_750, World { damages: 2, ..World::new(2, false, true) });
    explore(1_930, World { losses: 2, repeats: 1, ..World::new(1, false, false) });
    explore(1_500, World { losses: 1, ..World::new(2, false, false) });
}

#[test]
fn pieces_arrive_once_and_whole_whichever_rail_falls() {
    explore(44_400, World { falls: 1, ..World::new(3, true, false) });
    explore(29_300, World { falls: 2, ..World::new(1, true, false) });
    explore(14_000, World { falls: 1, ..World::new(2, true, true) });
    explore(14_000, World { falls: 1, ..World::new(2, false, true) });
    explore(7_100, World { falls: 1, losses: 1, ..World::new(1, false, true) });
    explore(41_700, World { falls: 1, damages: 1, repeats: 1, ..World::new(1, false, true) });
    explore(9_700, World { falls: 1, losses: 1, ..World::new(1, false, false) });
}

/// The checksum of a piece then arrives before the piece, which is granted again and written twice.
#[test]
#[should_panic(expected = "has arrived twice")]
fn a_place_that_is_used_again_too_early_writes_a_piece_twice() {
    explore(1, World { reuses_places: true, repeats: 1, turns: 0, ..World::new(2, false, true) });
}
