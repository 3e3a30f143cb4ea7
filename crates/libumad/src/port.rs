//! Opening a port, and the agents that a program registers there.

use std::ffi::{c_char, c_int, c_long};
use std::os::fd::{BorrowedFd, IntoRawFd};

use fabric::agents::Registration;
use fabric::protocol::{Reply, Request};
use socket2::SockRef;

use crate::abi::umad_reg_attr;
use crate::device::{resolve, text};
use crate::fabric_link::{Failure, ask, ask_at, host};
use crate::set_errno;

/// Classes with an OUI (IBA 1.4 §16.5).
const OUI_CLASSES: std::ops::RangeInclusive<c_int> = 0x30..=0x4f;
/// What umad_register gives as the OUI: the kernel takes no vendor class without one.
const NO_OUI: u32 = 1;
/// UMAD_USER_RMPP.
const USER_RMPP: u32 = 1;

/// umad_open_port(3).
pub unsafe extern "C" fn umad_open_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: the crate's contract.
    let (device, port) = match resolve(unsafe { text(ca_name) }, portnum) {
        Ok(found) => found,
        Err(libc::ENODEV) => return libc::ENODEV.saturating_neg(),
        Err(_) => return libc::EINVAL.saturating_neg(),
    };
    match ask(&Request::Open { host: host(), device: device.name, port: port.number }) {
        Ok((Reply::Done, socket)) => {
            if SockRef::from(&socket).set_nonblocking(true).is_err() {
                return libc::EIO.saturating_neg();
            }
            socket.into_raw_fd()
        }
        _ => {
            set_errno(libc::EIO);
            libc::EIO.saturating_neg()
        }
    }
}

/// umad_open_smi_port of later rdma-core: here a device has both.
pub unsafe extern "C" fn umad_open_smi_port(ca_name: *const c_char, portnum: c_int) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { umad_open_port(ca_name, portnum) }
}

/// umad_close_port(3).
pub unsafe extern "C" fn umad_close_port(fd: c_int) -> c_int {
    // SAFETY: the descriptor is the caller's.
    unsafe { libc::close(fd) };
    0
}

/// umad_get_fd(3).
pub extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    fd
}

/// Asks at a descriptor; the errno of a failure.
///
/// # Safety
///
/// The descriptor is open, or none.
unsafe fn ask_fd(fd: c_int, request: &Request) -> Result<Reply, c_int> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: it is not -1, and the caller keeps it open; a call on one that is closed fails.
    let port = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(libc::EBADF);
    }
    ask_at(port, request).map_err(|failure| match failure {
        Failure::Refused(errno) => errno,
        Failure::NoFabric => libc::ENODEV,
    })
}

/// # Safety
///
/// As for [`ask_fd`].
unsafe fn register(fd: c_int, registration: Registration) -> Result<u32, c_int> {
    // SAFETY: as the caller says.
    match unsafe { ask_fd(fd, &Request::Register(registration)) } {
        Ok(Reply::Agent(id)) => Ok(id),
        Ok(_) => Err(libc::EIO),
        Err(errno) => Err(errno),
    }
}

/// The queue pair of a class: 0 for subnet management.
fn queue_pair(class: u8) -> u32 {
    u32::from(!matches!(class, 0x01 | 0x81))
}

/// The mask of methods; NULL is none.
///
/// # Safety
///
/// It is NULL or has 128 bits.
unsafe fn methods(mask: *const c_long) -> [u64; 2] {
    let mask: *const [u64; 2] = mask.cast();
    // SAFETY: as the caller says.
    if mask.is_null() { [0; 2] } else { unsafe { mask.read_unaligned() } }
}

/// umad_register(3).
pub unsafe extern "C" fn umad_register(
    fd: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    let (class, version) = (class as u8, version as u8);
    let registration = Registration {
        qpn: queue_pair(class),
        class,
        version,
        oui: NO_OUI,
        // SAFETY: the crate's contract.
        methods: unsafe { methods(mask) },
        rmpp_version,
        ..Registration::default()
    };
    // SAFETY: the crate's contract.
    unsafe { registered(fd, registration) }
}

/// umad_register_oui(3).
pub unsafe extern "C" fn umad_register_oui(
    fd: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const u8,
    mask: *const c_long,
) -> c_int {
    if !OUI_CLASSES.contains(&class) || oui.is_null() {
        return libc::EINVAL.saturating_neg();
    }
    // SAFETY: three bytes, says the page.
    let [high, middle, low] = unsafe { oui.cast::<[u8; 3]>().read() };
    let registration = Registration {
        qpn: 1,
        class: class as u8,
        version: 1,
        oui: u32::from_be_bytes([0, high, middle, low]),
        // SAFETY: the crate's contract.
        methods: unsafe { methods(mask) },
        rmpp_version,
        ..Registration::default()
    };
    // SAFETY: the crate's contract.
    unsafe { registered(fd, registration) }
}

/// # Safety
///
/// As for [`ask_fd`].
unsafe fn registered(fd: c_int, registration: Registration) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { register(fd, registration) } {
        Ok(id) => c_int::try_from(id).unwrap_or(libc::EPERM.saturating_neg()),
        Err(errno) => {
            set_errno(errno);
            libc::EPERM.saturating_neg()
        }
    }
}

/// umad_register2(3): 0, or an errno.
pub unsafe extern "C" fn umad_register2(fd: c_int, attr: *mut umad_reg_attr, agent_id: *mut u32) -> c_int {
    // SAFETY: the crate's contract.
    let (Some(attr), false) = (unsafe { attr.as_mut() }, agent_id.is_null()) else { return libc::EINVAL };
    if attr.flags & !USER_RMPP != 0 {
        // What the port can do.
        attr.flags = USER_RMPP;
        return libc::EINVAL;
    }
    let registration = Registration {
        qpn: queue_pair(attr.mgmt_class),
        class: attr.mgmt_class,
        version: attr.mgmt_class_version,
        oui: attr.oui,
        methods: attr.method_mask,
        rmpp_version: attr.rmpp_version,
        user_rmpp: attr.flags & USER_RMPP != 0,
        ..Registration::default()
    };
    // SAFETY: the crate's contract, for both.
    unsafe {
        match register(fd, registration) {
            Ok(id) => {
                agent_id.write(id);
                0
            }
            Err(errno) => errno,
        }
    }
}

/// umad_unregister(3).
pub unsafe extern "C" fn umad_unregister(fd: c_int, agent_id: c_int) -> c_int {
    let Ok(id) = u32::try_from(agent_id) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the crate's contract.
    match unsafe { ask_fd(fd, &Request::Unregister(id)) } {
        Ok(_) => 0,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}
