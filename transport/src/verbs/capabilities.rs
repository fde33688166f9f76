//! Capabilities of a device, found by probing.
//!
//! A device is a *frame device* when it has no remote keys: peers can't write its memory, and messages only
//! match posted receives. The only known one is Apple's device over Thunderbolt. Its rules therefore stand
//! for all frame devices, as far as they can't be queried. Messages consist of frames of 4096 bytes, both
//! ends of a message must have the same number of frames, and depths are counted in frames (TN3205). A queue
//! pair can't use regions that were registered after it was connected, and a region must not cross a multiple
//! of 4 GiB (notes of mesh and ds4). A device that has remote keys is no frame device, even if its name says
//! Thunderbolt.
//!
//! A probed capability may prove wrong later: a driver whose write with immediate data is rejected falls back
//! to another notification.
//!
//! # Safety
//! The probe registers one region, over pages that outlive it and that no other code uses.

use super::{Access, Action, Cause, Context, Domain, QueuePairSpec, VerbsError, errno::Errno};
use rustix::mm;
use std::{ffi::c_void, ptr};
use verbs_sys::{QpType, TransportType};

/// The rules of frame devices.
mod frame {
    pub(super) const BYTES: u32 = 4096;
    /// TN3205: 4095 frames.
    pub(super) const MAX_MESSAGE_BYTES: u32 = 4095 * BYTES;
    /// Limit of the device, regardless of what it reports (mlx issue 3162).
    pub(super) const MAX_REGIONS: u32 = 100;
    pub(super) const MAX_QUEUE_PAIRS: u32 = 10;
    /// The device keeps addresses in 32 bits.
    pub(super) const LINE: u64 = 1 << 32;
    /// The depth that JACCL uses: 2 messages of 512 KiB each way. Deeper queues were seen to stall or to lose
    /// bytes.
    pub(super) const DEPTH: u32 = 256;
}

/// Maximum depth requested; no driver here benefits from more.
const DEPTH: u32 = 1024;

/// Inline sizes to try, in descending order: devices reject more than they support.
const INLINE: [u32; 6] = [512, 256, 220, 128, 64, 32];

/// Capabilities and limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCapabilities {
    /// Best service type: `RC`, else `UC`.
    pub service: QpType,
    /// Whether the device has unreliable connections (UC).
    pub unreliable: bool,
    /// Whether the device supports RDMA writes to the peer's memory.
    pub one_sided: bool,
    /// Whether the device supports RDMA writes with immediate data.
    pub write_imm: bool,
    /// Whether the device supports completion events.
    pub events: bool,
    /// Maximum inline data of a work request, in bytes.
    pub max_inline: u32,
    /// Maximum scatter/gather entries of a work request. Queue pairs of this crate use one.
    pub max_sge: u32,
    /// Maximum message length in bytes.
    pub max_message_bytes: u32,
    /// Bytes of a frame, on frame devices.
    pub frame_bytes: Option<u32>,
    /// Whether a connected queue pair can use memory that was registered afterwards.
    pub late_registration: bool,
    /// Maximum memory regions, including those of other processes.
    pub max_regions: u32,
    /// Maximum queue pairs, including those of other processes.
    pub max_queue_pairs: u32,
    /// Boundary in bytes: no region may cross a multiple of it.
    pub region_line: Option<u64>,
    /// Queue depth to request and to use: in frames on frame devices, in work requests elsewhere.
    pub depth: u32,
    /// Maximum queue depth that the device reports.
    pub max_depth: u32,
}

impl DeviceCapabilities {
    /// Probes the device. Creates at most one object of each kind at a time, and destroys all of them.
    ///
    /// # Errors
    /// [`VerbsError::Refused`] when no queue pair can be created, or no memory registered.
    pub fn probe(context: &Context, domain: &Domain) -> Result<DeviceCapabilities, VerbsError> {
        let service = best_service(context, domain)?;
        let one_sided = has_remote_keys(domain)?;
        let max_inline = if one_sided { probe_inline(context, domain, service) } else { 0 };
        let reported = Reported::of(context);
        let frame_limited = |number: u32, max: u32| if one_sided { number } else { number.min(max) };
        Ok(DeviceCapabilities {
            service,
            unreliable: service == QpType::UC || try_queue_pair(context, domain, QpType::UC, 0).is_ok(),
            one_sided,
            // iWARP has no such write; all other transports with writes have it.
            write_imm: one_sided && context.info().transport_type != TransportType::IWARP,
            events: has_events(context),
            max_inline,
            max_sge: reported.sge,
            max_message_bytes: frame_limited(reported.message_bytes, frame::MAX_MESSAGE_BYTES),
            frame_bytes: (!one_sided).then_some(frame::BYTES),
            late_registration: one_sided,
            max_regions: frame_limited(reported.regions, frame::MAX_REGIONS),
            // Frame devices report one more than can be created: they report 11, and the 11th fails.
            max_queue_pairs: frame_limited(
                reported.queue_pairs,
                frame::MAX_QUEUE_PAIRS.min(reported.queue_pairs - 1),
            ),
            region_line: (!one_sided).then_some(frame::LINE),
            depth: frame_limited(DEPTH, frame::DEPTH).min(reported.depth),
            max_depth: reported.depth,
        })
    }
}

