//! The state of a run, which is reused, so that running allocates nothing.

use super::program::Program;
use transport::{RecvState, SendState};

/// The progress of one stream. Positions are in the program's order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The first message that is not complete.
    pub(super) done: u32,
    /// The first message that is not begun and posted.
    pub(super) next: u32,
    /// The first message that has not been announced to the link; never before `next`.
    pub(super) announced: u32,
    /// The message being received, once it has been polled.
    pub(super) recv: Option<RecvState>,
}

/// The state of a run.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Per step: number of steps that it still waits for.
    pub(super) waits_for: Vec<u32>,
    /// Per step: the message being sent; `None` before it is begun and after it is complete.
    pub(super) sends: Vec<Option<SendState>>,
    pub(super) cursors: Vec<Cursor>,
    /// Per position: the announced message. Entries of a stream are valid from its `next` to its `announced`;
    /// others are leftovers, so that a run need not clear them.
    announcements: Vec<RecvState>,
    /// Local steps that may run.
    pub(super) ready: Vec<u32>,
    pub(super) remaining: usize,
    /// Steps for which there is room.
    room: usize,
}

impl Workspace {
    /// Makes room for a program, so that its later runs allocate nothing, whichever way they go.
    #[inline(always)]
    pub(super) fn make_room(&mut self, program: &Program) {
        if self.room < program.ops.len() {
            self.grow(program.ops.len());
        }
    }

    #[cold]
    fn grow(&mut self, steps: usize) {
        let Workspace { waits_for, sends, cursors, ready, .. } = self;
        for numbers in [waits_for, ready] {
            numbers.clear();
            numbers.reserve(steps);
        }
        sends.clear();
        sends.reserve(steps);
        // A stream has a message at least.
        cursors.clear();
        cursors.reserve(steps);
        self.room = steps;
    }

    #[inline(always)]
    pub(super) fn begin(&mut self, program: &Program, announces: bool) {
        self.waits_for.clear();
        self.waits_for.extend_from_slice(&program.waits_for);
        self.sends.clear();
        self.sends.resize(program.ops.len(), None);
        self.cursors.clear();
        self.cursors.extend(program.streams.iter().map(|s| Cursor {
            done: s.first,
            next: s.first,
            announced: s.first,
            recv: None,
        }));
        if announces && self.announcements.len() < program.order.len() {
            self.announcements.resize(program.order.len(), RecvState::new(0, 0));
        }
        self.ready.clear();
        self.ready.extend_from_slice(&program.first_local);
        self.remaining = program.ops.len();
    }

    /// Marks a step as complete, and makes the steps ready that waited for it alone.
    #[inline]
    pub(super) fn complete(&mut self, program: &Program, step: u32) {
        self.remaining -= 1;
        let (first, end) = program.ops[step as usize].dependents;
        for &dependent in &program.dependents[first as usize..end as usize] {
            let waits = &mut self.waits_for[dependent as usize];
            *waits -= 1;
            if *waits == 0 && program.ops[dependent as usize].kind.is_local() {
                self.ready.push(dependent);
            }
        }
    }

    /// Returns the state of the message that a stream receives next, if it was announced or begun.
    #[inline]
    pub(super) fn recv_state(&self, stream: usize) -> Option<RecvState> {
        let cursor = &self.cursors[stream];
        match cursor.recv {
            None if cursor.announced > cursor.next => Some(self.announcements[cursor.next as usize]),
            begun => begun,
        }
    }

    #[inline]
    pub(super) fn keep_recv_state(&mut self, stream: usize, state: RecvState) {
        self.cursors[stream].recv = Some(state);
    }

    /// Records that all messages of a stream up to `end` are complete.
    pub(super) fn pass(&mut self, stream: usize, end: u32) {
        let cursor = &mut self.cursors[stream];
        (cursor.done, cursor.next, cursor.announced) = (end, end, end);
    }

    /// Records that the first unannounced message of a stream has been announced to its link.
    pub(super) fn announced(&mut self, stream: usize, state: RecvState) {
        let cursor = &mut self.cursors[stream];
        self.announcements[cursor.announced as usize] = state;
        if cursor.announced == cursor.next {
            cursor.recv = None;
        }
        cursor.announced += 1;
    }

    /// Records that the message that a stream receives next has arrived.
    #[inline]
    pub(super) fn received(&mut self, stream: usize) {
        let cursor = &mut self.cursors[stream];
        cursor.recv = None;
        cursor.next += 1;
        cursor.done = cursor.next;
        cursor.announced = cursor.announced.max(cursor.next);
    }
}
