//! Buffers of the library and of the kernel as regions, and what else the newer calls say, as a C
//! program calls them.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

mod support;

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

use capi::verbs::{ah, device, memory, qp};
use rdma_core_abi::verbs::*;

use support::{Loop, errno, send};

const PAGE: usize = 4096;
const RIGHTS: c_int = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as c_int;

/// A memory file of four pages that cannot shrink, as udmabuf asks for.
fn memory_file() -> File {
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        let file = File::from_raw_fd(fd);
        file.set_len(4 * PAGE as u64).unwrap();
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        file
    }
}

/// A dma-buf over a memory file, where the kernel makes such.
fn dma_buf(file: &File) -> Option<OwnedFd> {
    /// `struct udmabuf_create` (`<linux/udmabuf.h>`).
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    let device = File::options().read(true).write(true).open("/dev/udmabuf").ok()?;
    let create =
        Create { memfd: file.as_raw_fd().cast_unsigned(), flags: 0, offset: 0, size: 4 * PAGE as u64 };
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// RDMA WRITE of four bytes to an address of a region; the completion's status.
fn write(l: &Loop, remote_addr: u64, rkey: u32) -> ibv_wc_status {
    unsafe { std::ptr::copy_nonoverlapping(b"here".as_ptr(), l.memory.as_ptr().cast_mut(), 4) };
    let mut sge = [l.sge(0, 4)];
    let mut wr = send(1, IBV_WR_RDMA_WRITE, &mut sge);
    wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey };
    assert_eq!(l.post_send(&mut wr), 0);
    l.completions(1)[0].status
}

#[test]
fn a_dma_buf_and_a_memory_file_are_written_by_peers() {
    let l = Loop::open();
    let file = memory_file();
    let dma_buf = dma_buf(&file);
    if dma_buf.is_none() {
        println!("no /dev/udmabuf: memory files only");
    }
    let iova = 0x7000_0000 + 100;
    for fd in std::iter::once(file.as_raw_fd()).chain(dma_buf.as_ref().map(|fd| fd.as_raw_fd())) {
        file.write_all_at(&[0; 4 * PAGE], 0).unwrap();
        unsafe {
            let at = PAGE as u64 + 100;
            let mr = memory::ibv_reg_dmabuf_mr(l.pd, at, PAGE, iova, fd, RIGHTS);
            assert!(!mr.is_null(), "errno {}", errno());
            assert_eq!(((*mr).addr.addr(), (*mr).length), (at as usize, PAGE));
            assert_eq!(write(&l, iova + 8, (*mr).rkey), IBV_WC_SUCCESS);
            let mut bytes = [0; 6];
            file.read_exact_at(&mut bytes, at + 7).unwrap();
            assert_eq!(&bytes, b"\0here\0");
            let refused = memory::ibv_rereg_mr(
                mr,
                IBV_REREG_MR_CHANGE_TRANSLATION as c_int,
                l.pd,
                l.memory.as_ptr().cast_mut().cast(),
                8,
                0,
            );
            assert_eq!(refused, IBV_REREG_MR_ERR_INPUT);
            assert_eq!(memory::ibv_dereg_mr(mr), 0);
        }
    }
    l.close();
}

#[test]
fn what_is_no_dma_buf_or_lies_beyond_its_end_is_refused() {
    let l = Loop::open();
    let file = memory_file();
    let null = File::open("/dev/null").unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    let end = 4 * PAGE as u64;
    for (offset, length, iova, fd, access, why) in [
        (0, PAGE, 0, -1, RIGHTS, libc::EBADF),
        (0, PAGE, 0, pipe.as_raw_fd(), RIGHTS, libc::EOPNOTSUPP),
        (0, PAGE, 0, null.as_raw_fd(), RIGHTS, libc::EINVAL),
        (0, 4 * PAGE + 1, 0, file.as_raw_fd(), RIGHTS, libc::EINVAL),
        (end - 1, 2, end - 1, file.as_raw_fd(), RIGHTS, libc::EINVAL),
        (u64::MAX, 2, u64::MAX, file.as_raw_fd(), RIGHTS, libc::EINVAL),
        (0, 0, 0, file.as_raw_fd(), RIGHTS, libc::EINVAL),
        (0, PAGE, 8, file.as_raw_fd(), RIGHTS, libc::EINVAL),
        (0, PAGE, 0, file.as_raw_fd(), IBV_ACCESS_ON_DEMAND as c_int, libc::EINVAL),
        (0, PAGE, 0, file.as_raw_fd(), IBV_ACCESS_REMOTE_WRITE as c_int, libc::EINVAL),
    ] {
        let mr = unsafe { memory::ibv_reg_dmabuf_mr(l.pd, offset, length, iova, fd, access) };
        assert_eq!((mr, errno()), (null_mut(), why), "{offset} {length} {iova} {fd} {access}");
    }
    l.close();
}

