//! Which queue pairs a thread polls itself while it waits: over the machine's libraries there is
//! nothing that polls all at once, so those that the future looked at when it was polled last.

use std::cell::RefCell;
use std::sync::Weak;

use super::inner::QpInner;

/// Queue pairs noted at most; those beyond are left to the reactor.
const MAX: usize = 8;

thread_local! {
    static WAITED: RefCell<Vec<Weak<QpInner>>> = const { RefCell::new(Vec::new()) };
}

/// While a future is polled and waited for, the queue pairs that it looked at are noted.
pub(crate) struct Noted;

impl Noted {
    /// What was looked at before does not count.
    pub(crate) fn begin() -> Self {
        forget();
        Self
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        forget();
    }
}

fn forget() {
    let before = WAITED.try_with(RefCell::take);
    drop(before);
}

/// Notes a queue pair that the future looks at.
pub(crate) fn note(qp: &Weak<QpInner>) {
    // A thread that ends polls nothing.
    _ = WAITED.try_with(|waited| {
        let mut waited = waited.borrow_mut();
        if waited.len() < MAX && !waited.iter().any(|known| known.ptr_eq(qp)) {
            waited.push(qp.clone());
        }
    });
}

/// Whether there is one.
pub(crate) fn any() -> bool {
    WAITED.try_with(|waited| !waited.borrow().is_empty()).unwrap_or(false)
}

/// Takes what has come to them. Nothing is borrowed meanwhile: wakers may call anything.
pub(crate) fn poll() {
    let mut at = 0;
    let next = |at: usize| WAITED.try_with(|waited| waited.borrow().get(at).cloned()).ok().flatten();
    while let Some(qp) = next(at) {
        if let Some(qp) = qp.upgrade() {
            qp.drain();
            qp.stack().later().run();
        }
        at += 1;
    }
}
