//! Options of an identifier (rdma_set_option(3)).

use libc::{c_int, c_void};
use nic::{Error, QpType};
use rdma_core_abi::cma::{
    RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS,
};

use crate::id::Id;
use crate::minus_one;

impl Id {
    fn set_option<T>(&self, name: c_int, mut value: T) -> Result<(), Error> {
        let set = self.system().calls.rdma_set_option;
        self.call(|id| {
            let value = (&raw mut value).cast::<c_void>();
            // SAFETY: the identifier lives; so many bytes are read.
            minus_one(unsafe { set(id, RDMA_OPTION_ID, name, value, size_of::<T>()) })
        })
    }
    /// Type of service.
    ///
    /// # Errors
    ///
    /// Errno of rdma_set_option(3).
    pub fn set_tos(&self, tos: u8) -> Result<(), Error> {
        self.set_option(RDMA_OPTION_ID_TOS, tos)
    }
    /// Local ACK timeout: of our queue pair, and told to the peer where the kernel can (Linux 5.2).
    pub fn set_ack_timeout(&self, code: u8) {
        self.note_ack_timeout(code);
        _ = self.set_option(RDMA_OPTION_ID_ACK_TIMEOUT, code);
    }
    /// Others may be bound to the port, but for listeners.
    ///
    /// # Errors
    ///
    /// Errno of rdma_set_option(3); `Unsupported` for unreliable connections.
    pub fn set_reuse(&self, reuse: bool) -> Result<(), Error> {
        if reuse && self.kind() == QpType::Uc {
            return Err(Error::Unsupported("a shared port for unreliable connections"));
        }
        if reuse { self.set_option::<c_int>(RDMA_OPTION_ID_REUSEADDR, 1) } else { Ok(()) }
    }
}
