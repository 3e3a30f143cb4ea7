//! `verbena run --capture`: runs a program as a child, and writes the packets of all processes that
//! it becomes to one file.
//!
//! Each of them connects to a socket of this process ([`linux`]'s recorder) and says what it sends
//! and receives. A thread reads each connection; the main one writes, in the order of times, what
//! is old enough that nothing earlier is still on its way.

mod output;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use capture::file::{Begins, Device, Frame};
use capture::filter::Filter;
use capture::merge::Merge;
use capture::message::{self, Message, VERSION};
use capture::{DeviceLink, Protocol};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use output::Output;

/// A packet is written so long after its time: then those before it have come from all processes.
const HELD_BACK: Duration = Duration::from_millis(200);
/// How often what is old enough is written.
const PAUSE: Duration = Duration::from_millis(20);
/// Packets that wait to be written, at most: then the oldest are written early.
const MOST_WAITING: usize = 1 << 16;
/// How long the program's children may go on before a line says that they are waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// What is captured, and where to.
#[derive(clap::Args)]
pub(crate) struct CaptureArgs {
    /// Write all packets of the program and its children to FILE (pcapng, for Wireshark and
    /// tshark); `-` is standard output, and the program's own then goes to standard error. All
    /// traffic goes as packets, as with --wire
    #[arg(long = "capture", value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Capture packets of a queue pair or a peer only: qp=NUMBER, peer=ADDRESS or LID, or several
    /// with commas. A packet bears the number of the queue pair it goes to
    #[arg(long = "capture-filter", value_name = "TERMS", requires = "file")]
    filter: Option<String>,
    /// Keep the first BYTES of each packet, from the IP header on
    #[arg(long = "capture-snaplen", value_name = "BYTES", default_value_t = 65_535, requires = "file",
          value_parser = clap::value_parser!(u32).range(64..=65_535))]
    snap_len: u32,
    /// Begin another file after so many bytes (k, M and G are understood): FILE_00001.pcapng and so
    /// on
    #[arg(long = "capture-size", value_name = "SIZE", requires = "file", value_parser = bytes)]
    size: Option<u64>,
    /// With --capture-size: keep the last N files only
    #[arg(long = "capture-files", value_name = "N", requires = "size", value_parser = clap::value_parser!(u32).range(2..))]
    files: Option<u32>,
}

/// A number of bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1 << 10),
        None => match (text.strip_suffix('M'), text.strip_suffix('G')) {
            (Some(number), _) => (number, 1 << 20),
            (_, Some(number)) => (number, 1 << 30),
            _ => (text, 1),
        },
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    let bytes = bytes.ok_or_else(|| format!("'{text}' is no number of bytes"))?;
    if bytes < 1 << 16 { Err("a file has 64k at least".into()) } else { Ok(bytes) }
}

/// Runs the program and captures it; `dir` is a directory of this user's own for the socket.
///
/// # Errors
/// A message where that cannot begin. Whether the program could not be started is the other error.
pub(crate) fn run(
    mut command: Command,
    args: CaptureArgs,
    dir: &Path,
) -> Result<io::Result<ExitCode>, String> {
    let file = args.file.as_deref().unwrap_or(Path::new("-"));
    if let Some(filter) = &args.filter {
        filter.parse::<Filter>().map_err(|e| format!("--capture-filter: {e}"))?;
        command.env("VERBENA_CAPTURE_FILTER", filter);
    }
    let line: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = line.join(std::ffi::OsStr::new(" ")).to_string_lossy().into_owned();
    let output = Output::new(file, &line, args.snap_len, args.size.map(|size| (size, args.files)))
        .map_err(|e| format!("--capture {}: {e}", file.display()))?;
    let socket = Socket::bind(dir).map_err(|e| format!("--capture: a socket in {}: {e}", dir.display()))?;
    command.env("VERBENA_CAPTURE", &socket.path).env("VERBENA_SAME_HOST", "off");
    if output.is_stdout() {
        // What the program prints must not be among the packets.
        command.stdout(Stdio::from(io::stderr()));
    }
    let signals = SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2])
        .map_err(|e| format!("signals: {e}"))?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let collector = Arc::new(Collector {
        merged: Mutex::new(Merge::default()),
        output: Mutex::new(output),
        connections: AtomicUsize::new(0),
        lost: Mutex::default(),
        stop: AtomicBool::new(false),
        snap_len: args.snap_len,
    });
    let status = collect(&collector, &socket.listener, child, signals);
    collector.finish();
    Ok(status.map(code))
}

