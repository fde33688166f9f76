//! Rates of streams that share links in equal parts.
//!
//! Every peer and lane is a stream that sends one piece after the other. The streams that cross a link share
//! it equally; the rate of a stream is its smallest share. Capacity that a stream cannot use, because another
//! link limits it, is not given to other streams, as max-min fairness would do. This rule has two advantages.
//! A change affects only the streams of the changed links, so an event costs a few steps, however large the
//! cluster is. And an additional stream makes no other stream faster, so results are monotonic where max-min
//! fairness has paradoxes. Both rules agree wherever the streams of a link are limited by the same thing, as
//! in all plans of this crate; elsewhere this rule is pessimistic.
//!
//! Invariant: rates change only in [`Network::update_rates`], which runs once after all events of a time.
//! Streams that begin together therefore cost one update and not one each.

use super::event::{Event, Events};
use topology::{Cluster, Route};

/// The traffic of a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkUse {
    /// Bytes that have crossed it, with headers.
    pub bytes: u64,
    /// Seconds in which it carried bytes.
    pub busy: f64,
    /// Maximum number of streams that shared it at a time.
    pub max_streams: u32,
}

#[derive(Debug)]
struct Share {
    capacity: f64,
    /// The streams in flight on it, with the position of this link on each one's route.
    streams: Vec<(u32, u8)>,
    since: f64,
    used: LinkUse,
    dirty: bool,
}

#[derive(Clone, Debug)]
struct Flow {
    route: Route,
    /// Its position among the streams of each link of its route.
    places: [u32; Route::MAX_LINKS],
    left: f64,
    /// Bytes of pieces that follow.
    queued: u64,
    rate: f64,
    /// The time for which `left` holds.
    since: f64,
    /// Number of the latest prediction of its end.
    prediction: u32,
    is_under_way: bool,
    mark: u32,
}

/// Links and the streams that cross them.
#[derive(Debug)]
pub(super) struct Network {
    links: Vec<Share>,
    flows: Vec<Flow>,
    dirty: Vec<u32>,
    /// Streams without any link, which no link would update.
    unlinked: Vec<u32>,
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
        Network { links, flows: Vec::new(), dirty: Vec::new(), unlinked: Vec::new(), mark: 0 }
    }

    /// Adds a stream. Streams are numbered consecutively.
    pub(super) fn add(&mut self, route: Route) {
        let places = [0; Route::MAX_LINKS];
        let (left, rate, since) = (0.0, 0.0, 0.0);
        let flow =
            Flow { route, places, left, queued: 0, rate, since, prediction: 0, is_under_way: false, mark: 0 };
        self.flows.push(flow);
    }

    /// Returns the seconds between a stream's ends.
    pub(super) fn latency(&self, stream: u32) -> f64 {
        self.flows[stream as usize].route.latency
    }

    /// Whether a piece of the stream is leaving.
    pub(super) fn is_under_way(&self, stream: u32) -> bool {
        self.flows[stream as usize].is_under_way
    }

    /// Queues a piece behind the one that is leaving.
    pub(super) fn follow(&mut self, stream: u32, bytes: u64) {
        self.flows[stream as usize].queued += bytes;
    }

    /// Returns the time until all queued bytes have crossed the links of a route, at the slowest of them.
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

    /// Begins to send a piece.
    pub(super) fn begin(&mut self, stream: u32, bytes: u64, now: f64) {
        let flow = &mut self.flows[stream as usize];
        (flow.left, flow.since, flow.rate, flow.is_under_way) = (bytes as f64, now, 0.0, true);
        if flow.route.links().is_empty() {
            self.unlinked.push(stream);
        }
        for place in 0..flow.route.links().len() {
            let number = flow.route.links()[place];
            let link = &mut self.links[number as usize];
            if link.streams.is_empty() {
                link.since = now;
            }
            flow.places[place] = link.streams.len() as u32;
            link.streams.push((stream, place as u8));
            link.used.max_streams = link.used.max_streams.max(link.streams.len() as u32);
            if !std::mem::replace(&mut link.dirty, true) {
                self.dirty.push(number);
            }
        }
    }

    /// Whether `prediction` is the latest prediction of a stream's end.
    pub(super) fn is_current(&self, stream: u32, prediction: u32) -> bool {
        let flow = &self.flows[stream as usize];
        flow.is_under_way && flow.prediction == prediction
    }

    /// Accounts for a piece of this many bytes that has left, and continues with the next one.
    pub(super) fn continue_with(
        &mut self,
        stream: u32,
        (bytes, next): (u64, u64),
        now: f64,
        events: &mut Events,
    ) {
        self.count(stream, bytes);
        let flow = &mut self.flows[stream as usize];
        (flow.left, flow.since) = (next as f64, now);
        flow.queued -= next;
        flow.prediction += 1;
        let Flow { left, rate, prediction, .. } = *flow;
        events.at(now + left / rate, Event::Left { stream, prediction });
    }

    /// Accounts for a piece of this many bytes that has left, with no piece behind it.
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

    /// Updates the rates of all streams whose share may have changed.
    pub(super) fn update_rates(&mut self, now: f64, events: &mut Events) {
        if self.dirty.is_empty() && self.unlinked.is_empty() {
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
                    self.update_rate(stream, now, events);
                }
            }
        }
        self.dirty = dirty;
        self.dirty.clear();
        for stream in std::mem::take(&mut self.unlinked) {
            self.update_rate(stream, now, events);
        }
    }

    fn update_rate(&mut self, stream: u32, now: f64, events: &mut Events) {
        let flow = &self.flows[stream as usize];
        let share = |link: &u32| {
            let link = &self.links[*link as usize];
            link.capacity / link.streams.len() as f64
        };
        let rate = flow.route.links().iter().map(share).fold(flow.route.max_rate, f64::min);
        let flow = &mut self.flows[stream as usize];
        if rate == flow.rate {
            return;
        }
        if flow.rate > 0.0 {
            flow.left = (flow.left - flow.rate * (now - flow.since)).max(0.0);
        }
        (flow.rate, flow.since) = (rate, now);
        flow.prediction += 1;
        events.at(now + flow.left / rate, Event::Left { stream, prediction: flow.prediction });
    }

    /// Returns the traffic of every link.
    pub(super) fn used(self) -> Vec<LinkUse> {
        self.links.into_iter().map(|link| link.used).collect()
    }
}
