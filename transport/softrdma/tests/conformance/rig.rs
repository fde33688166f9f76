//! Test fabrics: a temporary folder, two nodes with one cable, and connected queue pairs.
//!
//! Both nodes are in this process. To the device they are two processes: each has a slot of its own in the
//! fabric, and shares nothing with the other but the fabric's folder.
//!
//! # Safety
//! The environment is changed under a lock. Every reader takes it that reads the environment through the
//! device, and nothing else in this program reads it from C.

use crate::{
    memory::Memory,
    verbs::{Channel, CompletionQueue, Domain, Errno, Node, QueuePair, Queues, Region, TIMEOUT, Work},
};
use softrdma::{Observer, fabric::Fabric, profile::Profile};
use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, Once, PoisonError},
};
use verbs_sys::{
    AccessFlags, Gid, Mtu, QpAttr, QpAttrMask as Mask, QpInitAttr, QpState, QpType, Sge, Wc, WcStatus,
};

/// All access rights of a peer.
pub(crate) const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .with(AccessFlags::REMOTE_WRITE)
    .with(AccessFlags::REMOTE_READ)
    .with(AccessFlags::REMOTE_ATOMIC);

/// Default depth of queue pairs.
pub(crate) const DEPTH: u32 = 16;

/// The way in which bytes move between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataPath {
    /// The system copies the bytes.
    Copied,
    /// The processes share registered pages.
    Shared,
}

/// Prefix of folder names; the process number follows.
const PREFIX: &str = "conformance-";

/// Removes the folders of runs that were killed.
fn remove_stale_folders(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(process, _)| process);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Fabrics that may exist at a time in this process. Each needs a few descriptors and locks.
static PERMITS: (Mutex<u32>, Condvar) = (Mutex::new(6), Condvar::new());
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// A permit of [`PERMITS`].
#[derive(Debug)]
struct Permit;

impl Permit {
    fn take() -> Permit {
        let (left, given_back) = &PERMITS;
        let left = left.lock().unwrap_or_else(PoisonError::into_inner);
        *given_back.wait_while(left, |left| *left == 0).unwrap_or_else(PoisonError::into_inner) -= 1;
        Permit
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *PERMITS.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        PERMITS.1.notify_one();
    }
}

/// A temporary fabric.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) profile: &'static Profile,
    pub(crate) path: DataPath,
    home: PathBuf,
    /// `None` if another process created the fabric.
    _folder: Option<tempfile::TempDir>,
    /// `None` if the test holds a permit already; waiting for a second one could deadlock.
    _permit: Option<Permit>,
}

/// The fabric's file and folder, for processes that join.
#[derive(Clone, Debug)]
pub(crate) struct FabricLocation {
    pub(crate) home: PathBuf,
    pub(crate) path: DataPath,
}

impl FabricLocation {
    /// Opens the first device of a node.
    pub(crate) fn open(&self, node: &str) -> Result<Arc<Node>, Errno> {
        self.open_device(node, "d0")
    }

    /// Opens a device of a node.
    pub(crate) fn open_device(&self, node: &str, device: &str) -> Result<Arc<Node>, Errno> {
        let _held = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = if self.path == DataPath::Shared { "1" } else { "0" };
        for (name, value) in [
            ("SOFTRDMA_FABRIC", self.home.join("fabric.toml").as_os_str()),
            ("SOFTRDMA_DIR", self.home.join("run").as_os_str()),
            ("SOFTRDMA_NODE", node.as_ref()),
            ("SOFTRDMA_REMAP", shared.as_ref()),
        ] {
            // SAFETY: under the lock, see the module.
            unsafe { env::set_var(name, value) };
        }
        Node::open(device)
    }
}

impl Rig {
    /// Creates nodes `a` and `b`, whose devices `d0` have the same profile and a cable between them.
    pub(crate) fn new(profile: &'static Profile, path: DataPath) -> Rig {
        Rig::with(profile, path, Some(Permit::take()), "", "")
    }

