//! What stands behind an identifier, and which identifiers there are.
//!
//! Programs destroy things in any order that librdmacm bears: it looks at an identifier only during
//! a call on it. So here every call finds its identifier in a table, by address: one destroyed is
//! not in it, and the call says EINVAL. librdmacm also bears `rdma_destroy_qp` after
//! `rdma_destroy_id`, whose memory it reads when it is free already (wrappers in other
//! languages drop things so). Here that memory stays as long as the queue pair or the shared
//! receive queue that the identifier names.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use locks::{Mutex, MutexGuard, Rank};
use rdma_core_abi::cma::{rdma_cm_id, rdma_event_channel};
use rdma_core_abi::sa::ibv_sa_path_rec;
use rdma_core_abi::verbs::{ibv_gid, ibv_pd, ibv_qp_init_attr, ibv_qp_type};
use stack::id::PathChoice;
use stack::{IbService, Id};
use wire::Gid;

use crate::checked;
use crate::cma::addrinfo::Resolution;
use crate::cma::event_channel::{self, Channel};
use crate::cma::shared::{context_of, default_pd};
use crate::cma::sockaddr;
use crate::ffi_guard::Errno;
use crate::instance::Instance;
use crate::verbs::qp::object as qp;
use crate::verbs::srq::object as srq;
use crate::verbs::unacked::Unacked;
use sys::per_process::PerProcess;

/// Subnet prefix and rate code of RoCE path records as the kernel makes them
/// (IB_RATE_PORT_CURRENT's neighbour, 10 Gb/s).
const RATE_10_GBPS: u8 = 3;
/// "Exactly", of a path record's selectors.
const SELECT_EXACTLY: u8 = 2;
/// Packet life time code of RoCE paths in the kernel.
const PACKET_LIFE_TIME: u8 = 16;

/// What a passive endpoint keeps for its requests.
#[derive(Clone, Copy)]
pub(crate) struct Saved {
    pub pd: *mut ibv_pd,
    pub init: ibv_qp_init_attr,
}

/// Source, destination, what they say beside their GIDs in `AF_IB`, and their GIDs on InfiniBand.
type Addresses = (Option<SocketAddr>, Option<SocketAddr>, [Option<IbService>; 2], Option<(Gid, Gid)>);

/// An identifier as C sees it, and the node's.
#[repr(C)]
pub(crate) struct CmId {
    c: UnsafeCell<rdma_cm_id>,
    path: UnsafeCell<ibv_sa_path_rec>,
    /// The addresses that C was shown last.
    shown: Mutex<Addresses>,
    pub node: Arc<Id>,
    pub instance: Arc<Instance>,
    pub unacked: Unacked,
    /// Where its events are handed out.
    channel: Mutex<Arc<Channel>>,
    /// Calls wait for their event on a channel of the identifier's own.
    synchronous: AtomicBool,
    saved: Mutex<Option<Saved>>,
    /// rdma_create_qp made the completion queues.
    pub owns_cqs: AtomicBool,
    /// What stands before the program's private data in its request (`ai_connect`).
    pub connect_data: Mutex<Vec<u8>>,
    /// The outcome of rdma_resolve_addrinfo.
    addrinfo: Mutex<Resolution>,
}

// SAFETY: what C sees is plain data that calls on the identifier change, which a program makes one
// after the other as with librdmacm; all else is locked or atomic. Pointers in `saved` are only
// handed back to calls of the program's.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

/// An identifier in the table.
enum Entry {
    Alive(Arc<CmId>),
    /// Destroyed; its memory stays while something that it names does.
    Destroyed(Weak<CmId>),
}

/// The identifiers there are, by the address of their C structure.
static IDS: PerProcess<Mutex<BTreeMap<usize, Entry>>> =
    PerProcess::new(|| Mutex::new(Rank::CmIds, BTreeMap::new()));

fn ids() -> MutexGuard<'static, BTreeMap<usize, Entry>> {
    IDS.get().lock()
}

fn alive(at: usize) -> Option<Arc<CmId>> {
    match ids().get(&at) {
        Some(Entry::Alive(id)) => Some(id.clone()),
        _ => None,
    }
}

impl CmId {
    /// The identifier behind a C structure. EINVAL for NULL, for one that was destroyed, and for a
    /// parent's in a forked child.
    pub(super) fn checked(id: *mut rdma_cm_id) -> Result<Arc<Self>, Errno> {
        alive(id.addr()).ok_or_else(|| {
            checked::identifiers::is_unknown(id);
            Errno(libc::EINVAL)
        })
    }

