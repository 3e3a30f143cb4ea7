//! Work requests and completions, between Rust and C.

use arrayvec::ArrayVec;
use nic::PostError;
use rdma_core_abi::verbs::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    ibv_recv_wr, ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_imm, ibv_send_wr_rdma, ibv_send_wr_wr, ibv_sge,
    ibv_wc,
};
use transport::op::{
    AtomicOp, Completed, Completion, Data, LocalOp, MAX_SGE, RecvWr, SendOp, SendWr, Sge, Status,
};
use wire::roce::SendTail;
use wire::{Qpn, Rkey};

use crate::posting::Refusal;

/// Elements as C has them.
pub(crate) type Elements = ArrayVec<ibv_sge, MAX_SGE>;

/// The elements; no more than fit are taken.
pub(crate) fn elements(sges: &[Sge]) -> Elements {
    let element = |sge: &Sge| ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey.0 };
    sges.iter().take(MAX_SGE).map(element).collect()
}

/// A receive as C has it, to be posted before this returns.
///
/// # Errors
///
/// [`Refusal`]: one with more than one element, which this crate posts none of; what `post` says.
pub(crate) fn with_receive(
    request: &RecvWr,
    post: impl FnOnce(&mut ibv_recv_wr) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let num_sge = request.sges.as_slice().len() as u32;
    if num_sge > 1 {
        return Err(Refusal::Post(PostError::Elements { num_sge, most: 1 }));
    }
    let mut elements = elements(request.sges.as_slice());
    post(&mut ibv_recv_wr {
        wr_id: request.wr_id,
        next: std::ptr::null_mut(),
        sg_list: elements.as_mut_ptr(),
        num_sge: elements.len() as i32,
    })
}

/// Where the bytes of a request are: inline ones lie in the request itself.
pub(crate) fn data(data: &Data) -> (Elements, u32) {
    let inline = |bytes: &[u8]| {
        let addr = bytes.as_ptr().expose_provenance() as u64;
        let mut elements = Elements::new();
        if !bytes.is_empty() {
            elements.push(ibv_sge { addr, length: u32::try_from(bytes.len()).unwrap_or(u32::MAX), lkey: 0 });
        }
        (elements, IBV_SEND_INLINE)
    };
    match data {
        Data::Sges(list) => (elements(list.as_slice()), 0),
        Data::Inline(bytes) => inline(bytes),
        Data::InlineLong(bytes) => inline(bytes),
    }
}

/// What a request does that ibv_post_send(3) has no opcode for, by its name.
pub(crate) fn unsupported(wr: &SendWr) -> Option<&'static str> {
    match wr.op {
        SendOp::Flush { .. } => Some("FLUSH"),
        SendOp::Atomic { op: AtomicOp::Write(_), .. } => Some("ATOMIC WRITE"),
        _ => None,
    }
}

/// A request as C has it, with these elements; `None` for one that is [`unsupported`], or binds a
/// window.
pub(crate) fn send_wr(wr: &SendWr, elements: &mut Elements, inline: u32) -> Option<ibv_send_wr> {
    // SAFETY: numbers, addresses, and unions of them: all zeros are a request.
    let mut c: ibv_send_wr = unsafe { std::mem::zeroed() };
    c.wr_id = wr.wr_id;
    c.sg_list = elements.as_mut_ptr();
    c.num_sge = elements.len() as i32;
    let flag = |on: bool, bit: u32| if on { bit } else { 0 };
    c.send_flags = inline
        | flag(wr.fence, IBV_SEND_FENCE)
        | flag(wr.signaled, IBV_SEND_SIGNALED)
        | flag(wr.solicited, IBV_SEND_SOLICITED);
    let immediate = |bytes: [u8; 4]| ibv_send_wr_imm { imm_data: u32::from_ne_bytes(bytes) };
    let rdma =
        |addr: u64, key: Rkey| ibv_send_wr_wr { rdma: ibv_send_wr_rdma { remote_addr: addr, rkey: key.0 } };
    match wr.op {
        SendOp::Send(SendTail::None) => c.opcode = IBV_WR_SEND,
        SendOp::Send(SendTail::Immediate(bytes)) => {
            c.opcode = IBV_WR_SEND_WITH_IMM;
            c.imm = immediate(bytes);
        }
        SendOp::Send(SendTail::Invalidate(key)) => {
            c.opcode = IBV_WR_SEND_WITH_INV;
            c.imm = ibv_send_wr_imm { invalidate_rkey: key.0 };
        }
        SendOp::Write { addr, rkey, immediate: tail } => {
            c.wr = rdma(addr, rkey);
            c.opcode = IBV_WR_RDMA_WRITE;
            if let Some(bytes) = tail {
                c.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                c.imm = immediate(bytes);
            }
        }
        SendOp::Read { addr, rkey } => {
            c.wr = rdma(addr, rkey);
            c.opcode = IBV_WR_RDMA_READ;
        }
        SendOp::Atomic { addr, rkey, op } => {
            let (opcode, compare_add, swap) = match op {
                AtomicOp::CompareSwap { compare, swap } => (IBV_WR_ATOMIC_CMP_AND_SWP, compare, swap),
                AtomicOp::FetchAdd(add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0),
                AtomicOp::Write(_) => return None,
            };
            c.opcode = opcode;
            let atomic = ibv_send_wr_atomic { remote_addr: addr, compare_add, swap, rkey: rkey.0 };
            c.wr = ibv_send_wr_wr { atomic };
        }
        SendOp::Local(LocalOp::Invalidate(key)) => {
            c.opcode = IBV_WR_LOCAL_INV;
            c.imm = ibv_send_wr_imm { invalidate_rkey: key.0 };
        }
        // It names C objects: see `posting`.
        SendOp::Flush { .. } | SendOp::Local(LocalOp::Bind(_)) => return None,
    }
    Some(c)
}

