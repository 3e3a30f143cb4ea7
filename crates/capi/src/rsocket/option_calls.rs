//! Calls for options of rsockets (rsocket(7)), and for flags: which there are, and what they do.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};
use nic::Errno;
use rsocket::Phase;

use crate::ffi_guard;
use crate::rsocket::object::{Rsocket, State};
use crate::rsocket::options::{
    SOL_RDMA, doubled, int_of, ints_of, set_size, size_of_queue, time_bytes, time_of,
};
use crate::rsocket::{mirror, table, timers};

/// What TCP_MAXSEG says of a socket that leads nowhere yet.
const SEGMENT: c_int = 2048;

impl State {
    fn set(&mut self, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
        if let Some(datagram) = &mut self.datagram {
            return datagram.set(&mut self.options, level, name, value);
        }
        let socket = self.socket.as_mut().ok_or(Errno::EBADF)?;
        let options = &mut self.options;
        match (level, name) {
            (SOL_SOCKET, libc::SO_LINGER) => {
                let [on, seconds] = ints_of(value)?;
                options.linger = (on != 0).then_some(seconds);
            }
            (SOL_SOCKET, libc::SO_RCVTIMEO) => options.receive_timeout = time_of(value)?,
            (SOL_SOCKET, libc::SO_SNDTIMEO) => options.send_timeout = time_of(value)?,
            (SOL_SOCKET, libc::SO_REUSEADDR) => {
                options.reuse = int_of(value)? != 0;
                // Later than the address it does nothing, as of sockets.
                _ = socket.set_reuse(options.reuse);
            }
            (SOL_SOCKET, libc::SO_REUSEPORT) => options.reuse_port = int_of(value)? != 0,
            (SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive = int_of(value)? != 0,
            (SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline = int_of(value)? != 0,
            (SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                socket.settings.receive_buffer = doubled(int_of(value)?);
            }
            (SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                socket.settings.send_buffer = doubled(int_of(value)?);
            }
            (IPPROTO_IP, libc::IP_TOS) => {
                options.tos = int_of(value)?;
                socket.set_tos(options.tos as u8);
            }
            (IPPROTO_IPV6, libc::IPV6_V6ONLY) => {
                options.v6_only = int_of(value)? != 0;
                socket.set_v6_only(options.v6_only)?;
            }
            (IPPROTO_TCP, libc::TCP_NODELAY) => {
                options.no_delay = int_of(value)? != 0;
                socket.set_no_delay(options.no_delay);
            }
            (IPPROTO_TCP, libc::TCP_CORK) => {
                options.cork = int_of(value)? != 0;
                if let Some((stream, qp)) = socket.stream().filter(|_| !options.cork) {
                    stream.push(qp);
                }
            }
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                options.keep_idle = Some(int_of(value)?).filter(|&s| s > 0).ok_or(Errno::EINVAL)?;
            }
            (IPPROTO_TCP, libc::TCP_KEEPINTVL) => options.keep_interval = int_of(value)?,
            (IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keep_count = int_of(value)?,
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => options.user_timeout = int_of(value)?,
            (IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (SOL_RDMA, _) => {
                if !matches!(socket.phase(), Phase::Idle | Phase::Bound | Phase::Listening) {
                    return Err(Errno::EINVAL);
                }
                set_size(&mut socket.settings, name, int_of(value)?)?;
            }
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    /// The value of an option; of those that the system knows at most so many bytes.
    fn get(&mut self, level: c_int, name: c_int, most: usize) -> Result<Vec<u8>, Errno> {
        if let Some(datagram) = &mut self.datagram {
            return datagram.get(level, name, most);
        }
        let socket = self.socket.as_mut().ok_or(Errno::EBADF)?;
        let (options, settings) = (&self.options, socket.settings.in_range());
        let size = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        let int = match (level, name) {
            (SOL_SOCKET, libc::SO_LINGER) => {
                let both = [c_int::from(options.linger.is_some()), options.linger.unwrap_or(0)];
                return Ok(both.iter().flat_map(|int| int.to_ne_bytes()).collect());
            }
            (SOL_SOCKET, libc::SO_RCVTIMEO) => return Ok(time_bytes(options.receive_timeout)),
            (SOL_SOCKET, libc::SO_SNDTIMEO) => return Ok(time_bytes(options.send_timeout)),
            (SOL_SOCKET, libc::SO_ERROR) => socket.take_error().map_or(0, |error| error.0),
            (SOL_SOCKET, libc::SO_REUSEADDR) => options.reuse.into(),
            (SOL_SOCKET, libc::SO_REUSEPORT) => options.reuse_port.into(),
            (SOL_SOCKET, libc::SO_KEEPALIVE) => options.keep_alive.into(),
            (SOL_SOCKET, libc::SO_OOBINLINE) => options.oob_inline.into(),
            (SOL_SOCKET, libc::SO_BROADCAST) => 0,
            (SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (SOL_SOCKET, libc::SO_PROTOCOL) => IPPROTO_TCP,
            (SOL_SOCKET, libc::SO_DOMAIN) => options.domain,
            (SOL_SOCKET, libc::SO_ACCEPTCONN) => (socket.phase() == Phase::Listening).into(),
            (SOL_SOCKET, libc::SO_RCVBUF) => size(settings.receive_buffer),
            (SOL_SOCKET, libc::SO_SNDBUF) => size(settings.send_buffer),
            (IPPROTO_IP, libc::IP_TOS) => options.tos,
            (IPPROTO_IPV6, libc::IPV6_V6ONLY) => options.v6_only.into(),
            (IPPROTO_TCP, libc::TCP_NODELAY) => options.no_delay.into(),
            (IPPROTO_TCP, libc::TCP_CORK) => options.cork.into(),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => options.keep_idle,
            (IPPROTO_TCP, libc::TCP_KEEPINTVL) => options.keep_interval,
            (IPPROTO_TCP, libc::TCP_KEEPCNT) => options.keep_count,
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => options.user_timeout,
            (IPPROTO_TCP, libc::TCP_MAXSEG) => {
                socket.max_segment().map_or(SEGMENT, |mtu| c_int::try_from(mtu).unwrap_or(SEGMENT))
            }
            (IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(b"reno\0".to_vec()),
            (IPPROTO_TCP, libc::TCP_INFO) => {
                let mut info = vec![0; 104];
                let is_up = socket.phase() == Phase::Connected && !socket.readiness().hup;
                // TCP_ESTABLISHED, TCP_CLOSE; then tcpi_snd_cwnd, as librdmacm has it.
                info[0] = if is_up { 1 } else { 7 };
                info[80..84].copy_from_slice(&settings.send_queue.to_ne_bytes());
                return Ok(info);
            }
            (SOL_RDMA, _) => size_of_queue(&settings, name)?,
            _ => return Err(Errno::ENOPROTOOPT),
        };
        Ok(int.to_ne_bytes().to_vec())
    }
}

/// `rsetsockopt`, setsockopt(2). errno: EBADF; ENOPROTOOPT for an option that rsocket(7) has not;
/// EINVAL for a value too short or out of range, and for sizes of a socket that is connected.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let rsocket = table::find(socket)?;
        if value.is_null() && len > 0 {
            return Err(Errno::EFAULT);
        }
        let value = match len {
            0 => &[][..],
            // SAFETY: so many bytes, by the man page's contract.
            _ => unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len as usize) },
        };
        let idle = {
            let mut state = rsocket.lock();
            state.set(level, name, value)?;
            state.options.keep_alive()
        };
        rsocket.instance.host.later().run();
        if matches!((level, name), (SOL_SOCKET, libc::SO_KEEPALIVE) | (IPPROTO_TCP, libc::TCP_KEEPIDLE)) {
            timers::keep_alive(&rsocket, idle);
        }
        Ok(0)
    })
}

/// `rgetsockopt`, getsockopt(2). errno: EBADF; ENOPROTOOPT for an option that rsocket(7) has not;
/// EFAULT for NULL.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let rsocket = table::find(socket)?;
        if value.is_null() || len.is_null() {
            return Err(Errno::EFAULT);
        }
        // SAFETY: the caller's length, by the man page's contract.
        let most = unsafe { *len } as usize;
        let bytes = rsocket.lock().get(level, name, most)?;
        // SAFETY: as many bytes, by the man page's contract.
        unsafe {
            let n = bytes.len().min(most);
            value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), n);
            *len = n as socklen_t;
        }
        Ok(0)
    })
}

/// `rfcntl`, fcntl(2): F_GETFL, F_SETFL, F_GETFD, F_SETFD. errno: EBADF; EINVAL for other commands.
///
/// The third argument is an int where the command has one. It is passed as a variadic function's
/// on all machines that this is built for.
pub unsafe extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_int) -> c_int {
    ffi_guard::or_minus_one(|| {
        let rsocket: std::sync::Arc<Rsocket> = table::find(socket)?;
        if !matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD) {
            return Err(Errno::EINVAL);
        }
        let answer = mirror::control(socket, command, argument)?;
        if command == libc::F_SETFL {
            rsocket.nonblocking.store(argument & libc::O_NONBLOCK != 0, Ordering::Relaxed);
        }
        Ok(answer)
    })
}
