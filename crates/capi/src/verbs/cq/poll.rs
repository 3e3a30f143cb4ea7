//! Completions taken, and events asked for (ibv_poll_cq(3), ibv_req_notify_cq(3)), through the
//! context's table.

use std::ffi::c_int;

use nic::Arm;
use rdma_core_abi::verbs::{
    IBV_WC_GRH, IBV_WC_TM_DATA_VALID, IBV_WC_TM_MATCH, IBV_WC_TM_SYNC_REQ, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
    ibv_cq, ibv_wc, ibv_wc_imm,
};
use transport::likely::unlikely;
use transport::op::{Completion, NetworkHeader};
use wire::roce::SendTail;

use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::object::Cq;

/// ibv_poll_cq(3), through the context's table. An empty queue first takes what has arrived from
/// the sockets, in this thread. Unlike rdma_rxe: `wc.sl` of a datagram tells the network header
/// (guide/src/deviations.md).
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    ffi_guard::or(-libc::EIO, || {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        let most = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        if unlikely(!ours.instance.is_ours()) {
            return Err(Errno(libc::ENODEV));
        }
        let (mut at, connection_flags) = (wc, ours.connection_flags);
        let n = ours.instance.host.poll_cq(&ours.nic, most, |completion| {
            // SAFETY: at most `num_entries` places, which the caller gives.
            unsafe {
                at.write(convert(&completion, connection_flags));
                at = at.add(1);
            }
        })?;
        Ok(n as c_int)
    })
}

/// A completion as C sees it; `connection_flags` as of the queue it is from ([`Cq`]).
#[inline]
pub(crate) fn convert(c: &Completion, connection_flags: u32) -> ibv_wc {
    let (imm, wc_flags) = match c.tail {
        SendTail::None => (ibv_wc_imm { imm_data: 0 }, 0),
        SendTail::Immediate(bytes) => (ibv_wc_imm { imm_data: u32::from_ne_bytes(bytes) }, IBV_WC_WITH_IMM),
        SendTail::Invalidate(key) => (ibv_wc_imm { invalidated_rkey: key.0 }, IBV_WC_WITH_INV),
    };
    let (slid, sl, dlid_path_bits) = match c.header {
        NetworkHeader::Lrh(from) => (from.lid(), from.service_level(), from.path_bits()),
        header => (0, packet_type(header), 0),
    };
    ibv_wc {
        wr_id: c.wr_id,
        status: c.status as u32,
        opcode: c.opcode as u32,
        vendor_err: 0,
        byte_len: c.byte_len,
        imm,
        qp_num: c.qpn.get(),
        src_qp: c.source_qp.get(),
        wc_flags: wc_flags | header_flags(c.header, connection_flags) | tm_flags(c),
        pkey_index: 0,
        slid,
        sl,
        dlid_path_bits,
    }
}

fn header_flags(header: NetworkHeader, connection_flags: u32) -> u32 {
    match header {
        NetworkHeader::Unseen => connection_flags,
        header if header.has_grh() => IBV_WC_GRH,
        _ => 0,
    }
}

/// What Mellanox's adapters say of a datagram over Ethernet in place of a service level: bit 3 a
/// UDP header, bits 0 to 2 the network header, 1 for IPv6 and 2 for IPv4. UCX before 1.18 tells by
/// it where the addresses are (uct_ud_iface_check_grh).
fn packet_type(header: NetworkHeader) -> u8 {
    match header {
        NetworkHeader::None | NetworkHeader::Unseen | NetworkHeader::Lrh(_) => 0,
        NetworkHeader::V4 => 0b1010,
        NetworkHeader::V6 => 0b1001,
    }
}

fn tm_flags(c: &Completion) -> u32 {
    let flag = |set, bit| if set { bit } else { 0 };
    flag(c.tm.matched, IBV_WC_TM_MATCH)
        | flag(c.tm.data_valid, IBV_WC_TM_DATA_VALID)
        | flag(c.tm.sync_required, IBV_WC_TM_SYNC_REQ)
}

/// ibv_req_notify_cq(3), through the context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a queue of ours, by the man page's contract.
        let ours = unsafe { Cq::of(cq) };
        if !ours.instance.is_ours() {
            return Err(Errno(libc::ENODEV));
        }
        ours.nic.arm(if solicited_only == 0 { Arm::Next } else { Arm::Solicited });
        // A thread that arms is about to wait: the engine takes the sockets over.
        ours.instance.host.end_polling();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use transport::op::{Completed, Status};
    use wire::{LidAddress, Qpn};

    use super::*;

    #[test]
    fn a_datagram_tells_of_a_grh_that_came_and_a_connection_of_what_its_device_has() {
        let lid = LidAddress::new(5, 0, 0).unwrap();
        for (header, expected) in [
            (NetworkHeader::Unseen, [0, IBV_WC_GRH]),
            (NetworkHeader::Lrh(lid), [0, 0]),
            (NetworkHeader::Lrh(lid.with_grh()), [IBV_WC_GRH; 2]),
            (NetworkHeader::V4, [IBV_WC_GRH; 2]),
            (NetworkHeader::None, [0, 0]),
        ] {
            let receive = Completion::new(1, Status::Success, Completed::Receive, Qpn::new(7));
            let receive = Completion { header, ..receive };
            assert_eq!(
                [0, IBV_WC_GRH].map(|flags| convert(&receive, flags).wc_flags),
                expected,
                "{header:?}"
            );
        }
    }
}
