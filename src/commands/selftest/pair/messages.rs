//! Probes of messages: lengths, order, completions, early sends, inline data, events, and source addresses.

use super::{
    LONG_BYTES, Pair, SHORT_BYTES, SHORT_RECEIVES,
    end::{End, LINE, Side, no_memory},
};
use crate::commands::selftest::{
    finding::{Finding, Probed, Trouble, broken},
    message::step,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{thread, time::Duration};
use transport::{
    memory::Mapping,
    verbs::{Operation, SendRequest},
};

/// Lengths around frames and slots, and of a piece; the longest ones are left out of quick tests.
const LENGTHS: [usize; 9] = [1, 64, 4032, 4096, 4097, 12_096, LONG_BYTES, 131_072, 1 << 20];
const QUICK_LENGTHS: usize = 8;
/// Rounds of the probes that send many messages.
const ROUNDS: u64 = 4;

pub(super) fn lengths(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let lengths = &LENGTHS[..if pair.quick { QUICK_LENGTHS } else { LENGTHS.len() }];
    let room = pair.device.framed(1 << 20);
    let depth = pair.device.entries(room) + 8;
    let mut end = pair.connected(room, &[(depth, depth)])?;
    for (id, &len) in (0..).zip(lengths) {
        step(format!("{} a message of {len} bytes", if sends { "sending" } else { "receiving" }));
        if sends {
            end.fill(0, len, id);
            pair.meet()?;
            end.send(0, id, end.run(0, len))?;
            end.wait(Side::Sends, 1, &format!("a send of {len} bytes"))?;
        } else {
            end.receive(0, id, end.run(0, pair.device.framed(len)))?;
            pair.meet()?;
            let found = end.wait(Side::Receives, 1, &format!("a message of {len} bytes"))?;
            if found[0].bytes as usize != len {
                return Err(broken(format!(
                    "a message of {len} bytes completes with {} bytes",
                    found[0].bytes
                )));
            }
            intact(&end, 0, (len, id), &format!("a message of {len} bytes"))?;
        }
        pair.meet()?;
    }
    Ok(said(!sends, || format!("{} lengths from 1 to {}", lengths.len(), lengths[lengths.len() - 1])))
}

/// Returns the finding of one side; the other side has none.
pub(super) fn said(says: bool, text: impl FnOnce() -> String) -> Finding {
    if says { text().into() } else { Finding::default() }
}

/// Checks the bytes of a message.
pub(super) fn intact(end: &End, at: usize, (len, seed): (usize, u64), subject: &str) -> Result<(), Trouble> {
    match end.difference(at, len, seed) {
        None => Ok(()),
        Some(byte) => Err(broken(format!("{subject} is damaged from byte {byte} on"))),
    }
}

pub(super) fn order(pair: &mut Pair<'_>, sends: bool) -> Probed {
    rounds(pair, sends, |_| true)?;
    Ok(said(!sends, || format!("{} messages in {ROUNDS} rounds", ROUNDS * u64::from(SHORT_RECEIVES))))
}

pub(super) fn signals(pair: &mut Pair<'_>, sends: bool) -> Probed {
    rounds(pair, sends, |index| index % 8 == 7)?;
    Ok(said(sends, || format!("{} sends, a completion for every eighth", ROUNDS * u64::from(SHORT_RECEIVES))))
}

/// Sends rounds of short messages into as many receives, and compares order and content. `is_signaled` says
/// which sends of a round ask for their completion.
fn rounds(pair: &mut Pair<'_>, sends: bool, is_signaled: fn(u64) -> bool) -> Result<(), Trouble> {
    const LEN: usize = 64;
    let count = u64::from(SHORT_RECEIVES);
    let depth = 256;
    let mut end = pair.connected(SHORT_BYTES * count as usize, &[(depth, SHORT_RECEIVES)])?;
    for round in 0..ROUNDS {
        step(format!("exchanging {count} messages, round {round}"));
        let place = |index: u64| index as usize * SHORT_BYTES;
        if sends {
            (0..count).for_each(|index| end.fill(place(index), LEN, round * count + index));
            pair.meet()?;
            for index in 0..count {
                let (id, run, signaled) =
                    (round * count + index, end.run(place(index), LEN), is_signaled(index));
                let request = SendRequest { id, run, operation: Operation::Send, signaled, inline: false };
                end.post(0, &request).map_err(|error| broken(format!("send {id} of {count}: {error}")))?;
            }
            let asked: Vec<u64> =
                (0..count).filter(|index| is_signaled(*index)).map(|index| round * count + index).collect();
            let found = end.wait(Side::Sends, asked.len(), "sends in a row")?;
            in_order(found.iter().map(|completion| completion.id), &asked, "completions of sends")?;
        } else {
            for index in 0..count {
                end.receive(0, round * count + index, end.run(place(index), SHORT_BYTES))?;
            }
            pair.meet()?;
            let found = end.wait(Side::Receives, count as usize, "messages in a row")?;
            let asked: Vec<u64> = (0..count).map(|index| round * count + index).collect();
            in_order(found.iter().map(|completion| completion.id), &asked, "completions of receives")?;
            for index in 0..count {
                let id = round * count + index;
                intact(
                    &end,
                    place(index),
                    (LEN, id),
                    &format!("message {id}, or it met another receive: it"),
                )?;
            }
        }
        pair.meet()?;
    }
    Ok(())
}

fn in_order(found: impl Iterator<Item = u64>, asked: &[u64], subject: &str) -> Result<(), Trouble> {
    let wrong = found.zip(asked).find(|(found, asked)| found != *asked);
    wrong.map_or(Ok(()), |(found, asked)| {
        Err(broken(format!(
            "{subject} are out of order: that of {found} came in the place of that of {asked}"
        )))
    })
}

pub(super) fn early_send(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const LATE: Duration = Duration::from_millis(200);
    let mut end = pair.connected(SHORT_BYTES, &[(16, 16)])?;
    if sends {
        step("sending before the receive is posted");
        end.fill(0, 1000, 5);
        end.send(0, 1, end.run(0, 1000))?;
        pair.meet()?;
        end.wait(Side::Sends, 1, "a send that waited for its receive")?;
    } else {
        pair.meet()?;
        thread::sleep(LATE);
        step("posting the receive of a message that was sent before");
        end.receive(0, 1, end.run(0, SHORT_BYTES))?;
        end.wait(Side::Receives, 1, "a message sent before its receive was posted")?;
        intact(&end, 0, (1000, 5), "a message sent before its receive was posted")?;
    }
    pair.meet()?;
    Ok(said(!sends, || format!("a message waited {} ms for its receive", LATE.as_millis())))
}

pub(super) fn inline(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let len = pair.device.capabilities.max_inline.min(64) as usize;
    let mut end = pair.connected(SHORT_BYTES, &[(16, 16)])?;
    if sends {
        pair.meet()?;
        step("sending inline data");
        end.fill(0, len, 6);
        let (run, operation) = (end.run(0, len), Operation::Send);
        end.post(0, &SendRequest { id: 1, run, operation, signaled: true, inline: true })?;
        end.fill(0, len, 8);
        end.wait(Side::Sends, 1, "an inline send")?;
    } else {
        end.receive(0, 1, end.run(0, SHORT_BYTES))?;
        pair.meet()?;
        end.wait(Side::Receives, 1, "an inline message")?;
        intact(&end, 0, (len, 6), "an inline message whose memory was overwritten after posting")?;
    }
    pair.meet()?;
    Ok(said(sends, || format!("{len} bytes")))
}

pub(super) fn events(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let memory = Mapping::private_for_device(SHORT_BYTES, LINE).map_err(|error| no_memory(&error))?;
    let mut end = End::over(&pair.device, (memory, 0, SHORT_BYTES), &[(16, 16)], true)?;
    pair.connect(&end)?;
    if sends {
        end.fill(0, 100, 9);
        pair.meet()?;
        // The receiver sleeps when the message arrives.
        thread::sleep(Duration::from_millis(20));
        end.send(0, 1, end.run(0, 100))?;
        end.wait(Side::Sends, 1, "a send to a process that sleeps")?;
    } else {
        end.receive(0, 1, end.run(0, SHORT_BYTES))?;
        end.arm()?;
        pair.meet()?;
        step("sleeping until the device announces a message");
        let Some(channel) = end.channel.clone() else { return Err(broken("no completion channel")) };
        let limit = Timespec { tv_sec: 2, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(channel.fd(), PollFlags::IN)];
        let woken = loop {
            match poll(&mut fds, Some(&limit)) {
                Err(Errno::INTR) => {}
                woken => break woken.unwrap_or(0),
            }
        };
        if woken == 0 {
            return Err(broken("no event within 2 s; TBCCL_POLL_EVENTS=0 makes do without"));
        }
        channel.drain();
        end.wait(Side::Receives, 1, "an announced message")?;
        intact(&end, 0, (100, 9), "an announced message")?;
    }
    pair.meet()?;
    Ok(said(!sends, || "an event woke the receiver".to_owned()))
}

/// Connects from the link-local address; whether this works differs between systems.
pub(super) fn link_local(pair: &mut Pair<'_>, sends: bool) -> Probed {
    const REMEDY: &str = "nothing, as long as ports have IPv4 addresses: tbccl prefers those";
    let gids = pair.device.context.gids();
    let ours = gids.into_iter().find(|(_, gid)| gid.is_link_local() && !gid.is_ipv4_mapped());
    let (theirs, Some(gid)) = (pair.swap(&ours.is_some())?, ours) else {
        return Err(Trouble::Unknown("the port has no fe80 address".to_owned(), REMEDY.to_owned()));
    };
    if !theirs {
        return Err(Trouble::Unknown("the peer's port has no fe80 address".to_owned(), REMEDY.to_owned()));
    }
    let exchange = |pair: &mut Pair<'_>| {
        let mut end = End::new(&pair.device, SHORT_BYTES, &[(16, 16)])?;
        pair.connect_from(&end, gid)?;
        if sends {
            end.fill(0, 64, 3);
            pair.meet()?;
            end.send(0, 1, end.run(0, 64))?;
            end.wait(Side::Sends, 1, "a send from a link-local address")?;
        } else {
            end.receive(0, 1, end.run(0, SHORT_BYTES))?;
            pair.meet()?;
            end.wait(Side::Receives, 1, "a message from a link-local address")?;
            intact(&end, 0, (64, 3), "a message from a link-local address")?;
        }
        pair.meet()
    };
    match exchange(pair) {
        Ok(()) => Ok(said(sends, || format!("{} works", gid.1))),
        Err(Trouble::Fail(text, _)) => Err(Trouble::Unknown(text, REMEDY.to_owned())),
        Err(other) => Err(other),
    }
}