    /// Like [`CmId::checked`], also for an identifier that was destroyed but whose memory a queue
    /// pair or shared receive queue keeps.
    pub(super) fn even_destroyed(id: *mut rdma_cm_id) -> Option<Arc<Self>> {
        if let Some(id) = alive(id.addr()) {
            return Some(id);
        }
        checked::identifiers::is_unknown(id);
        match ids().get(&id.addr())? {
            Entry::Alive(id) => Some(id.clone()),
            Entry::Destroyed(id) => id.upgrade(),
        }
    }

    /// The C identifier of one of the node's; none where the program never got one, or has
    /// destroyed it.
    pub(super) fn of_node(id: &Id) -> Option<Arc<Self>> {
        alive(id.cookie.load(Ordering::Acquire) as usize)
    }

    /// Takes an identifier out of the table: from now on no call finds it. EINVAL as for
    /// [`CmId::checked`].
    pub(super) fn retire(id: *mut rdma_cm_id) -> Result<Arc<Self>, Errno> {
        let mut ids = ids();
        let entry = ids.get_mut(&id.addr()).ok_or(Errno(libc::EINVAL))?;
        let Entry::Alive(ours) = &*entry else { return Err(Errno(libc::EINVAL)) };
        let ours = ours.clone();
        // The share of the table goes with the entry, and is not the last.
        *entry = Entry::Destroyed(Arc::downgrade(&ours));
        drop(ids);
        checked::identifiers::gone(id);
        Ok(ours)
    }

    /// The identifiers whose events go to a channel.
    pub(super) fn all_on(channel: &Arc<Channel>) -> Vec<Arc<Self>> {
        let alive = |entry: &Entry| match entry {
            Entry::Alive(id) => Some(id.clone()),
            Entry::Destroyed(_) => None,
        };
        let all: Vec<_> = ids().values().filter_map(alive).collect();
        all.into_iter().filter(|id| Arc::ptr_eq(&id.channel(), channel)).collect()
    }

    /// The C structure.
    pub(super) fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Where its events are handed out.
    pub(super) fn channel(&self) -> Arc<Channel> {
        self.channel.lock().clone()
    }

    /// Whether calls wait for their event.
    pub(super) fn is_synchronous(&self) -> bool {
        self.synchronous.load(Ordering::Acquire)
    }

    /// Has events go to another channel from now on. Returns the channel that they went to, where
    /// that was the identifier's own, which no other code uses.
    ///
    /// # Safety
    ///
    /// `c` is the C structure of `channel`.
    pub(super) unsafe fn move_to(
        &self,
        channel: Arc<Channel>,
        c: *mut rdma_event_channel,
        synchronous: bool,
    ) -> Option<*mut rdma_event_channel> {
        *self.channel.lock() = channel;
        let was_synchronous = self.synchronous.swap(synchronous, Ordering::AcqRel);
        // SAFETY: the C structure lives as long as this, and the program looks at it after the
        // call.
        let old = std::mem::replace(unsafe { &mut (*self.c()).channel }, c);
        checked::identifiers::moved(self.c(), c, synchronous);
        was_synchronous.then_some(old)
    }