    /// Creates another fabric of the same profile, with additional keys for the device of `a` and for the
    /// cable.
    pub(crate) fn another(&self, device: &str, cable: &str) -> Rig {
        Rig::with(self.profile, self.path, None, device, cable)
    }

    fn with(
        profile: &'static Profile,
        path: DataPath,
        permit: Option<Permit>,
        device: &str,
        cable: &str,
    ) -> Rig {
        let comma = if device.is_empty() { "" } else { ", " };
        let text = format!(
            "[[node]]\nname = \"a\"\ndevice = [{{ name = \"d0\"{comma}{device} }}]\n\
             [[node]]\nname = \"b\"\ndevice = [{{ name = \"d0\" }}]\n\
             [[cable]]\nends = [\"a/d0\", \"b/d0\"]\n{cable}\n"
        );
        Rig::from_text(profile, path, permit, &text)
    }

    /// Creates another fabric of the same profile, whose nodes have two devices each, `d0` and `d1`, with a
    /// cable between equal ones.
    pub(crate) fn with_two_devices(&self) -> Rig {
        let node = |name| {
            format!("[[node]]\nname = \"{name}\"\ndevice = [{{ name = \"d0\" }}, {{ name = \"d1\" }}]\n")
        };
        let cable = |device| format!("[[cable]]\nends = [\"a/{device}\", \"b/{device}\"]\n");
        let text = [node("a"), node("b"), cable("d0"), cable("d1")].concat();
        Rig::from_text(self.profile, self.path, None, &text)
    }

    fn from_text(profile: &'static Profile, path: DataPath, permit: Option<Permit>, text: &str) -> Rig {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| remove_stale_folders(&base));
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let home = tempfile::Builder::new().prefix(&prefix).tempdir_in(base).expect("a folder");
        let text = format!("profile = \"{}\"\n{text}", profile.name);
        fs::write(home.path().join("fabric.toml"), text).expect("room for a file");
        Rig { profile, path, home: home.path().to_owned(), _folder: Some(home), _permit: permit }
    }

    /// Opens a fabric of Apple devices that another process created.
    pub(crate) fn joined(location: &FabricLocation) -> Rig {
        let home = location.home.clone();
        Rig { profile: &Profile::APPLE_TB5, path: location.path, home, _folder: None, _permit: None }
    }

    pub(crate) fn location(&self) -> FabricLocation {
        FabricLocation { home: self.home.clone(), path: self.path }
    }

    pub(crate) fn open(&self, node: &str) -> Arc<Node> {
        self.location().open(node).expect("a device")
    }

    /// Returns an observer, which takes no part in the fabric.
    pub(crate) fn observer(&self) -> Observer {
        let fabric = Fabric::load(&self.home.join("fabric.toml")).expect("a fabric");
        Observer::open(&self.home.join("run"), fabric.digest).expect("a folder")
    }

    /// Returns the names of processes' files in the fabric's folder.
    pub(crate) fn files(&self) -> Vec<String> {
        let run = fs::read_dir(self.home.join("run")).into_iter().flatten().flatten();
        run.map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name != "fabric")
            .collect()
    }

    /// Returns the connected services that the profile supports.
    pub(crate) fn connections(&self) -> impl Iterator<Item = QpType> + use<> {
        let profile = self.profile;
        [QpType::RC, QpType::UC].into_iter().filter(|kind| profile.supports_service(*kind))
    }

    /// Returns both ends of a connection, ready to send.
    pub(crate) fn pair(&self, kind: QpType) -> (End, End) {
        self.pair_with(kind, Options::default())
    }

    pub(crate) fn pair_with(&self, kind: QpType, options: Options) -> (End, End) {
        let (a, b) = self.unconnected(kind, options);
        a.connect(&b.info(), options);
        b.connect(&a.info(), options);
        (a, b)
    }

    pub(crate) fn unconnected(&self, kind: QpType, options: Options) -> (End, End) {
        (End::new(&self.open("a"), kind, options), End::new(&self.open("b"), kind, options))
    }
}

