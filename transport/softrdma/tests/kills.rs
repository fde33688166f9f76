//! Processes killed at random moments: other processes continue, and nothing of the killed ones remains.

mod common;

use common::{Fabric, finish};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Returns a moment within a fifth of a second, different in each round.
fn moment(round: u64) -> Duration {
    Duration::from_micros(30_000 + round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 170_000)
}

#[test]
fn survivors_go_on_and_nothing_stays() {
    for fabric in [Fabric::new(None), Fabric::new(None).with_shared_pages()] {
        let bystanders = fabric.start("ib_send_lat", &["-F", "-D", "8"]);
        let until = Instant::now() + Duration::from_secs(6);
        let programs = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat"];
        for (round, program) in (0u64..).zip(programs.iter().cycle()) {
            if Instant::now() > until {
                break;
            }
            let mut ends = fabric.start(program, &["-F", "-D", "20"]);
            thread::sleep(moment(round));
            let victim = round as usize % 2;
            ends[victim].kill().expect("our child");
            let [server, client] = ends;
            let soon = Instant::now() + Duration::from_secs(10);
            let (mut server, mut client) = (server, client);
            if victim == 0 && program != &"ib_send_lat" {
                // The client's requests fail, and its output says so.
                server.wait().expect("our child");
                let finished = finish(client, soon);
                assert!(
                    finished.ended_in_time && !finished.succeeded,
                    "{program}: the client of a dead server went on\n{}",
                    finished.text
                );
            } else {
                // A process that waits for a message does not learn of its sender's death; it must still end
                // on a signal.
                for end in [&mut server, &mut client] {
                    end.kill().expect("our child");
                    end.wait().expect("our child");
                }
            }
        }
        for (end, role) in bystanders.into_iter().zip(["server", "client"]) {
            let end = finish(end, Instant::now() + Duration::from_secs(30));
            assert!(end.succeeded, "a {role} that had nothing to do with it failed\n{}", end.text);
        }
        fabric.assert_clean();
    }
}
