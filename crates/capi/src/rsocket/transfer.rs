//! Bytes of a stream, and datagrams: the families of recv(2), send(2), read(2) and write(2).

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use nic::Errno;
use rsocket::Phase;

use crate::ffi_guard;
use crate::rsocket::object::State;
use crate::rsocket::{datagram, open, table, timers};

/// Pieces of one call, at most (IOV_MAX).
const MAX_PIECES: usize = 1024;
/// Bytes of one call, at most, as of sockets.
const MAX_BYTES: usize = 0x7fff_f000;
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.map(|timeout| Instant::now() + timeout)
}

/// The state of a socket that is not connected, as a call says it; `None` for one that is.
fn unconnected(state: &mut State) -> Option<Result<usize, Errno>> {
    let socket = match &mut state.socket {
        Some(socket) => socket,
        None => return Some(Err(Errno::EBADF)),
    };
    match socket.phase() {
        Phase::Connected => None,
        Phase::Failed => Some(Err(socket.take_error().unwrap_or(Errno::ENOTCONN))),
        _ => Some(Err(Errno::ENOTCONN)),
    }
}

/// Whether the socket is still being connected: a call waits for that.
fn comes_about(state: &State) -> bool {
    let phase = state.socket.as_ref().map(rsocket::Socket::phase);
    matches!(phase, Some(Phase::Connecting | Phase::Accepting))
}

fn receive(socket: c_int, parts: &mut [&mut [u8]], flags: c_int) -> Result<usize, Errno> {
    let total = parts.iter().map(|part| part.len()).sum();
    receive_of(socket, parts, total, flags)
}

/// Receives `total` bytes, for which there is as much room, unless they are dropped (MSG_TRUNC).
fn receive_of(socket: c_int, parts: &mut [&mut [u8]], total: usize, flags: c_int) -> Result<usize, Errno> {
    let rsocket = table::find(socket)?;
    if rsocket.is_datagram {
        let received = datagram::receive(&rsocket, parts, flags)?;
        return Ok(datagram::counted(&received, flags));
    }
    // There are no urgent bytes, and no queue of errors.
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    let wait = !rsocket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let until = deadline(rsocket.lock().options.receive_timeout);
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let mut done = 0;
    loop {
        let read = rsocket.block(wait, until, |state| {
            if comes_about(state) {
                return None;
            }
            if let Some(said) = unconnected(state) {
                return Some(said);
            }
            let (stream, qp) = state.socket.as_mut()?.stream()?;
            if total == 0 {
                return Some(Ok(0));
            }
            let read = if flags & libc::MSG_TRUNC != 0 {
                Ok(discard(stream, total - done, peek))
            } else {
                stream.read(qp, &mut rest(parts, done), peek)
            };
            stream.progress(qp);
            read.transpose()
        });
        match read {
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if !all || peek || done >= total || read == Ok(0) {
            return Ok(done);
        }
    }
}

/// MSG_TRUNC of a byte stream: bytes are dropped (tcp(7)).
fn discard(stream: &mut rsocket::Stream, most: usize, peek: bool) -> Option<usize> {
    let there = usize::try_from(stream.readable_bytes()).unwrap_or(usize::MAX);
    let n = there.min(most);
    if !peek {
        stream.skip(n);
    }
    (n > 0 || stream.readiness().read_hup).then_some(n)
}

/// The pieces behind the first `done` bytes.
fn rest<'a>(parts: &'a mut [&mut [u8]], mut done: usize) -> Vec<&'a mut [u8]> {
    let mut left = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = done.min(part.len());
        done -= skipped;
        left.push(&mut part[skipped..]);
    }
    left
}

