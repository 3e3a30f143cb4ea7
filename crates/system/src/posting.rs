//! Posting requests to a queue pair.

use std::ptr::null_mut;

use abi::verbs::{ibv_recv_wr, ibv_send_wr};
use nic::{Errno, Error, PostError};
use transport::op::{Data, RecvWr, SendWr};

use crate::number;
use crate::qp::{Qp, Raw};
use crate::wr::{self, Elements};

/// Why a request is not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request, or the queue.
    Post(PostError),
    /// Not something that library and device do; by its name.
    Unsupported(&'static str),
    /// The library refused.
    System(Errno),
}

const GONE: Refusal = Refusal::Post(PostError::Invalid("the queue pair is no more"));
const NO_FUNCTION: Refusal = Refusal::System(Errno::EOPNOTSUPP);

impl Qp {
    /// Whether library and device do what a request asks for.
    ///
    /// # Errors
    ///
    /// The name of what they do not do.
    pub fn check(&self, request: &SendWr) -> Result<(), &'static str> {
        match wr::unsupported(request) {
            Some(what) if !self.does_more(request) => Err(what),
            _ => Ok(()),
        }
    }

    /// The same, and whether it fits the queue.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn check_fits(&self, request: &SendWr) -> Result<(), Refusal> {
        self.check(request).map_err(Refusal::Unsupported)?;
        if let Data::Sges(list) = &request.data {
            let (most, num_sge) = (self.sizes.send_sge, list.as_slice().len() as u32);
            let fits = num_sge <= most;
            return if fits { Ok(()) } else { Err(Refusal::Post(PostError::Elements { num_sge, most })) };
        }
        let (len_bytes, most) = (request.data.len_bytes(), self.sizes.inline);
        // What ATOMIC WRITE writes goes in its header.
        let fits = len_bytes <= u64::from(most) || self.does_more(request);
        if fits { Ok(()) } else { Err(Refusal::Post(PostError::Inline { len_bytes, most })) }
    }

    fn does_more(&self, request: &SendWr) -> bool {
        self.extended.is_some_and(|extended| extended.does(&request.op))
    }

    /// Posts to the send queue.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    pub fn post_send(&self, request: &SendWr) -> Result<(), Refusal> {
        self.check_fits(request)?;
        let lock = self.raw.lock();
        let raw = lock.as_ref().ok_or(GONE)?;
        if self.does_more(request) {
            return self.post_more(raw, request);
        }
        let (mut elements, inline) = wr::data(&request.data);
        let mut c = wr::send_wr(request, &mut elements, inline).ok_or(GONE)?;
        // SAFETY: the element list is there.
        unsafe { post(raw, &mut c) }.map_err(|(refusal, _)| refusal)
    }

    /// Posts several to the send queue, with one doorbell where library and device can. Each has been found to fit.
    ///
    /// # Errors
    ///
    /// How many were posted, and why the next was not.
    pub fn post_sends(&self, requests: &[SendWr]) -> Result<(), (usize, Refusal)> {
        let lock = self.raw.lock();
        let raw = lock.as_ref().ok_or((0, GONE))?;
        let mut done = 0;
        // What goes another way ends a row.
        for row in requests.chunk_by(|a, b| !self.does_more(a) && !self.does_more(b)) {
            let posted = match row {
                [one] if self.does_more(one) => self.post_more(raw, one).map_err(|refusal| (0, refusal)),
                row => post_row(raw, row),
            };
            posted.map_err(|(at, refusal)| (done + at, refusal))?;
            done += row.len();
        }
        Ok(())
    }

    fn post_more(&self, _locked: &Raw, request: &SendWr) -> Result<(), Refusal> {
        let extended = self.extended.as_ref().ok_or(GONE)?;
        // SAFETY: the queue pair lives: its C object is locked.
        unsafe { extended.post(request) }
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    pub fn post_receive(&self, request: &RecvWr) -> Result<(), Refusal> {
        let num_sge = request.sges.as_slice().len() as u32;
        if num_sge > 1 {
            return Err(Refusal::Post(PostError::Elements { num_sge, most: 1 }));
        }
        let mut elements = wr::elements(request.sges.as_slice());
        let mut c = ibv_recv_wr {
            wr_id: request.wr_id,
            next: null_mut(),
            sg_list: elements.as_mut_ptr(),
            num_sge: elements.len() as i32,
        };
        let lock = self.raw.lock();
        let raw = lock.as_ref().ok_or(GONE)?;
        let mut bad = null_mut();
        // SAFETY: as in `post`.
        let result = unsafe {
            let post = (*raw.qp.as_ref().context).ops.post_recv.ok_or(NO_FUNCTION)?;
            post(raw.qp.as_ptr(), &raw mut c, &raw mut bad)
        };
        refused(result)
    }
}

/// Posts requests that ibv_post_send(3) does, as one list; else how many it has taken.
fn post_row(raw: &Raw, row: &[SendWr]) -> Result<(), (usize, Refusal)> {
    let data: Vec<(Elements, u32)> = row.iter().map(|request| wr::data(&request.data)).collect();
    let mut elements: Vec<Elements> = Vec::with_capacity(row.len());
    let mut list: Vec<ibv_send_wr> = Vec::with_capacity(row.len());
    for (request, (own, inline)) in row.iter().zip(data) {
        elements.push(own);
        // Nothing moves any more: there is room for all.
        let made = elements.last_mut().and_then(|own| wr::send_wr(request, own, inline));
        list.push(made.ok_or((0, GONE))?);
    }
    let first = list.as_mut_ptr();
    for at in 1..list.len() {
        // SAFETY: both are inside.
        unsafe { (*first.add(at - 1)).next = first.add(at) };
    }
    // SAFETY: so many requests are there; they and their elements stay until it returns.
    let posted = unsafe { post(raw, first) };
    posted.map_err(|(refusal, bad)| {
        let at = (0..row.len()).find(|at| std::ptr::eq(first.wrapping_add(*at), bad)).unwrap_or(0);
        (at, refusal)
    })
}

/// Posts a list; where it is refused, which request was.
///
/// # Safety
///
/// A list of requests, whose elements are there, and what these name stays until the completion, by `transport`'s contract.
unsafe fn post(raw: &Raw, first: *mut ibv_send_wr) -> Result<(), (Refusal, *mut ibv_send_wr)> {
    let mut bad = first;
    // SAFETY: the queue pair lives, as its C object is locked; its context has the functions that verbs.h calls. The list is read before it
    // returns.
    let result = unsafe {
        let post = (*raw.qp.as_ref().context).ops.post_send.ok_or((NO_FUNCTION, first))?;
        post(raw.qp.as_ptr(), first, &raw mut bad)
    };
    refused(result).map_err(|refusal| (refusal, bad))
}

/// What posting says: 0, or an errno, or -1.
pub(crate) fn refused(result: i32) -> Result<(), Refusal> {
    match number(result) {
        Ok(()) => Ok(()),
        Err(Error::System(Errno::ENOMEM)) => Err(Refusal::Post(PostError::Full)),
        Err(e) => Err(Refusal::System(e.errno())),
    }
}
