//! One rank's connection: how it comes in, what it asks for, and how it ends.

use super::{
    super::wire::{
        FromRank, FromServer, Hello, MAGIC, MAX_EXCHANGE_BYTES, Member, PROTOCOL, read_frame, write_frame,
    },
    Shared,
    state::{Gone, State},
};
use rustix::fd::{AsFd, OwnedFd};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a connection may take to say who it is.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a broken connection waits for the launcher to say how the process ended.
const EXIT_NEWS: Duration = Duration::from_millis(100);

/// A rank that has been let in.
#[derive(Clone, Copy, Debug)]
struct Guest {
    rank: u32,
    /// How long it is ready to wait for the others.
    patience: Duration,
}

/// Why a rank is not served any longer.
enum Refusal {
    /// The rank is told why.
    Say(String),
    /// The connection broke; the rank, if it had said who it is.
    Broken(Option<u32>),
}

/// One rank, from its greeting to its end.
pub(super) fn serve(mut stream: UnixStream, shared: &Shared) {
    let served = greet(&mut stream, shared).and_then(|guest| attend(&mut stream, shared, guest));
    match served {
        Ok(()) | Err(Refusal::Broken(None)) => {}
        Err(Refusal::Say(why)) => {
            // Under the lock, so that no notice gets between.
            let _state = shared.lock();
            let _ = write_frame(&mut stream, &FromServer::Refused { why });
        }
        Err(Refusal::Broken(Some(rank))) => connection_broke(rank, shared),
    }
}

/// Does what a rank asks for, until it says goodbye.
fn attend(stream: &mut UnixStream, shared: &Shared, guest: Guest) -> Result<(), Refusal> {
    let Guest { rank, .. } = guest;
    loop {
        match read_frame(stream).map_err(|_| Refusal::Broken(Some(rank)))? {
            FromRank::Look { seen, words } => shared.lock().look(rank, seen, &words),
            FromRank::Raise { words } => shared.lock().raise(words),
            FromRank::Exchange { bytes } => exchange(stream, shared, guest, bytes)?,
            FromRank::Goodbye { words } => {
                let mut state = shared.lock();
                state.seats[rank as usize].gone = Gone::Goodbye;
                state.publish(rank, &words);
                shared.changed.notify_all();
                return Ok(());
            }
            FromRank::GivenUp { why } => {
                let mut state = shared.lock();
                state.seats[rank as usize].gone = Gone::Goodbye;
                state.refused.get_or_insert(format!("rank {rank}: {why}"));
                shared.changed.notify_all();
                return Ok(());
            }
            FromRank::Probed { .. } => return Err(Refusal::Broken(Some(rank))),
        }
    }
}

/// A connection ended without a goodbye.
fn connection_broke(rank: u32, shared: &Shared) {
    thread::sleep(EXIT_NEWS);
    let mut state = shared.lock();
    if state.seats[rank as usize].gone == Gone::No {
        let how = "ended, or closed its connection to the launcher, without a word";
        if state.started() {
            state.announce_death(rank, how);
        } else {
            state.refused.get_or_insert(format!("rank {rank} {how} before all ranks had joined"));
        }
        shared.changed.notify_all();
    }
}

/// Reads who it is, and the descriptor of its arena if it has one.
fn introduction(stream: &mut UnixStream, shared: &Shared) -> Result<(Hello, Option<OwnedFd>), Refusal> {
    let broken = |_: io::Error| Refusal::Broken(None);
    stream.set_read_timeout(Some(GREETING_TIMEOUT)).map_err(broken)?;
    let text: serde_json::Value = read_frame(stream).map_err(broken)?;
    // Another version may greet with other words.
    let theirs = text.get("protocol").and_then(serde_json::Value::as_u64);
    if text.get("magic").is_some_and(|magic| magic == MAGIC) && theirs != Some(PROTOCOL.into()) {
        let theirs = theirs.map_or_else(|| "unknown".to_owned(), |p| p.to_string());
        let why = format!(
            "a rank speaks protocol {theirs}, the launcher {PROTOCOL}: use the same version of tbccl everywhere"
        );
        return Err(Refusal::Say(shared.refuse_unless_started(why)));
    }
    let hello: Hello = serde_json::from_value(text).map_err(|e| broken(e.into()))?;
    let descriptor = || transport::driver::shm::receive_descriptor(stream.as_fd());
    let arena = hello.arena.then(descriptor).transpose().map_err(|e| broken(e.into()))?;
    Ok((hello, arena))
}

