//! How a thread waits for an event: at the counter of its events, or, where it may, in the driver
//! slot of its host, where it reads meanwhile what other processes of this host send
//! ([`linux::Host::wait_as_driver`]).

use std::ffi::c_int;
use std::sync::Arc;

use crate::eventfd::{self, Counter, Wait, Woken};
use crate::ffi_guard::{self, Errno};
use crate::instance::{self, Instance};

/// Takes one event from the counter of this number; false with errno set as [`eventfd::wait`] says.
/// `find` gives the counter and its host. Where another thread has destroyed it, one that waits
/// goes on waiting.
///
/// # Safety
///
/// As [`eventfd::wait`]; `find` has nothing to drop.
pub(crate) unsafe fn wait(fd: c_int, find: impl Fn() -> Option<(Arc<Instance>, Counter)>) -> bool {
    // SAFETY: as the caller says; this frame has nothing to drop.
    unsafe { eventfd::cancellation_point() };
    let mut next = prepare(&find, None);
    loop {
        next = match next {
            Next::Counter(id) => {
                // SAFETY: as above.
                let taken = unsafe { eventfd::wait(fd) };
                if taken {
                    note(find, id);
                }
                return taken;
            }
            Next::DriverSlot(waits) => {
                // SAFETY: as above.
                let woken = unsafe { eventfd::wait_as_driver(waits) };
                prepare(&find, Some(woken))
            }
            Next::Taken => return true,
            Next::Interrupted => {
                ffi_guard::set_errno(Errno(libc::EINTR));
                return false;
            }
            Next::Nothing => {
                // SAFETY: as above.
                unsafe { eventfd::wait_for_nothing() };
                return false;
            }
        };
    }
}

/// What a thread does next that has no event yet.
#[derive(Clone, Copy)]
enum Next {
    /// The thread waits at the counter, which is this one.
    Counter(u64),
    /// The thread waits in the driver slot, here.
    DriverSlot(c_int),
    /// The thread has an event.
    Taken,
    /// The thread tells of a signal.
    Interrupted,
    /// The thread waits for what can not come any more.
    Nothing,
}

/// An event was taken from the counter that was this one, if it is still there.
fn note(find: impl Fn() -> Option<(Arc<Instance>, Counter)>, id: u64) {
    ffi_guard::nothing(|| {
        if let Some((_, counter)) = find().filter(|(_, counter)| counter.id() == id) {
            counter.taken();
        }
    });
}

/// Goes on after a wait in the driver slot, or begins.
fn prepare(find: impl Fn() -> Option<(Arc<Instance>, Counter)>, woken: Option<Woken>) -> Next {
    let mut next = Next::Counter(0);
    ffi_guard::nothing(|| {
        let Some((instance, counter)) = find() else {
            if let (Some(_), Some(instance)) = (woken, instance::try_get()) {
                instance.host.release_driver(None, false);
                next = Next::Nothing;
            }
            return;
        };
        next = Next::Counter(counter.id());
        let host = &instance.host;
        let wait = match woken {
            None => host.wait_as_driver(&counter),
            Some(Woken::Rung) => host.sit_on(&counter),
            Some(Woken::BySignal) => {
                host.release_driver(Some(&counter), false);
                return next = Next::Interrupted;
            }
            Some(Woken::Closed) => {
                host.release_driver(Some(&counter), true);
                return;
            }
        };
        next = match wait {
            Wait::InDriverSlot(waits) => Next::DriverSlot(waits),
            Wait::AtCounter => next,
            Wait::Over => Next::Taken,
        };
    });
    next
}
