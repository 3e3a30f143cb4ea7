//! Lists of devices, and pairs of devices for subnet management and all other classes, which in a
//! fabric are always one.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null_mut;

use crate::abi::{Name, put_text, umad_ca_pair, umad_device_node};
use crate::device::{resolve, text};
use crate::fabric_link::devices;

/// umad_get_ca_device_list(3).
pub extern "C" fn umad_get_ca_device_list() -> *mut umad_device_node {
    let mut head = null_mut();
    for device in devices().iter().rev() {
        let mut name = Name::default();
        put_text(&mut name, &device.name);
        // SAFETY: allocations of these sizes, the second one a copy of a string.
        unsafe {
            let node: *mut umad_device_node = libc::calloc(1, size_of::<umad_device_node>()).cast();
            let name = libc::strdup(name.as_ptr().cast());
            if node.is_null() || name.is_null() {
                libc::free(node.cast());
                libc::free(name.cast());
                umad_free_ca_device_list(head);
                crate::set_errno(libc::ENOMEM);
                return null_mut();
            }
            node.write(umad_device_node { next: head, ca_name: name });
            head = node;
        }
    }
    head
}

/// umad_free_ca_device_list(3).
pub unsafe extern "C" fn umad_free_ca_device_list(head: *mut umad_device_node) {
    let mut node = head;
    while !node.is_null() {
        // SAFETY: the list is that of umad_get_ca_device_list, whose parts are from the C library.
        unsafe {
            let next = (*node).next;
            libc::free((*node).ca_name.cast_mut().cast());
            libc::free(node.cast());
            node = next;
        }
    }
}

/// umad_sort_ca_device_list(3): by name; 0 is a list of unknown length. 1 where it is longer than
/// the caller says.
pub unsafe extern "C" fn umad_sort_ca_device_list(head: *mut *mut umad_device_node, size: usize) -> c_int {
    if head.is_null() {
        return 1;
    }
    let mut nodes = Vec::new();
    // SAFETY: the list is that of umad_get_ca_device_list.
    unsafe {
        let mut node = *head;
        while !node.is_null() {
            nodes.push(node);
            node = (*node).next;
        }
        if size != 0 && nodes.len() > size {
            return 1;
        }
        nodes.sort_by(|one, two| CStr::from_ptr((**one).ca_name).cmp(CStr::from_ptr((**two).ca_name)));
        let mut next = null_mut();
        for node in nodes.into_iter().rev() {
            (*node).next = next;
            next = node;
        }
        *head = next;
    }
    0
}

/// umad_get_smi_gsi_pairs of later rdma-core: how many pairs there are.
pub unsafe extern "C" fn umad_get_smi_gsi_pairs(cas: *mut umad_ca_pair, max: usize) -> c_int {
    let mut count: c_int = 0;
    for (index, device) in devices().iter().take(max).enumerate() {
        let number = resolve(Some(&device.name), 0).map_or(0, |(_, port)| u32::from(port.number));
        // SAFETY: the caller has room for `max` pairs.
        unsafe { cas.add(index).write(pair(&device.name, number)) };
        count = count.saturating_add(1);
    }
    count
}

/// umad_get_smi_gsi_pair_by_ca_name of later rdma-core: 0 without any device, as there; -ENODEV
/// where none fits.
pub unsafe extern "C" fn umad_get_smi_gsi_pair_by_ca_name(
    name: *const c_char,
    portnum: u8,
    ca: *mut umad_ca_pair,
    _enforce_smi: c_uint,
) -> c_int {
    // SAFETY: the caller has room for one, or says NULL.
    let Some(ca) = (unsafe { ca.as_mut() }) else { return -1 };
    *ca = pair("", 0);
    if devices().is_empty() {
        return 0;
    }
    // SAFETY: the crate's contract.
    match resolve(unsafe { text(name) }, portnum.into()) {
        Ok((device, port)) => {
            *ca = pair(&device.name, port.number.into());
            0
        }
        Err(_) => {
            crate::set_errno(libc::ENODEV);
            libc::ENODEV.saturating_neg()
        }
    }
}

fn pair(name: &str, port: u32) -> umad_ca_pair {
    let mut bytes = Name::default();
    put_text(&mut bytes, name);
    umad_ca_pair { smi_name: bytes, smi_preferred_port: port, gsi_name: bytes, gsi_preferred_port: port }
}