/// The exit code of a shell: that of the program, or 128 and the number of the signal that ended
/// the program.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Writes until the child and all that are connected have ended; how the child ended.
fn collect(
    collector: &Arc<Collector>,
    listener: &UnixListener,
    mut child: Child,
    signals: SignalsInfo<WithOrigin>,
) -> io::Result<ExitStatus> {
    let lives = Arc::new(AtomicBool::new(true));
    forward(signals, child.id(), lives.clone(), collector.clone());
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut was_told = false;
    loop {
        // All that have connected before they ended are accepted, too.
        let is_over = ended.is_some();
        while let Ok((stream, _)) = listener.accept() {
            collector.connections.fetch_add(1, Ordering::AcqRel);
            let theirs = collector.clone();
            thread::spawn(move || {
                theirs.read(stream);
                theirs.connections.fetch_sub(1, Ordering::AcqRel);
            });
        }
        let connected = collector.connections.load(Ordering::Acquire);
        match &ended {
            None => {
                ended = child.try_wait()?.map(|status| (status, Instant::now()));
                if ended.is_some() {
                    lives.store(false, Ordering::Release);
                    continue;
                }
            }
            Some((status, _)) if is_over && (connected == 0 || collector.stop.load(Ordering::Acquire)) => {
                return Ok(*status);
            }
            Some((_, when)) if when.elapsed() > SILENCE && !was_told => {
                was_told = true;
                eprintln!(
                    "verbena: the program has ended; {connected} processes that it started are captured until \
                     they end, too (Ctrl-C ends the capture)"
                );
            }
            Some(_) => {}
        }
        collector.write_until(now().saturating_sub(HELD_BACK.as_nanos() as u64));
        thread::sleep(PAUSE);
    }
}