fn greet(stream: &mut UnixStream, shared: &Shared) -> Result<Guest, Refusal> {
    let (hello, arena) = introduction(stream, shared)?;
    let rank = hello.member.rank;
    let lost = move |_: io::Error| Refusal::Broken(Some(rank));
    let admitted = shared.lock().admit(shared.ranks, &hello, arena);
    shared.changed.notify_all();
    admitted.map_err(Refusal::Say)?;
    let patience = Duration::from_millis(hello.patience_ms);
    let deadline = Instant::now() + patience;
    welcome(stream, shared, deadline, rank)?;
    stream.set_read_timeout(Some(patience.max(GREETING_TIMEOUT))).map_err(lost)?;
    let FromRank::Probed { obstacle } = read_frame(stream).map_err(lost)? else {
        return Err(Refusal::Broken(Some(rank)));
    };
    shared.lock().seats[rank as usize].probed = Some(obstacle);
    shared.changed.notify_all();
    let mut state = shared.wait_for(deadline, State::started, State::overdue).map_err(Refusal::Say)?;
    // Everyone has mapped everyone's memory; it is to end with the ranks and not with us.
    state.seats.iter_mut().for_each(|seat| seat.arena = None);
    let obstacle = state.seats.iter().find_map(|seat| seat.probed.clone().flatten());
    write_frame(stream, &FromServer::Go { obstacle }).map_err(lost)?;
    drop(state);
    stream.set_read_timeout(None).map_err(lost)?;
    Ok(Guest { rank, patience })
}

/// Waits for everyone, then tells the rank of them.
fn welcome(stream: &mut UnixStream, shared: &Shared, deadline: Instant, rank: u32) -> Result<(), Refusal> {
    let (members, arenas) = {
        let mut state = shared.wait_for(deadline, State::complete, State::overdue).map_err(Refusal::Say)?;
        let notices = stream.try_clone().map_err(|_| Refusal::Broken(Some(rank)))?;
        // A rank that does not read its notices must not hold up the others.
        let _ = notices.set_write_timeout(Some(Duration::from_secs(1)));
        state.seats[rank as usize].stream = Some(notices);
        let members: Vec<Member> = state.seats.iter().filter_map(|seat| seat.member.clone()).collect();
        let arenas: Vec<Arc<OwnedFd>> = state.seats.iter().filter_map(|seat| seat.arena.clone()).collect();
        (members, arenas)
    };
    let lost = |_| Refusal::Broken(Some(rank));
    write_frame(stream, &FromServer::Welcome { members }).map_err(lost)?;
    for arena in &arenas {
        transport::driver::shm::send_descriptor(stream.as_fd(), arena.as_fd()).map_err(|e| lost(e.into()))?;
    }
    Ok(())
}

/// Takes what a rank gives to everyone, and gives it what everyone has given.
fn exchange(stream: &mut UnixStream, shared: &Shared, guest: Guest, bytes: u32) -> Result<(), Refusal> {
    let Guest { rank, patience } = guest;
    let lost = |_: io::Error| Refusal::Broken(Some(rank));
    if bytes > MAX_EXCHANGE_BYTES {
        return Err(Refusal::Broken(Some(rank)));
    }
    let mut given = vec![0; bytes as usize];
    stream.set_read_timeout(Some(GREETING_TIMEOUT)).map_err(lost)?;
    stream.read_exact(&mut given).map_err(lost)?;
    stream.set_read_timeout(None).map_err(lost)?;
    let round = shared.lock().give(rank, given);
    shared.changed.notify_all();
    let deadline = Instant::now() + patience;
    let is_over = |state: &State| state.rounds > round || state.left_early().is_some();
    let state = shared.wait_for(deadline, is_over, State::not_given).map_err(Refusal::Say)?;
    if state.rounds <= round {
        return Err(Refusal::Say(state.left_early().unwrap_or_default()));
    }
    let all = Arc::clone(&state.exchanged);
    // Under the lock, so that no notice gets between: the rank is reading.
    let lengths = all.iter().map(|part| part.len() as u32).collect();
    write_frame(stream, &FromServer::Exchanged { bytes: lengths }).map_err(lost)?;
    all.iter().try_for_each(|part| stream.write_all(part)).map_err(lost)
}
