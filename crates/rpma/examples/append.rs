//! Appends entries to a log in a peer's memory, flushes each, then says how many there are, by one
//! eight-byte store.
//!
//! ```text
//! cargo run -p verbena-rpma --example append -- serve 10.0.0.1 7777 FILE
//! cargo run -p verbena-rpma --example append -- append 10.0.0.2 10.0.0.1:7777 entry entry ..
//! ```
//!
//! The server's private data is its memory's descriptor and its configuration's, so either end may
//! be a C program on librpma. FILE is 4096 bytes or more on a disk; without one the memory is
//! anonymous, and entries are flushed to visibility.

use std::error::Error;
use std::fs::File;

use rpma::{ConnCfg, ConnEvent, ConnReq, Ep, FlushType, MrLocal, MrRemote, Peer, PeerCfg, Usage};

/// Bytes of an entry. The first one is the number of entries.
const ENTRY: usize = 64;

fn serve(address: &str, port: &str, file: Option<&str>) -> Result<(), Box<dyn Error>> {
    let peer = Peer::local(address.parse()?)?;
    let usage = Usage::WRITE_DST | Usage::READ_SRC;
    let log = match file {
        None => MrLocal::zeroed(&peer, 4096, usage | Usage::FLUSH_VISIBILITY)?,
        Some(path) => {
            let file = File::options().read(true).write(true).open(path)?;
            MrLocal::map_file(&peer, &file, usage | Usage::FLUSH_VISIBILITY | Usage::FLUSH_PERSISTENT)?
        }
    };
    let ep = Ep::blocking_listen(&peer, format!("{address}:{port}"))?;
    println!("listening on {}", ep.local_addr());
    let told = [&log.descriptor()[..], &PeerCfg::of(&peer).descriptor()].concat();
    let conn = ep.blocking_next_conn_req(&ConnCfg::default())?.connect(&told)?;
    while let Ok(event) = conn.blocking_next_event() {
        println!("{event}");
    }
    for n in 1..=log.shared().load::<u64>(0)? as usize {
        let mut entry = [0; ENTRY];
        log.shared().copy_to(n * ENTRY, &mut entry)?;
        println!("{n}: {}", String::from_utf8_lossy(&entry).trim_end_matches('\0'));
    }
    Ok(())
}

fn append(from: &str, to: &str, entries: &[&str]) -> Result<(), Box<dyn Error>> {
    let peer = Peer::local(from.parse()?)?;
    let conn = ConnReq::blocking_new(&peer, to, &ConnCfg::default())?.connect(b"append")?;
    let event = conn.blocking_next_event()?;
    if event != ConnEvent::Established {
        return Err(event.text().into());
    }
    let told = conn.private_data().unwrap_or_default();
    let log = MrRemote::from_descriptor(told)?;
    conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(told.get(MrRemote::DESCRIPTOR..).unwrap_or(&[0]))?);
    let persistent = log.has_flush(FlushType::Persistent);
    let how = if persistent { FlushType::Persistent } else { FlushType::Visibility };
    let entry = MrLocal::zeroed(&peer, ENTRY, Usage::WRITE_SRC)?;
    for (n, text) in (1_u64..).zip(entries) {
        entry.shared().copy_from(0, &[0; ENTRY])?;
        entry.shared().copy_from(0, &text.as_bytes()[..text.len().min(ENTRY)])?;
        let at = n * ENTRY as u64;
        conn.write(entry.source(0..ENTRY)?, &log, at).wait().0?;
        let flush = conn.flush(&log, at, ENTRY as u64, how);
        println!("{text}: {how:?}, {}", if flush.is_native() { "by FLUSH" } else { "by a READ" });
        flush.wait()?;
        conn.atomic_write(&log, 0, n.to_ne_bytes()).wait()?;
        conn.flush(&log, 0, 8, how).wait()?;
    }
    conn.disconnect()?;
    println!("{}", conn.blocking_next_event()?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", address, port] => serve(address, port, None),
        ["serve", address, port, file] => serve(address, port, Some(file)),
        ["append", from, to, ref entries @ ..] => append(from, to, entries),
        _ => Err("serve ADDRESS PORT [FILE], or append FROM TO ENTRY ..".into()),
    }
}
