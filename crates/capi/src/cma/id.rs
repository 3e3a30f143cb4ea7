//! Identifiers (rdma_create_id(3), rdma_bind_addr(3), rdma_migrate_id(3)) and the devices they use.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::cma::{self, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use abi::sa::ibv_sa_path_rec;
use abi::verbs::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_gid, ibv_pd, ibv_qp_init_attr,
    ibv_qp_type, ibv_xrcd, ibv_xrcd_init_attr,
};

use nic::QpType;
use node::id::Progress;
use node::{IbService, Id};
use wire::Gid;
use wire::mad::PortSpace;

use crate::border::{self, Errno};
use crate::cma::addrinfo::Resolution;
use crate::cma::channel;
use crate::cma::sockaddr;
use crate::instance::{self, Instance};
use crate::per_process::PerProcess;
use crate::verbs::event::Unacked;
use crate::verbs::qp::Qp;
use crate::verbs::{context, device, memory, xrc};

/// Subnet prefix and rate code of RoCE path records as the kernel makes them (IB_RATE_PORT_CURRENT's neighbour, 10 Gb/s).
const RATE_10_GBPS: u8 = 3;
/// "Exactly", of a path record's selectors.
const SELECT_EXACTLY: u8 = 2;
/// Packet life time code of RoCE paths in the kernel.
const PACKET_LIFE_TIME: u8 = 16;

/// What a passive endpoint keeps for its requests.
pub(crate) struct Saved {
    pub pd: *mut ibv_pd,
    pub init: ibv_qp_init_attr,
}

/// An identifier as C sees it, and the node's.
#[repr(C)]
pub(crate) struct CmId {
    c: rdma_cm_id,
    path: ibv_sa_path_rec,
    pub node: Arc<Id>,
    pub instance: Arc<Instance>,
    pub unacked: Unacked,
    /// Calls wait for their event on a channel of the identifier's own.
    pub synchronous: bool,
    pub saved: Option<Saved>,
    /// rdma_create_qp made the completion queues.
    pub owns_cqs: bool,
    /// What stands before the program's private data in its request (`ai_connect`).
    pub connect_data: Vec<u8>,
    /// What became of rdma_resolve_addrinfo.
    addrinfo: Mutex<Resolution>,
}

impl CmId {
    /// # Safety
    ///
    /// `id` came from this module and is not destroyed.
    pub unsafe fn of<'a>(id: *mut rdma_cm_id) -> &'a CmId {
        // SAFETY: the C part is the first field.
        unsafe { &*id.cast::<CmId>() }
    }

    /// Like [`CmId::of`], refusing NULL with EINVAL.
    ///
    /// # Safety
    ///
    /// NULL, or as for [`CmId::of`].
    pub unsafe fn checked<'a>(id: *mut rdma_cm_id) -> Result<&'a CmId, Errno> {
        if id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as the caller says.
        Ok(unsafe { CmId::of(id) })
    }

    /// What became of rdma_resolve_addrinfo.
    pub fn resolution(&self) -> MutexGuard<'_, Resolution> {
        self.addrinfo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole, to change what is not C's.
    ///
    /// # Safety
    ///
    /// As for [`CmId::of`], and no other call on the identifier is under way.
    pub unsafe fn whole<'a>(id: *mut rdma_cm_id) -> &'a mut CmId {
        // SAFETY: as the caller says.
        unsafe { &mut *id.cast::<CmId>() }
    }

    fn make(
        node: Arc<Id>,
        instance: Arc<Instance>,
        channel: *mut rdma_event_channel,
        user: *mut c_void,
        ps: u32,
        synchronous: bool,
    ) -> *mut rdma_cm_id {
        // SAFETY: pointers, integers and unions of plain bytes.
        let (mut c, path): (rdma_cm_id, ibv_sa_path_rec) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        c.channel = channel;
        c.context = user;
        c.ps = ps;
        c.qp_type = node.kind as ibv_qp_type;
        let id = Box::into_raw(Box::new(CmId {
            c,
            path,
            node: node.clone(),
            instance,
            unacked: Unacked::default(),
            synchronous,
            saved: None,
            owns_cqs: false,
            connect_data: Vec::new(),
            addrinfo: Mutex::default(),
        }));
        node.cookie.store(id.expose_provenance() as u64, Ordering::Release);
        id.cast()
    }

