//! Probes of remote writes.

use super::{
    Pair,
    end::Side,
    messages::{intact, said},
};
use crate::commands::selftest::{
    finding::{Probed, broken},
    message::step,
};
use transport::verbs::{Access, LocalRun, Operation, RemoteRun, SendRequest};

/// Bytes of a write without immediate data, and of one with it.
const PLAIN: usize = 100_000;
const NUMBERED: usize = 30_000;
const NUMBER: u32 = 0xfeed_beef;

/// Writes into the peer's memory; the second write's number announces both.
pub(super) fn remote_write(pair: &mut Pair<'_>, sends: bool) -> Probed {
    let mut end = pair.connected(1 << 20, &[(64, 64)])?;
    // The driver takes the right from a connection, and gives it back once the peer's end is known to be new.
    for access in [Access::Local, Access::Remote] {
        end.queues[0].permit(access)?;
    }
    let target = end.target(0);
    let (address, rkey) = pair.swap(&(target.address, target.rkey))?;
    if sends {
        end.fill(0, PLAIN, 21);
        end.fill(PLAIN, NUMBERED, 22);
        pair.meet()?;
        step("writing into the peer's memory");
        let at = |offset: usize| RemoteRun { address: address + offset as u64, rkey };
        let request =
            |id, run, operation| SendRequest { id, run, operation, signaled: id == 2, inline: false };
        end.post(0, &request(1, end.run(0, PLAIN), Operation::Write(at(0))))?;
        let numbered = Operation::WriteImm(at(PLAIN), NUMBER);
        end.post(0, &request(2, end.run(PLAIN, NUMBERED), numbered))?;
        end.wait(Side::Sends, 1, "remote writes")?;
    } else {
        end.receive(0, 1, LocalRun::EMPTY)?;
        pair.meet()?;
        let found = end.wait(Side::Receives, 1, "a write with immediate data")?;
        if (found[0].imm, found[0].bytes as usize) != (Some(NUMBER), NUMBERED) {
            return Err(broken(format!("a write of {NUMBERED} bytes with a number came as {:?}", found[0])));
        }
        intact(&end, 0, (PLAIN, 21), "a write that was followed by another")?;
        intact(&end, PLAIN, (NUMBERED, 22), "a write with immediate data")?;
    }
    pair.meet()?;
    Ok(said(!sends, || format!("{PLAIN} bytes, and {NUMBERED} bytes with a number")))
}
