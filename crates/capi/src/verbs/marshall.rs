//! Between the kernel's structures and the library's (`<infiniband/marshall.h>`): programs that
//! speak to the kernel themselves hand over what they read.

use rdma_core_abi::sa::{ib_user_path_rec, ibv_sa_path_rec};
use rdma_core_abi::verbs::{
    ib_uverbs_ah_attr, ib_uverbs_qp_attr, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap,
};

use crate::ffi_guard;

fn address(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.grh.dgid },
            flow_label: from.grh.flow_label,
            sgid_index: from.grh.sgid_index,
            hop_limit: from.grh.hop_limit,
            traffic_class: from.grh.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`, no man page.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *mut ib_uverbs_ah_attr) {
    // SAFETY: the caller's structures.
    ffi_guard::nothing(|| unsafe { dst.write(address(&*src)) });
}

/// `ibv_copy_qp_attr_from_kern`, no man page: all but `qp_state` and `rate_limit`, which stay as
/// they are.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *mut ib_uverbs_qp_attr) {
    ffi_guard::nothing(|| {
        // SAFETY: the caller's structures.
        let (to, from) = unsafe { (&mut *dst, &*src) };
        to.cur_qp_state = from.cur_qp_state;
        to.path_mtu = from.path_mtu;
        to.path_mig_state = from.path_mig_state;
        to.qkey = from.qkey;
        to.rq_psn = from.rq_psn;
        to.sq_psn = from.sq_psn;
        to.dest_qp_num = from.dest_qp_num;
        to.qp_access_flags = from.qp_access_flags;
        to.cap = ibv_qp_cap {
            max_send_wr: from.max_send_wr,
            max_recv_wr: from.max_recv_wr,
            max_send_sge: from.max_send_sge,
            max_recv_sge: from.max_recv_sge,
            max_inline_data: from.max_inline_data,
        };
        to.ah_attr = address(&from.ah_attr);
        to.alt_ah_attr = address(&from.alt_ah_attr);
        to.pkey_index = from.pkey_index;
        to.alt_pkey_index = from.alt_pkey_index;
        to.en_sqd_async_notify = from.en_sqd_async_notify;
        to.sq_draining = from.sq_draining;
        to.max_rd_atomic = from.max_rd_atomic;
        to.max_dest_rd_atomic = from.max_dest_rd_atomic;
        to.min_rnr_timer = from.min_rnr_timer;
        to.port_num = from.port_num;
        to.timeout = from.timeout;
        to.retry_cnt = from.retry_cnt;
        to.rnr_retry = from.rnr_retry;
        to.alt_port_num = from.alt_port_num;
        to.alt_timeout = from.alt_timeout;
    });
}

/// `ibv_copy_path_rec_from_kern`, no man page.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *mut ib_user_path_rec) {
    ffi_guard::nothing(|| {
        // SAFETY: the caller's structures.
        let (to, from) = unsafe { (&mut *dst, &*src) };
        *to = ibv_sa_path_rec {
            dgid: ibv_gid { raw: from.dgid },
            sgid: ibv_gid { raw: from.sgid },
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic.cast_signed(),
            flow_label: from.flow_label,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            reversible: from.reversible.cast_signed(),
            numb_path: from.numb_path,
            pkey: from.pkey,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            // A code of the standard: it fits a byte.
            mtu: from.mtu as u8,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    });
}

/// `ibv_copy_path_rec_to_kern`, no man page.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut ib_user_path_rec, src: *mut ibv_sa_path_rec) {
    ffi_guard::nothing(|| {
        // SAFETY: the caller's structures; a GID is bytes.
        let (to, from, dgid, sgid) = unsafe { (&mut *dst, &*src, (*src).dgid.raw, (*src).sgid.raw) };
        *to = ib_user_path_rec {
            dgid,
            sgid,
            dlid: from.dlid,
            slid: from.slid,
            raw_traffic: from.raw_traffic.cast_unsigned(),
            flow_label: from.flow_label,
            reversible: from.reversible.cast_unsigned(),
            mtu: from.mtu.into(),
            pkey: from.pkey,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
            numb_path: from.numb_path,
            sl: from.sl,
            mtu_selector: from.mtu_selector,
            rate_selector: from.rate_selector,
            rate: from.rate,
            packet_life_time_selector: from.packet_life_time_selector,
            packet_life_time: from.packet_life_time,
            preference: from.preference,
        };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_comes_back_from_the_kernels_form() {
        let kernel = ib_user_path_rec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 3,
            slid: 4,
            raw_traffic: 5,
            flow_label: 6,
            reversible: 7,
            mtu: 4,
            pkey: 9,
            hop_limit: 10,
            traffic_class: 11,
            numb_path: 12,
            sl: 13,
            mtu_selector: 14,
            rate_selector: 15,
            rate: 16,
            packet_life_time_selector: 17,
            packet_life_time: 18,
            preference: 19,
        };
        let (mut given, mut back) = (kernel, ib_user_path_rec::default());
        // SAFETY: integers and a union of bytes.
        let mut ours: ibv_sa_path_rec = unsafe { std::mem::zeroed() };
        // SAFETY: structures of this function.
        unsafe {
            ibv_copy_path_rec_from_kern(&raw mut ours, &raw mut given);
            ibv_copy_path_rec_to_kern(&raw mut back, &raw mut ours);
        }
        assert_eq!(format!("{back:?}"), format!("{kernel:?}"));
        assert_eq!((ours.mtu, ours.hop_limit, ours.preference), (4, 10, 19));
    }

    #[test]
    fn attributes_of_the_kernel_become_those_of_the_library() {
        let address = ib_uverbs_ah_attr { is_global: 1, port_num: 2, dlid: 3, ..Default::default() };
        let mut kernel = ib_uverbs_qp_attr {
            qp_state: 3,
            cur_qp_state: 2,
            rq_psn: 77,
            max_send_sge: 5,
            ah_attr: address,
            rnr_retry: 7,
            ..Default::default()
        };
        // SAFETY: integers and unions of bytes.
        let mut ours: ibv_qp_attr = unsafe { std::mem::zeroed() };
        ours.qp_state = 6;
        // SAFETY: structures of this function.
        unsafe { ibv_copy_qp_attr_from_kern(&raw mut ours, &raw mut kernel) };
        assert_eq!((ours.qp_state, ours.cur_qp_state, ours.rq_psn), (6, 2, 77));
        assert_eq!((ours.cap.max_send_sge, ours.rnr_retry), (5, 7));
        assert_eq!((ours.ah_attr.is_global, ours.ah_attr.port_num, ours.ah_attr.dlid), (1, 2, 3));
    }
}
