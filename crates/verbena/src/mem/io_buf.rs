//! What operations take: values that say where their bytes are, [`IoBuf`] and [`IoBufMut`], and the
//! list into which they say it, [`SgeList`].

use arrayvec::ArrayVec;
use transport::Sge;
use transport::op::MAX_SGE;
use wire::Rkey;

use super::region::Region;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Pd;

/// A scatter/gather list being written, for a work request of one protection domain. It notes the
/// first error; a list with one is not posted.
pub struct SgeList<'a> {
    pd: &'a Pd,
    pieces: ArrayVec<Sge, MAX_SGE>,
    /// Pieces that there was no room for.
    more: usize,
    error: Option<Error>,
}

impl<'a> SgeList<'a> {
    /// An empty one.
    #[inline]
    pub(crate) fn new(pd: &'a Pd) -> Self {
        SgeList { pd, pieces: ArrayVec::new(), more: 0, error: None }
    }

    /// The domain in which its pieces must be registered.
    pub fn pd(&self) -> &Pd {
        self.pd
    }

    /// Adds a registered piece: `len` bytes from `addr` on, as the registration names them. Those
    /// of 0 bytes are left out.
    ///
    /// # Safety
    ///
    /// As for [`IoBuf`].
    pub unsafe fn push(&mut self, addr: u64, len: usize, lkey: u32) {
        match u32::try_from(len) {
            Ok(length) => self.add_sge(Sge { addr, length, lkey: Rkey(lkey) }),
            Err(_) => self.fail(too_long(len)),
        }
    }

    /// Adds bytes of a region; the caller knows that they are there.
    #[inline]
    pub(super) fn add(&mut self, region: &Region, at: usize, len: usize) {
        if region.pd() != self.pd {
            return self.fail(Error::new(ErrorKind::WrongDomain, "SgeList::add"));
        }
        match u32::try_from(len) {
            Ok(len) => self.add_sge(region.sge(at, len)),
            Err(_) => self.fail(too_long(len)),
        }
    }

    /// The value can not say where its bytes are.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    #[inline]
    fn add_sge(&mut self, sge: Sge) {
        if sge.length > 0 && self.pieces.try_push(sge).is_err() {
            self.more += 1;
        }
    }

    /// Bytes in all.
    pub(crate) fn len(&self) -> u64 {
        self.pieces.iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// Leaves out what follows the first `len` bytes, as for a READ of fewer bytes than there is
    /// room for.
    pub(crate) fn cut(&mut self, mut len: u64) {
        for sge in &mut self.pieces {
            sge.length = sge.length.min(u32::try_from(len).unwrap_or(u32::MAX));
            len -= u64::from(sge.length);
        }
        self.pieces.retain(|sge| sge.length > 0);
    }

    /// The list for a work request.
    ///
    /// # Errors
    ///
    /// The first one that was noted: `WrongDomain`, or what registering said; `OutOfRange` for more
    /// than [`MAX_SGE`] pieces, or one of 4 GiB.
    #[inline]
    pub(crate) fn finish(&self) -> Result<transport::op::SgeList> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.more > 0 {
            let pieces = (MAX_SGE + self.more) as u64;
            return Err(Error::number("SgeList::finish", "num_sge", pieces, 0..=MAX_SGE as u64));
        }
        Ok(transport::op::SgeList::from(self.pieces.as_slice()))
    }
}

fn too_long(len: usize) -> Error {
    Error::number("SgeList::push", "length", len as u64, 0..=u32::MAX.into())
}

impl std::fmt::Debug for SgeList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.pieces).finish()
    }
}

/// What an operation can take its bytes from. It goes by value into the queue pair and comes back
/// when it is complete.
///
/// # Safety
///
/// Moving the value does not move the bytes; they stay mapped and registered as long as it lives;
/// and no code has or gets a `&mut` to them meanwhile.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not registered memory",
    note = "use a `RegBuf` from a `Pool`, or `send_inline`/`send_copy` for plain bytes"
)]
pub unsafe trait IoBuf: Send + 'static {
    /// Adds the pieces that bytes come from, in order.
    fn gather(&self, list: &mut SgeList);
}

/// What an operation can put bytes into.
///
/// # Safety
///
/// As for [`IoBuf`], of all that [`IoBufMut::gather_mut`] names; and no code has or gets a `&` to
/// them either.
#[diagnostic::on_unimplemented(
    message = "nothing can be received or read into `{Self}`",
    note = "use a `RegBuf`, a `RegBox` or a part of `Memory<RemoteWrite>`"
)]
pub unsafe trait IoBufMut: IoBuf {
    /// Adds the pieces that bytes go to, in order.
    fn gather_mut(&self, list: &mut SgeList);
    /// Bytes that fit into all pieces, whether or not they hold data already.
    fn capacity_bytes(&self) -> usize;
    /// Sets how many bytes hold data, from the first one on: `len` is at most
    /// [`IoBufMut::capacity_bytes`].
    fn set_filled(&mut self, len: usize);
}

/// Tells values in a row how many bytes came into each; what is left.
fn fill(buf: &mut impl IoBufMut, len: usize) -> usize {
    let mine = len.min(buf.capacity_bytes());
    buf.set_filled(mine);
    len - mine
}

// SAFETY: no bytes.
unsafe impl IoBuf for () {
    fn gather(&self, _list: &mut SgeList) {}
}

macro_rules! rows {
    ($([$($g:tt)*] $t:ty),*) => {$(
        // SAFETY: what is true of each is true of all.
        unsafe impl<B: IoBuf, $($g)*> IoBuf for $t {
            fn gather(&self, list: &mut SgeList) {
                self.iter().for_each(|buf| buf.gather(list));
            }
        }
        // SAFETY: as above.
        unsafe impl<B: IoBufMut, $($g)*> IoBufMut for $t {
            fn gather_mut(&self, list: &mut SgeList) {
                self.iter().for_each(|buf| buf.gather_mut(list));
            }
            fn capacity_bytes(&self) -> usize {
                self.iter().map(B::capacity_bytes).sum()
            }
            fn set_filled(&mut self, len: usize) {
                self.iter_mut().fold(len, |left, buf| fill(buf, left));
            }
        }
    )*};
}
rows!([const N: usize] [B; N], [] Vec<B>);

macro_rules! tuples {
    ($(($($t:ident $at:tt),*)),*) => {$(
        // SAFETY: what is true of each is true of all.
        unsafe impl<$($t: IoBuf),*> IoBuf for ($($t,)*) {
            fn gather(&self, list: &mut SgeList) {
                $(self.$at.gather(list);)*
            }
        }
        // SAFETY: as above.
        unsafe impl<$($t: IoBufMut),*> IoBufMut for ($($t,)*) {
            fn gather_mut(&self, list: &mut SgeList) {
                $(self.$at.gather_mut(list);)*
            }
            fn capacity_bytes(&self) -> usize {
                0 $(+ self.$at.capacity_bytes())*
            }
            fn set_filled(&mut self, len: usize) {
                let left = len;
                $(let left = fill(&mut self.$at, left);)*
                _ = left;
            }
        }
    )*};
}
tuples!((A 0), (A 0, B 1), (A 0, B 1, C 2), (A 0, B 1, C 2, D 3));
