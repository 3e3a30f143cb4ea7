//! The C functions in this process, on the loopback device: calls in any order with any numbers.
//!
//! Pointers are what a C program may pass: objects that live, NULL where the man pages allow it,
//! memory that is there. Everything else is arbitrary. No call panics behind the border, none
//! hangs, and in the end every object can be destroyed, which is refused for one that is still
//! referred to.

mod cma;
mod rsockets;
mod verbs;

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use capi::verbs::device;
use rdma_core_abi::verbs::*;

use crate::Input;

/// Most calls of one input.
const STEPS: u32 = 120;
/// Bytes of memory that is registered in parts.
const ARENA: usize = 1 << 16;

/// A panic was caught at the border, where the program only sees EIO.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Assertions of other tests in this process are theirs.
            if info.location().is_some_and(|at| !at.file().contains("harness")) {
                PANICKED.store(true, Ordering::SeqCst);
            }
            before(info);
        }));
    });
    let mut input = Input::new(bytes);
    // SAFETY: the scene passes what its documentation says.
    unsafe {
        let mut scene = verbs::Scene::open(&mut input);
        let mut ids = cma::Ids::new();
        let mut sockets = rsockets::Rsockets::default();
        for _ in 0..STEPS {
            if !scene.input.more() {
                break;
            }
            match scene.input.below(4) {
                0 => ids.step(&mut scene),
                1 => sockets.step(scene.input),
                _ => scene.step(),
            }
        }
        sockets.close();
        ids.close();
        scene.close();
    }
    assert!(!PANICKED.load(Ordering::SeqCst), "a panic behind the border");
}

/// The loopback device. Its list is freed: devices outlive it.
fn loopback() -> *mut ibv_device {
    let mut n = 0;
    // SAFETY: `n` is there to be written; the list has `n` devices.
    unsafe {
        let list = device::ibv_get_device_list(&raw mut n);
        assert!(!list.is_null(), "no devices");
        let name = |d: *mut ibv_device| CStr::from_ptr(device::ibv_get_device_name(d));
        let found = (0..n as usize).map(|i| *list.add(i)).find(|d| name(*d) == c"rxe_lo");
        device::ibv_free_device_list(list);
        found.expect("a device on lo")
    }
}

fn open() -> *mut ibv_context {
    // SAFETY: a device of the list.
    let context = unsafe { device::ibv_open_device(loopback()) };
    assert!(!context.is_null(), "the loopback device does not open");
    context
}

/// Memory that is never freed: what peers write to late is there.
fn arena() -> *mut u8 {
    static ARENA_AT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *ARENA_AT.get_or_init(|| Box::leak(vec![0_u8; ARENA].into_boxed_slice()).as_mut_ptr().expose_provenance())
        as *mut u8
}

/// Reading this descriptor does not wait.
fn do_not_wait(fd: c_int) {
    // SAFETY: flags of a descriptor.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
    }
}

/// Takes an object out of its pool, if the call that destroys it succeeds.
fn destroy_one<T>(input: &mut Input<'_>, pool: &mut Vec<*mut T>, destroy: impl FnOnce(*mut T) -> c_int) {
    if pool.is_empty() {
        return;
    }
    let at = input.index(pool.len());
    if destroy(pool[at]) == 0 {
        pool.remove(at);
    }
}

/// Destroys all of a pool; nothing refers to them any more.
fn destroy_all<T>(what: &str, pool: Vec<*mut T>, destroy: impl Fn(*mut T) -> c_int) {
    for object in pool {
        assert_eq!(destroy(object), 0, "{what}: something still refers to it");
    }
}

/// NULL, or one of a pool.
fn maybe<T>(input: &mut Input<'_>, pool: &[*mut T]) -> *mut T {
    if input.one_in(3) { null_mut() } else { input.pick(pool).unwrap_or(null_mut()) }
}

