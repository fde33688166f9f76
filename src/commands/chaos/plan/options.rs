//! Options of the library in a round: unusual values meet unusual states.

use super::Round;
use crate::reference::Random;

/// Chooses the options of all ranks.
pub(super) fn choose(round: &mut Round, random: &mut Random) {
    let seconds = |time: std::time::Duration| time.as_secs_f64().to_string();
    let setting = round.setting.clone();
    let mut put = |name: &'static str, value: &str| round.options.push((name, value.to_owned()));
    put("TBCCL_TRANSPORT", setting.transport.name());
    put("TBCCL_TIMEOUT", &seconds(round.timeout));
    // Over devices with remote write each communicator stages 2 MiB per lane and peer.
    put("TBCCL_SLAB_BYTES", "256M");
    // Ranks are on this machine, whatever they believe.
    put("TBCCL_INTERFACE", "127.0.0.1");
    if random.happens(1, 4) {
        put("TBCCL_NUMERICS", "reproducible");
    }
    if random.happens(1, 4) {
        put("TBCCL_DIRECT_MIN_BYTES", "1");
    }
    if setting.shares_memory() {
        match random.below(6) {
            0 | 1 => {
                put("TBCCL_PIECE_BYTES", "512");
                put("TBCCL_STAGING_BYTES", "2048");
            }
            2 => put("TBCCL_PULL_MIN_BYTES", "1"),
            3 => put("TBCCL_PULL", "0"),
            _ => {}
        }
        if random.happens(1, 3) {
            put("TBCCL_STAGING_BUFFERS", random.pick(&["0", "1", "3"]));
        }
        if random.happens(1, 3) {
            put("TBCCL_STAGING_STORES", random.pick(&["cached", "fetched", "streamed"]));
        }
    }
    if setting.has_tcp() {
        match random.below(4) {
            0 => put("TBCCL_TCP_SOCKETS", "1"),
            1 => put("TBCCL_TCP_SOCKETS", "3"),
            2 => put("TBCCL_TCP_BUFFER_BYTES", "256K"),
            _ => {}
        }
        if random.happens(1, 4) {
            put("TBCCL_SECURITY", "encrypt");
        }
    }
    if random.happens(1, 4) {
        put("TBCCL_STREAM_MIN_BYTES", "1");
    }
    if setting.has_devices() {
        choose_for_devices(round, random);
    }
}

fn choose_for_devices(round: &mut Round, random: &mut Random) {
    // Apple's devices have unreliable connections only.
    let is_unreliable = round.setting.fabric_name() == Some("apple-tb5") || random.happens(1, 2);
    let is_known =
        round.setting.fabric_name().is_some_and(|name| super::super::settings::PROFILES.contains(&name));
    round.is_unreliable = is_unreliable && is_known;
    let mut put = |name: &'static str, value: &str| round.options.push((name, value.to_owned()));
    if is_known {
        put("TBCCL_RDMA_SERVICE", if is_unreliable { "uc" } else { "rc" });
    }
    put("TBCCL_CABLE_WAIT", &Round::CABLE_WAIT.as_secs_f64().to_string());
    put("SOFTRDMA_REMAP", random.pick(&["0", "1"]));
    match random.below(8) {
        0 => put("TBCCL_RDMA_PIECE_BYTES", "4096"),
        1 => put("TBCCL_RDMA_PIECE_BYTES", "16384"),
        2 => put("TBCCL_RDMA_WINDOW", "1"),
        3 => put("TBCCL_KEEP_ALIVE", "0.05"),
        4 => put("TBCCL_POLL_EVENTS", "0"),
        5 => put("TBCCL_POLL_EVENT_PERCENT", "100"),
        _ => {}
    }
}

impl Round {
    /// Returns the value of an option of the round.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rounds;
    use tbccl::OPTIONS;

    #[test]
    fn options_are_those_of_the_library_or_of_the_device() {
        for round in rounds(200) {
            for (name, value) in &round.options {
                let is_known = OPTIONS.iter().any(|option| option.env == *name);
                assert!(is_known || name.starts_with("SOFTRDMA_"), "{name}={value}");
            }
        }
    }
}
