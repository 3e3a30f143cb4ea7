//! Options of an identifier (rdma_set_option(3)).
//!
//! | level, option | value | when |
//! |---|---|---|
//! | RDMA_OPTION_ID, TOS | `uint8_t` | for what is sent after the next rdma_connect or rdma_accept |
//! | RDMA_OPTION_ID, REUSEADDR | `int` | until it listens |
//! | RDMA_OPTION_ID, AFONLY | `int` | until its address is resolved or it listens |
//! | RDMA_OPTION_ID, ACK_TIMEOUT | `uint8_t`, 0 to 31: 4.096 us * 2^value | connections, before they are made |
//! | RDMA_OPTION_IB, PATH | `struct ibv_path_data[]` | instead of rdma_resolve_route |

use std::ffi::{c_int, c_void};

use rdma_core_abi::cma::{self, rdma_cm_id};
use rdma_core_abi::sa::{self, ibv_path_data};
use stack::PathChoice;
use wire::{Gid, Mtu};

use crate::cma::cm_id::CmId;
use crate::ffi_guard::{self, Errno};

/// The flags of the one path of an array that counts, as in the kernel.
const THE_PATH: u32 = sa::IBV_PATH_FLAG_GMP | sa::IBV_PATH_FLAG_PRIMARY | sa::IBV_PATH_FLAG_BIDIRECTIONAL;
/// Codes of MTU and packet life time have six bits; a selector stands above them.
const CODE_MASK: u8 = 0x3f;
/// Largest code of a packet life time that an ACK timeout can follow.
const MAX_LIFE_TIME: u8 = 31;

/// rdma_set_option(3). errno: EINVAL for NULL, a wrong length, a value out of its range, an
/// identifier beyond the state of the table; of ACK_TIMEOUT also for datagrams, of PATH for a path
/// between other GIDs; EADDRNOTAVAIL or EADDRINUSE where an address can not be taken out of
/// sharing; ENOSYS for other options.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let ours = CmId::checked(id)?;
        if value.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let byte = || match len {
            // SAFETY: the caller's variable of one byte.
            1 => Ok(unsafe { *value.cast::<u8>() }),
            _ => Err(Errno(libc::EINVAL)),
        };
        let flag = || match len {
            // SAFETY: the caller's variable of four bytes.
            4 => Ok(unsafe { value.cast::<c_int>().read_unaligned() } != 0),
            _ => Err(Errno(libc::EINVAL)),
        };
        let node = ours.instance.node();
        match (level, name) {
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_TOS) => ours.node.lock().tos = Some(byte()?),
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_REUSEADDR) => node.set_reuse(&ours.node, flag()?)?,
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_AFONLY) => node.set_v6_only(&ours.node, flag()?)?,
            (cma::RDMA_OPTION_ID, cma::RDMA_OPTION_ID_ACK_TIMEOUT) => {
                let code = byte()?;
                if code > 31 || ours.node.is_datagram() {
                    return Err(Errno(libc::EINVAL));
                }
                ours.node.lock().ack_timeout = Some(code);
            }
            (cma::RDMA_OPTION_IB, cma::RDMA_OPTION_IB_PATH) => {
                // SAFETY: the caller's array of that many bytes.
                let (ends, path) = unsafe { chosen(value.cast(), len)? };
                node.choose_path(&ours.node, ends, path)?;
                // Where the device can not be opened, the event says so.
                // SAFETY: a program calls on an identifier from one thread at a time, as with
                // librdmacm.
                let _ = unsafe { ours.refresh() };
            }
            _ => return Err(Errno(libc::ENOSYS)),
        }
        Ok(0)
    })
}

/// The path of an array that counts: our GID and the peer's, and what else it says.
///
/// # Safety
///
/// `paths` points to `bytes` bytes.
unsafe fn chosen(paths: *const ibv_path_data, bytes: usize) -> Result<((Gid, Gid), PathChoice), Errno> {
    if !bytes.is_multiple_of(size_of::<ibv_path_data>()) {
        return Err(Errno(libc::EINVAL));
    }
    let path = (0..bytes / size_of::<ibv_path_data>())
        // SAFETY: inside the array; C gives no promise of alignment.
        .map(|i| unsafe { paths.add(i).read_unaligned() })
        .find(|path| path.flags == THE_PATH)
        .ok_or(Errno(libc::EINVAL))?
        .path;
    let flow = u32::from_be(path.flowlabel_hoplimit);
    let choice = PathChoice {
        mtu: Mtu::from_code(path.mtu & CODE_MASK).ok_or(Errno(libc::EINVAL))?,
        traffic_class: path.tclass,
        flow_label: flow >> 8 & 0xf_ffff,
        hop_limit: flow as u8,
        service_level: (u16::from_be(path.qosclass_sl) & 0xf) as u8,
        packet_life_time: (path.packetlifetime & CODE_MASK).min(MAX_LIFE_TIME),
        lids: [u16::from_be(path.slid), u16::from_be(path.dlid)],
        packet_rate: path.rate & CODE_MASK,
        pkey: wire::Pkey(u16::from_be(path.pkey)),
    };
    // SAFETY: any sixteen bytes are a GID.
    Ok((unsafe { (Gid(path.sgid.raw), Gid(path.dgid.raw)) }, choice))
}
