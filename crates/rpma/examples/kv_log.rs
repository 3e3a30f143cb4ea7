//! A key-value log in a peer's persistent memory. A client appends by WRITE and FLUSH, and the
//! server's processor does nothing; whatever becomes of the server, what `put` has returned for is
//! there when it starts again. crates/librpma/examples/kv_log.c is the same in C, and either talks
//! to the other.
//!
//! ```text
//! cargo run -p verbena-rpma --example kv_log -- serve 10.0.0.1:7777 /var/lib/log
//! cargo run -p verbena-rpma --example kv_log -- put 10.0.0.2 10.0.0.1:7777 colour blue size 7
//! cargo test -p verbena-rpma --example kv_log      # the same code, simulated, with power failures
//! ```
//!
//! | bytes of the log | what |
//! |---|---|
//! | 0..8 | where the last entry ends: all before it is whole |
//! | 64.. | entries: length of the key, length of the value (4 bytes each, little-endian), key, value; each ends at a multiple of 8 |

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use rpma::{
    ConnCfg, ConnEvent, ConnReq, Ep, Error, FlushType, MrLocal, MrRemote, Peer, PeerCfg, Result, Usage,
};

const SIZE: usize = 64 << 10;
const FIRST: u64 = 64;

/// What a log holds: the latest value of each key.
fn recover(log: &MrLocal) -> Result<BTreeMap<String, String>> {
    let (mut found, mut at) = (BTreeMap::new(), FIRST as usize);
    let end = log.shared().load::<u64>(0)? as usize;
    let text = |at, len: u32| -> Result<String> {
        let mut bytes = vec![0; len as usize];
        log.shared().copy_to(at, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| Error::Inval("a log that is none"))
    };
    while at < end {
        let [key, value] = log.shared().load::<[u32; 2]>(at)?.map(u32::from_le);
        found.insert(text(at + 8, key)?, text(at + 8 + key as usize, value)?);
        at = (at + 8 + key as usize + value as usize).next_multiple_of(8);
    }
    Ok(found)
}

/// Opens a log, tells what is in it, and lets clients append.
async fn serve(on: SocketAddr, path: &str, told: impl Fn(BTreeMap<String, String>)) -> Result<()> {
    let peer = Peer::local(on.ip())?;
    let usage = Usage::WRITE_DST | Usage::READ_SRC | Usage::FLUSH_PERSISTENT;
    let log = MrLocal::open(&peer, path, SIZE, usage)?;
    told(recover(&log)?);
    let ep = Ep::listen(&peer, on).await?;
    let descriptors = [&log.descriptor()[..], &PeerCfg::of(&peer).descriptor()].concat();
    let mut clients = Vec::new();
    loop {
        let request = ep.next_conn_req(&ConnCfg::default()).await?;
        clients.extend(request.connect(&descriptors)); // a client may be gone again
    }
}

/// A client's end of a log.
struct Log {
    peer: Peer,
    conn: rpma::Conn,
    log: MrRemote,
    end: u64,
}

impl Log {
    async fn connect(from: IpAddr, to: &str) -> Result<Self> {
        let peer = Peer::local(from)?;
        let conn = ConnReq::new(&peer, to, &ConnCfg::default()).await?.connect(&[])?;
        if conn.next_event().await? != ConnEvent::Established {
            return Err(Error::Inval("nobody serves there"));
        }
        let told = conn.private_data().unwrap_or_default();
        let log = MrRemote::from_descriptor(told)?;
        conn.apply_remote_peer_cfg(&PeerCfg::from_descriptor(
            told.get(MrRemote::DESCRIPTOR..).unwrap_or(&[0]),
        )?);
        let word = MrLocal::zeroed(&peer, 8, Usage::READ_DST)?;
        conn.read(word.destination(0..8)?, &log, 0, 8).await.0?;
        let end = word.shared().load::<u64>(0)?.max(FIRST);
        Ok(Self { peer, conn, log, end })
    }

    /// When it returns, the entry survives a loss of power.
    async fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let mut entry: Vec<u8> =
            [key, value].iter().flat_map(|text| (text.len() as u32).to_le_bytes()).collect();
        entry.extend([key, value].concat().bytes());
        entry.resize(entry.len().next_multiple_of(8), 0);
        let (len, end) = (entry.len() as u64, self.end + entry.len() as u64);
        let bytes = MrLocal::zeroed(&self.peer, entry.len(), Usage::WRITE_SRC)?;
        bytes.shared().copy_from(0, &entry)?;
        self.conn.write(bytes.source(0..entry.len())?, &self.log, self.end).await.0?;
        // First the entry, then, when that is persistent, where it ends: both at once might survive
        // the other way round.
        self.conn.flush(&self.log, self.end, len, FlushType::Persistent).await?;
        self.conn.atomic_write(&self.log, 0, end.to_ne_bytes()).await?;
        self.conn.flush(&self.log, 0, 8, FlushType::Persistent).await?;
        self.end = end;
        Ok(())
    }
}

type Anything = Box<dyn std::error::Error>;

async fn put(from: &str, to: &str, entries: &[&str]) -> std::result::Result<(), Anything> {
    let mut log = Log::connect(from.parse()?, to).await?;
    for [key, value] in entries.as_chunks().0 {
        log.put(key, value).await?;
    }
    Ok(())
}

fn main() -> std::result::Result<(), Anything> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["serve", on, path] => {
            Ok(verbena::block_on(serve(on.parse()?, path, |found| println!("recovered {found:?}")))?)
        }
        ["put", from, to, ref entries @ ..] => verbena::block_on(put(from, to, entries)),
        _ => Err("serve ADDRESS:PORT FILE, or put FROM TO KEY VALUE ..".into()),
    }
}

#[cfg(test)]
#[verbena::test(seeds = 50, faults = "loss=1%, power_fail=1%, power_time=20ms, flush=10us..500us")]
async fn what_was_put_is_recovered(client: verbena::sim::Host, server: verbena::sim::Host) {
    let known = std::rc::Rc::new(std::cell::RefCell::new(BTreeMap::<String, u32>::new()));
    let (on, put) = (SocketAddr::new(server.addr(), 7777), known.clone());
    server.boot(move || {
        let put = put.clone();
        serve(on, "log", move |found| {
            for (key, value) in &*put.borrow() {
                // The one that was being put may be there already.
                assert!(found[key].parse::<u32>().unwrap() >= *value, "{key}: {value}, found {}", found[key]);
            }
        })
    });
    let (address, put) = (client.addr(), known.clone());
    let putting = client.spawn(async move {
        let mut log: Option<Log> = None;
        for n in 0..30 {
            let key = format!("key {}", n % 7);
            loop {
                if let Some(log) = &mut log
                    && log.put(&key, &n.to_string()).await.is_ok()
                {
                    break;
                }
                verbena::time::sleep(std::time::Duration::from_millis(1)).await;
                log = Log::connect(address, "server:7777").await.ok();
            }
            put.borrow_mut().insert(key, n);
        }
    });
    putting.await;
    server.set_faults(verbena::sim::Faults::none());
    server.power_fail();
    server.restart();
    verbena::time::sleep(std::time::Duration::from_millis(1)).await;
    assert!(known.borrow().len() == 7 && server.is_alive());
}
