//! What this process says to the collector of its packets (`verbena run --capture`), whose socket
//! `VERBENA_CAPTURE` names. Packets wait in a queue of bounded length, from which a thread sends
//! them. So a process that outruns the collector loses records, which are counted, and no packets.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use capture::message::{self, Message, Packet, VERSION};
use capture::{DeviceLink, Recorder, filter::Filter};
use locks::{Mutex, Rank};
use nic::{DeviceConfig, Transport};
use socket2::SockRef;
use sys::fork::{self, Fd};

/// Most bytes that wait.
const MAX_WAITING: usize = 64 << 20;
/// How often the thread looks where nothing wakes it.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes of one send.
const CHUNK: usize = 256 << 10;

/// The way of this process's packets to the collector.
#[derive(Debug)]
pub(crate) struct ToCollector {
    generation: u32,
    queue: Mutex<Queue>,
    thread: Thread,
    /// The collector is gone.
    ended: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    lost: u64,
    /// What was taken last has not been sent yet.
    sending: bool,
}

impl ToCollector {
    /// Connects to the collector that listens at `path`, and says which process this is.
    ///
    /// # Errors
    ///
    /// Those of connecting, and of starting a thread.
    pub(crate) fn connect(path: &Path) -> io::Result<Arc<Self>> {
        let socket = Fd::open(|| UnixStream::connect(path))?;
        let mut bytes = Vec::new();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let hello = Message::Hello { version: VERSION, pid: std::process::id(), name: name.trim_end() };
        message::push(&hello, &mut bytes);
        let (tell, told) = std::sync::mpsc::sync_channel::<Arc<Self>>(1);
        let ended = Arc::new(AtomicBool::new(false));
        let builder = thread::Builder::new().name("verbena-capture".to_owned());
        let started = sys::thread::with_signals_blocked(|| {
            builder.spawn(move || {
                if let Ok(recorder) = told.recv() {
                    recorder.send_all(&socket);
                }
            })
        })?;
        let recorder = Arc::new(Self {
            generation: fork::generation(),
            queue: Mutex::new(Rank::Capture, Queue { bytes, ..Queue::default() }),
            thread: started.thread().clone(),
            ended,
        });
        // There is room for one.
        let _ = tell.send(recorder.clone());
        Ok(recorder)
    }

    /// Names a device of this process, before its first packet.
    pub(crate) fn device(&self, device: &DeviceConfig) {
        let &DeviceConfig { interface, ref name, interface_name: ref over, transport, .. } = device;
        let link = match transport {
            Transport::Iwarp => DeviceLink::Tcp,
            Transport::Ib => DeviceLink::Lids,
            Transport::Roce => DeviceLink::Udp,
        };
        self.push(&Message::Device { interface, name, over, link });
    }

    /// Waits until all is sent, for `limit` at most. Other threads may hold any lock.
    pub(crate) fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let is_done = || self.queue.try_lock().is_some_and(|queue| queue.bytes.is_empty() && !queue.sending);
        while self.is_ours() && !self.ended.load(Ordering::Acquire) && !is_done() && Instant::now() < until {
            self.thread.unpark();
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    fn push(&self, message: &Message<'_>) {
        // A forked child inherits the queue, perhaps locked.
        if !self.is_ours() || self.ended.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.bytes.len() > MAX_WAITING {
            queue.lost += 1;
            return;
        }
        if queue.lost > 0 {
            let lost = std::mem::take(&mut queue.lost);
            message::push(&Message::Lost(lost), &mut queue.bytes);
        }
        let was_empty = queue.bytes.is_empty();
        message::push(message, &mut queue.bytes);
        drop(queue);
        if was_empty {
            self.thread.unpark();
        }
    }

    /// The thread: sends what waits, until the collector is gone.
    fn send_all(&self, socket: &Fd) {
        let mut bytes = Vec::new();
        loop {
            {
                let mut queue = self.queue.lock();
                std::mem::swap(&mut queue.bytes, &mut bytes);
                if queue.lost > 0 && bytes.is_empty() {
                    let lost = std::mem::take(&mut queue.lost);
                    message::push(&Message::Lost(lost), &mut bytes);
                }
                queue.sending = !bytes.is_empty();
            }
            if bytes.is_empty() {
                thread::park_timeout(PAUSE);
                continue;
            }
            if send(socket, &bytes).is_err() {
                break;
            }
            bytes.clear();
        }
        self.ended.store(true, Ordering::Release);
        // What came meanwhile is of no use any more.
        self.queue.lock().bytes = Vec::new();
    }
}

fn send(socket: &Fd, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let chunk = &rest[..rest.len().min(CHUNK)];
        match SockRef::from(socket).send_with_flags(chunk, libc::MSG_NOSIGNAL) {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Recorder for ToCollector {
    fn time(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
    }
    fn record(&self, packet: &Packet<'_>) {
        self.push(&Message::Packet(*packet));
    }
}

/// The collector that the environment names, and the filter (`VERBENA_CAPTURE`,
/// `VERBENA_CAPTURE_FILTER`); `None` without one. Why it is not to be had is said on standard
/// error.
pub(crate) fn from_environment() -> Option<(Arc<ToCollector>, Filter)> {
    let path = std::env::var_os("VERBENA_CAPTURE").filter(|path| !path.is_empty())?;
    let filter = std::env::var("VERBENA_CAPTURE_FILTER").unwrap_or_default();
    let filter = filter.parse().unwrap_or_else(|error| {
        eprintln!("verbena: VERBENA_CAPTURE_FILTER: {error}");
        Filter::default()
    });
    match ToCollector::connect(Path::new(&path)) {
        Ok(collector) => Some((collector, filter)),
        Err(error) => {
            eprintln!("verbena: packets of process {} are not captured: {error}", std::process::id());
            None
        }
    }
}