/// A completion as Rust has it. Of a failed one the opcode says nothing.
pub(crate) fn completion(wc: &ibv_wc) -> Completion {
    let status = status(wc.status);
    let opcode = if status == Status::Success { opcode(wc.opcode) } else { Completed::Send };
    let mut completion = Completion::new(wc.wr_id, status, opcode, Qpn::new(wc.qp_num));
    if status != Status::Success {
        return completion;
    }
    // A send's length is not defined; a READ's is.
    let has_length = opcode.is_receive() || opcode == Completed::Read;
    completion.byte_len = if has_length { wc.byte_len } else { 0 };
    completion.source_qp = Qpn::new(wc.src_qp);
    if wc.wc_flags & IBV_WC_WITH_IMM != 0 {
        // SAFETY: both members are 32 bits.
        completion.tail = SendTail::Immediate(unsafe { wc.imm.imm_data }.to_ne_bytes());
    } else if wc.wc_flags & IBV_WC_WITH_INV != 0 {
        // SAFETY: both members are 32 bits.
        completion.tail = SendTail::Invalidate(Rkey(unsafe { wc.imm.invalidated_rkey }));
    }
    completion
}

/// The status of a code; a code that is not known is the general one.
fn status(code: u32) -> Status {
    use Status::*;
    const ALL: [Status; 24] = [
        Success,
        LocalLength,
        LocalQpOperation,
        LocalEecOperation,
        LocalProtection,
        WrFlush,
        MwBind,
        BadResponse,
        LocalAccess,
        RemoteInvalidRequest,
        RemoteAccess,
        RemoteOperation,
        RetryExceeded,
        RnrRetryExceeded,
        LocalRddViolation,
        RemoteInvalidRdRequest,
        RemoteAbort,
        InvalidEecn,
        InvalidEecState,
        Fatal,
        ResponseTimeout,
        General,
        Tm,
        TmRendezvousIncomplete,
    ];
    ALL.get(code as usize).copied().unwrap_or(General)
}

/// The operation of a code; a code that is not known is a SEND.
fn opcode(code: u32) -> Completed {
    use Completed::*;
    const ALL: [Completed; 16] = [
        Send,
        Write,
        Read,
        CompareSwap,
        FetchAdd,
        BindMw,
        LocalInvalidate,
        Flush,
        AtomicWrite,
        Receive,
        ReceiveWriteImmediate,
        TmAdd,
        TmDelete,
        TmSync,
        TmReceive,
        TmNoTag,
    ];
    ALL.into_iter().find(|known| u32::from(*known as u8) == code).unwrap_or(Send)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_and_opcode_has_its_number() {
        for code in 0..24 {
            assert_eq!(u32::from(status(code) as u8), code);
        }
        assert_eq!(status(99), Status::General);
        for code in [0, 1, 2, 3, 4, 5, 6, 8, 9, 128, 129, 130, 131, 132, 133, 134] {
            assert_eq!(u32::from(opcode(code) as u8), code);
        }
    }

    #[test]
    fn immediate_data_keeps_its_order_of_bytes() {
        // SAFETY: all zeros are a completion.
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        wc.opcode = rdma_core_abi::verbs::IBV_WC_RECV;
        (wc.wc_flags, wc.imm.imm_data, wc.byte_len) = (IBV_WC_WITH_IMM, 7_u32.to_be(), 5);
        let seen = completion(&wc);
        assert_eq!((seen.tail, seen.byte_len), (SendTail::Immediate([0, 0, 0, 7]), 5));
    }

    #[test]
    fn a_request_is_as_c_has_it() {
        let op = SendOp::Write { addr: 1 << 40, rkey: Rkey(9), immediate: Some([1, 2, 3, 4]) };
        let bytes = Data::inline(b"hello");
        let wr = SendWr { wr_id: 5, op, data: bytes, signaled: true, solicited: true, fence: false };
        let (mut elements, inline) = data(&wr.data);
        let c = send_wr(&wr, &mut elements, inline).unwrap();
        assert_eq!((c.wr_id, c.opcode, c.num_sge), (5, IBV_WR_RDMA_WRITE_WITH_IMM, 1));
        assert_eq!(c.send_flags, IBV_SEND_INLINE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
        // SAFETY: the opcode says which members are valid.
        let (imm, to) = unsafe { (c.imm.imm_data, c.wr.rdma) };
        assert_eq!((imm.to_ne_bytes(), to.remote_addr, to.rkey), ([1, 2, 3, 4], 1 << 40, 9));
        assert_eq!(elements[0].length, 5);
    }
}
