//! Memory: what of it peers may reach (rpma_mr_reg(3)), and what they need to know for it. A
//! descriptor is 21 bytes, numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | address of the first byte |
//! | 8..16 | length |
//! | 16..20 | the key |
//! | 20 | the usage, RPMA_MR_USAGE_* |

use std::ffi::{CStr, c_int, c_void};

use rdma_core_abi::verbs::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, ibv_access_flags, ibv_mr, ibv_sge,
};

use crate::codes::{INVAL, NOSUPP, Result, answer, errno, errno_of, failed, made, require};
use crate::object::{end, make, of, put, take};
use crate::peer::{CAN_FLUSH_GLOBAL, CAN_FLUSH_PERSISTENT, Peer};
use crate::peer_cfg;
use crate::stack::{Calls, advise_mr};

/// RPMA_MR_USAGE_*.
const READ_SRC: c_int = 1 << 0;
const READ_DST: c_int = 1 << 1;
const WRITE_SRC: c_int = 1 << 2;
const WRITE_DST: c_int = 1 << 3;
/// RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY.
pub const VISIBILITY: u8 = 1 << 4;
/// RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT.
pub const PERSISTENT: u8 = 1 << 5;
const RECV: c_int = 1 << 7;
/// All there are.
const ALL: c_int = 0xff;

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 21;

/// `struct rpma_mr_local`.
pub struct MrLocal {
    calls: &'static Calls,
    mr: *mut ibv_mr,
    /// The region's first byte, which operations add their offsets to.
    pub addr: u64,
    size: usize,
    /// For operations of this side.
    pub lkey: u32,
    usage: u8,
}

/// `struct rpma_mr_remote`.
pub struct MrRemote {
    /// The region's first byte, in the other side's addresses.
    pub addr: u64,
    size: u64,
    /// For operations of this side.
    pub rkey: u32,
    /// Bits: [`VISIBILITY`] and [`PERSISTENT`] say which flushes the region is for.
    pub usage: u8,
}

/// What regions of a usage allow; less what makes them fit for FLUSH.
fn access(usage: c_int) -> ibv_access_flags {
    let flush = c_int::from(VISIBILITY | PERSISTENT);
    // A READ stands for a flush.
    [
        (READ_SRC | flush, IBV_ACCESS_REMOTE_READ),
        (READ_DST | WRITE_SRC | RECV, IBV_ACCESS_LOCAL_WRITE),
        (WRITE_DST, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE),
    ]
    .into_iter()
    .filter(|(usages, _)| usage & usages != 0)
    .fold(0, |all, (_, access)| all | access)
}

const REG: &CStr = c"rpma_mr_reg";

/// rpma_mr_reg(3). Memory for a flush can be flushed by FLUSH where the device has it and takes
/// this memory for it, as it does not take anonymous memory for a persistent one. Where it does
/// not, a READ flushes it, as with upstream's.
pub unsafe extern "C" fn rpma_mr_reg(
    peer: *mut Peer,
    ptr: *mut c_void,
    size: usize,
    usage: c_int,
    mr: *mut *mut MrLocal,
) -> c_int {
    let register = || {
        // SAFETY: the crate's contract.
        let peer = unsafe { of(peer) }?;
        require(!ptr.is_null() && !mr.is_null() && size > 0 && usage & ALL != 0)?;
        let new = make(MrLocal {
            calls: peer.calls,
            mr: std::ptr::null_mut(),
            addr: ptr.addr() as u64,
            size,
            lkey: 0,
            usage: (usage & ALL) as u8,
        })?;
        // SAFETY: the crate's contract.
        match unsafe { register(peer, ptr, size, usage) } {
            // SAFETY: just made, by us and by libibverbs.
            Ok(made) => unsafe {
                ((*new).mr, (*new).lkey) = (made, (*made).lkey);
                put(mr, new)
            },
            Err(code) => {
                // SAFETY: just made, and no other thread has it.
                unsafe { end(new) };
                Err(code)
            }
        }
    };
    answer(register())
}