fn send(socket: c_int, parts: &[&[u8]], flags: c_int) -> Result<usize, Errno> {
    let rsocket = table::find(socket)?;
    if rsocket.is_datagram {
        return datagram::send(&rsocket, None, parts, flags);
    }
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let wait = !rsocket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let until = deadline(rsocket.lock().options.send_timeout);
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let more = flags & libc::MSG_MORE != 0;
    let (mut done, mut waits_for_more) = (0, false);
    loop {
        let sent = rsocket.block(wait, until, |state| {
            if comes_about(state) {
                return None;
            }
            if let Some(said) = unconnected(state) {
                return Some(said);
            }
            let (stream, qp) = state.socket.as_mut()?.stream()?;
            let sent = stream.write(qp, &behind(parts, done), more || state.options.cork);
            waits_for_more |= stream.awaits_more() && !std::mem::replace(&mut state.is_push_due, true);
            // An edge of epoll(7) tells of room from now on.
            state.refusals += u64::from(sent.is_ok_and(|n| n < total - done));
            (sent != Ok(0) || total == 0).then_some(sent)
        });
        if std::mem::take(&mut waits_for_more) {
            timers::push_later(&rsocket);
        }
        match sent {
            Ok(n) => done += n,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if !wait || done >= total {
            return Ok(done);
        }
    }
}

/// The pieces behind the first `done` bytes.
fn behind<'a>(parts: &[&'a [u8]], mut done: usize) -> Vec<&'a [u8]> {
    let mut left = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = done.min(part.len());
        done -= skipped;
        if skipped < part.len() {
            left.push(&part[skipped..]);
        }
    }
    left
}

/// The pieces of a caller.
///
/// # Safety
///
/// NULL where there are none, or an array of so many that names bytes of the program.
unsafe fn pieces<'a>(iov: *const iovec, count: usize) -> Result<Vec<&'a mut [u8]>, Errno> {
    if count > MAX_PIECES {
        return Err(Errno::EINVAL);
    }
    if iov.is_null() && count > 0 {
        return Err(Errno::EFAULT);
    }
    let mut room = MAX_BYTES;
    (0..count)
        .map(|n| {
            // SAFETY: as the caller says.
            let piece = unsafe { iov.add(n).read() };
            let len = piece.iov_len.min(room);
            room -= len;
            // SAFETY: as above.
            unsafe { bytes_mut(piece.iov_base, len) }
        })
        .collect()
}

/// # Safety
///
/// So many writable bytes, or none.
unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    match len {
        0 => Ok(&mut []),
        _ if at.is_null() => Err(Errno::EFAULT),
        // SAFETY: as the caller says.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), len.min(MAX_BYTES)) }),
    }
}

/// # Safety
///
/// So many readable bytes, or none.
unsafe fn bytes<'a>(at: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    match len {
        0 => Ok(&[]),
        _ if at.is_null() => Err(Errno::EFAULT),
        // SAFETY: as the caller says.
        _ => Ok(unsafe { std::slice::from_raw_parts(at.cast(), len.min(MAX_BYTES)) }),
    }
}

fn sized(f: impl FnOnce() -> Result<usize, Errno>) -> ssize_t {
    ffi_guard::or(-1, || f().map(usize::cast_signed))
}

/// `rrecv`, recv(2): MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC, of streams MSG_WAITALL. errno: EBADF,
/// ENOTCONN, EAGAIN, EINTR, EFAULT for NULL; ECONNRESET and ETIMEDOUT once all that had come was
/// read.
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    sized(|| {
        if flags & libc::MSG_TRUNC != 0 && !table::find(socket)?.is_datagram {
            return receive_of(socket, &mut [], len, flags);
        }
        // SAFETY: the man page's contract.
        receive(socket, &mut [unsafe { bytes_mut(buf, len)? }], flags)
    })
}

/// `rrecvfrom`, recvfrom(2): as `rrecv`, with the address of the peer or of the datagram's sender.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    // An error is that of the call below.
    if table::find(socket).is_ok_and(|rsocket| rsocket.is_datagram) {
        return sized(|| {
            let rsocket = table::find(socket)?;
            // SAFETY: the man page's contract.
            let received = datagram::receive(&rsocket, &mut [unsafe { bytes_mut(buf, len)? }], flags)?;
            if let Some(from) = received.from
                && !addr.is_null()
                && !addrlen.is_null()
            {
                // SAFETY: as above.
                unsafe { open::put(&datagram::shown(&rsocket, from), addr, addrlen) };
            }
            Ok(datagram::counted(&received, flags))
        });
    }
    // SAFETY: the man page's contract.
    unsafe {
        let n = rrecv(socket, buf, len, flags);
        if n >= 0 && !addr.is_null() {
            // An error says that the connection has ended.
            _ = open::name(socket, addr, addrlen, true);
        }
        n
    }
}

