//! What holds memory, as a C program makes and shares it: device memory, regions registered anew or
//! on demand, parent domains, imported objects.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::verbs::{device, memory};
use rdma_core_abi::verbs::*;

use support::{Loop, errno, send};

/// The table of a context.
unsafe fn table<'a>(context: *mut ibv_context) -> &'a verbs_context {
    unsafe { &*context.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() }
}

/// WRITEs four bytes to an address of a region; the completion's status. The queue pair is
/// connected to itself: where the responder refuses, it is flushed before the NAK reaches the
/// requester.
fn write(l: &Loop, remote_addr: u64, rkey: u32) -> ibv_wc_status {
    unsafe { std::ptr::copy_nonoverlapping(b"here".as_ptr(), l.memory.as_ptr().cast_mut(), 4) };
    let mut sge = [l.sge(0, 4)];
    let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut sge);
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    assert_eq!(l.post_send(&mut wr), 0);
    l.completions(1)[0].status
}

fn alloc_dm(l: &Loop, length: usize) -> *mut ibv_dm {
    let mut attr = ibv_alloc_dm_attr { length, log_align_req: 3, comp_mask: 0 };
    unsafe { table(l.context).alloc_dm.expect("built")(l.context, &raw mut attr) }
}

#[test]
fn device_memory_is_copied_both_ways_and_written_by_peers() {
    let l = Loop::open();
    unsafe {
        let t = table(l.context);
        let dm = alloc_dm(&l, 64);
        assert!(!dm.is_null());
        let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let reg = t.reg_dm_mr.expect("built");
        assert!(reg(l.pd, dm, 0, 64, rights).is_null(), "it is zero-based or nothing");
        assert!(reg(l.pd, dm, 8, 64, rights | IBV_ACCESS_ZERO_BASED).is_null(), "beyond the end");
        let mr = reg(l.pd, dm, 8, 32, rights | IBV_ACCESS_ZERO_BASED);
        assert_eq!(((*mr).addr, (*mr).length), (null_mut(), 32));
        assert_eq!(write(&l, 4, (*mr).rkey), IBV_WC_SUCCESS);
        let mut back = [0_u8; 8];
        let from = (*dm).memcpy_from_dm.expect("built");
        assert_eq!(from(back.as_mut_ptr().cast(), dm, 8, 8), 0);
        assert_eq!(&back, b"\0\0\0\0here");
        let to = (*dm).memcpy_to_dm.expect("built");
        assert_eq!(to(dm, 60, b"last".as_ptr().cast(), 4), 0);
        for (offset, length) in [(64, 4), (2, 4), (0, 3), (0, 68), (u64::MAX - 3, 8)] {
            assert_eq!(to(dm, offset, back.as_ptr().cast(), length), libc::EINVAL, "{offset} {length}");
        }
        let free = t.free_dm.expect("built");
        assert_eq!(free(dm), libc::EBUSY);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        assert_eq!(free(dm), 0);
    }
    l.close();
}

#[test]
fn device_memory_has_an_end_and_comes_back_when_it_is_freed() {
    let l = Loop::open();
    unsafe {
        let free = table(l.context).free_dm.expect("built");
        let most = nic::limits::MAX_DM as usize;
        assert!(alloc_dm(&l, most + 1).is_null());
        assert_eq!(errno(), libc::ENOMEM);
        assert!(alloc_dm(&l, 0).is_null());
        assert_eq!(errno(), libc::EINVAL);
        // Other tests of this process have some of it too: half of it twice would be refused by
        // chance only.
        for _ in 0..4 {
            let dm = alloc_dm(&l, most / 2);
            assert!(!dm.is_null());
            assert_eq!(free(dm), 0);
        }
    }
    l.close();
}

#[test]
fn a_region_registered_anew_keeps_its_keys_and_grants_what_it_was_given_last() {
    let l = Loop::open();
    let target = Box::new([0_u8; 64]);
    unsafe {
        let at = target.as_ptr().cast_mut().cast::<std::ffi::c_void>();
        let local = IBV_ACCESS_LOCAL_WRITE as c_int;
        let remote = local | IBV_ACCESS_REMOTE_WRITE as c_int;
        let mr = memory::ibv_reg_mr(l.pd, at, 8, local);
        let rkey = (*mr).rkey;
        let (translation, domain, access) = (
            IBV_REREG_MR_CHANGE_TRANSLATION as c_int,
            IBV_REREG_MR_CHANGE_PD as c_int,
            IBV_REREG_MR_CHANGE_ACCESS as c_int,
        );
        for (flags, pd, addr, length, rights) in [
            (8, l.pd, at, 8, 0),
            (translation, l.pd, null_mut(), 8, 0),
            (translation, l.pd, at, 0, 0),
            (domain, null_mut(), at, 8, 0),
            (domain, l.pd, at, 8, local),
            (access, null_mut(), at, 8, IBV_ACCESS_REMOTE_WRITE as c_int),
        ] {
            let refused = memory::ibv_rereg_mr(mr, flags, pd, addr, length, rights);
            assert_eq!((refused, errno()), (IBV_REREG_MR_ERR_INPUT, libc::EINVAL), "{flags}");
        }
        assert_eq!(memory::ibv_rereg_mr(mr, access | translation, null_mut(), at, 64, remote), 0);
        assert_eq!(((*mr).length, (*mr).rkey), (64, rkey));
        assert_eq!(write(&l, at.expose_provenance() as u64 + 60, rkey), IBV_WC_SUCCESS);
        assert_eq!(target[60..], *b"here");
        let other = memory::ibv_alloc_pd(l.context);
        assert_eq!(memory::ibv_rereg_mr(mr, domain, other, null_mut(), 0, 0), 0);
        assert_eq!(((*mr).pd, memory::ibv_dealloc_pd(other)), (other, libc::EBUSY));
        assert_ne!(write(&l, at.expose_provenance() as u64, rkey), IBV_WC_SUCCESS);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        assert_eq!(memory::ibv_dealloc_pd(other), 0);
    }
    l.close();
}

