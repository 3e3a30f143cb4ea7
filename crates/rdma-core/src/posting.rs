//! Posting requests to a queue pair.

use std::ptr::null_mut;
use std::sync::Arc;

use nic::{Errno, Error, PostError, QpState, QpType};
use rdma_core_abi::verbs::{
    IBV_SEND_SIGNALED, IBV_WR_BIND_MW, ibv_mw_bind_info, ibv_send_wr, ibv_send_wr_bind_mw, ibv_send_wr_op,
    ibv_send_wr_ud, ibv_send_wr_wr,
};
use transport::op::{Bind, Data, LocalOp, RecvWr, SendOp, SendWr};
use wire::roce::SendTail;

use crate::handle::Datagram;
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
pub(crate) const NO_FUNCTION: Refusal = Refusal::System(Errno::EOPNOTSUPP);

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

    /// Like [`Qp::check`], and whether the request fits the queue.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn check_fits(&self, request: &SendWr) -> Result<(), Refusal> {
        self.check(request).map_err(Refusal::Unsupported)?;
        if self.kind != QpType::Rc && matches!(request.op, SendOp::Send(SendTail::Invalidate(_))) {
            return Err(Refusal::Post(PostError::Invalid(
                "a key can be invalidated over a reliable connection only",
            )));
        }
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
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or(GONE)?;
        raw.check_sends()?;
        if self.goes_alone(request) {
            return self.post_alone(raw, request);
        }
        let (mut elements, inline) = wr::data(&request.data);
        let mut c = wr::send_wr(request, &mut elements, inline).ok_or(GONE)?;
        // SAFETY: the element list is there.
        unsafe { post(raw, &mut c) }.map_err(|(refusal, _)| refusal)
    }

    /// Posts a SEND to the send queue of a queue pair for datagrams.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    pub fn post_datagram(&self, request: &SendWr, to: &Datagram) -> Result<(), Refusal> {
        self.check_fits(request)?;
        let (mut elements, inline) = wr::data(&request.data);
        let mut c = wr::send_wr(request, &mut elements, inline).ok_or(GONE)?;
        let ud = ibv_send_wr_ud { ah: to.ah.raw(), remote_qpn: to.qpn.get(), remote_qkey: to.qkey };
        c.wr = ibv_send_wr_wr { ud };
        let mut old = None;
        let posted = {
            let mut lock = self.raw.lock();
            let raw = lock.as_mut().ok_or(GONE)?;
            raw.check_sends()?;
            // SAFETY: the element list is there; the handle is kept until as many requests have
            // followed as the queue has.
            let posted = unsafe { post(raw, &mut c) }.map_err(|(refusal, _)| refusal);
            if posted.is_ok() {
                raw.handles.push_back(to.ah.clone());
                if raw.handles.len() > self.sizes.send_wr as usize {
                    old = raw.handles.pop_front();
                }
            }
            posted
        };
        drop(old);
        posted
    }

    /// Posts several to the send queue, with one doorbell where library and device can. Each has
    /// been found to fit.
    ///
    /// # Errors
    ///
    /// How many were posted, and why the next was not.
    pub fn post_sends(&self, requests: &[SendWr]) -> Result<(), (usize, Refusal)> {
        let mut lock = self.raw.lock();
        let raw = lock.as_mut().ok_or((0, GONE))?;
        raw.check_sends().map_err(|refusal| (0, refusal))?;
        let mut done = 0;
        // What goes another way ends a row.
        for row in requests.chunk_by(|a, b| !self.goes_alone(a) && !self.goes_alone(b)) {
            let posted = match row {
                [one] if self.goes_alone(one) => self.post_alone(raw, one).map_err(|refusal| (0, refusal)),
                row => post_row(raw, row),
            };
            posted.map_err(|(at, refusal)| (done + at, refusal))?;
            done += row.len();
        }
        Ok(())
    }

    fn goes_alone(&self, request: &SendWr) -> bool {
        matches!(request.op, SendOp::Local(LocalOp::Bind(_))) || self.does_more(request)
    }

    fn post_alone(&self, raw: &mut Raw, request: &SendWr) -> Result<(), Refusal> {
        if let SendOp::Local(LocalOp::Bind(bind)) = request.op {
            return self.bind(raw, request, &bind);
        }
        let extended = self.extended.as_ref().ok_or(GONE)?;
        // SAFETY: the queue pair lives: its C object is locked.
        unsafe { extended.post(request) }
    }

    /// Has a window bound. Window and registration live: their names are kept meanwhile.
    fn bind(&self, raw: &mut Raw, request: &SendWr, bind: &Bind) -> Result<(), Refusal> {
        const NONE: Refusal =
            Refusal::Post(PostError::Invalid("a window, or a registration for windows, of another stack"));
        let names = &self.system().names;
        // Dropped when the names are unlocked.
        let window = names.lock().window(bind.window).ok_or(NONE)?;
        let names = names.lock();
        let region = names.region(bind.region).ok_or(NONE)?;
        let posted = window.with(|mw| {
            // SAFETY: numbers, addresses, and unions of them: all zeros are a request.
            let mut c: ibv_send_wr = unsafe { std::mem::zeroed() };
            (c.wr_id, c.opcode) = (request.wr_id, IBV_WR_BIND_MW);
            c.send_flags = if request.signaled { IBV_SEND_SIGNALED } else { 0 };
            let bind_info = ibv_mw_bind_info {
                mr: region.as_ptr(),
                addr: bind.addr,
                length: bind.length,
                mw_access_flags: bind.access,
            };
            let bind_mw = ibv_send_wr_bind_mw { mw, rkey: bind.key.0, bind_info };
            c.op = ibv_send_wr_op { bind_mw };
            // SAFETY: there are no elements; window and registration live, as both are locked.
            unsafe { post(raw, &mut c) }.map_err(|(refusal, _)| refusal)
        });
        posted.ok_or(NONE)??;
        drop(names);
        raw.windows.retain(|known| known.strong_count() > 0);
        raw.windows.push(Arc::downgrade(&window));
        Ok(())
    }

    /// Posts to the receive queue.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: it was not posted.
    pub fn post_receive(&self, request: &RecvWr) -> Result<(), Refusal> {
        wr::with_receive(request, |c| {
            let lock = self.raw.lock();
            let raw = lock.as_ref().ok_or(GONE)?;
            let mut bad = null_mut();
            // SAFETY: as in `post`.
            let result = unsafe {
                let post = (*raw.qp.as_ref().context).ops.post_recv.ok_or(NO_FUNCTION)?;
                post(raw.qp.as_ptr(), c, &raw mut bad)
            };
            refused(result)
        })
    }
}

impl Raw {
    /// Whether the queue pair is in a state that takes requests, if only to flush them. rdma_rxe's
    /// library puts a request into the queue before the kernel refuses it: it would be executed
    /// later, when its memory is others'.
    fn check_sends(&self) -> Result<(), Refusal> {
        match self.state {
            QpState::Reset | QpState::Init | QpState::Rtr => {
                Err(Refusal::Post(PostError::State(self.state.name())))
            }
            _ => Ok(()),
        }
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
/// A list of requests, whose elements are there, and what these name stays until the completion, by
/// `transport`'s contract.
unsafe fn post(raw: &Raw, first: *mut ibv_send_wr) -> Result<(), (Refusal, *mut ibv_send_wr)> {
    let mut bad = first;
    // SAFETY: the queue pair lives, as its C object is locked; its context has the functions that
    // verbs.h calls. The list is read before it returns.
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
