//! What a device can do, found by trying.
//!
//! A device is a *frame device* when it has no remote keys: nothing can be written to a peer's memory, and messages
//! meet receives that were posted for them. The only such device that is known is Apple's over Thunderbolt, so its rules
//! are taken for those of its kind, as far as they can't be asked for: messages are made of frames of 4096 bytes, both
//! ends of a message must have equally many, and depths are counted in frames (TN3205); regions are unknown to a queue
//! pair that was connected before they were registered, and must not cross a 4 GiB line (notes of mesh and ds4). A
//! device that only has a name for Thunderbolt and hands out remote keys is no frame device.
//!
//! What was believed can turn out wrong later: a driver that is refused a write with a number falls back to another
//! way to notify.
//!
//! # Safety
//! The one region that is made is registered over pages that outlive it and that nobody uses.

use super::{Access, Cause, Context, Domain, QueuePairSpec, VerbsError};
use verbs_sys::{QpType, TransportType};

/// The rules of frame devices.
mod frame {
    pub(super) const BYTES: u32 = 4096;
    /// TN3205: 4095 frames.
    pub(super) const MAX_MESSAGE_BYTES: u32 = 4095 * BYTES;
    /// Per device, whatever is reported (mlx issue 3162).
    pub(super) const MAX_REGIONS: u32 = 100;
    pub(super) const MAX_QUEUE_PAIRS: u32 = 10;
    /// Addresses are kept in 32 bits.
    pub(super) const LINE: u64 = 1 << 32;
    /// What JACCL keeps in flight: 2 messages of 512 KiB each way. More was seen to stall or to lose bytes.
    pub(super) const DEPTH: u32 = 256;
}

/// Deeper queues than this serve nobody here.
const DEPTH: u32 = 1024;

/// What to ask for, largest first: devices refuse more than they have.
const INLINE: [u32; 6] = [512, 256, 220, 128, 64, 32];

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The best service: `RC`, else `UC`.
    pub service: QpType,
    /// Are there unreliable connections, too?
    pub unreliable: bool,
    /// Can a peer's memory be written?
    pub one_sided: bool,
    /// Can a write notify the peer by a number?
    pub write_imm: bool,
    /// Can one sleep until there is a completion?
    pub events: bool,
    /// Bytes that can be taken when work is posted.
    pub max_inline: u32,
    /// Runs of memory of one piece of work. Queue pairs of ours have one.
    pub max_sge: u32,
    /// The largest message.
    pub max_message_bytes: u32,
    /// On frame devices, the bytes of a frame.
    pub frame_bytes: Option<u32>,
    /// May memory be registered after a queue pair was connected?
    pub late_registration: bool,
    /// Regions to believe in, those of other processes included.
    pub max_regions: u32,
    /// Queue pairs to believe in, those of other processes included.
    pub max_queue_pairs: u32,
    /// A multiple of this that no region may cross.
    pub region_line: Option<u64>,
    /// How much to ask of a queue and to use of it: frames on frame devices, pieces of work elsewhere.
    pub depth: u32,
    /// The deepest queue that there is, by the device's own account.
    pub max_depth: u32,
}

impl Abilities {
    /// Tries what the device can do. Makes some objects, at most one of each kind at a time, and ends them.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when no queue pair can be made, or no memory registered.
    pub fn probe(context: &Context, domain: &Domain) -> Result<Abilities, VerbsError> {
        let service = best_service(context, domain)?;
        let one_sided = has_remote_keys(domain)?;
        let max_inline = if one_sided { most_inline(context, domain, service) } else { 0 };
        let reported = Reported::of(context);
        let of_frames = |number: u32, most: u32| if one_sided { number } else { number.min(most) };
        Ok(Abilities {
            service,
            unreliable: service == QpType::UC || try_queue_pair(context, domain, QpType::UC, 0).is_ok(),
            one_sided,
            // iWARP has no such write; all others that have writes have it.
            write_imm: one_sided && context.info().transport_type != TransportType::IWARP,
            events: has_events(context),
            max_inline,
            max_sge: reported.sge,
            max_message_bytes: of_frames(reported.message_bytes, frame::MAX_MESSAGE_BYTES),
            frame_bytes: (!one_sided).then_some(frame::BYTES),
            late_registration: one_sided,
            max_regions: of_frames(reported.regions, frame::MAX_REGIONS),
            // One of those that are reported can't be made there: 11 are, and the 11th fails.
            max_queue_pairs: of_frames(
                reported.queue_pairs,
                frame::MAX_QUEUE_PAIRS.min(reported.queue_pairs - 1),
            ),
            region_line: (!one_sided).then_some(frame::LINE),
            depth: of_frames(DEPTH, frame::DEPTH).min(reported.depth),
            max_depth: reported.depth,
        })
    }
}