    /// What a passive endpoint keeps for its requests.
    pub(super) fn saved(&self) -> MutexGuard<'_, Option<Saved>> {
        self.saved.lock()
    }

    /// The outcome of rdma_resolve_addrinfo.
    pub(super) fn resolution(&self) -> MutexGuard<'_, Resolution> {
        self.addrinfo.lock()
    }

    /// Makes an identifier whose events go to `channel`, and enters it into the table.
    pub(super) fn make(
        node: Arc<Id>,
        instance: Arc<Instance>,
        channel: (*mut rdma_event_channel, Arc<Channel>),
        user: *mut c_void,
        ps: u32,
        synchronous: bool,
    ) -> Arc<Self> {
        // SAFETY: pointers, integers and unions of plain bytes.
        let (mut c, path): (rdma_cm_id, ibv_sa_path_rec) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        c.channel = channel.0;
        c.context = user;
        c.ps = ps;
        c.qp_type = node.kind as ibv_qp_type;
        let id = Arc::new(Self {
            c: c.into(),
            path: path.into(),
            shown: Mutex::new(Rank::CmId, Addresses::default()),
            node: node.clone(),
            instance,
            unacked: Unacked::default(),
            channel: Mutex::new(Rank::CmId, channel.1),
            synchronous: AtomicBool::new(synchronous),
            saved: Mutex::new(Rank::CmId, None),
            owns_cqs: AtomicBool::new(false),
            connect_data: Mutex::new(Rank::CmId, Vec::new()),
            addrinfo: Mutex::new(Rank::CmId, Resolution::default()),
        });
        let at = Arc::as_ptr(&id).expose_provenance();
        ids().insert(at, Entry::Alive(id.clone()));
        node.cookie.store(at as u64, Ordering::Release);
        checked::identifiers::made(id.c(), channel.0, synchronous);
        id
    }

    /// The C object of a request's new identifier: context, channel and port space are the
    /// listener's.
    pub(super) fn incoming(node: &Arc<Id>, listener: &Self) -> Result<Arc<Self>, Errno> {
        // SAFETY: the C structure lives as long as the listener.
        let (channel, context, ps) =
            unsafe { ((*listener.c()).channel, (*listener.c()).context, (*listener.c()).ps) };
        if !listener.is_synchronous() {
            let shared = (channel, listener.channel());
            return Ok(Self::make(node.clone(), listener.instance.clone(), shared, context, ps, false));
        }
        let own = event_channel::create(&listener.instance)?;
        listener.instance.node().migrate(node, &own.1.node);
        Ok(Self::make(node.clone(), listener.instance.clone(), own, context, ps, true))
    }

    /// The queue pair that `id->qp` names, the node's from now on: programs put one of their own
    /// there, or none any more (librdmacm looks there with every call). EINVAL for one that was
    /// destroyed or is another device's.
    ///
    /// # Safety
    ///
    /// No other thread changes what C sees.
    pub(super) unsafe fn take_in_qp(&self) -> Result<(), Errno> {
        // SAFETY: as the caller says.
        let named = unsafe { (*self.c()).qp };
        let nic = match named.is_null() {
            true => None,
            false => Some(qp::find(named).ok_or(Errno(libc::EINVAL))?),
        };
        Ok(self.instance.node().take_in_qp(&self.node, nic)?)
    }

    /// Keeps the memory while what C sees in it, the queue pair and the shared receive queue,
    /// exists.
    ///
    /// # Safety
    ///
    /// As for [`CmId::take_in_qp`].
    pub(super) unsafe fn stay_with_what_it_names(self: &Arc<Self>) {
        // SAFETY: as the caller says.
        unsafe {
            qp::keep((*self.c()).qp, self.clone());
            srq::keep((*self.c()).srq, self.clone());
        }
    }

    /// Brings the C-visible fields up to date: device, addresses, path. Where the device can not be
    /// opened the errno says why, and `verbs` is NULL as before. Programs use it after every event
    /// that comes with a device, so none of those is handed out then.
    ///
    /// # Safety
    ///
    /// As for [`CmId::take_in_qp`].
    pub(super) unsafe fn refresh(&self) -> Result<(), Errno> {
        let c = self.c();
        let mut shown = self.shown.lock();
        let (device, addresses, path) = {
            let inner = self.node.lock();
            // SAFETY: as the caller says.
            let (has_device, has_path) = unsafe { (!(*c).verbs.is_null(), (*c).route.num_paths > 0) };
            let path_is_due = !has_path && inner.progress.has_route();
            let device = inner.device.as_ref().filter(|_| !has_device || path_is_due).cloned();
            let path = inner.route.filter(|_| path_is_due).map(|route| (route.mtu, inner.path, inner.record));
            // Nearly every call finds what C was shown before.
            let is_shown = (&shown.0, &shown.1, &shown.2, &shown.3)
                == (&inner.source, &inner.dest, &[inner.ib, inner.ib_dest], &inner.gids);
            let now = (inner.source, inner.dest, [inner.ib, inner.ib_dest], inner.gids);
            (device, (!is_shown).then_some(now), path)
        };
        // SAFETY: as the caller says.
        unsafe {
            if let Some(addresses) = addresses {
                *shown = addresses;
                self.show(addresses);
            }
            drop(shown);
            // Connecting and disconnecting move it.
            qp::show_state((*c).qp);
            let Some(device) = device else { return Ok(()) };
            if (*c).verbs.is_null() {
                // Programs that make a queue pair of their own make it in this domain (rdma_cm(7):
                // id->pd).
                let (verbs, pd) = (context_of(&device)?, default_pd(&device)?);
                (*c).verbs = verbs;
                (*c).port_num = 1;
                if (*c).pd.is_null() {
                    (*c).pd = pd;
                }
            }
            match path {
                Some((_, _, Some(record))) => self.show_record(&record),
                Some((mtu, chosen, None)) => self.show_path(mtu, device.port().mtu, chosen),
                None => {}
            }
        }
        Ok(())
    }

    /// Shows C these addresses.
    ///
    /// # Safety
    ///
    /// As for [`CmId::take_in_qp`].
    unsafe fn show(&self, (source, dest, [ib, ib_dest], gids): Addresses) {
        let c = self.c();
        // SAFETY: C-visible fields, which C reads after the call or event that this precedes.
        unsafe {
            if let Some(source) = source {
                sockaddr::write(&source, &mut (*c).route.addr.src);
                (*c).route.addr.addr.ibaddr.sgid =
                    ibv_gid { raw: gids.map_or(source.ip().into(), |(ours, _)| ours).0 };
                (*c).route.addr.addr.ibaddr.pkey = wire::Pkey::default().0.to_be();
            }
            if let Some(dest) = dest {
                sockaddr::write(&dest, &mut (*c).route.addr.dst);
                (*c).route.addr.addr.ibaddr.dgid =
                    ibv_gid { raw: gids.map_or(dest.ip().into(), |(_, theirs)| theirs).0 };
            }
            if let (Some(ib), Some(source)) = (ib, source) {
                let gid = |ip: IpAddr| if ip.is_unspecified() { Gid::default() } else { ip.into() };
                sockaddr::write_ib(gid(source.ip()), &ib, &mut (*c).route.addr.src);
                if let Some(dest) = dest {
                    let theirs = ib_dest.unwrap_or(IbService { sid: 0, sid_mask: 0, ..ib });
                    sockaddr::write_ib(gid(dest.ip()), &theirs, &mut (*c).route.addr.dst);
                }
            }
        }
    }

    /// Shows C the path, which is for good: of the MTU of the route, the port, and what was chosen.
    ///
    /// # Safety
    ///
    /// As for [`CmId::take_in_qp`].
    unsafe fn show_path(&self, route_mtu: u32, port: wire::Mtu, chosen: Option<PathChoice>) {
        let c = self.c();
        // SAFETY: as for `show`.
        unsafe {
            let path = self.path.get();
            (*path).sgid = (*c).route.addr.addr.ibaddr.sgid;
            (*path).dgid = (*c).route.addr.addr.ibaddr.dgid;
            (*path).hop_limit = 64;
            (*path).reversible = 1;
            (*path).numb_path = 1;
            (*path).pkey = wire::Pkey::default().0.to_be();
            (*path).mtu_selector = SELECT_EXACTLY;
            let fits = wire::Mtu::for_link(route_mtu).unwrap_or(wire::Mtu::M256);
            (*path).mtu = fits.min(port).code();
            (*path).rate_selector = SELECT_EXACTLY;
            (*path).rate = RATE_10_GBPS;
            (*path).packet_life_time_selector = SELECT_EXACTLY;
            (*path).packet_life_time = PACKET_LIFE_TIME;
            if let Some(chosen) = chosen {
                (*path).mtu = (*path).mtu.min(chosen.mtu.code());
                (*path).traffic_class = chosen.traffic_class;
                (*path).flow_label = chosen.flow_label.to_be();
                (*path).sl = chosen.service_level;
                (*path).packet_life_time = chosen.packet_life_time;
            }
            (*c).route.path_rec = path;
            (*c).route.num_paths = 1;
        }
    }
}