#[test]
fn memory_that_is_gone_from_an_on_demand_region_is_an_access_error_and_the_process_lives() {
    let l = Loop::open();
    unsafe {
        let (rw, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(null_mut(), 4096, rw, private, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
        let mr = memory::ibv_reg_mr(l.pd, at, 4096, rights as c_int);
        assert!(!mr.is_null());
        let advise = table(l.context).advise_mr.expect("built");
        let addr = at.expose_provenance() as u64;
        let mut sge = ibv_sge { addr, length: 4096, lkey: (*mr).lkey };
        let prefetch = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        assert_eq!(advise(l.pd, prefetch, IBV_ADVISE_MR_FLAG_FLUSH, &raw mut sge, 1), 0);
        assert_eq!(advise(l.pd, prefetch, 2, &raw mut sge, 1), libc::EINVAL);
        assert_eq!(advise(l.pd, 9, 0, &raw mut sge, 1), libc::EOPNOTSUPP);
        let mut pinned = l.sge(0, 8);
        assert_eq!(advise(l.pd, prefetch, 0, &raw mut pinned, 1), libc::EINVAL);
        assert_eq!(write(&l, addr, (*mr).rkey), IBV_WC_SUCCESS);
        assert_eq!(libc::munmap(at, 4096), 0);
        assert_eq!(advise(l.pd, prefetch, 0, &raw mut sge, 1), libc::EFAULT);
        assert_ne!(write(&l, addr, (*mr).rkey), IBV_WC_SUCCESS);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
    }
    l.close();
}

#[test]
fn a_parent_domain_is_the_domain_it_stands_over() {
    let l = Loop::open();
    let target = Box::new([0_u8; 64]);
    unsafe {
        let t = table(l.context);
        let mut init = ibv_td_init_attr { comp_mask: 0 };
        let td = t.alloc_td.expect("built")(l.context, &raw mut init);
        let mut attr: ibv_parent_domain_init_attr = std::mem::zeroed();
        let alloc = t.alloc_parent_domain.expect("built");
        assert!(alloc(l.context, &raw mut attr).is_null());
        assert_eq!(errno(), libc::EINVAL);
        (attr.pd, attr.td) = (memory::ibv_alloc_pd(l.context), td);
        attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
        assert!(alloc(l.context, &raw mut attr).is_null(), "it says allocators and has none");
        attr.comp_mask = 0;
        let parent = alloc(l.context, &raw mut attr);
        assert!(!parent.is_null());
        assert_eq!(memory::ibv_dealloc_pd(attr.pd), libc::EBUSY);
        assert_eq!(t.dealloc_td.expect("built")(td), libc::EBUSY);
        assert_eq!(memory::ibv_dealloc_pd(parent), 0);
        assert_eq!(memory::ibv_dealloc_pd(attr.pd), 0);
        assert_eq!(t.dealloc_td.expect("built")(td), 0);
        // Keys of the one are good in the other.
        (attr.pd, attr.td) = (l.pd, null_mut());
        let parent = alloc(l.context, &raw mut attr);
        let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int;
        let mr = memory::ibv_reg_mr(parent, target.as_ptr().cast_mut().cast(), 64, rights);
        let at = target.as_ptr().expose_provenance() as u64;
        assert_eq!(write(&l, at, (*mr).rkey), IBV_WC_SUCCESS);
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        assert_eq!(memory::ibv_dealloc_pd(parent), 0);
    }
    l.close();
}

#[test]
fn imported_objects_are_the_ones_they_were_imported_from() {
    let l = Loop::open();
    unsafe {
        let fd = libc::dup((*l.context).cmd_fd);
        let other = device::ibv_import_device(fd);
        assert!(!other.is_null());
        assert_eq!((*other).cmd_fd, fd);
        assert!(device::ibv_import_pd(other, u32::MAX).is_null());
        assert_eq!(errno(), libc::ENOENT);
        let pd = device::ibv_import_pd(other, (*l.pd).handle);
        let mr = device::ibv_import_mr(pd, (*l.mr).handle);
        assert_eq!(((*mr).addr, (*mr).length, (*mr).rkey), (null_mut(), 8192, (*l.mr).rkey));
        let dm = alloc_dm(&l, 16);
        let same = device::ibv_import_dm(other, (*dm).handle);
        assert_eq!((*dm).memcpy_to_dm.expect("built")(dm, 0, b"both".as_ptr().cast(), 4), 0);
        let mut back = [0_u8; 4];
        assert_eq!((*same).memcpy_from_dm.expect("built")(back.as_mut_ptr().cast(), same, 0, 4), 0);
        assert_eq!(&back, b"both");
        device::ibv_unimport_dm(same);
        device::ibv_unimport_mr(mr);
        device::ibv_unimport_pd(pd);
        assert_eq!(device::ibv_close_device(other), 0);
        assert_eq!(table(l.context).free_dm.expect("built")(dm), 0);
        // The region still stands for its maker.
        let at = (*l.mr).addr.expose_provenance() as u64;
        assert_eq!(write(&l, at + 4096, (*l.mr).rkey), IBV_WC_SUCCESS);
        assert!(device::ibv_import_device(libc::STDIN_FILENO).is_null());
        assert_eq!(errno(), libc::EBADF);
    }
    l.close();
}