/// `rrecvmsg`, recvmsg(2): as `rrecv`, with the address of a datagram's sender, and MSG_TRUNC for
/// one that was cut. There are no control messages.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    sized(|| {
        // SAFETY: the man page's contract.
        let msg = unsafe { msg.as_mut() }.ok_or(Errno::EFAULT)?;
        // SAFETY: as above.
        let mut parts = unsafe { pieces(msg.msg_iov, msg.msg_iovlen)? };
        let rsocket = table::find(socket)?;
        if rsocket.is_datagram {
            let received = datagram::receive(&rsocket, &mut parts, flags)?;
            (msg.msg_controllen, msg.msg_flags) = (0, 0);
            if received.len > received.copied {
                msg.msg_flags = libc::MSG_TRUNC;
            }
            match received.from {
                // SAFETY: as above.
                Some(from) if !msg.msg_name.is_null() => unsafe {
                    let to = msg.msg_name.cast();
                    open::put(&datagram::shown(&rsocket, from), to, &raw mut msg.msg_namelen);
                },
                _ => msg.msg_namelen = 0,
            }
            return Ok(datagram::counted(&received, flags));
        }
        let n = receive(socket, &mut parts, flags)?;
        (msg.msg_controllen, msg.msg_flags, msg.msg_namelen) = (0, 0, 0);
        Ok(n)
    })
}

/// `rread`, read(2): as `rrecv`.
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    // SAFETY: the man page's contract.
    unsafe { rrecv(socket, buf, len, 0) }
}

/// `rreadv`, readv(2): as `rrecv`. errno: EINVAL for more than 1,024 pieces.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    sized(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the man page's contract.
        let mut parts = unsafe { pieces(iov, count)? };
        receive(socket, &mut parts, 0)
    })
}

/// `rsend`, send(2): MSG_DONTWAIT, of streams MSG_MORE. errno: EBADF, ENOTCONN, EAGAIN, EINTR,
/// EFAULT for NULL; EPIPE, without a signal, where this end or the peer has closed the stream;
/// ECONNRESET, ETIMEDOUT. Of datagrams EDESTADDRREQ without rconnect, EMSGSIZE for more than 2,032
/// bytes over IPv4 or 2,020 over IPv6, or than fits the device's MTU with a header of 8 or 24
/// bytes; ECONNREFUSED, ENETUNREACH, ENODEV.
pub unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t {
    // SAFETY: the man page's contract.
    sized(|| send(socket, &[unsafe { bytes(buf, len)? }], flags))
}

/// `rsendto`, sendto(2): as `rsend`. errno: of streams EISCONN for an address.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    sized(|| {
        let rsocket = table::find(socket)?;
        if rsocket.is_datagram && !addr.is_null() {
            // SAFETY: the man page's contract.
            let (to, bytes) = unsafe { (open::take(addr, addrlen)?, bytes(buf, len)?) };
            return datagram::send(&rsocket, Some(to), &[bytes], flags);
        }
        if !addr.is_null() || addrlen > 0 {
            return Err(Errno::EISCONN);
        }
        // SAFETY: the man page's contract.
        send(socket, &[unsafe { bytes(buf, len)? }], flags)
    })
}

/// `rsendmsg`, sendmsg(2): as `rsend`. errno: EOPNOTSUPP for control messages.
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    sized(|| {
        // SAFETY: the man page's contract.
        let msg = unsafe { msg.as_ref() }.ok_or(Errno::EFAULT)?;
        if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above.
        let parts = unsafe { pieces(msg.msg_iov, msg.msg_iovlen)? };
        let rsocket = table::find(socket)?;
        if rsocket.is_datagram && !msg.msg_name.is_null() {
            // SAFETY: as above.
            let to = unsafe { open::take(msg.msg_name.cast(), msg.msg_namelen)? };
            return datagram::send(&rsocket, Some(to), &shared(&parts), flags);
        }
        send(socket, &shared(&parts), flags)
    })
}

fn shared<'a>(parts: &'a [&mut [u8]]) -> Vec<&'a [u8]> {
    parts.iter().map(|part| &**part).collect()
}

/// `rwrite`, write(2): as `rsend`.
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, len: usize) -> ssize_t {
    // SAFETY: the man page's contract.
    unsafe { rsend(socket, buf, len, 0) }
}

/// `rwritev`, writev(2): as `rsend`. errno: EINVAL for more than 1,024 pieces.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    sized(|| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the man page's contract.
        let parts = unsafe { pieces(iov, count)? };
        send(socket, &shared(&parts), 0)
    })
}