/// Limits that the device reports, with conservative defaults for those that it does not.
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
        let or_default = |number: Option<i32>, otherwise: u32| {
            number.and_then(|number| u32::try_from(number).ok()).filter(|n| *n > 0).unwrap_or(otherwise)
        };
        let message_bytes = context.port().map_or(0, |port| port.max_msg_sz);
        Reported {
            sge: or_default(attr.map(|attr| attr.max_sge), 1),
            message_bytes: if message_bytes == 0 { frame::MAX_MESSAGE_BYTES } else { message_bytes },
            regions: or_default(attr.map(|attr| attr.max_mr), frame::MAX_REGIONS),
            queue_pairs: or_default(attr.map(|attr| attr.max_qp), 2).max(2),
            depth: or_default(attr.map(|attr| attr.max_qp_wr), frame::DEPTH),
        }
    }
}

/// Creates a queue pair, destroys it and returns its inline limit.
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

/// Returns the best service type.
///
/// A device whose queue pairs are all in use has not answered the question, so that error is returned. When
/// neither type can be created, the error for UC is returned, because every device supports UC.
fn best_service(context: &Context, domain: &Domain) -> Result<QpType, VerbsError> {
    match try_queue_pair(context, domain, QpType::RC, 0) {
        Ok(_) => return Ok(QpType::RC),
        Err(error) if error.cause() == Some(Cause::QueuePairs) => return Err(error),
        Err(_) => {}
    }
    try_queue_pair(context, domain, QpType::UC, 0)?;
    Ok(QpType::UC)
}

fn probe_inline(context: &Context, domain: &Domain, service: QpType) -> u32 {
    INLINE.iter().find_map(|bytes| try_queue_pair(context, domain, service, *bytes).ok()).unwrap_or(0)
}

/// Bytes of the region that shows whether regions have remote keys: whole pages on every system.
const PROBE_BYTES: usize = 64 << 10;

/// Pages for a device to register. They are apart from the heap, because libraries may keep registered pages
/// from forked children.
#[derive(Debug)]
struct ProbePages {
    mapping: *mut c_void,
    bytes: usize,
}

impl ProbePages {
    /// Maps pages with room for `bytes` bytes at a multiple of `bytes`, a power of two.
    fn map(bytes: usize) -> Result<ProbePages, Errno> {
        let (rights, flags) = (mm::ProtFlags::READ | mm::ProtFlags::WRITE, mm::MapFlags::PRIVATE);
        let room = bytes.checked_mul(2).ok_or(Errno::ENOMEM)?;
        // SAFETY: new pages at an address of the system's choice.
        let mapped = unsafe { mm::mmap_anonymous(ptr::null_mut(), room, rights, flags) };
        let mapping = mapped.map_err(|error| Errno(error.raw_os_error()))?;
        Ok(ProbePages { mapping, bytes })
    }

    /// Returns the address of the bytes, a multiple of their number: so they cross no 4 GiB line.
    fn start(&self) -> *mut u8 {
        self.mapping.cast::<u8>().map_addr(|address| address.next_multiple_of(self.bytes))
    }
}

impl Drop for ProbePages {
    fn drop(&mut self) {
        // SAFETY: the pages that `map` has mapped.
        let _ = unsafe { mm::munmap(self.mapping, 2 * self.bytes) };
    }
}

/// Registers pages for remote writes and returns whether the region got a remote key.
fn has_remote_keys(domain: &Domain) -> Result<bool, VerbsError> {
    let action = Action::Register { bytes: PROBE_BYTES as u64 };
    let pages = ProbePages::map(PROBE_BYTES).map_err(|errno| domain.context().refused(action, errno))?;
    // SAFETY: `pages` is declared before the region, so it is unmapped after the region is deregistered; no
    // code reads it.
    let region = unsafe { domain.register(pages.start(), PROBE_BYTES, Access::Remote) }?;
    Ok(region.rkey() != 0)
}

fn has_events(context: &Context) -> bool {
    let armed = || {
        let channel = context.channel()?;
        context.completion_queue(2, Some(&channel))?.arm()
    };
    context.functions().ibv_get_cq_event.is_some() && armed().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_system_refuses_are_an_error() {
        for bytes in [usize::MAX / 2 + 1, usize::MAX / 4 + 1] {
            assert_eq!(ProbePages::map(bytes).map(|_| ()), Err(Errno::ENOMEM), "{bytes}");
        }
    }

    #[test]
    fn pages_for_a_probe_cross_no_line() {
        let pages = ProbePages::map(PROBE_BYTES).expect("a few pages");
        assert!(pages.start().addr().is_multiple_of(PROBE_BYTES));
        // SAFETY: the last byte of the pages.
        unsafe { pages.start().add(PROBE_BYTES - 1).write_volatile(1) };
    }
}