/// Signals of other processes go to the program. The terminal's go to it anyway. Once the program
/// has ended they end the capture.
fn forward(
    mut signals: SignalsInfo<WithOrigin>,
    child: u32,
    lives: Arc<AtomicBool>,
    collector: Arc<Collector>,
) {
    thread::spawn(move || {
        for origin in signals.forever() {
            if !lives.load(Ordering::Acquire) {
                collector.stop.store(true, Ordering::Release);
            } else if origin.process.is_some() {
                // It may end just now.
                let _ = linux::send_signal(child, origin.signal);
            }
        }
    });
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// The socket that processes connect to; its name goes with it.
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    fn bind(dir: &Path) -> io::Result<Self> {
        let path = dir.join(format!("capture-{}", std::process::id()));
        // One of a process that had this number, and was killed.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // A name that stays is of no use, and does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// What the threads share.
struct Collector {
    merged: Mutex<Merge<Frame>>,
    output: Mutex<Output>,
    /// Processes that are connected.
    connections: AtomicUsize,
    /// Packets that were not recorded, by the number of their device in the file.
    lost: Mutex<BTreeMap<u32, u64>>,
    stop: AtomicBool,
    snap_len: u32,
}

/// A panic of another thread leaves nothing half done that would matter.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Collector {
    /// Reads what a process says, until it ends or says what makes no sense.
    fn read(&self, mut stream: UnixStream) {
        let mut bytes = vec![0; 1 << 20];
        let (mut used, mut process) = (0, Process::default());
        // The listener's non-blocking mode is not inherited, but that is not said everywhere.
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        loop {
            let got = match stream.read(&mut bytes[used..]) {
                Ok(0) => return,
                Ok(got) => got,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            used += got;
            let mut frames = Vec::new();
            let taken = message::take_all(&bytes[..used], |message| {
                frames.extend(self.hear(&mut process, &message));
            });
            let mut merged = lock(&self.merged);
            frames.into_iter().for_each(|frame| merged.push(frame.time(), frame));
            drop(merged);
            match taken {
                Ok(taken) => {
                    bytes.copy_within(taken..used, 0);
                    used -= taken;
                }
                Err(_) => {
                    eprintln!(
                        "verbena: process {} says what this build does not understand; its packets are not \
                         captured any more",
                        process.pid
                    );
                    return;
                }
            }
        }
    }

    /// A message of a process; the packet that it is.
    fn hear(&self, process: &mut Process, message: &Message<'_>) -> Option<Frame> {
        match *message {
            Message::Hello { version, pid, name } => {
                if version != VERSION {
                    eprintln!("verbena: process {pid}, {name}, is of another build and is not captured");
                }
                *process = Process {
                    pid,
                    name: name.to_owned(),
                    is_known: version == VERSION,
                    ..Process::default()
                };
            }
            Message::Device { interface, name, over, link } => {
                let device = Device {
                    name: name.to_owned(),
                    over: over.to_owned(),
                    process: (process.pid, process.name.clone()),
                    begins: if link == DeviceLink::Lids { Begins::Lrh } else { Begins::Ip },
                };
                if link == DeviceLink::Udp {
                    let of_frames = Device { begins: Begins::Ethernet, ..device.clone() };
                    process.of_frames.insert(interface, Frames::None(of_frames));
                }
                process.devices.insert((interface, link), lock(&self.output).device(device));
            }
            Message::Packet(packet) if process.is_known => {
                let device = match packet.protocol {
                    Protocol::Roce => *process.devices.get(&(packet.interface, DeviceLink::Udp))?,
                    Protocol::Tcp(_) => *process.devices.get(&(packet.interface, DeviceLink::Tcp))?,
                    Protocol::Infiniband(_) => *process.devices.get(&(packet.interface, DeviceLink::Lids))?,
                    Protocol::Ethernet => self.device_of_frames(process, packet.interface)?,
                };
                return Some(Frame::new(device, &packet, self.snap_len));
            }
            Message::Lost(packets) => {
                let device = process.devices.values().next().copied().unwrap_or_default();
                *lock(&self.lost).entry(device).or_default() += packets;
            }
            Message::Packet(_) => {}
        }
        None
    }

    /// The number of a device's Ethernet frames in the file, which names them before the first one.
    fn device_of_frames(&self, process: &mut Process, interface: u32) -> Option<u32> {
        let frames = process.of_frames.get_mut(&interface)?;
        if let Frames::None(device) = frames {
            *frames = Frames::Of(lock(&self.output).device(device.clone()));
        }
        match frames {
            Frames::None(_) => None,
            Frames::Of(number) => Some(*number),
        }
    }

    /// Writes packets up to a time, and more where too many wait.
    fn write_until(&self, time: u64) {
        let mut output = lock(&self.output);
        loop {
            let mut merged = lock(&self.merged);
            let until = if merged.len() > MOST_WAITING { u64::MAX } else { time };
            let Some(frame) = merged.pop_until(until) else { break };
            drop(merged);
            output.packet(&frame);
        }
        output.flush();
    }

    /// Writes the rest, and says on standard error what there is.
    fn finish(&self) {
        self.write_until(u64::MAX);
        let lost = std::mem::take(&mut *lock(&self.lost));
        lock(&self.output).finish(&lost, now());
    }
}

/// What is known of a connected process.
#[derive(Default)]
struct Process {
    pid: u32,
    name: String,
    /// Whether the process speaks our version of the format.
    is_known: bool,
    /// Numbers of devices in the file, by the index of their interface, and how packets travel.
    devices: BTreeMap<(u32, DeviceLink), u32>,
    /// Ethernet frames, by the index of their interface.
    of_frames: BTreeMap<u32, Frames>,
}

/// The Ethernet frames of a device.
enum Frames {
    /// There were none yet; the device as the file will name it.
    None(Device),
    /// Their number in the file.
    Of(u32),
}
