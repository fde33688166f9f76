//! Probes of queue pairs: depths, independence, reset, and new connections.

use super::{
    IDLE, LONG_BYTES, LONG_RECEIVES, Pair, SHORT_BYTES, SHORT_RECEIVES,
    end::{Device, End, Side},
    messages::{intact, said},
};
use crate::commands::selftest::{
    finding::{Probed, Trouble, broken},
    message::step,
};
use std::{
    thread,
    time::{Duration, Instant},
};
use transport::verbs::{Access, WcStatus};

/// Posts all receives of a rail, then sends into all of them.
pub(super) fn receive_depth(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let classes = match pair.device.capabilities.frame_bytes {
        Some(_) => vec![(SHORT_RECEIVES, SHORT_BYTES), (LONG_RECEIVES, LONG_BYTES)],
        None => vec![(SHORT_RECEIVES, LONG_BYTES)],
    };
    let stride = LONG_BYTES.next_multiple_of(SHORT_BYTES);
    let entries = |bytes: usize| pair.device.entries(bytes);
    let depths: Vec<_> = classes.iter().map(|(count, bytes)| (256, count * entries(*bytes))).collect();
    // The sends of a class reuse the entries of its send queue after a while.
    let at_a_time: Vec<u32> = classes.iter().map(|(_, bytes)| 200 / entries(*bytes)).collect();
    let total: u32 = classes.iter().map(|(count, _)| count).sum();
    let mut end = pair.connected(stride * total as usize, &depths)?;
    let mut place = 0;
    for (queue, (count, bytes)) in classes.iter().enumerate() {
        for index in 0..*count {
            let (at, id) = (place * stride, place as u64);
            if sends {
                end.fill(at, *bytes, id);
            } else {
                step(format!("posting receive {index} of {bytes} bytes"));
                end.receive(queue, id, end.run(at, *bytes))
                    .map_err(|error| broken(format!("only {index} of {count} receives: {error}")))?;
            }
            place += 1;
        }
    }
    pair.meet()?;
    if sends {
        let mut place = 0;
        for (queue, (count, bytes)) in classes.iter().enumerate() {
            step(format!("sending {count} messages of {bytes} bytes"));
            for index in 0..*count {
                if index >= at_a_time[queue] {
                    end.wait(Side::Sends, 1, "sends into posted receives")?;
                }
                end.send(queue, place as u64, end.run(place * stride, *bytes))?;
                place += 1;
            }
            end.wait(Side::Sends, at_a_time[queue].min(*count) as usize, "sends into posted receives")?;
        }
    } else {
        step("receiving into all posted receives");
        end.wait(Side::Receives, total as usize, "receives that were posted together")?;
        let lengths = classes.iter().flat_map(|(count, bytes)| std::iter::repeat_n(*bytes, *count as usize));
        for (place, bytes) in lengths.enumerate() {
            let subject = format!("message {place} of {total}");
            intact(&end, place * stride, (bytes, place as u64), &subject)?;
        }
    }
    pair.meet()?;
    let each: Vec<String> =
        classes.iter().map(|(count, bytes)| format!("{count} of {bytes} bytes")).collect();
    Ok(said(!sends, || each.join(", ")))
}

/// Lets a send wait on one queue pair while messages pass on another.
pub(super) fn independent(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const COUNT: u64 = 100;
    let mut end = pair.connected(2 * SHORT_BYTES, &[(256, SHORT_RECEIVES), (264, 264)])?;
    if sends {
        step("sending without a posted receive on one queue pair");
        end.fill(SHORT_BYTES, 2000, 3);
        end.send(1, 1000, end.run(SHORT_BYTES, 2000))?;
        end.fill(0, 64, 2);
        pair.meet()?;
        step("sending on another queue pair meanwhile");
        for id in 0..COUNT {
            end.send(0, id, end.run(0, 64))?;
        }
        end.wait(Side::Sends, COUNT as usize, "sends beside one that waits")?;
        pair.meet()?;
        end.wait(Side::Sends, 1, "the send that waited")?;
    } else {
        for id in 0..COUNT {
            end.receive(0, id, end.run(0, SHORT_BYTES))?;
        }
        pair.meet()?;
        end.wait(Side::Receives, COUNT as usize, "messages beside one that waits")?;
        end.receive(1, 1000, end.run(SHORT_BYTES, SHORT_BYTES))?;
        pair.meet()?;
        end.wait(Side::Receives, 1, "the message that waited")?;
        intact(&end, SHORT_BYTES, (2000, 3), "the message that waited")?;
    }
    pair.meet()?;
    Ok(said(!sends, || format!("{COUNT} messages passed one that waited")))
}

