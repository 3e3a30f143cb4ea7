//! Memory of the program that a peer writes to by offsets: `riomap`, `riounmap`, `riowrite`.

use std::ffi::{c_int, c_void};

use libc::off_t;
use nic::{Access, Errno};
use rsocket::Mapping;
use rsocket::conn_data::Sge;

use crate::ffi_guard;
use crate::rsocket::memory::Mapped;
use crate::rsocket::table;

/// `riomap`: the peer may write to the memory at the offset, or, for -1, at its address. It knows
/// of that before it gets any byte that is sent from now on. With PROT_NONE the peer is not told.
/// errno: EBADF, ENOTCONN; EINVAL for another protection, no memory, or 4 GiB of it and more;
/// ENOMEM where the peer has no room for another mapping; those of ibv_reg_mr(3).
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    ffi_guard::or(-1, || {
        let rsocket = table::find(socket)?;
        let bytes = u32::try_from(len).ok().filter(|&n| n > 0).ok_or(Errno::EINVAL)?;
        if prot & !libc::PROT_WRITE != 0 || buf.is_null() {
            return Err(Errno::EINVAL);
        }
        let addr = buf.expose_provenance() as u64;
        let offset = if offset == -1 { addr.cast_signed() } else { offset };
        let told = prot == libc::PROT_WRITE;
        let access = Access::LOCAL_WRITE | if told { Access::REMOTE_WRITE } else { 0 };
        let mut state = rsocket.lock();
        let (stream, qp) = state.stream_socket()?.stream().ok_or(Errno::ENOTCONN)?;
        let pd = qp.pd().clone();
        // SAFETY: memory of the program, which keeps it until `riounmap` (rsocket(7)).
        let mr = unsafe { pd.register(addr, len as u64, addr, access)? };
        let mapped = Mapped { addr, len: bytes, pd, mr, told };
        if told {
            let memory = Sge { addr, key: mapped.mr.key.0, length: bytes };
            stream.map(Mapping { offset: offset.cast_unsigned(), memory })?;
            stream.progress(qp);
        }
        state.mapped.push(mapped);
        drop(state);
        rsocket.instance.host.later().run();
        Ok(offset)
    })
}

/// `riounmap`: the peer may not write there any more. errno: EBADF; EINVAL for memory that is not
/// mapped as a whole.
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int {
    ffi_guard::or_minus_one(|| {
        let rsocket = table::find(socket)?;
        let (addr, len) = (buf.addr() as u64, len as u64);
        let mut state = rsocket.lock();
        let is_it = |mapped: &Mapped| (mapped.addr, u64::from(mapped.len)) == (addr, len);
        let at = state.mapped.iter().position(is_it).ok_or(Errno::EINVAL)?;
        let mapped = state.mapped.swap_remove(at);
        if mapped.told
            && let Some((stream, _)) = state.socket.as_mut().and_then(|socket| socket.stream())
        {
            stream.unmap(mapped.addr, mapped.len);
        }
        drop(state);
        drop(mapped);
        Ok(0)
    })
}

/// `riowrite`: writes to the peer's memory at the offset; how many bytes, fewer where its mapping
/// ends. errno: EBADF, ENOTCONN, EAGAIN, EINTR, EPIPE, ECONNRESET.
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    ffi_guard::or(usize::MAX, || {
        let rsocket = table::find(socket)?;
        if buf.is_null() && count > 0 {
            return Err(Errno::EFAULT);
        }
        let bytes = match count {
            0 => &[][..],
            // SAFETY: so many readable bytes, by the man page's contract.
            _ => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) },
        };
        let wait = !rsocket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let mut done = 0;
        while done < count {
            let at = offset.cast_unsigned().wrapping_add(done as u64);
            let written = rsocket.block(wait, None, |state| {
                let found = state.stream_socket().and_then(|socket| socket.stream().ok_or(Errno::ENOTCONN));
                let (stream, qp) = match found {
                    Ok(found) => found,
                    Err(error) => return Some(Err(error)),
                };
                match stream.write_mapped(qp, &bytes[done..], at) {
                    Ok(Some(0)) => None,
                    Ok(Some(n)) => Some(Ok(n)),
                    Ok(None) => Some(Ok(0)),
                    Err(error) => Some(Err(error)),
                }
            });
            match written {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    })
}
