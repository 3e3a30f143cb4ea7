//! A buffer that the peer of one connection reaches for a while: [`RegBuf::expose`].

use std::future::Future;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use nic::{Mw, WindowType};
use transport::op::{Bind, LocalOp};
use wire::Rkey;

use super::access::Access;
use super::buf::RegBuf;
use super::shared::SharedSlice;
use crate::error::{Error, ErrorKind, ExposeError, Result, RevokeError};
use crate::exec;
use crate::op::kind::{self, Kind};
use crate::op::{Asked, Op};
use crate::provider::{Domain, Pd};
use crate::qp::{Connected, QueuePair};
use crate::remote::RemoteMemory;

const BIND: &str = "ibv_bind_mw";

/// What a window can grant; FLUSH is a right of registrations.
const MOST: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A memory window of type 2. While it is bound there is a right to its bytes.
struct Window {
    pd: Pd,
    below: Below,
    key: Rkey,
}

/// The window of the stack below.
enum Below {
    Ours(Arc<nic::Pd>, Mw),
    #[cfg(feature = "system")]
    System(Arc<rdma_core::Mw>),
}

impl Window {
    fn new(pd: &Pd) -> Result<Self> {
        let failed = |e| Error::of_nic("ibv_alloc_mw", e);
        pd.stack().check("ibv_alloc_mw")?;
        let (below, key) = match pd.domain() {
            Domain::Ours(nic) => {
                let mw = nic.alloc_window(WindowType::Two).map_err(failed)?;
                (Below::Ours(nic.clone(), mw), nic.window_key(mw))
            }
            #[cfg(feature = "system")]
            Domain::System(domain) => {
                let mw = rdma_core::Mw::new(domain).map_err(failed)?;
                let key = mw.key();
                (Below::System(mw), key)
            }
        };
        Ok(Self { pd: pd.clone(), below, key })
    }

    /// By which a request names it.
    fn name(&self) -> u64 {
        match &self.below {
            Below::Ours(_, mw) => mw.name(),
            #[cfg(feature = "system")]
            Below::System(mw) => mw.name(),
        }
    }

    /// Takes the right back, waits for copies under way (microseconds), and gives the window back.
    fn free(&self) -> Result<()> {
        const CALL: &str = "ibv_dealloc_mw";
        self.pd.stack().check(CALL)?;
        let freed = match &self.below {
            Below::Ours(nic, mw) => nic.free_window(*mw),
            #[cfg(feature = "system")]
            Below::System(mw) => mw.free(),
        };
        freed.map_err(|e| Error::of_nic(CALL, e))
    }
}

/// A buffer with a window over it, bound or not: the right goes before the buffer does.
pub(crate) struct Behind {
    window: Window,
    buf: ManuallyDrop<RegBuf>,
}

