//! How fast what is under way gets on: links shared in equal parts.
//!
//! Every peer and lane is a stream that sends one piece after the other. The streams that cross a link share it equally; a
//! stream is as fast as its smallest share. What a stream leaves over because another link holds it up is not given to others,
//! as max-min fairness would give it. That is chosen for two reasons. A change is felt by the streams of the links that
//! it touches and by no others, so an event costs a few steps however large the cluster is. And one stream more makes
//! no other one faster, so that results are monotonous where max-min fairness has paradoxes. The two agree wherever the
//! streams of a link are held up by the same thing, as in all the plans here; elsewhere this is on the careful side.
//!
//! Invariants: rates are only changed in [`Network::settle`], which is called once after all events of a time, so that
//! streams that begin together cost one look and not one each.

use super::event::{Event, Events};
use topology::{Cluster, Route};

/// The traffic of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkUse {
    /// Bytes that have crossed it, with headers.
    pub bytes: u64,
    /// Seconds in which it had something to carry.
    pub busy: f64,
    /// The most streams that shared it at a time.
    pub most: u32,
}

#[derive(Debug)]
struct Share {
    capacity: f64,
    /// The streams under way on it, with the place of this link on each one's route.
    streams: Vec<(u32, u8)>,
    since: f64,
    used: LinkUse,
    dirty: bool,
}

#[derive(Clone, Debug)]
struct Flow {
    route: Route,
    /// Its position among the streams of each link of its route.
    places: [u32; Route::MOST],
    left: f64,
    /// The bytes of pieces that are to follow.
    queued: u64,
    rate: f64,
    /// When `left` was true.
    since: f64,
    /// The latest word about when it is done.
    word: u32,
    is_under_way: bool,
    mark: u32,
}

/// Links and the streams that cross them.
#[derive(Debug)]
pub(super) struct Network {
    links: Vec<Share>,
    flows: Vec<Flow>,
    dirty: Vec<u32>,
    /// Streams without any link, which nothing else would look at.
    fresh: Vec<u32>,
    mark: u32,
}

impl Network {
    pub(super) fn new(cluster: &Cluster) -> Network {
        let link = |link: &topology::Link| Share {
            capacity: link.bytes_per_second,
            streams: Vec::new(),
            since: 0.0,
            used: LinkUse::default(),
            dirty: false,
        };
        let links = cluster.links().iter().map(link).collect();
        Network { links, flows: Vec::new(), dirty: Vec::new(), fresh: Vec::new(), mark: 0 }
    }

    /// Adds a stream; they are numbered in a row.
    pub(super) fn add(&mut self, route: Route) {
        let places = [0; Route::MOST];
        let (left, rate, since) = (0.0, 0.0, 0.0);
        let flow =
            Flow { route, places, left, queued: 0, rate, since, word: 0, is_under_way: false, mark: 0 };
        self.flows.push(flow);
    }

    /// The seconds between a stream's ends.
    pub(super) fn latency(&self, stream: u32) -> f64 {
        self.flows[stream as usize].route.latency
    }

    /// Whether a piece of the stream is leaving.
    pub(super) fn is_under_way(&self, stream: u32) -> bool {
        self.flows[stream as usize].is_under_way
    }

    /// A piece is to leave behind the one that does.
    pub(super) fn follow(&mut self, stream: u32, bytes: u64) {
        self.flows[stream as usize].queued += bytes;
    }

    /// How long it takes until all has left that is to cross the links of a route, at the worst of them.
    pub(super) fn backlog(&self, route: &Route, now: f64) -> f64 {
        let of_stream = |(stream, _): &(u32, u8)| {
            let flow = &self.flows[*stream as usize];
            flow.queued as f64 + (flow.left - flow.rate * (now - flow.since)).max(0.0)
        };
        let of_link = |link: &u32| {
            let link = &self.links[*link as usize];
            link.streams.iter().map(of_stream).sum::<f64>() / link.capacity
        };
        route.links().iter().map(of_link).fold(0.0, f64::max)
    }