impl CmId {
    /// Shows C the path that the administration of an InfiniBand subnet gave, or that a request
    /// came by.
    ///
    /// # Safety
    ///
    /// As for [`CmId::take_in_qp`].
    unsafe fn show_record(&self, record: &stack::PathRecord) {
        let c = self.c();
        let lid = |end: usize| record.lids.map_or(0, |lids| lids[end].lid());
        // SAFETY: as for `show`.
        unsafe {
            let path = self.path.get();
            (*path).sgid = ibv_gid { raw: record.local_gid.0 };
            (*path).dgid = ibv_gid { raw: record.remote_gid.0 };
            ((*path).slid, (*path).dlid) = (lid(0).to_be(), lid(1).to_be());
            (*path).flow_label = record.flow_label.to_be();
            (*path).hop_limit = record.hop_limit;
            (*path).traffic_class = record.traffic_class;
            ((*path).reversible, (*path).numb_path) = (1, 1);
            (*path).pkey = record.pkey.0.to_be();
            (*path).sl = record.service_level;
            ((*path).mtu_selector, (*path).mtu) = (SELECT_EXACTLY, record.mtu.code());
            ((*path).rate_selector, (*path).rate) = (SELECT_EXACTLY, record.packet_rate);
            (*path).packet_life_time_selector = SELECT_EXACTLY;
            (*path).packet_life_time = record.packet_life_time;
            (*c).route.path_rec = path;
            (*c).route.num_paths = 1;
            (*c).route.addr.addr.ibaddr.pkey = (*path).pkey;
        }
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        let mut ids = ids();
        let at = (&raw const *self).addr();
        if matches!(ids.get(&at), Some(Entry::Destroyed(_))) {
            ids.remove(&at);
        }
    }
}