/// Fails and resets connected queue pairs with work on them, and connects them again.
pub(super) fn reset(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const LIVES: u64 = 5;
    let mut end = pair.connected(SHORT_BYTES * 16, &[(64, 64)])?;
    for life in 0..LIVES {
        step(format!("leaving work on a queue pair that is reset, life {life}"));
        if sends {
            // The peer has posted no receive: this message must never arrive.
            end.fill(0, 500, 99);
            end.send(0, 900 + life, end.run(0, 500))?;
        }
        pair.meet()?;
        end.queues[0].fail()?;
        end.queues[0].reset()?;
        // Both ends are dead before one of them is made new.
        pair.meet()?;
        step(format!("connecting a queue pair again, life {life}"));
        end.queues[0].initialize(Access::Remote)?;
        let first = life * 100;
        if !sends {
            for index in 0..16 {
                let at = index as usize * SHORT_BYTES;
                end.receive(0, first + index, end.run(at, SHORT_BYTES))?;
            }
        }
        pair.connect(&end)?;
        if sends {
            discard_old(&mut end, Side::Sends, first)?;
            for index in 0..16 {
                end.fill(index as usize * SHORT_BYTES, 300, first + index);
                end.send(0, first + index, end.run(index as usize * SHORT_BYTES, 300))?;
            }
            current(&mut end, Side::Sends, first)?;
        } else {
            current(&mut end, Side::Receives, first)?;
            for index in 0..16 {
                let subject = format!("message {index} after the reset of life {life}");
                intact(&end, index as usize * SHORT_BYTES, (300, first + index), &subject)?;
            }
        }
        pair.meet()?;
    }
    Ok(said(sends, || format!("{LIVES} lives of a queue pair")))
}

/// Drops completions of earlier lives, which the driver ignores.
fn discard_old(end: &mut End, side: Side, first: u64) -> Result<(), Trouble> {
    let found = end.poll(side)?;
    match found.into_iter().find(|completion| (first..first + 16).contains(&completion.id)) {
        Some(early) => Err(broken(format!("{early:?} of work that was not posted yet"))),
        None => Ok(()),
    }
}

/// Waits for 16 successful completions of this life; those of earlier lives are ignored.
fn current(end: &mut End, side: Side, first: u64) -> Result<(), Trouble> {
    let (until, mut count) = (Instant::now() + end.patience, 0);
    while count < 16 {
        for completion in end.poll(side)? {
            if (first..first + 16).contains(&completion.id) {
                super::end::success(completion, "a request after a reset")?;
                count += 1;
            }
        }
        if Instant::now() > until {
            return Err(broken(format!("{count} of 16 requests completed in time after a reset")));
        }
        thread::yield_now();
    }
    Ok(())
}

/// Goes on posting and polling while the peer's queue pair is gone.
pub(super) fn gone_peer(pair: &mut Pair<'_>, stays: bool) -> Probed {
    const WATCHED: Duration = Duration::from_millis(300);
    let mut end = pair.connected(2 * SHORT_BYTES, &[(16, 16)])?;
    if !stays {
        drop(end);
        pair.meet()?;
        pair.meet()?;
        return Ok(said(false, String::new));
    }
    end.receive(0, 1, end.run(0, SHORT_BYTES))?;
    pair.meet()?;
    step("posting to a queue pair whose peer is gone");
    let posted = end.send(0, 2, end.run(SHORT_BYTES, 48));
    step("polling after the peer is gone");
    let (until, mut seen) = (Instant::now() + WATCHED, Vec::new());
    while Instant::now() < until {
        for side in [Side::Sends, Side::Receives] {
            let found = end.poll(side)?;
            if let Some(ghost) = found.iter().find(|one| one.id == 1 && one.status == WcStatus::SUCCESS) {
                return Err(broken(format!("a message from a peer that is gone: {ghost:?}")));
            }
            seen.extend(found.iter().map(|one| format!("request {}: {:?}", one.id, one.status)));
        }
        thread::sleep(Duration::from_millis(1));
    }
    pair.meet()?;
    let posted = posted.map_or_else(|error| error.to_string(), |()| "accepted".to_owned());
    let text = if seen.is_empty() { "no completion".to_owned() } else { seen.join(", ") };
    Ok(said(true, || format!("a send is {posted}; {text}")))
}

/// Makes everything anew, connects, and sends a message, again and again.
pub(super) fn reconnection(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const TIMES: u64 = 10;
    for time in 0..TIMES {
        step(format!("opening the device and connecting, time {time}"));
        pair.device = Device::open(pair.library, &pair.name, pair.quick)?;
        let mut end = pair.connected(SHORT_BYTES, &[(16, 16)])?;
        if sends {
            end.fill(0, 128, time);
            pair.meet()?;
            end.send(0, 1, end.run(0, 128))?;
            end.wait(Side::Sends, 1, "a send over a new connection")?;
        } else {
            end.receive(0, 1, end.run(0, SHORT_BYTES))?;
            pair.meet()?;
            end.wait(Side::Receives, 1, "a message over a new connection")?;
            intact(&end, 0, (128, time), "a message over a new connection")?;
        }
        pair.meet()?;
    }
    Ok(said(sends, || format!("{TIMES} connections, one after the other")))
}

/// Leaves a connection idle, and uses it again.
pub(super) fn idle(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let idle = if pair.quick { Duration::from_millis(300) } else { IDLE };
    let mut end = pair.connected(SHORT_BYTES, &[(16, 16)])?;
    for time in 0..2u64 {
        if sends {
            end.fill(0, 200, time);
            pair.meet()?;
            end.send(0, time, end.run(0, 200))?;
            end.wait(Side::Sends, 1, "a send after the connection was idle")?;
        } else {
            end.receive(0, time, end.run(0, SHORT_BYTES))?;
            pair.meet()?;
            end.wait(Side::Receives, 1, "a message after the connection was idle")?;
            intact(&end, 0, (200, time), "a message after the connection was idle")?;
        }
        pair.meet()?;
        if time == 0 {
            step("leaving the connection idle");
            thread::sleep(idle);
        }
    }
    Ok(said(sends, || format!("idle for {:.1} s", idle.as_secs_f64())))
}
