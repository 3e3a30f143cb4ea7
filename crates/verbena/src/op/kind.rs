//! Kinds of operations; they say which options there are, what is taken, and what comes out.

use super::Completion;
use crate::error::Result;
use crate::mem::{IoBuf, IoBufMut, RegBuf, SgeList};

/// SEND.
#[derive(Debug)]
pub enum Send {}
/// RDMA WRITE.
#[derive(Debug)]
pub enum Write {}
/// RDMA READ.
#[derive(Debug)]
pub enum Read {}
/// COMPARE SWAP or FETCH ADD; the value before.
#[derive(Debug)]
pub enum Atomic {}
/// ATOMIC WRITE and FLUSH.
#[derive(Debug)]
pub enum Order {}

/// Binding a memory window ([`RegBuf::expose`]).
#[derive(Debug)]
pub enum Bind {}

/// How a request completed; of an atomic with the value before. No other crate can name it, nor
/// implement [`Kind`].
#[doc(hidden)]
pub struct Raw(pub(crate) Result<(Completion, u64)>);

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Send {}
    impl Sealed for super::Write {}
    impl Sealed for super::Read {}
    impl Sealed for super::Atomic {}
    impl Sealed for super::Order {}
    impl Sealed for super::Bind {}
}

/// What an operation on a `B` takes and gives. Sealed.
pub trait Kind<B>: sealed::Sealed + 'static {
    /// The result.
    type Output;
    #[doc(hidden)]
    fn gather(value: &B, list: &mut SgeList);
    #[doc(hidden)]
    fn set_filled(value: &mut B, len: usize);
    #[doc(hidden)]
    fn output(raw: Raw, value: B) -> Self::Output;
}

/// Bytes that were copied into the work request (inline) or a pool's buffer: the caller keeps
/// nothing.
pub struct Copied(pub(crate) Option<RegBuf>);

macro_rules! with_buffer {
    ($($kind:ty),*) => {$(
        impl<B: IoBuf> Kind<B> for $kind {
            type Output = (Result<Completion>, B);
            fn gather(value: &B, list: &mut SgeList) {
                value.gather(list);
            }
            fn set_filled(_: &mut B, _: usize) {}
            fn output(raw: Raw, value: B) -> Self::Output {
                (raw.0.map(|(completion, _)| completion), value)
            }
        }
    )*};
}
with_buffer!(Send, Write);

impl<B: IoBufMut> Kind<B> for Read {
    type Output = (Result<Completion>, B);
    fn gather(value: &B, list: &mut SgeList) {
        value.gather_mut(list);
    }
    fn set_filled(value: &mut B, len: usize) {
        value.set_filled(len);
    }
    fn output(raw: Raw, value: B) -> Self::Output {
        (raw.0.map(|(completion, _)| completion), value)
    }
}

macro_rules! without {
    ($($kind:ty),*) => {$(
        impl Kind<Copied> for $kind {
            type Output = Result<Completion>;
            fn gather(value: &Copied, list: &mut SgeList) {
                value.0.iter().for_each(|buf| buf.gather(list));
            }
            fn set_filled(_: &mut Copied, _: usize) {}
            fn output(raw: Raw, _: Copied) -> Self::Output {
                raw.0.map(|(completion, _)| completion)
            }
        }
    )*};
}
without!(Send, Write);

impl Kind<()> for Order {
    type Output = Result<Completion>;
    fn gather((): &(), _: &mut SgeList) {}
    fn set_filled((): &mut (), _: usize) {}
    fn output(raw: Raw, (): ()) -> Self::Output {
        raw.0.map(|(completion, _)| completion)
    }
}

// What an atomic brings back needs no buffer of the caller: the queue pair has eight bytes for each
// entry.
impl Kind<()> for Atomic {
    type Output = Result<u64>;
    fn gather((): &(), _: &mut SgeList) {}
    fn set_filled((): &mut (), _: usize) {}
    fn output(raw: Raw, (): ()) -> Self::Output {
        raw.0.map(|(_, before)| before)
    }
}
