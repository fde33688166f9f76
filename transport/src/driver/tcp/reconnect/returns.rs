//! The return of data to the cables that it should take, and the warnings about them.

use super::{
    super::{
        connection_table::Key,
        dialer::Dialer,
        resume::{Loss, Phase},
        routes::Route,
    },
    MAX_RETURN_DOUBLINGS, RETURN_DELAY, Reconnects, Task,
};
use std::{collections::VecDeque, time::Instant};

impl Reconnects {
    /// Records whether the preferred cable works; if that has changed, voids earlier probes and warns.
    pub(super) fn note_path(
        &self,
        key: Key,
        at: Option<usize>,
        routes: &VecDeque<Route>,
        loss: Option<Loss>,
    ) {
        let preferred = routes.front().filter(|preferred| preferred.device.is_some());
        let (Some(preferred), Some(at)) = (preferred, at) else { return };
        let path = (key.peer, preferred.clone());
        let name = preferred.name();
        let probes = &self.channels.connections.probes;
        if at == 0 {
            if self.channels.note_up(&path) {
                probes.forget();
                self.on_warning.warn(&format!("{name} to rank {} works again", key.peer));
            }
        } else if self.channels.note_down(path) {
            probes.forget();
            self.on_warning.warn(&format!(
                "{name} to rank {} does not work ({}); its data takes {}",
                key.peer,
                loss.map_or_else(|| "the connection broke".to_owned(), |loss| loss.to_string()),
                routes[at].name()
            ));
        }
    }

    pub(super) fn plan_return(&mut self, key: Key, now: Instant) {
        let losses = self.losses.get(&key).map_or(0, |losses| losses.count);
        self.returns.push((key, now + RETURN_DELAY * (1 << losses.min(MAX_RETURN_DOUBLINGS))));
    }

    /// Tries the paths that are preferred to the present ones.
    pub(super) fn start_returns(&mut self, dialer: &Dialer) {
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.returns).into_iter().partition(|(_, at)| *at <= now);
        self.returns = later;
        let due: Vec<(Key, Instant)> = due;
        for (key, _) in due {
            let Some(channel) = self.channels.channel(key) else { continue };
            let (phase, present) = {
                let inner = channel.lock();
                (inner.phase(), inner.route().cloned())
            };
            if phase != Phase::Running || self.tasks.iter().any(|task| task.key == key) {
                // The connection that is being made plans anew.
                continue;
            }
            let mut routes = dialer.routes.to(key.peer, key.stripe);
            let at = routes.iter().position(|route| Some(route) == present.as_ref()).unwrap_or(routes.len());
            routes.truncate(at);
            routes.retain(|route| route.device.as_ref().is_some_and(|device| device.is_running()));
            if routes.is_empty() {
                self.plan_return(key, now);
                continue;
            }
            self.tasks.push(Task {
                key,
                is_return: true,
                is_replacement: true,
                attempt: None,
                is_started: false,
                routes,
                route: None,
                until: now,
                deadline: now + dialer.config.peer_timeout,
                attempts: 0,
                refusals: 0,
                errors: Vec::new(),
            });
        }
    }
}