/// Properties that tests vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) depth: u32,
    pub(crate) cqe: i32,
    pub(crate) memory: usize,
    pub(crate) sges: u32,
    pub(crate) inline: u32,
    /// Access rights of the registration.
    pub(crate) access: AccessFlags,
    /// Access rights of the queue pair.
    pub(crate) qp_access: AccessFlags,
    pub(crate) rnr_retry: u8,
    pub(crate) retry: u8,
    /// Acknowledgement timeout: 4096 ns times 2 to this power.
    pub(crate) timeout: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            depth: DEPTH,
            cqe: 256,
            memory: 64 << 10,
            sges: 1,
            inline: 0,
            access: ALL,
            qp_access: ALL,
            rnr_retry: 7,
            retry: 1,
            timeout: 12,
        }
    }
}

/// The information that a peer needs to connect and to access the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerInfo {
    pub(crate) qpn: u32,
    pub(crate) gid: Gid,
    pub(crate) address: u64,
    pub(crate) rkey: u32,
}

/// A queue pair with its queues, and registered memory.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) region: Region,
    pub(crate) send: Arc<CompletionQueue>,
    pub(crate) recv: Arc<CompletionQueue>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) node: Arc<Node>,
    pub(crate) kind: QpType,
}

impl End {
    pub(crate) fn new(node: &Arc<Node>, kind: QpType, options: Options) -> End {
        let domain = node.pd().expect("a domain");
        let memory = Memory::new(options.memory);
        let region = domain.register(&memory, options.access).expect("a registration");
        let [send, recv] = [0, 1].map(|_| node.cq(options.cqe, None).expect("a queue"));
        let queues = Queues { send: Arc::clone(&send), recv: Arc::clone(&recv), srq: None };
        let qp = domain.qp(init_attr(kind, options), queues).expect("a queue pair");
        End { qp, region, send, recv, domain, memory, node: Arc::clone(node), kind }
    }

    /// Replaces both completion queues by one with a completion channel.
    pub(crate) fn with_channel(mut self, options: Options) -> (End, Arc<Channel>, Arc<CompletionQueue>) {
        let channel = self.node.channel().expect("a channel");
        let queue = self.node.cq(options.cqe, Some(&channel)).expect("a queue");
        let queues = Queues { send: Arc::clone(&queue), recv: Arc::clone(&queue), srq: None };
        self.qp = self.domain.qp(init_attr(self.kind, options), queues).expect("a queue pair");
        (self.send, self.recv) = (Arc::clone(&queue), Arc::clone(&queue));
        (self, channel, queue)
    }

    pub(crate) fn info(&self) -> PeerInfo {
        let index = self.node.ipv4_index().expect("an address");
        let gid = self.node.gid(index.into()).expect("an address");
        PeerInfo { qpn: self.qp.number(), gid, address: self.memory.address(), rkey: self.region.rkey }
    }

    /// Takes the queue pair from RESET to RTS.
    pub(crate) fn connect(&self, peer: &PeerInfo, options: Options) {
        assert_eq!(self.to_init(options), 0, "INIT");
        assert_eq!(self.to_rtr(peer), 0, "RTR");
        assert_eq!(self.to_rts(options), 0, "RTS");
    }

    pub(crate) fn to_init(&self, options: Options) -> Errno {
        self.qp.modify(&full_attr(QpState::INIT, None, options), mask(self.kind, QpState::INIT))
    }

    pub(crate) fn to_rtr(&self, peer: &PeerInfo) -> Errno {
        let mut attr = full_attr(QpState::RTR, Some(peer), Options::default());
        attr.ah_attr.grh.sgid_index = self.node.ipv4_index().unwrap_or(1);
        attr.max_dest_rd_atomic = self.node.attr().max_qp_rd_atom as u8;
        self.qp.modify(&attr, mask(self.kind, QpState::RTR))
    }