/// # Safety
///
/// The peer lives.
unsafe fn register(peer: &Peer, ptr: *mut c_void, size: usize, usage: c_int) -> Result<*mut ibv_mr> {
    let asked = |kind: u8, capability: u64, access: u32| {
        if usage & c_int::from(kind) != 0 && peer.capabilities & capability != 0 { access } else { 0 }
    };
    // SAFETY: the domain lives; what is not mapped is refused.
    let try_with = |access: u32| unsafe { (peer.calls.ibv_reg_mr)(peer.pd, ptr, size, access as c_int) };
    let plain = access(usage);
    let global = asked(VISIBILITY, CAN_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_GLOBAL);
    let persistent = asked(PERSISTENT, CAN_FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT);
    let mut mr = try_with(plain | global | persistent);
    // Not all memory is fit for it, and not every library and kernel knows it.
    for less in [(persistent != 0).then_some(global), (global != 0).then_some(0)].into_iter().flatten() {
        if mr.is_null() {
            mr = try_with(plain | less);
            if !mr.is_null() {
                peer_cfg::does_not_flush();
            }
        }
    }
    // A file of a file system on persistent memory can only be registered so.
    if mr.is_null() && errno() == libc::EOPNOTSUPP && peer.odp {
        mr = try_with(plain | IBV_ACCESS_ON_DEMAND);
    }
    made(REG, "ibv_reg_mr", mr)
}

/// rpma_mr_dereg(3).
pub unsafe extern "C" fn rpma_mr_dereg(mr: *mut *mut MrLocal) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(mr) }.and_then(|old| {
        if old.is_null() {
            return Ok(());
        }
        // SAFETY: likewise.
        let result = unsafe { ((*old).calls.ibv_dereg_mr)((*old).mr) };
        let done = errno_of(c"rpma_mr_dereg", "ibv_dereg_mr", result);
        // SAFETY: it is gone, and no thread uses it; or it is the program's as before.
        unsafe {
            match done {
                Ok(()) => end(old),
                Err(_) => *mr = old,
            }
        }
        done
    }))
}

/// rpma_mr_get_descriptor(3).
pub unsafe extern "C" fn rpma_mr_get_descriptor(mr: *const MrLocal, desc: *mut c_void) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(mr) }.and_then(|mr| {
        // SAFETY: a region that is registered.
        let rkey = unsafe { (*mr.mr).rkey };
        let bytes = Descriptor::of(&MrRemote { addr: mr.addr, size: mr.size as u64, rkey, usage: mr.usage });
        // SAFETY: the crate's contract: room for as many bytes as the size says, at any address.
        unsafe { put(desc.cast::<Descriptor>(), bytes) }
    }))
}

/// A descriptor, byte by byte.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    addr: [u8; 8],
    size: [u8; 8],
    rkey: [u8; 4],
    usage: u8,
}

const _: () = assert!(size_of::<Descriptor>() == DESCRIPTOR && align_of::<Descriptor>() == 1);

impl Descriptor {
    fn of(mr: &MrRemote) -> Self {
        Self {
            addr: mr.addr.to_le_bytes(),
            size: mr.size.to_le_bytes(),
            rkey: mr.rkey.to_le_bytes(),
            usage: mr.usage,
        }
    }
    fn read(self) -> MrRemote {
        MrRemote {
            addr: u64::from_le_bytes(self.addr),
            size: u64::from_le_bytes(self.size),
            rkey: u32::from_le_bytes(self.rkey),
            usage: self.usage,
        }
    }
}

/// rpma_mr_get_descriptor_size(3).
pub unsafe extern "C" fn rpma_mr_get_descriptor_size(mr: *const MrLocal, size: *mut usize) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(mr).and_then(|_| put(size, DESCRIPTOR)) })
}

