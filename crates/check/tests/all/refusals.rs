//! Calls that were refused, and why.

use check::Rule;
use check::objects::{CompletionQueue, Region};

use crate::program::{DOMAIN, KEY, Line, Program, QUEUE};

#[test]
fn an_object_that_is_not_destroyed_is_told_with_what_uses_it() {
    let mut program = Program::new();
    let [of_queue] = &program.checker.in_use("ibv_destroy_cq", QUEUE, &Line(20))[..] else { panic!("one") };
    assert_eq!(of_queue.rule, Rule::ObjectInUse);
    assert_eq!(
        of_queue.what,
        "ibv_destroy_cq was refused with EBUSY: the object is still used by\n  queue pair 17, made at main (program.c:3)"
    );
    let [of_domain] = &program.checker.in_use("ibv_dealloc_pd", DOMAIN, &Line(21))[..] else { panic!("one") };
    let users: Vec<&str> = of_domain.what.lines().skip(1).map(str::trim).collect();
    assert_eq!(users.len(), 4, "two regions, a queue pair, a shared receive queue: {users:?}");
    assert!(users.contains(&"memory region of 4096 bytes, made at main (program.c:256)"), "{users:?}");
    let mut told = CompletionQueue::new(4, Line(5));
    told.channel = Some(70);
    program.checker.queue_made(71, told);
    let of_channel = program.checker.in_use("ibv_destroy_comp_channel", 70, &Line(22));
    assert!(of_channel[0].what.ends_with("\n  completion queue of 4 entries, made at main (program.c:5)"));
    let of_handles = program.checker.in_use("ibv_dealloc_pd", 99_999, &Line(23));
    assert!(of_handles[0].what.contains("address handles, memory windows"));
}

#[test]
fn many_users_of_an_object_are_counted() {
    let mut program = Program::new();
    for n in 0..1000 {
        let (addr, made) = (Some(0x100_0000 * u64::from(n)), Line(30));
        let region = Region { domain: DOMAIN, addr, named: 0, len: 8, is_writable: true, made };
        program.checker.region_made(KEY + 0x1000 + n, region);
    }
    let found = program.checker.in_use("ibv_dealloc_pd", DOMAIN, &Line(31));
    assert_eq!(found[0].what.lines().count(), 10);
    assert!(found[0].what.ends_with("\n  and 996 more"), "{}", found[0].what);
}
