//! The other process: what it does.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use verbena::op::WithBuf;
use verbena::zerocopy::IntoBytes;
use verbena::{Connection, Pool, RemoteMemory, Result};

use crate::{AT, DOES, LEN, LONG, MARK, MESSAGE, Place, STOP, TIMEOUT, counter, queues};

/// Run by the tests. It ends when they do.
#[test]
#[ignore = "run by another test"]
fn local_peer() {
    thread::spawn(|| {
        _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let does = std::env::var(DOES).expect("something to do");
    let at = std::env::var(AT).expect("an address");
    if does.starts_with("may not reach") {
        refuse_copies().expect("a filter of system calls");
    }
    let conn = verbena::connect(at).timeout(TIMEOUT).queues(queues()).wait().expect("a connection");
    let theirs = RemoteMemory::from_bytes(conn.private_data()).expect("memory");
    let pool = Pool::new(conn.pd(), LEN, 1).expect("a pool");
    match does.as_str() {
        "is honest" => is_honest(&conn, theirs, &pool).expect("nobody disturbs it"),
        "may not reach" => may_not_reach(&conn, theirs, &pool, 0).expect("it needs nobody's leave"),
        "may not reach but maps" => may_not_reach(&conn, theirs, &pool, 20).expect("it needs no call"),
        "is reached" | "is reached where both map" => {
            let place = if does == "is reached" { Place::Ours } else { Place::BothMap };
            let memory = place.memory();
            let ours = memory.mr(conn.pd()).expect("a registration");
            conn.send_inline(&ours.remote().to_bytes()).wait().expect("it is heard");
            _ = conn.blocking_recv();
        }
        "scribbles" => {
            thread::spawn(scribble);
            while is_at_work("writes", &conn, theirs, &pool).is_ok() {}
            thread::sleep(Duration::from_secs(60));
        }
        does => while is_at_work(does, &conn, theirs, &pool).is_ok() {},
    }
}

/// One operation, and a message before the first one.
fn is_at_work(does: &str, conn: &Connection, theirs: RemoteMemory, pool: &Pool) -> Result<()> {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        conn.send_inline(b"begins").wait()?;
    }
    let len = match does {
        "sends" => MESSAGE,
        "sends long" | "sends long by both" => LONG,
        _ => LEN,
    };
    let mut buf = pool.get()?.sized(len)?;
    buf.fill(MARK);
    match does {
        "writes" => conn.write(buf, theirs).wait().0.map(drop),
        "reads" => conn.read(buf, theirs).wait().0.map(drop),
        "sends" | "sends long" | "sends long by both" => conn.send(buf).wait().0.map(drop),
        other => panic!("{other}?"),
    }
}

/// WRITEs, READs and SENDs, checked, until it is told to stop.
fn is_honest(conn: &Connection, theirs: RemoteMemory, pool: &Pool) -> Result<()> {
    for n in 0_u64.. {
        let mut buf = pool.get()?.sized(8192)?;
        buf.fill(n as u8);
        let there = theirs.slice(0..8192)?;
        let written = conn.write(buf, there).wait().buf()?;
        let mut read = written;
        read.fill(!(n as u8));
        let read = conn.read(read, there).wait().buf()?;
        assert!(read.iter().all(|byte| *byte == n as u8), "round {n}");
        conn.send_inline(&n.to_be_bytes()).wait()?;
        if conn.try_recv()?.is_some_and(|message| message[..] == *STOP) {
            break;
        }
    }
    Ok(())
}

/// As in a container whose filter of system calls (seccomp(2)) refuses copies between processes'
/// memory.
fn refuse_copies() -> std::io::Result<()> {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let is = |number, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, 0, number as u32);
    let answer = |answer| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, answer);
    let mut filter = [
        // The call's number, which the kernel puts before all else.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        is(libc::SYS_process_vm_readv, 2),
        is(libc::SYS_process_vm_writev, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers, and a filter that lives across the call, which copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// WRITEs and READs of its own, of which so many of each go at once, and long SENDs both ways.
fn may_not_reach(conn: &Connection, theirs: RemoteMemory, pool: &Pool, at_once: u64) -> Result<()> {
    for n in 0..20_u8 {
        let mut buf = pool.get()?.sized(LONG)?;
        buf.fill(n);
        let there = theirs.slice(0..LONG as u64)?;
        let mut buf = conn.write(buf, there).wait().buf()?;
        buf.fill(!n);
        let buf = conn.read(buf, there).wait().buf()?;
        assert!(buf.iter().all(|byte| *byte == n), "round {n}");
        conn.send(buf).wait().buf()?;
        let message = conn.blocking_recv()?.expect("an answer");
        assert!(message.len() == LONG && message.iter().all(|byte| *byte == !n), "round {n}");
    }
    // The first ones may come before it is known that the memory may be mapped.
    for directly_now in ["direct_writes", "direct_reads"].map(counter) {
        assert!(directly_now <= at_once && directly_now + 5 >= at_once, "{directly_now} at once");
    }
    assert!(counter("ring_fragments_sent") >= 20 && counter("packets_sent") == 0, "by the ring");
    Ok(())
}

/// Writes anything to all memory by which this process speaks with others.
fn scribble() {
    thread::sleep(Duration::from_millis(50));
    let mut state = u64::from(std::process::id()) | 1;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 16 ^ state << 40
    };
    let memory = File::options().write(true).open("/proc/self/mem").expect("our own memory");
    // A page at a time. What it lends is nine times as long as a ring and may lie before it: a call
    // for each word took seconds to come to the ring, and half a minute beside load.
    let mut words = [0_u64; 512];
    loop {
        let maps = fs::read_to_string("/proc/self/maps").expect("a list");
        for line in maps.lines().filter(|line| line.contains("verbena ring") && line.contains(" rw-s ")) {
            let range = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let number = |text| u64::from_str_radix(text, 16).expect("a number");
            let (first, end) = (number(range.0), number(range.1));
            for at in (first..end).step_by(size_of_val(&words)) {
                for word in &mut words {
                    *word = match random() % 8 {
                        0 => 0,
                        1 => !0,
                        // As if it used something.
                        2 => 1 << 63 | random() & 0x3_00ff_00ff,
                        _ => random(),
                    };
                }
                // Another thread may have unmapped it.
                _ = memory.write_at(words.as_bytes(), at);
            }
        }
    }
}
