//! Devices and ports, as the fabric tells of them now.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::ptr::null_mut;

use fabric::describe::{DeviceDescription, PortDescription};

use crate::abi::{MAX_PORTS, Name, put_text, umad_ca, umad_port};
use crate::fabric_link::{devices, directory};

const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;

/// umad_init(3).
pub extern "C" fn umad_init() -> c_int {
    0
}

/// umad_done(3).
pub extern "C" fn umad_done() -> c_int {
    0
}

/// The device of a name, and the port of a number; 0 is any port, the first active one, else the
/// first one with a link, else the first. Without a name it is the first device that has such a
/// port.
pub(crate) fn resolve(
    name: Option<&str>,
    number: c_int,
) -> Result<(DeviceDescription, PortDescription), c_int> {
    let all = devices();
    if all.is_empty() {
        return Err(libc::ENODEV);
    }
    let named = || all.iter().filter(|device| name.is_none_or(|name| device.name == name));
    let ports = || {
        named().flat_map(|device| {
            let is_it = |port: &&PortDescription| number == 0 || c_int::from(port.number) == number;
            device.ports.iter().filter(is_it).map(move |port| (device, port))
        })
    };
    let best = ports().find(|(_, port)| port.state == ACTIVE);
    let best = best.or_else(|| ports().find(|(_, port)| port.physical_state == LINK_UP));
    match best.or_else(|| ports().next()) {
        Some((device, port)) => Ok((device.clone(), port.clone())),
        None if named().next().is_none() => Err(libc::ENOENT),
        None => Err(libc::EINVAL),
    }
}

/// The text of a name that may be NULL.
///
/// # Safety
///
/// It is NULL or a string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: as the caller says. A name that is no UTF-8 is of no device.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("\u{fffd}");
    Some(name).filter(|name| !name.is_empty())
}

/// umad_get_cas_names(3).
pub unsafe extern "C" fn umad_get_cas_names(cas: *mut Name, max: c_int) -> c_int {
    let mut count: c_int = 0;
    let room = usize::try_from(max).unwrap_or(0);
    for (index, device) in devices().iter().take(room).enumerate() {
        // SAFETY: the caller has room for `max` names.
        put_text(unsafe { &mut *cas.add(index) }, &device.name);
        count = count.saturating_add(1);
    }
    count
}

/// umad_get_ca_portguids(3).
pub unsafe extern "C" fn umad_get_ca_portguids(
    ca_name: *const c_char,
    portguids: *mut u64,
    max: c_int,
) -> c_int {
    // SAFETY: the crate's contract.
    let name = unsafe { text(ca_name) };
    let device = match resolve(name, 0) {
        Ok((device, _)) => device,
        Err(errno) => return errno.saturating_neg(),
    };
    let last = device.ports.iter().map(|port| port.number).max().unwrap_or(0);
    let count = c_int::from(last).saturating_add(1);
    if portguids.is_null() {
        return count;
    }
    if count > max {
        return libc::ENOMEM.saturating_neg();
    }
    for number in 0..=last {
        let port = device.ports.iter().find(|port| port.number == number);
        // SAFETY: the caller has room for `max`, which are as many at least.
        unsafe { portguids.add(number.into()).write(port.map_or(0, |port| port.guid.to_be())) };
    }
    count
}

/// umad_get_ca(3).
pub unsafe extern "C" fn umad_get_ca(ca_name: *const c_char, ca: *mut umad_ca) -> c_int {
    // SAFETY: the crate's contract.
    let name = unsafe { text(ca_name) };
    let device = match resolve(name, 0) {
        Ok((device, _)) => device,
        Err(errno) => return errno.saturating_neg(),
    };
    let last = device.ports.iter().map(|port| port.number).max().unwrap_or(0);
    let mut new = umad_ca {
        ca_name: Name::default(),
        node_type: device.kind.into(),
        numports: last.into(),
        fw_ver: [0; 20],
        ca_type: [0; 40],
        hw_ver: [0; 20],
        node_guid: device.node_guid.to_be(),
        system_guid: device.system_guid.to_be(),
        ports: [null_mut(); MAX_PORTS],
    };
    put_text(&mut new.ca_name, &device.name);
    put_text(&mut new.fw_ver, env!("CARGO_PKG_VERSION"));
    put_text(&mut new.ca_type, "Verbena");
    put_text(&mut new.hw_ver, "0");
    for port in &device.ports {
        // SAFETY: an allocation of this size.
        let at: *mut umad_port = unsafe { libc::calloc(1, size_of::<umad_port>()) }.cast();
        let filled = if at.is_null() {
            false
        } else {
            // SAFETY: just allocated, and all zero is valid.
            unsafe { fill(&mut *at, &device.name, port) }
        };
        if let Some(slot) = new.ports.get_mut(usize::from(port.number)) {
            *slot = at;
        }
        if !filled {
            // SAFETY: it holds what was allocated here.
            unsafe { umad_release_ca(&raw mut new) };
            return libc::ENOMEM.saturating_neg();
        }
    }
    // SAFETY: the caller has room for one.
    unsafe { ca.write(new) };
    0
}