    /// A piece begins to leave.
    pub(super) fn begin(&mut self, stream: u32, bytes: u64, now: f64) {
        let flow = &mut self.flows[stream as usize];
        (flow.left, flow.since, flow.rate, flow.is_under_way) = (bytes as f64, now, 0.0, true);
        if flow.route.links().is_empty() {
            self.fresh.push(stream);
        }
        for place in 0..flow.route.links().len() {
            let number = flow.route.links()[place];
            let link = &mut self.links[number as usize];
            if link.streams.is_empty() {
                link.since = now;
            }
            flow.places[place] = link.streams.len() as u32;
            link.streams.push((stream, place as u8));
            link.used.most = link.used.most.max(link.streams.len() as u32);
            if !std::mem::replace(&mut link.dirty, true) {
                self.dirty.push(number);
            }
        }
    }

    /// Whether this is the latest event of a stream.
    pub(super) fn is_true(&self, stream: u32, word: u32) -> bool {
        let flow = &self.flows[stream as usize];
        flow.is_under_way && flow.word == word
    }

    /// A piece of this many bytes has left, and the next one follows at once.
    pub(super) fn go_on(&mut self, stream: u32, (bytes, next): (u64, u64), now: f64, events: &mut Events) {
        self.count(stream, bytes);
        let flow = &mut self.flows[stream as usize];
        (flow.left, flow.since) = (next as f64, now);
        flow.queued -= next;
        flow.word += 1;
        let Flow { left, rate, word, .. } = *flow;
        events.at(now + left / rate, Event::Left { stream, word });
    }

    /// A piece of this many bytes has left, and nothing follows.
    pub(super) fn end(&mut self, stream: u32, bytes: u64, now: f64) {
        self.count(stream, bytes);
        self.flows[stream as usize].is_under_way = false;
        let Flow { route, places, .. } = self.flows[stream as usize].clone();
        for (number, place) in route.links().iter().zip(places) {
            let link = &mut self.links[*number as usize];
            link.streams.swap_remove(place as usize);
            if let Some((moved, at)) = link.streams.get(place as usize).copied() {
                self.flows[moved as usize].places[usize::from(at)] = place;
            }
            if link.streams.is_empty() {
                link.used.busy += now - link.since;
            } else if !std::mem::replace(&mut link.dirty, true) {
                self.dirty.push(*number);
            }
        }
    }

    fn count(&mut self, stream: u32, bytes: u64) {
        for link in self.flows[stream as usize].route.links() {
            self.links[*link as usize].used.bytes += bytes;
        }
    }

    /// Gives every stream its share, where that may have changed.
    pub(super) fn settle(&mut self, now: f64, events: &mut Events) {
        if self.dirty.is_empty() && self.fresh.is_empty() {
            return;
        }
        self.mark += 1;
        let dirty = std::mem::take(&mut self.dirty);
        for number in &dirty {
            self.links[*number as usize].dirty = false;
            for at in 0..self.links[*number as usize].streams.len() {
                let (stream, _) = self.links[*number as usize].streams[at];
                if self.flows[stream as usize].mark != self.mark {
                    self.flows[stream as usize].mark = self.mark;
                    self.look_at(stream, now, events);
                }
            }
        }
        self.dirty = dirty;
        self.dirty.clear();
        for stream in std::mem::take(&mut self.fresh) {
            self.look_at(stream, now, events);
        }
    }

    fn look_at(&mut self, stream: u32, now: f64, events: &mut Events) {
        let flow = &self.flows[stream as usize];
        let share = |link: &u32| {
            let link = &self.links[*link as usize];
            link.capacity / link.streams.len() as f64
        };
        let rate = flow.route.links().iter().map(share).fold(flow.route.most, f64::min);
        let flow = &mut self.flows[stream as usize];
        if rate == flow.rate {
            return;
        }
        if flow.rate > 0.0 {
            flow.left = (flow.left - flow.rate * (now - flow.since)).max(0.0);
        }
        (flow.rate, flow.since) = (rate, now);
        flow.word += 1;
        events.at(now + flow.left / rate, Event::Left { stream, word: flow.word });
    }

    /// The traffic of every link.
    pub(super) fn used(self) -> Vec<LinkUse> {
        self.links.into_iter().map(|link| link.used).collect()
    }
}