    pub(crate) fn to_rts(&self, options: Options) -> Errno {
        let mut attr = full_attr(QpState::RTS, None, options);
        attr.max_rd_atomic = self.node.attr().max_qp_rd_atom as u8;
        self.qp.modify(&attr, mask(self.kind, QpState::RTS))
    }

    /// Returns a scatter/gather element of the registered memory.
    pub(crate) fn sge(&self, start: usize, len: usize) -> Sge {
        self.memory.sge(start, len, self.region.lkey)
    }

    pub(crate) fn receive(&self, id: u64, start: usize, len: usize) {
        assert_eq!(self.qp.receive(id, &[self.sge(start, len)]), 0);
    }

    pub(crate) fn post(&self, work: &Work) {
        assert_eq!(self.qp.post(work), 0);
    }

    pub(crate) fn send(&self, id: u64, start: usize, len: usize) {
        self.post(&Work::send(&[self.sge(start, len)]).id(id));
    }

    /// Waits for the next completion of a send; returns its `wr_id` and status.
    pub(crate) fn sent(&self) -> (u64, WcStatus) {
        outcome(&self.send.poll())
    }

    /// Waits for the next completion of a receive; returns its `wr_id` and status.
    pub(crate) fn received(&self) -> (u64, WcStatus) {
        outcome(&self.recv.poll())
    }

    /// Waits until the queue pair is in a state.
    pub(crate) fn wait_for_state(&self, state: QpState) {
        let began = std::time::Instant::now();
        while self.qp.state() != state {
            let _ = (self.send.try_poll(), self.recv.try_poll());
            assert!(began.elapsed() < TIMEOUT, "{:?} and not {state:?}", self.qp.state());
        }
    }
}

pub(crate) fn outcome(wc: &Wc) -> (u64, WcStatus) {
    (wc.wr_id, wc.status)
}

pub(crate) fn init_attr(kind: QpType, options: Options) -> QpInitAttr {
    let mut init = QpInitAttr::zeroed();
    init.qp_type = kind;
    init.cap.max_send_wr = options.depth;
    init.cap.max_recv_wr = options.depth;
    init.cap.max_send_sge = options.sges;
    init.cap.max_recv_sge = options.sges;
    init.cap.max_inline_data = options.inline;
    init
}

/// Returns the attributes that a transition requires.
pub(crate) fn mask(kind: QpType, to: QpState) -> Mask {
    let is_rc = kind == QpType::RC;
    let only = |when: bool, mask: Mask| if when { mask } else { Mask::NONE };
    Mask::STATE
        | match (to, kind) {
            (QpState::INIT, QpType::UD) => Mask::PKEY_INDEX | Mask::PORT | Mask::QKEY,
            (QpState::INIT, _) => Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS,
            (QpState::RTR, QpType::UD) => Mask::NONE,
            (QpState::RTR, _) => {
                let path = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
                path | only(is_rc, Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER)
            }
            (QpState::RTS, _) => {
                let timers = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
                Mask::SQ_PSN | only(is_rc, timers)
            }
            _ => Mask::NONE,
        }
}

/// Q_Key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// Returns the attributes of all transitions, except the numbers of reads in flight.
pub(crate) fn full_attr(to: QpState, peer: Option<&PeerInfo>, options: Options) -> QpAttr {
    let mut attr = QpAttr::zeroed();
    attr.qp_state = to;
    attr.port_num = 1;
    attr.qkey = QKEY;
    attr.qp_access_flags = options.qp_access.0;
    attr.path_mtu = Mtu::B1024;
    attr.min_rnr_timer = 1;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry;
    attr.rnr_retry = options.rnr_retry;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.hop_limit = 1;
    attr.ah_attr.grh.sgid_index = 1;
    if let Some(peer) = peer {
        attr.dest_qp_num = peer.qpn;
        attr.ah_attr.grh.dgid = peer.gid;
    }
    attr
}