impl Behind {
    /// The buffer is ours alone again; itself where the right could not be taken back.
    fn take_back(self) -> Result<RegBuf, (Error, Self)> {
        if let Err(error) = self.window.free() {
            return Err((error, self));
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is not dropped, nor looked at again.
        let buf = unsafe { ManuallyDrop::take(&mut this.buf) };
        // SAFETY: dropped once, likewise.
        unsafe { std::ptr::drop_in_place(&mut this.window) };
        Ok(buf)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // Where the right stays the buffer is never given again.
        if self.window.free().is_ok() {
            // SAFETY: dropped here only, and not looked at again.
            unsafe { ManuallyDrop::drop(&mut self.buf) };
        }
    }
}

impl Kind<Behind> for kind::Bind {
    type Output = (Result<crate::Completion>, Behind);
    fn gather(_: &Behind, _: &mut super::SgeList) {}
    fn set_filled(_: &mut Behind, _: usize) {}
    fn output(raw: kind::Raw, value: Behind) -> Self::Output {
        (raw.0.map(|(completion, _)| completion), value)
    }
}

/// A buffer that the peer of one connection reaches by a memory window (type 2B): no one else has a
/// right to it. Dropped, the right is taken back, and the buffer goes to its pool. Meanwhile the
/// bytes are not ours to see:
/// ```compile_fail,E0382
/// async fn f(conn: verbena::Connection, buf: verbena::RegBuf) {
///     let peers = buf.expose(conn.queue_pair(), verbena::Access::REMOTE_WRITE).await;
///     println!("{:?}", &buf[..]);
///     drop(peers);
/// }
/// ```
pub struct Exposed {
    behind: Behind,
}

impl RegBuf {
    /// Lets the peer of one connection reach its bytes, as many as its length says. The peer is
    /// told where ([`Exposed::remote`]) by the program's own protocol; its SEND with invalidate
    /// ([`Op::invalidate`]) ends the right, as [`Exposed::revoke`] does. No system call and
    /// no registration: this is what memory windows are for.
    ///
    /// Dropping the future before it is complete takes the right back and gives the buffer to its
    /// pool.
    ///
    /// # Errors
    ///
    /// With each the buffer comes back. `OutOfRange` for an empty buffer, for rights other than
    /// READ, WRITE and atomics, and where its bytes do not begin at a multiple of eight, or its
    /// capacity has no room up to the next one after them; `WrongDomain`; `Exhausted` where the
    /// device has no more windows; `Unsupported` where it has none at all; `Completion` where the
    /// queue pair has failed; `Forked`.
    #[allow(clippy::manual_async_fn, reason = "the signature promises Send")]
    pub fn expose<'a, T: Connected>(
        self,
        qp: &'a QueuePair<T>,
        access: Access,
    ) -> impl Future<Output = Result<Exposed, ExposeError>> + Send + 'a {
        async move {
            let (window, asked) = match self.window_over(qp, access) {
                Ok(bind) => bind,
                Err(error) => return Err(ExposeError::new(error, self)),
            };
            let behind = Behind { window, buf: ManuallyDrop::new(self) };
            let (bound, behind) = Op::<kind::Bind, _>::new(qp.inner(), asked, behind).await;
            match bound {
                Ok(_) => Ok(Exposed { behind }),
                Err(error) => match behind.take_back() {
                    Ok(buf) => Err(ExposeError::new(error, buf)),
                    // The right can not be taken back, so the buffer can not come back either: it
                    // is exposed.
                    Err((_, behind)) => Ok(Exposed { behind }),
                },
            }
        }
    }

    /// Like [`RegBuf::expose`], blocking.
    ///
    /// # Errors
    ///
    /// Those of [`RegBuf::expose`]; `BlockingInSimulation`.
    pub fn blocking_expose<T: Connected>(
        self,
        qp: &QueuePair<T>,
        access: Access,
    ) -> Result<Exposed, ExposeError> {
        match exec::may_block(qp.inner().stack(), BIND) {
            Ok(()) => exec::block_on(self.expose(qp, access)),
            Err(error) => Err(ExposeError::new(error, self)),
        }
    }

    /// A window, and how it is bound to these bytes.
    fn window_over<T: Connected>(&self, qp: &QueuePair<T>, access: Access) -> Result<(Window, Asked)> {
        if qp.pd() != self.pd() {
            return Err(Error::new(ErrorKind::WrongDomain, BIND));
        }
        if !MOST.contains(access) {
            return Err(Error::number(BIND, "access", access.bits().into(), 0..=MOST.bits().into()));
        }
        let (region, at, len) = self.place();
        let addr = region.iova() + at as u64;
        let words = len.next_multiple_of(8);
        if len == 0 || !addr.is_multiple_of(8) || words > self.capacity() {
            return Err(Error::range(BIND, addr % 8, len as u64, self.capacity() as u64));
        }
        let window = Window::new(self.pd())?;
        let bind = Bind {
            window: window.name(),
            key: window.key,
            region: region.key(),
            addr,
            length: len as u64,
            access: access.bits(),
        };
        Ok((window, Asked::Local(LocalOp::Bind(bind))))
    }
}

impl Exposed {
    /// What the peer needs to reach it.
    pub fn remote(&self) -> RemoteMemory {
        let (region, at, len) = self.behind.buf.place();
        RemoteMemory::from_raw(region.iova() + at as u64, self.behind.window.key.0, len as u64)
    }

    /// A look at it meanwhile.
    pub fn shared(&self) -> SharedSlice<'_> {
        let (region, at, len) = self.behind.buf.place();
        let start = region.chunk().ptr().wrapping_add(at).cast::<AtomicU64>();
        // SAFETY: aligned, since the chunk is to pages and the address of the first byte is to
        // eight, as was checked; the words are inside the buffer's capacity, which is this handle's
        // alone, and there is no reference to them but to atomics while the handle is.
        let words = unsafe { std::slice::from_raw_parts(start, len.div_ceil(8)) };
        SharedSlice::new(words, len)
    }

    /// Takes the right back: what the peer still does fails with a remote access error. Copies
    /// under way are waited for (microseconds). The buffer is ours alone again, with what the
    /// peer has written.
    ///
    /// # Errors
    ///
    /// [`RevokeError`] with the cause `Forked`; then it stays exposed.
    pub fn revoke(self) -> Result<RegBuf, RevokeError> {
        self.behind.take_back().map_err(|(error, behind)| RevokeError::new(error, Self { behind }))
    }
}

impl std::fmt::Debug for Exposed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Exposed({:?})", self.remote())
    }
}
