//! The table and its copies, over memory of the test's own.

use super::*;

const RIGHTS: u32 = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;

fn region(table: &Table, bytes: &mut [u8], access: u32) -> (Mr, u64) {
    let addr = bytes.as_mut_ptr() as u64;
    (table.register(1, addr, bytes.len() as u64, addr, access, 0xabcd).unwrap(), addr)
}

#[test]
fn a_range_that_wraps_64_bits_is_refused() {
    let (table, mut bytes) = (Table::new(), vec![0; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let view = table.view(1, RIGHTS);
    for (addr, length) in
        [(u64::MAX, 2), (addr, u64::MAX), (addr + 1, 64), (addr - 1, 8), (u64::MAX - 7, u64::MAX)]
    {
        let range = Remote { addr, length, rkey: mr.key };
        assert_eq!(view.check(range, op::Access::Write), Err(Fault::Range), "{addr:#x}+{length:#x}");
    }
    assert!(table.register(1, u64::MAX - 3, 8, 0, 0, 0).is_err());
}

#[test]
fn a_zero_length_region_grants_nothing() {
    let (table, mut bytes) = (Table::new(), vec![0; 64]);
    let addr = bytes.as_mut_ptr() as u64;
    let mr = table.register(1, addr, 0, addr, RIGHTS, 7).unwrap();
    let range = Remote { addr, length: 1, rkey: mr.key };
    assert_eq!(table.view(1, RIGHTS).check(range, op::Access::Read), Err(Fault::Range));
}

#[test]
fn keys_stay_in_their_slot_after_65536_registrations() {
    let (table, mut bytes) = (Table::new(), vec![0; 8]);
    let mut last = None;
    for i in 0..70_000_u32 {
        let addr = bytes.as_mut_ptr() as u64;
        let mr = table.register(1, addr, 8, addr, 0, i.wrapping_mul(0x9e37)).unwrap();
        assert_ne!(mr.key.0 >> 16, 0);
        assert_ne!(Some(mr), last);
        table.deregister(mr).unwrap();
        assert!(table.deregister(mr).is_err());
        last = Some(mr);
    }
}

#[test]
fn another_protection_domain_has_no_access() {
    let (table, mut bytes) = (Table::new(), vec![0; 8]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let range = Remote { addr, length: 8, rkey: mr.key };
    assert_eq!(table.view(2, RIGHTS).check(range, op::Access::Read), Err(Fault::Key));
    assert_eq!(table.view(1, 0).check(range, op::Access::Read), Err(Fault::Rights));
}

#[test]
fn memory_that_is_not_mapped_or_read_only_is_refused_at_registration() {
    static READ_ONLY: [u8; 4096] = [7; 4096];
    let table = Table::new();
    let addr = READ_ONLY.as_ptr() as u64;
    assert_eq!(table.register(1, addr, 4096, addr, Access::LOCAL_WRITE, 0), Err(Error::Fault));
    assert!(table.register(1, addr, 4096, addr, 0, 0).is_ok());
    assert_eq!(table.register(1, 0x1000, 4096, 0x1000, 0, 0), Err(Error::Fault));
}

#[test]
fn scatter_and_gather_cross_elements_at_any_offset() {
    let (table, mut bytes) = (Table::new(), vec![0_u8; 64]);
    let (mr, addr) = region(&table, &mut bytes, RIGHTS);
    let sges = [
        Sge { addr: addr + 3, length: 5, lkey: mr.key },
        Sge { addr: addr + 20, length: 0, lkey: mr.key },
        Sge { addr: addr + 32, length: 17, lkey: mr.key },
    ];
    let view = table.view(1, RIGHTS);
    let src: Vec<u8> = (1..=22).collect();
    for at in 0..22 {
        view.scatter(&sges, at, &src[at as usize..], Tail::End).unwrap();
        let mut back = vec![0; 22 - at as usize];
        view.gather(&sges, at, &mut back).unwrap();
        assert_eq!(back, src[at as usize..]);
    }
    assert_eq!(bytes[3..8], src[..5]);
    assert_eq!(bytes[32..49], src[5..]);
    assert_eq!(view.scatter(&sges, 1, &src, Tail::End), Err(Fault::Range));
}
