//! Address handles (ibv_create_ah(3)): where datagrams go.

use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use nic::Error;
use rdma_core_abi::verbs::{ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route};
use wire::Qpn;

use crate::device::Pd;
use crate::object;

/// Routers that a datagram passes at most.
const HOP_LIMIT: u8 = 64;

/// An address handle.
pub struct Ah {
    pd: Arc<Pd>,
    raw: NonNull<ibv_ah>,
}

// SAFETY: a handle is only named in requests; only `drop` ends it.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl std::fmt::Debug for Ah {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ah")
    }
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Where it goes.
    pub ah: Arc<Ah>,
    /// The queue pair there.
    pub qpn: Qpn,
    /// The Q_Key that it expects.
    pub qkey: u32,
}

/// The GID of an address (RoCE v2).
pub(crate) fn gid(address: IpAddr) -> ibv_gid {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    ibv_gid { raw: address.octets() }
}

impl Ah {
    /// From an address of ours to another, with this traffic class. It may wait until the neighbour
    /// has said where it is.
    ///
    /// # Errors
    ///
    /// `Missing` where the device does not bear the address; errno of ibv_create_ah(3).
    pub fn new(pd: &Arc<Pd>, from: IpAddr, to: IpAddr, traffic_class: u8) -> Result<Arc<Self>, Error> {
        let index = pd.device.gid_index(from).ok_or(Error::Missing("our address on the device"))?;
        let grh = ibv_global_route {
            dgid: gid(to),
            flow_label: 0,
            sgid_index: index,
            hop_limit: HOP_LIMIT,
            traffic_class,
        };
        let mut attr =
            ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: 1 };
        // SAFETY: the domain lives; the attributes are read.
        let raw = object(unsafe { (pd.system().calls.ibv_create_ah)(pd.raw(), &raw mut attr) })?;
        Ok(Arc::new(Self { pd: pd.clone(), raw }))
    }
    pub(crate) fn raw(&self) -> *mut ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let system = self.pd.system();
        // SAFETY: no thread has it any more: queue pairs keep those of requests that may be under
        // way.
        let destroy = || -> c_int { unsafe { (system.calls.ibv_destroy_ah)(self.raw.as_ptr()) } };
        if system.is_ours() && destroy() != 0 {
            system.leak();
        }
    }
}