    /// The C object of a request's new identifier: context, channel and port space are the listener's.
    ///
    /// # Safety
    ///
    /// `listener` lives.
    pub unsafe fn incoming(node: &Arc<Id>, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id, Errno> {
        if listener.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as the caller says.
        let (l, c) = unsafe { (CmId::of(listener), &*listener) };
        let sync = l.synchronous;
        let own = if sync { channel::create(&l.instance)? } else { c.channel };
        let id = CmId::make(node.clone(), l.instance.clone(), own, c.context, c.ps, sync);
        if sync {
            l.instance.node().migrate(node, &channel::find(own)?.node);
        }
        Ok(id)
    }

    /// Brings the C-visible fields up to date: device, addresses, path.
    ///
    /// # Safety
    ///
    /// As for [`CmId::of`].
    pub unsafe fn refresh(&self) {
        let c = (&raw const self.c).cast_mut();
        let (device, source, dest, progress, route, ib, chosen) = {
            let inner = self.node.lock();
            let device = inner.device.clone();
            (device, inner.source, inner.dest, inner.progress, inner.route, inner.ib, inner.path)
        };
        // SAFETY: C-visible fields, which C reads after the call or event that this precedes.
        unsafe {
            if let Some(source) = source {
                sockaddr::write(&source, &mut (*c).route.addr.src);
                (*c).route.addr.addr.ibaddr.sgid = ibv_gid { raw: Gid::from(source.ip()).0 };
                (*c).route.addr.addr.ibaddr.pkey = wire::Pkey::default().0.to_be();
            }
            if let Some(dest) = dest {
                sockaddr::write(&dest, &mut (*c).route.addr.dst);
                (*c).route.addr.addr.ibaddr.dgid = ibv_gid { raw: Gid::from(dest.ip()).0 };
            }
            if let (Some(ib), Some(source)) = (ib, source) {
                let gid = |ip: IpAddr| if ip.is_unspecified() { Gid::default() } else { ip.into() };
                sockaddr::write_ib(gid(source.ip()), &ib, &mut (*c).route.addr.src);
                if let Some(dest) = dest {
                    let theirs = IbService { sid: 0, sid_mask: 0, ..ib };
                    sockaddr::write_ib(gid(dest.ip()), &theirs, &mut (*c).route.addr.dst);
                }
            }
            if !(*c).qp.is_null() {
                // Connecting and disconnecting move it.
                (*(*c).qp).state = Qp::of((*c).qp).nic.state() as u32;
            }
            if let Some(device) = &device
                && (*c).verbs.is_null()
                && let Ok(verbs) = context_of(device)
            {
                (*c).verbs = verbs;
                (*c).port_num = 1;
                // Programs that make a queue pair of their own make it in this domain (rdma_cm(7): id->pd).
                if (*c).pd.is_null() {
                    (*c).pd = default_pd(device).unwrap_or(std::ptr::null_mut());
                }
            }
            let has_path = !matches!(
                progress,
                Progress::Idle
                    | Progress::Bound
                    | Progress::AddressQuery
                    | Progress::AddressResolved
                    | Progress::Listening
            );
            if let (true, Some(device), Some(route), 0) = (has_path, device, route, (*c).route.num_paths) {
                let path = (&raw const self.path).cast_mut();
                (*path).sgid = (*c).route.addr.addr.ibaddr.sgid;
                (*path).dgid = (*c).route.addr.addr.ibaddr.dgid;
                (*path).hop_limit = 64;
                (*path).reversible = 1;
                (*path).numb_path = 1;
                (*path).pkey = wire::Pkey::default().0.to_be();
                (*path).mtu_selector = SELECT_EXACTLY;
                let fits = wire::Mtu::for_link(route.mtu).unwrap_or(wire::Mtu::M256);
                (*path).mtu = fits.min(device.port().mtu).code();
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
}

/// A device's context, opened once a process and shared by all identifiers, as librdmacm does; its default protection
/// domain and XRC domain likewise.
struct Opened {
    context: usize,
    pd: Option<usize>,
    xrcd: Option<usize>,
}

static OPENED: PerProcess<Mutex<BTreeMap<usize, Opened>>> = PerProcess::new();

/// The shared context of a device.
pub(crate) fn context_of(nic: &Arc<nic::Device>) -> Result<*mut ibv_context, Errno> {
    let key = Arc::as_ptr(nic) as usize;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(o) = opened.get(&key) {
        return Ok(std::ptr::with_exposed_provenance_mut(o.context));
    }
    for d in device::all()? {
        // SAFETY: a device of our list.
        if Arc::ptr_eq(&unsafe { device::Device::of(d) }.nic, nic) {
            let context = context::open(d)?;
            opened.insert(key, Opened { context: context.expose_provenance(), pd: None, xrcd: None });
            return Ok(context);
        }
    }
    Err(Errno(libc::ENODEV))
}

/// The default protection domain of a device.
fn default_pd(nic: &Arc<nic::Device>) -> Result<*mut ibv_pd, Errno> {
    let context = context_of(nic)?;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    let entry = opened.get_mut(&(Arc::as_ptr(nic) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(pd) = entry.pd {
        return Ok(std::ptr::with_exposed_provenance_mut(pd));
    }
    // SAFETY: a context just opened, or kept since.
    let pd = unsafe { memory::ibv_alloc_pd(context) };
    if pd.is_null() {
        return Err(Errno::last());
    }
    entry.pd = Some(pd.expose_provenance());
    Ok(pd)
}

/// The default XRC domain of an identifier's device; ENODEV without a device.
///
/// # Safety
///
/// An identifier of ours.
pub(crate) unsafe fn default_xrcd(id: *mut rdma_cm_id) -> Result<*mut ibv_xrcd, Errno> {
    // SAFETY: as the caller says.
    let device = unsafe { CmId::of(id) }.node.lock().device.clone().ok_or(Errno(libc::ENODEV))?;
    let context = context_of(&device)?;
    let mut opened = OPENED.get().lock().unwrap_or_else(PoisonError::into_inner);
    let entry = opened.get_mut(&(Arc::as_ptr(&device) as usize)).ok_or(Errno(libc::ENODEV))?;
    if let Some(xrcd) = entry.xrcd {
        return Ok(std::ptr::with_exposed_provenance_mut(xrcd));
    }
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut attr = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: a context just opened, or kept since.
    let xrcd = unsafe { xrc::open_xrcd(context, &raw mut attr) };
    if xrcd.is_null() {
        return Err(Errno::last());
    }
    entry.xrcd = Some(xrcd.expose_provenance());
    Ok(xrcd)
}

/// The domain for an object of an identifier: the one given, else the identifier's, else its device's default. EINVAL for an
/// identifier without a device and for another device's domain.
///
/// # Safety
///
/// An identifier of ours, and a domain of ours or NULL.
pub(crate) unsafe fn domain(id: *mut rdma_cm_id, given: *mut ibv_pd) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let ours = CmId::of(id);
        ours.refresh();
        let device = ours.node.lock().device.clone().ok_or(Errno(libc::EINVAL))?;
        let pd = match () {
            () if !given.is_null() => given,
            () if !(*id).pd.is_null() => (*id).pd,
            () => default_pd(&device)?,
        };
        if (*pd).context == (*id).verbs { Ok(pd) } else { Err(Errno(libc::EINVAL)) }
    }
}

/// `rdma_get_devices`: the shared contexts, NULL-terminated; to be freed by [`rdma_free_devices`].
pub unsafe extern "C" fn rdma_get_devices(num: *mut c_int) -> *mut *mut ibv_context {
    border::or_null(|| {
        let devices = instance::get()?.node().devices();
        let bytes = (devices.len() + 1) * size_of::<*mut ibv_context>();
        // SAFETY: plain allocation of at least one pointer.
        let list = unsafe { libc::calloc(1, bytes) }.cast::<*mut ibv_context>();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        for (i, d) in devices.iter().enumerate() {
            let context = context_of(d)?;
            // SAFETY: inside the array.
            unsafe { list.add(i).write(context) };
        }
        if !num.is_null() {
            // SAFETY: the caller's variable.
            unsafe { *num = devices.len() as c_int };
        }
        Ok(list)
    })
}

/// `rdma_free_devices`: the contexts stay open.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: from `rdma_get_devices`, or NULL.
    unsafe { libc::free(list.cast()) }
}

/// Makes an identifier; without a channel, one for synchronous operation. `kind` is the type of its queue pair in RDMA_PS_IB.
///
/// # Safety
///
/// `channel` is NULL or lives.
pub(crate) unsafe fn create(
    channel: *mut rdma_event_channel,
    user: *mut c_void,
    ps: u32,
    kind: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    let space = match ps {
        cma::RDMA_PS_TCP => PortSpace::Tcp,
        cma::RDMA_PS_UDP => PortSpace::Udp,
        cma::RDMA_PS_IPOIB => PortSpace::Ipoib,
        cma::RDMA_PS_IB => PortSpace::Ib,
        _ => return Err(Errno(libc::EPROTONOSUPPORT)),
    };
    let instance = instance::get()?;
    let synchronous = channel.is_null();
    let channel = if synchronous { channel::create(&instance)? } else { channel };
    let kind = QpType::from_code(kind).unwrap_or(QpType::Rc);
    let node = instance.node().create_id_for(&channel::find(channel)?.node, space, kind);
    Ok(CmId::make(node, instance, channel, user, ps, synchronous))
}

/// `rdma_create_id`. errno: EINVAL for NULL, EPROTONOSUPPORT for an unknown port space, EBADF for a channel
/// destroyed, ENODEV, EMFILE, ENOMEM.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    user: *mut c_void,
    ps: u32,
) -> c_int {
    border::or_minus_one(|| {
        if id.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the man page's contract, and the caller's variable.
        unsafe { *id = create(channel, user, ps, abi::verbs::IBV_QPT_RC)? };
        Ok(0)
    })
}

/// `rdma_destroy_id`: waits until its events are acknowledged. Its queue pair must be destroyed before. errno: EINVAL for NULL.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        // SAFETY: as above.
        unsafe { release_event(id) };
        if ours.instance.is_ours() {
            // SAFETY: as above.
            let channel = channel::find(unsafe { (*id).channel });
            {
                let _handing_out = channel.as_ref().ok().map(|c| c.handing_out.begin());
                ours.instance.node().destroy(&ours.node);
                ours.node.cookie.store(0, Ordering::Release);
            }
            // Its last message may be the process's last.
            ours.instance.host.sweep();
            ours.unacked.wait();
        }
        // SAFETY: made by `Box::into_raw`; the node forgot it.
        let owned = unsafe { Box::from_raw(id.cast::<CmId>()) };
        if owned.synchronous {
            // SAFETY: its own channel, which nobody else uses.
            unsafe { channel::destroy(owned.c.channel) };
        }
        Ok(0)
    })
}