/// umad_release_ca(3).
pub unsafe extern "C" fn umad_release_ca(ca: *mut umad_ca) -> c_int {
    // SAFETY: the caller has filled it by umad_get_ca.
    let Some(ca) = (unsafe { ca.as_mut() }) else { return libc::ENODEV.saturating_neg() };
    for port in &mut ca.ports {
        if !port.is_null() {
            // SAFETY: from calloc, above.
            unsafe {
                umad_release_port(*port);
                libc::free(port.cast());
            }
            *port = null_mut();
        }
    }
    0
}

/// umad_get_port(3).
pub unsafe extern "C" fn umad_get_port(
    ca_name: *const c_char,
    portnum: c_int,
    port: *mut umad_port,
) -> c_int {
    // SAFETY: the crate's contract.
    let name = unsafe { text(ca_name) };
    let (device, description) = match resolve(name, portnum) {
        Ok(found) => found,
        Err(libc::ENODEV) => return libc::ENODEV.saturating_neg(),
        Err(_) => return libc::EIO.saturating_neg(),
    };
    // SAFETY: the caller has room for one, for which all zero is valid.
    let filled = unsafe {
        port.write_bytes(0, 1);
        fill(&mut *port, &device.name, &description)
    };
    if filled { 0 } else { libc::ENOMEM.saturating_neg() }
}

/// umad_release_port(3).
pub unsafe extern "C" fn umad_release_port(port: *mut umad_port) -> c_int {
    // SAFETY: the caller has filled it by umad_get_port.
    let Some(port) = (unsafe { port.as_mut() }) else { return libc::ENODEV.saturating_neg() };
    // SAFETY: from calloc, below, or NULL.
    unsafe { libc::free(port.pkeys.cast()) };
    port.pkeys = null_mut();
    port.pkeys_size = 0;
    0
}

/// Fills a port; false where there is no memory for its P_Keys.
///
/// # Safety
///
/// The port has no P_Keys of its own.
unsafe fn fill(to: &mut umad_port, device: &str, port: &PortDescription) -> bool {
    put_text(&mut to.ca_name, device);
    put_text(&mut to.link_layer, "InfiniBand");
    to.portnum = port.number.into();
    (to.base_lid, to.lmc) = (port.lid.into(), port.lmc.into());
    (to.sm_lid, to.sm_sl) = (port.sm_lid.into(), port.sm_sl.into());
    (to.state, to.phys_state) = (port.state.into(), port.physical_state.into());
    to.rate = port.lanes.saturating_mul(port.lane_tenths) / 10;
    to.capmask = port.capabilities.to_be();
    (to.gid_prefix, to.port_guid) = (port.gid_prefix.to_be(), port.guid.to_be());
    // SAFETY: an allocation of this size, in which as many are written.
    unsafe {
        to.pkeys = libc::calloc(port.pkeys.len(), size_of::<u16>()).cast();
        if to.pkeys.is_null() {
            return false;
        }
        port.pkeys.iter().enumerate().for_each(|(index, key)| to.pkeys.add(index).write(*key));
    }
    to.pkeys_size = u32::try_from(port.pkeys.len()).unwrap_or(0);
    true
}

/// umad_get_issm_path(3). Where /dev/infiniband does not show the port's file, the path is that
/// file's own.
pub unsafe extern "C" fn umad_get_issm_path(
    ca_name: *const c_char,
    portnum: c_int,
    path: *mut c_char,
    max: c_int,
) -> c_int {
    // SAFETY: the crate's contract.
    let name = unsafe { text(ca_name) };
    let Ok((_, port)) = resolve(name, portnum) else { return libc::EINVAL.saturating_neg() };
    let shown = format!("/dev/infiniband/issm{}", port.umad);
    let own = || directory().map(|dir| format!("{dir}/dev/issm{}", port.umad));
    let is_shown = Path::new(&shown).exists();
    let found = if is_shown { Some(shown) } else { own() };
    let Some(found) = found else { return libc::EINVAL.saturating_neg() };
    let room = usize::try_from(max).unwrap_or(0);
    if room == 0 {
        return libc::EINVAL.saturating_neg();
    }
    // SAFETY: the caller has room for `max` bytes.
    put_text(unsafe { std::slice::from_raw_parts_mut(path.cast::<u8>(), room) }, &found);
    0
}