#[test]
fn attributes_register_what_the_other_calls_do() {
    let l = Loop::open();
    let file = memory_file();
    unsafe {
        let mut buf = null_mut();
        let block = memory::ibv_alloc_buf(l.pd, 2 * PAGE, &raw mut buf);
        assert!(!block.is_null() && block.addr().is_multiple_of(PAGE));
        let own = l.memory.as_ptr().cast_mut().cast::<c_void>();
        let own_at = own.addr() as u64 % PAGE as u64;
        let with = |comp_mask: u32, addr: *mut c_void| ibv_mr_init_attr {
            length: PAGE,
            access: RIGHTS,
            comp_mask: comp_mask.into(),
            iova: if addr == own { 0x1_0000 + own_at } else { 0x1_0000 },
            addr,
            fd: file.as_raw_fd(),
            fd_offset: 0,
            dmah: null_mut(),
            buf,
        };
        let register = |mut attr: ibv_mr_init_attr| memory::ibv_reg_mr_ex(l.pd, &raw mut attr);
        let (addr, iova) = (IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_IOVA);
        let by_file = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | iova;
        let in_buffer = addr | IBV_REG_MR_MASK_BUF;
        for (mask, at, named) in [
            (addr, own, own.expose_provenance() as u64),
            (addr | iova, own, 0x1_0000 + own_at),
            (by_file, null_mut(), 0x1_0000),
            (in_buffer, block.byte_add(PAGE), block.expose_provenance() as u64 + PAGE as u64),
        ] {
            let mr = register(with(mask, at));
            assert!(!mr.is_null(), "mask {mask:#x}: errno {}", errno());
            assert_eq!((*mr).addr, at);
            assert_eq!(write(&l, named, (*mr).rkey), IBV_WC_SUCCESS, "mask {mask:#x}");
            assert_eq!(memory::ibv_dereg_mr(mr), 0);
        }
        for (mask, at, why) in [
            (addr | iova, own.byte_add(8), libc::EINVAL),
            (0, own, libc::EINVAL),
            (iova, own, libc::EINVAL),
            (by_file | addr, own, libc::EINVAL),
            (IBV_REG_MR_MASK_FD | iova, own, libc::EINVAL),
            (addr | IBV_REG_MR_MASK_FD_OFFSET, own, libc::EINVAL),
            (in_buffer, block.byte_add(PAGE + 1), libc::EINVAL),
            (in_buffer, own, libc::EINVAL),
            (addr | IBV_REG_MR_MASK_DMAH, own, libc::EOPNOTSUPP),
            (addr | 1 << 30, own, libc::EOPNOTSUPP),
        ] {
            assert_eq!((register(with(mask, at)), errno()), (null_mut(), why), "mask {mask:#x}");
        }
        let mr = memory::ibv_reg_buf_mr(l.pd, buf, block, 2 * PAGE, RIGHTS);
        assert!(!mr.is_null());
        assert_eq!(memory::ibv_dereg_mr(mr), 0);
        let other = memory::ibv_alloc_pd(l.context);
        assert!(memory::ibv_reg_buf_mr(other, buf, block, PAGE, RIGHTS).is_null());
        assert_eq!((errno(), memory::ibv_dealloc_pd(other)), (libc::EINVAL, 0));
        assert_eq!((memory::ibv_export_buf_dmabuf_fd(buf), errno()), (-1, libc::ENODATA));
        memory::ibv_free_buf(buf);
    }
    l.close();
}

#[test]
fn speed_options_and_order_are_what_a_software_port_has() {
    let l = Loop::open();
    unsafe {
        let mut speed = 0;
        assert_eq!((device::ibv_query_port_speed(l.context, 1, &raw mut speed), speed), (0, 10));
        assert_eq!(device::ibv_query_port_speed(l.context, 2, &raw mut speed), libc::EINVAL);
        let mut ece = ibv_ece { vendor_id: 1, ..ibv_ece::default() };
        assert_eq!(qp::ibv_query_ece(l.qp, &raw mut ece), libc::EOPNOTSUPP);
        assert_eq!(qp::ibv_set_ece(l.qp, &raw mut ece), libc::EOPNOTSUPP);
        assert_eq!(qp::ibv_query_qp_data_in_order(l.qp, IBV_WR_RDMA_WRITE, 0), 0);
        assert!(memory::ibv_alloc_dmah(l.context, null_mut()).is_null());
        assert_eq!((errno(), memory::ibv_dealloc_dmah(null_mut())), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
    }
    l.close();
}

#[test]
fn a_file_of_sysfs_is_read_without_its_newline() {
    let dir = std::env::temp_dir().join(format!("verbena-buffers-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("lines"), "four\n").unwrap();
    std::fs::write(dir.join("none"), "").unwrap();
    let c_dir = CString::new(dir.to_str().unwrap()).unwrap();
    let read = |name: &str, size: usize| {
        let name = CString::new(name).unwrap();
        let mut buf = [b'x'; 16];
        let to = buf.as_mut_ptr().cast();
        let len = unsafe { device::ibv_read_sysfs_file(c_dir.as_ptr(), name.as_ptr(), to, size) };
        (len, buf[..6].to_vec())
    };
    assert_eq!(read("lines", 16), (4, b"four\0\0".to_vec()));
    assert_eq!(read("lines", 5), (4, b"four\0x".to_vec()));
    assert_eq!(read("lines", 4).0, -1, "no room for the end");
    assert_eq!((read("none", 16).0, read("missing", 16).0, errno()), (0, -1, libc::ENOENT));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn the_ethernet_address_of_an_address_is_its_neighbours() {
    let l = Loop::open();
    unsafe {
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, 1);
        let mut resolve = |address: [u8; 4], port: u8| {
            attr.grh.dgid.raw = [0; 16];
            attr.grh.dgid.raw[10..12].fill(0xff);
            attr.grh.dgid.raw[12..].copy_from_slice(&address);
            attr.port_num = port;
            let (mut mac, mut vid) = ([9; 6], 9);
            let code = ah::ibv_resolve_eth_l2_from_gid(l.context, &raw mut attr, &raw mut mac, &raw mut vid);
            (code, mac, vid)
        };
        assert_eq!(resolve([127, 0, 0, 1], 1), (0, [0; 6], 0xffff));
        assert_eq!(resolve([127, 0, 0, 1], 2), (-libc::EINVAL, [9; 6], 9));
    }
    l.close();
}