/// What the device says of itself, with careful numbers where it says nothing.
struct Reported {
    sge: u32,
    message_bytes: u32,
    regions: u32,
    queue_pairs: u32,
    depth: u32,
}

impl Reported {
    fn of(context: &Context) -> Reported {
        let attr = context.attributes();
        let or = |number: Option<i32>, otherwise: u32| {
            number.and_then(|number| u32::try_from(number).ok()).filter(|n| *n > 0).unwrap_or(otherwise)
        };
        let message_bytes = context.port().map_or(0, |port| port.max_msg_sz);
        Reported {
            sge: or(attr.map(|attr| attr.max_sge), 1),
            message_bytes: if message_bytes == 0 { frame::MAX_MESSAGE_BYTES } else { message_bytes },
            regions: or(attr.map(|attr| attr.max_mr), frame::MAX_REGIONS),
            queue_pairs: or(attr.map(|attr| attr.max_qp), 2).max(2),
            depth: or(attr.map(|attr| attr.max_qp_wr), frame::DEPTH),
        }
    }
}

/// Makes a queue pair, and ends it.
fn try_queue_pair(
    context: &Context,
    domain: &Domain,
    service: QpType,
    inline_bytes: u32,
) -> Result<u32, VerbsError> {
    let cq = context.completion_queue(2, None)?;
    let spec = QueuePairSpec { service, send_depth: 1, recv_depth: 1, inline_bytes };
    Ok(domain.queue_pair(&spec, &cq)?.granted().max_inline_data)
}

/// A device that only has none to spare has not said anything about services. When neither can be made, what was said of
/// the one that every device has tells more.
fn best_service(context: &Context, domain: &Domain) -> Result<QpType, VerbsError> {
    match try_queue_pair(context, domain, QpType::RC, 0) {
        Ok(_) => return Ok(QpType::RC),
        Err(error) if error.cause() == Some(Cause::QueuePairs) => return Err(error),
        Err(_) => {}
    }
    try_queue_pair(context, domain, QpType::UC, 0)?;
    Ok(QpType::UC)
}

fn most_inline(context: &Context, domain: &Domain, service: QpType) -> u32 {
    INLINE.iter().find_map(|bytes| try_queue_pair(context, domain, service, *bytes).ok()).unwrap_or(0)
}

/// Registers some pages for writes by peers, and looks whether they get a key for them.
fn has_remote_keys(domain: &Domain) -> Result<bool, VerbsError> {
    const BYTES: usize = 64 << 10;
    #[derive(Clone)]
    #[repr(align(65536))]
    struct Pages(#[expect(dead_code, reason = "only the device uses the bytes")] [u8; BYTES]);
    let mut pages = vec![Pages([0; BYTES])];
    // SAFETY: `pages` is declared before the region, so it is freed after the region has ended; nothing reads it.
    let region = unsafe { domain.register(pages.as_mut_ptr().cast(), BYTES, Access::Remote) }?;
    Ok(region.rkey() != 0)
}

fn has_events(context: &Context) -> bool {
    let armed = || {
        let channel = context.channel()?;
        context.completion_queue(2, Some(&channel))?.arm()
    };
    context.functions().ibv_get_cq_event.is_some() && armed().is_ok()
}
