//! Shared receive queues (ibv_create_srq(3)).

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use locks::{Mutex, Rank};
use nic::{Error, PostError};
use rdma_core_abi::verbs::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use transport::op::RecvWr;

use crate::device::Pd;
use crate::object;
use crate::posting::{NO_FUNCTION, Refusal, refused};
use crate::wr;

/// A shared receive queue. Queue pairs that have it keep it.
pub struct Srq {
    pd: Arc<Pd>,
    raw: Mutex<Option<Raw>>,
}

struct Raw(NonNull<ibv_srq>);

// SAFETY: it may be used by all threads; the lock says that no thread destroys it meanwhile.
unsafe impl Send for Raw {}

const GONE: Error = Error::Missing("the shared receive queue");

impl Srq {
    /// Of so many receives, of one element each.
    ///
    /// # Errors
    ///
    /// Errno of ibv_create_srq(3): EINVAL for more than the device has.
    pub fn new(pd: &Arc<Pd>, depth: u32) -> Result<Arc<Self>, Error> {
        let attr = ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain lives; the attributes are read and written.
        let raw = object(unsafe { (pd.system().calls.ibv_create_srq)(pd.raw(), &raw mut init) })?;
        Ok(Arc::new(Self { pd: pd.clone(), raw: Mutex::new(Rank::SystemSrq, Some(Raw(raw))) }))
    }

    /// Has it used by the call that makes a queue pair.
    pub(crate) fn with<T>(&self, make: impl FnOnce(*mut ibv_srq) -> Result<T, Error>) -> Result<T, Error> {
        let lock = self.raw.lock();
        make(lock.as_ref().ok_or(GONE)?.0.as_ptr())
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    pub fn post(&self, request: &RecvWr) -> Result<(), Refusal> {
        wr::with_receive(request, |c| {
            let lock = self.raw.lock();
            let gone = Refusal::Post(PostError::Invalid("the shared receive queue is no more"));
            let Raw(raw) = lock.as_ref().ok_or(gone)?;
            let mut bad = null_mut();
            // SAFETY: the queue lives, as its C object is locked; its context has the functions
            // that verbs.h calls. The request is read before it returns, and what it names stays
            // until the completion, by `transport`'s contract.
            refused(unsafe {
                let post = (*raw.as_ref().context).ops.post_srq_recv.ok_or(NO_FUNCTION)?;
                post(raw.as_ptr(), c, &raw mut bad)
            })
        })
    }

    /// Destroys the queue: nothing of its memory is touched from now on. False where the library
    /// refuses: then its memory must stay for ever.
    pub fn destroy(&self) -> bool {
        let system = self.pd.system();
        if !system.is_ours() {
            return false;
        }
        let Some(Raw(raw)) = self.raw.lock().take() else { return true };
        // SAFETY: it lives, and no other thread has it any more.
        let gone = unsafe { (system.calls.ibv_destroy_srq)(raw.as_ptr()) } == 0;
        if !gone {
            system.leak();
        }
        gone
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        self.destroy();
    }
}
