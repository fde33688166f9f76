//! Opening devices: the tables of functions that a context carries.
//!
//! # Safety
//! See the module above.

use super::{
    Object,
    context::ContextObject,
    cq, cq_ex,
    device::{DeviceObject, leave_at_exit},
    pointer_of, post_recv, qp, qp_create, srq,
};
use rustix::{fd::AsRawFd, io::Errno};
use verbs_sys::{ABI_IS_EXTENDED, Context, Device, VerbsContext};

fn open(device: &DeviceObject) -> Result<*mut Context, Errno> {
    leave_at_exit();
    let nic = device.node.nic()?;
    let async_channel = nic.process().new_channel();
    let async_fd = nic.process().waker.listen(nic.process().me.slot, async_channel)?;
    let profile = nic.fabric().profile(device.port);
    let mut verbs = VerbsContext::zeroed();
    if profile.extended_verbs {
        verbs.create_cq_ex = Some(cq_ex::create);
        verbs.create_qp_ex = Some(qp_create::create_ex);
        verbs.create_srq_ex = Some(srq::create_ex);
        verbs.get_srq_num = Some(srq::number);
    }
    verbs.sz = size_of::<VerbsContext>();
    let context = &mut verbs.context;
    context.device = (&raw const *device).cast_mut().cast();
    context.cmd_fd = -1;
    context.async_fd = async_fd.as_raw_fd();
    context.num_comp_vectors = 1;
    context.abi_compat = ABI_IS_EXTENDED;
    context.ops.poll_cq = Some(cq::poll);
    context.ops.req_notify_cq = Some(cq::request_notification);
    context.ops.post_send = Some(qp::post_send);
    context.ops.post_recv = Some(post_recv::post);
    context.ops.post_srq_recv = Some(post_recv::post_shared);
    let opened = Box::new(ContextObject::new(verbs, nic, device.port, async_channel, async_fd));
    opened.note_state();
    Ok(Box::leak(opened).as_c())
}

/// `ibv_open_device`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    pointer_of(|| open(DeviceObject::from_c(device)?))
}
