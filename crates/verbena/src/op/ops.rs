//! Several operations with one doorbell.

use std::collections::VecDeque;

use transport::op::SendWr;

use super::kind::Kind;
use super::{InFlight, Op, State};
use crate::error::{Error, ErrorKind, Result};
use crate::qp::inner::QpInner;
use crate::qp::posting::Posting;

mod sealed {
    pub trait Sealed {}
}

/// Operations to be posted together: tuples, arrays and vectors of [`Op`]s. Sealed.
pub trait Ops: sealed::Sealed + Sized {
    /// What comes of them.
    type InFlight;
    /// Checks them, and writes their work requests in order.
    #[doc(hidden)]
    fn requests(&self, to: &mut Requests<'_>) -> Result<()>;
    /// Posts them; there is room, and a request for each.
    #[doc(hidden)]
    fn post(self, posting: &mut Posting<'_>, requests: &mut Requests<'_>) -> Self::InFlight;
}

/// Work requests. No other crate can make one.
#[doc(hidden)]
pub struct Requests<'a> {
    pub(crate) qp: &'a QpInner,
    pub(crate) list: VecDeque<SendWr>,
}

impl<K: Kind<B>, B: Send + 'static> sealed::Sealed for Op<'_, K, B> {}

impl<K: Kind<B>, B: Send + 'static> Ops for Op<'_, K, B> {
    type InFlight = InFlight<K, B>;
    fn requests(&self, to: &mut Requests<'_>) -> Result<()> {
        to.qp.check_is(self.qp)?;
        match &self.state {
            State::New { value, .. } => {
                let pieces = to.qp.pieces::<K, B>(&self.request, value)?;
                to.list.push_back(self.request.wr(0, pieces));
            }
            State::Posted(_) => {}
            State::Over => return Err(Error::new(ErrorKind::WrongState, "ibv_post_send")),
        }
        Ok(())
    }
    fn post(self, posting: &mut Posting<'_>, requests: &mut Requests<'_>) -> InFlight<K, B> {
        match self.state {
            State::New { value, place } => {
                posting.unlocked.push(place);
                let ticket = requests.list.pop_front().and_then(|wr| posting.put(&self.request, wr, value));
                InFlight::of(self.qp.clone(), ticket)
            }
            State::Posted(in_flight) => in_flight,
            State::Over => InFlight::of(self.qp.clone(), None),
        }
    }
}

macro_rules! tuples {
    ($($($o:ident)*;)*) => {$(
        impl<$($o: Ops),*> sealed::Sealed for ($($o,)*) {}
        impl<$($o: Ops),*> Ops for ($($o,)*) {
            type InFlight = ($($o::InFlight,)*);
            #[expect(non_snake_case, reason = "a variable is named as its type parameter")]
            fn requests(&self, to: &mut Requests<'_>) -> Result<()> {
                let ($($o,)*) = self;
                $($o.requests(to)?;)*
                Ok(())
            }
            #[expect(non_snake_case, reason = "a variable is named as its type parameter")]
            fn post(self, posting: &mut Posting<'_>, requests: &mut Requests<'_>) -> Self::InFlight {
                let ($($o,)*) = self;
                ($($o.post(posting, requests),)*)
            }
        }
    )*};
}
tuples! {
    O0 O1;
    O0 O1 O2;
    O0 O1 O2 O3;
}

impl<O: Ops> sealed::Sealed for Vec<O> {}
impl<O: Ops> Ops for Vec<O> {
    type InFlight = Vec<O::InFlight>;
    fn requests(&self, to: &mut Requests<'_>) -> Result<()> {
        self.iter().try_for_each(|op| op.requests(to))
    }
    fn post(self, posting: &mut Posting<'_>, requests: &mut Requests<'_>) -> Self::InFlight {
        self.into_iter().map(|op| op.post(posting, requests)).collect()
    }
}

impl<O: Ops, const N: usize> sealed::Sealed for [O; N] {}
impl<O: Ops, const N: usize> Ops for [O; N] {
    type InFlight = [O::InFlight; N];
    fn requests(&self, to: &mut Requests<'_>) -> Result<()> {
        self.iter().try_for_each(|op| op.requests(to))
    }
    fn post(self, posting: &mut Posting<'_>, requests: &mut Requests<'_>) -> Self::InFlight {
        self.map(|op| op.post(posting, requests))
    }
}