/// rpma_mr_get_ptr(3).
pub unsafe extern "C" fn rpma_mr_get_ptr(mr: *const MrLocal, ptr: *mut *mut c_void) -> c_int {
    // SAFETY: the crate's contract; a region that is registered.
    answer(unsafe { of(mr).and_then(|mr| put(ptr, (*mr.mr).addr)) })
}

/// rpma_mr_get_size(3).
pub unsafe extern "C" fn rpma_mr_get_size(mr: *const MrLocal, size: *mut usize) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(mr).and_then(|mr| put(size, mr.size)) })
}

/// rpma_mr_remote_from_descriptor(3). Of more bytes the first are looked at; a usage of 0 is
/// RPMA_E_INVAL, as with upstream's.
pub unsafe extern "C" fn rpma_mr_remote_from_descriptor(
    desc: *const c_void,
    size: usize,
    mr: *mut *mut MrRemote,
) -> c_int {
    let read = || {
        require(!desc.is_null() && !mr.is_null() && size >= DESCRIPTOR)?;
        // SAFETY: so many bytes are there, by the crate's contract.
        let remote = unsafe { desc.cast::<Descriptor>().read() }.read();
        require(remote.usage != 0)?;
        let new = make(remote)?;
        // SAFETY: the crate's contract.
        unsafe { put(mr, new) }
    };
    answer(read())
}

/// rpma_mr_remote_get_size(3).
pub unsafe extern "C" fn rpma_mr_remote_get_size(mr: *const MrRemote, size: *mut usize) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(mr).and_then(|mr| put(size, mr.size as usize)) })
}

/// rpma_mr_remote_get_flush_type(3).
pub unsafe extern "C" fn rpma_mr_remote_get_flush_type(mr: *const MrRemote, flush_type: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe {
        of(mr).and_then(|mr| put(flush_type, c_int::from(mr.usage & (VISIBILITY | PERSISTENT))))
    })
}

/// rpma_mr_remote_delete(3).
pub unsafe extern "C" fn rpma_mr_remote_delete(mr: *mut *mut MrRemote) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(mr) }.map(|mr| {
        if !mr.is_null() {
            // SAFETY: likewise.
            unsafe { end(mr) }
        }
    }))
}

/// rpma_mr_advise(3). Upstream's crashes where `mr` is NULL: here it is RPMA_E_INVAL.
pub unsafe extern "C" fn rpma_mr_advise(
    mr: *mut MrLocal,
    offset: usize,
    len: usize,
    advice: c_int,
    flags: u32,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(mr) }.and_then(|mr| {
        let addr = mr.addr.wrapping_add(offset as u64);
        let mut sge = ibv_sge { addr, length: len as u32, lkey: mr.lkey };
        // SAFETY: a region that is registered.
        match unsafe { advise_mr((*mr.mr).pd, advice as u32, flags, &mut sge) } {
            0 => Ok(()),
            errno => {
                let code = failed(c"rpma_mr_advise", "ibv_advise_mr", errno);
                Err(match errno {
                    libc::EINVAL | libc::EFAULT => INVAL,
                    libc::EOPNOTSUPP => NOSUPP,
                    _ => code,
                })
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The one of docs/rpma-wire.md.
    #[test]
    fn a_descriptor_is_upstreams_byte_for_byte() {
        let remote = MrRemote { addr: 0x1234_5678_9000, size: 0x1234, rkey: 0xd50e_d779, usage: 0x20 };
        let bytes = Descriptor::of(&remote);
        assert_eq!(bytes.addr, [0x00, 0x90, 0x78, 0x56, 0x34, 0x12, 0, 0]);
        assert_eq!(bytes.size, [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!((bytes.rkey, bytes.usage), ([0x79, 0xd7, 0x0e, 0xd5], 0x20));
        assert_eq!(bytes.read().size, 0x1234);
    }
}