/// Acknowledges the event that a synchronous call left in the identifier.
///
/// # Safety
///
/// An identifier of ours.
pub(crate) unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: as the caller says.
    unsafe {
        let event = std::mem::replace(&mut (*id).event, std::ptr::null_mut());
        if !event.is_null() {
            channel::rdma_ack_cm_event(event);
        }
    }
}

/// Ends a call: on a synchronous identifier waits for its event, which stays in `id->event`; a failure it tells becomes errno.
///
/// # Safety
///
/// An identifier of ours; the caller's frame has nothing to drop, as the thread may be cancelled while it waits.
pub(crate) unsafe fn complete(id: *mut rdma_cm_id, started: c_int) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        if started != 0 || !CmId::of(id).synchronous {
            return started;
        }
        release_event(id);
        let mut event: *mut rdma_cm_event = std::ptr::null_mut();
        if channel::rdma_get_cm_event((*id).channel, &raw mut event) != 0 {
            return -1;
        }
        (*id).event = event;
        match (*event).status {
            0 => 0,
            _ if (*event).event == cma::RDMA_CM_EVENT_REJECTED => {
                Errno(libc::ECONNREFUSED).set();
                -1
            }
            // A reason out of the answer to a question for a datagram service is no errno.
            1.. if (*event).event == cma::RDMA_CM_EVENT_UNREACHABLE => {
                Errno(libc::ECONNREFUSED).set();
                -1
            }
            status => {
                Errno(status.abs()).set();
                -1
            }
        }
    }
}

/// `rdma_migrate_id`: to a channel, or with NULL to synchronous operation. Waits until its events are acknowledged. errno: EINVAL for a
/// NULL identifier and for NULL where it is synchronous already, EBADF for a channel destroyed.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    border::or_minus_one(|| {
        // SAFETY: an identifier of ours or NULL, by the man page's contract.
        let ours = unsafe { CmId::checked(id)? };
        let synchronous = to.is_null();
        if synchronous && ours.synchronous {
            return Err(Errno(libc::EINVAL));
        }
        let to = if synchronous { channel::create(&ours.instance)? } else { to };
        let target = channel::find(to)?;
        // SAFETY: as above.
        unsafe { release_event(id) };
        ours.instance.node().migrate(&ours.node, &target.node);
        ours.unacked.wait();
        // SAFETY: as above; its old channel was its own where it was synchronous.
        unsafe {
            let old = std::mem::replace(&mut (*id).channel, to);
            let whole = CmId::whole(id);
            if std::mem::replace(&mut whole.synchronous, synchronous) {
                channel::destroy(old);
            }
        }
        Ok(0)
    })
}