/// Keeps an object that was made.
fn keep<T>(pool: &mut Vec<*mut T>, made: *mut T) {
    if !made.is_null() {
        pool.push(made);
    }
}

/// Functions that are built and not called here, each group with its reason.
#[cfg(test)]
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "the pointers are libraries' or drivers'",
        &[
            "ibv_get_sysfs_path",
            "ibv_read_sysfs_file",
            "ibv_register_driver",
            "verbs_register_driver_34",
            "verbs_register_driver_57",
            "verbs_register_driver_59",
            "verbs_register_driver_64",
            "verbs_register_driver_65",
            "verbs_allow_disassociate_destroy",
            "ibv_copy_ah_attr_from_kern",
            "ibv_copy_path_rec_from_kern",
            "ibv_copy_path_rec_to_kern",
            "ibv_copy_qp_attr_from_kern",
        ],
    ),
    (
        "they change the process for good",
        &[
            "ibv_fork_init",
            "ibv_is_fork_initialized",
            "ibv_dofork_range",
            "ibv_dontfork_range",
            "ibv_import_device",
            "ibv_import_dm",
            "ibv_import_mr",
            "ibv_import_pd",
            "ibv_unimport_dm",
            "ibv_unimport_mr",
            "ibv_unimport_pd",
        ],
    ),
    (
        "they name files or other memory by descriptors",
        &[
            "ibv_alloc_buf",
            "ibv_alloc_dmah",
            "ibv_dealloc_dmah",
            "ibv_dm_export_dmabuf_fd",
            "ibv_export_buf_dmabuf_fd",
            "ibv_free_buf",
            "ibv_reg_buf_mr",
            "ibv_reg_dmabuf_mr",
            "ibv_reg_mr_ex",
        ],
    ),
    ("they wait", &["rdma_get_request", "rdma_create_ep", "rdma_destroy_ep"]),
    (
        "they ask the system's resolver",
        &["rdma_getaddrinfo", "rdma_freeaddrinfo", "rdma_query_addrinfo", "rdma_resolve_addrinfo"],
    ),
    (
        "groups outlive an input",
        &[
            "ibv_attach_mcast",
            "ibv_detach_mcast",
            "rdma_join_multicast",
            "rdma_join_multicast_ex",
            "rdma_leave_multicast",
        ],
    ),
    (
        "they are made of those that are called",
        &[
            "rdma_create_qp_ex",
            "rdma_create_srq",
            "rdma_create_srq_ex",
            "rdma_destroy_srq",
            "rdma_get_devices",
            "rdma_free_devices",
            "ibv_qp_to_qp_ex",
        ],
    ),
    ("the fuzzer has its own handlers", &["__sysv_signal", "sigaction", "signal"]),
    ("one request of it is looked at, which watches memory for good", &["ioctl"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_that_is_built_is_called_or_left_out_for_a_reason() {
        let built = include_str!("../../../../crates/cdylib/symbols/built.txt");
        let called = [
            include_str!("mod.rs"),
            include_str!("verbs.rs"),
            include_str!("verbs/work.rs"),
            include_str!("cma.rs"),
            include_str!("rsockets.rs"),
        ];
        let called = called.map(|text| text.split("LEFT_OUT: &[").next().unwrap_or_default());
        let words = |text: &'static str| text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let called: std::collections::BTreeSet<&str> = called.into_iter().flat_map(words).collect();
        let left_out: Vec<&str> = LEFT_OUT.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let lines = built.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        // Those of libibverbs 1.0 have the new ones behind them.
        let names =
            lines.filter_map(|line| line.split_whitespace().next()).filter(|name| !name.contains('@'));
        let missing: Vec<&str> =
            names.filter(|name| !called.contains(name) && !left_out.contains(name)).collect();
        assert!(missing.is_empty(), "neither called nor left out: {missing:?}");
        let both: Vec<_> = left_out.iter().filter(|name| called.contains(*name)).collect();
        assert!(both.is_empty(), "called, and left out: {both:?}");
    }
}
