//! What plain sockets give: the floor under each of Verbena's figures. Both ends are on the
//! loopback interface, or on two hosts ([`Sockets`]).

use std::hint;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;
use wire::icrc::Remainder;

use crate::pin;

/// BTH (12), 64 bytes, ICRC (4): a 64-byte SEND as UDP carries it.
const SEND_LEN: usize = 80;
/// BTH (12), AETH (4), ICRC (4).
const ACK_LEN: usize = 20;
/// BTH and ICRC, around the payload of a packet in the midst of a message.
const HEADERS: usize = 16;
/// The payload of such a packet at the loopback interface's path MTU.
pub(crate) const PAGE: usize = 4096;
/// RETH, ICRC and BTH: what a WRITE of one packet adds to its payload.
const WRITE_LEN: usize = 32;
/// Bytes of a UDP_SEGMENT send, at most.
const MAX_SEND: usize = 65_507;
/// Segments of one, at most (UDP_MAX_SEGMENTS of older kernels).
const MAX_SEGMENTS: usize = 64;

const ROUNDS: usize = 9;
pub(crate) const PINGS: usize = 20_000;
const STREAM_BYTES: usize = 1 << 30;
const MAX_MESSAGES: usize = 1 << 18;
const SENDS: usize = 1 << 20;
/// Messages outstanding.
const OUTSTANDING: usize = 128;
/// Runs in which datagrams are lost, at most, for one in which none is.
const LOSSES: usize = 5;
/// A receive buffer to ask for; what the kernel grants decides how much may be in flight.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Whether the far end of a ping also acknowledges it, as a reliable connection must.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Acks {
    None,
    Sent,
}

fn socket() -> io::Result<UdpSocket> {
    UdpSocket::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

/// What makes two sockets that are connected to each other.
pub(crate) type Sockets<'a> = &'a dyn Fn() -> io::Result<(UdpSocket, UdpSocket)>;

/// Two sockets connected to each other, on the loopback interface.
pub(crate) fn socket_pair() -> io::Result<(UdpSocket, UdpSocket)> {
    let (a, b) = (socket()?, socket()?);
    a.connect(b.local_addr()?)?;
    b.connect(a.local_addr()?)?;
    Ok((a, b))
}

/// Spins until a datagram is there.
fn spin(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.recv(buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => hint::spin_loop(),
            other => return other,
        }
    }
}

/// One side of the ping-pong: waits for a ping, dropping ACKs, and acknowledges it.
fn take_ping(socket: &UdpSocket, acks: Acks) -> io::Result<()> {
    let mut buffer = [0; 256];
    while spin(socket, &mut buffer)? != SEND_LEN {}
    if acks == Acks::Sent {
        socket.send(&[0; ACK_LEN])?;
    }
    Ok(())
}

/// Half of the round trip of a 64-byte SEND's datagram, in microseconds: the median of several
/// rounds. Both sides spin, each on a core.
///
/// # Errors
/// What the sockets say.
pub(crate) fn ping_pong(sockets: Sockets<'_>, acks: Acks) -> io::Result<f64> {
    let (here, there) = sockets()?;
    here.set_nonblocking(true)?;
    there.set_nonblocking(true)?;
    let pings = (ROUNDS + 1) * PINGS;
    let answering = thread::spawn(move || -> io::Result<()> {
        pin::to_core(1)?;
        for _ in 0..pings {
            take_ping(&there, acks)?;
            there.send(&[0; SEND_LEN])?;
        }
        Ok(())
    });
    let asking = thread::spawn(move || -> io::Result<Vec<f64>> {
        pin::to_core(0)?;
        let mut rounds = Vec::new();
        for _ in 0..=ROUNDS {
            let begin = Instant::now();
            for _ in 0..PINGS {
                here.send(&[0; SEND_LEN])?;
                take_ping(&here, acks)?;
            }
            rounds.push(begin.elapsed().as_secs_f64() * 1e6 / PINGS as f64 / 2.0);
        }
        rounds.remove(0); // warming up
        Ok(rounds)
    });
    let rounds = join(asking)?;
    join(answering)?;
    Ok(median(rounds))
}

/// Messages of `size` bytes, each sent by itself, in GSO batches where it takes more than one
/// datagram, and received as GRO batches, with the window in which they are fastest just now, of
/// those in which nothing is lost.
pub(crate) struct Fastest<'a> {
    sockets: Sockets<'a>,
    size: usize,
    stream: Stream,
}

impl<'a> Fastest<'a> {
    /// Tries several windows. A datagram has so many bytes of a message, and a CRC that the sender
    /// computes as it copies them there, and the receiver as it copies them away, or none.
    ///
    /// # Errors
    /// What the sockets say; `TimedOut` when every window lost datagrams.
    pub(crate) fn find(
        sockets: Sockets<'a>,
        size: usize,
        payload: usize,
        copies_and_crc: bool,
    ) -> io::Result<Self> {
        let (segment, segments) =
            if size <= payload { (size + WRITE_LEN, 1) } else { (payload + HEADERS, size / payload) };
        let messages = STREAM_BYTES.div_ceil(size).min(MAX_MESSAGES);
        // No more than that many messages: a small datagram takes far more of a receive buffer than
        // its bytes.
        let most = OUTSTANDING * segment * segments;
        let credit = (1 << 15).min(most / 4);
        let stream = Stream { copies_and_crc, messages, segment, segments, window: 0, credit };
        // The smallest has room for a batch and for what the receiver has not told of yet.
        let windows = [128, 192, 256, 384, 512, 1024, 2048, 4096].map(|kib| (kib << 10).min(most));
        let (_, window) = best_window(sockets, windows, &stream)?;
        Ok(Self { sockets, size, stream: Stream { window, ..stream } })
    }

    /// Bytes a second, in GB/s.
    ///
    /// # Errors
    /// What the sockets say; `TimedOut` when datagrams were lost again and again.
    pub(crate) fn measure(&self) -> io::Result<f64> {
        for _ in 0..LOSSES {
            if let Some(took) = self.stream.run_lossless(self.sockets)? {
                return Ok((self.stream.messages * self.size) as f64 / took.as_secs_f64() / 1e9);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "datagrams were lost again and again"))
    }
}

/// Datagrams a second of 64-byte SENDs, `list` of them with each call, 128 outstanding.
///
/// # Errors
/// What the sockets say; `TimedOut` when datagrams were lost.
pub(crate) fn rate(list: usize) -> io::Result<f64> {
    let window = OUTSTANDING * SEND_LEN;
    let stream = Stream {
        copies_and_crc: false,
        messages: SENDS / list,
        segment: SEND_LEN,
        segments: list,
        window,
        credit: window / 4,
    };
    let (took, _) = best_window(&socket_pair, [window], &stream)?;
    Ok(SENDS as f64 / took.as_secs_f64())
}

/// The shortest of the times with each of `windows`, of those in which no datagram was lost, and
/// that window.
fn best_window<const N: usize>(
    sockets: Sockets<'_>,
    windows: [usize; N],
    stream: &Stream,
) -> io::Result<(Duration, usize)> {
    let mut best: Option<(Duration, usize)> = None;
    for window in windows {
        if let Some(took) = (Stream { window, ..*stream }).run_lossless(sockets)? {
            best = Some(best.map_or((took, window), |best| best.min((took, window))));
        }
    }
    best.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "datagrams were lost with every window"))
}

/// Messages one way, credits the other.
#[derive(Clone, Copy)]
struct Stream {
    /// Both ends copy the bytes of a datagram and compute its CRC.
    copies_and_crc: bool,
    messages: usize,
    /// Bytes of a datagram.
    segment: usize,
    /// Datagrams of a message.
    segments: usize,
    /// Bytes outstanding.
    window: usize,
    /// After so many bytes the receiver tells how many have come.
    credit: usize,
}

impl Stream {
    /// How long it took; `None` where datagrams were lost.
    fn run_lossless(self, sockets: Sockets<'_>) -> io::Result<Option<Duration>> {
        match self.run(sockets) {
            // Whichever end gives up first refuses what the other one still sends.
            Err(e) if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            ran => ran.map(Some),
        }
    }

    fn run(self, sockets: Sockets<'_>) -> io::Result<Duration> {
        let (here, there) = sockets()?;
        set_udp_option(&here, libc::UDP_SEGMENT, self.segment as libc::c_int)?;
        set_udp_option(&there, libc::UDP_GRO, 1)?;
        SockRef::from(&there).set_recv_buffer_size(RECEIVE_BUFFER)?;
        for s in [&here, &there] {
            s.set_nonblocking(true)?;
        }
        let receiving = thread::spawn(move || self.receive(&there));
        let sending = thread::spawn(move || self.send(&here));
        let (sent, received) = (join(sending), join(receiving));
        // A receiver that gave up refuses what the sender still sends: its own error says why.
        received?;
        sent
    }

    /// Receives everything and sends how much has come now and then, and at the end: the sender's
    /// credit.
    fn receive(&self, socket: &UdpSocket) -> io::Result<()> {
        pin::to_core(1)?;
        let expected = self.messages * self.segments * self.segment;
        let mut buffer = vec![0; 1 << 16];
        let mut memory = vec![0; 1 << 16];
        let (mut total, mut told, mut heard) = (0, 0, Instant::now());
        while total < expected {
            match socket.recv(&mut buffer) {
                Ok(n) => {
                    if self.copies_and_crc {
                        self.copy(&buffer[..n], &mut memory[..n]);
                    }
                    total += n;
                    heard = Instant::now();
                    if total - told >= self.credit || total == expected {
                        told = total;
                        socket.send(&(total as u64).to_ne_bytes())?;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && heard.elapsed() < QUIET => {
                    hint::spin_loop()
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Copies datagrams and computes the CRC of each.
    fn copy(&self, from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
        for datagram in to.chunks(self.segment) {
            hint::black_box(Remainder::of(datagram));
        }
    }

    fn send(&self, socket: &UdpSocket) -> io::Result<Duration> {
        pin::to_core(0)?;
        let most = (MAX_SEND / self.segment).min(MAX_SEGMENTS).min(self.segments);
        let mut batch = vec![0x5a_u8; most * self.segment];
        let memory = vec![0x5a_u8; most * self.segment];
        let (mut sent, mut credited) = (0, 0);
        let begin = Instant::now();
        for _ in 0..self.messages {
            let mut left = self.segments;
            while left > 0 {
                let bytes = left.min(most) * self.segment;
                wait_for_credit(socket, &mut credited, (sent + bytes).saturating_sub(self.window))?;
                if self.copies_and_crc {
                    self.copy(&memory[..bytes], &mut batch[..bytes]);
                }
                sent += socket.send(&batch[..bytes])?;
                left -= left.min(most);
            }
        }
        wait_for_credit(socket, &mut credited, sent)?;
        Ok(begin.elapsed())
    }
}

/// How long nothing may come before the stream counts as broken.
const QUIET: Duration = Duration::from_millis(300);

/// Until the receiver has told of `wanted` bytes.
fn wait_for_credit(socket: &UdpSocket, credited: &mut usize, wanted: usize) -> io::Result<()> {
    let mut waiting = None;
    while *credited < wanted {
        let mut credit = [0; 8];
        match socket.recv(&mut credit) {
            Ok(_) => {
                *credited = u64::from_ne_bytes(credit) as usize;
                waiting = None;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if waiting.get_or_insert_with(Instant::now).elapsed() > QUIET {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Half of the round trip of a SEND's bytes by TCP, in microseconds, where both ends sleep until
/// they are there. Each end is on a core.
///
/// # Errors
/// What the sockets say.
pub(crate) fn tcp_ping_pong((mut here, mut there): (TcpStream, TcpStream)) -> io::Result<f64> {
    let answering = thread::spawn(move || -> io::Result<()> {
        pin::to_core(1)?;
        there.set_nodelay(true)?;
        let mut bytes = [0; SEND_LEN];
        for _ in 0..PINGS {
            there.read_exact(&mut bytes)?;
            there.write_all(&bytes)?;
        }
        Ok(())
    });
    let asking = thread::spawn(move || -> io::Result<f64> {
        pin::to_core(0)?;
        here.set_nodelay(true)?;
        let begin = Instant::now();
        let mut bytes = [0; SEND_LEN];
        for _ in 0..PINGS {
            here.write_all(&bytes)?;
            here.read_exact(&mut bytes)?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / PINGS as f64 / 2.0)
    });
    let half = join(asking)?;
    join(answering)?;
    Ok(half)
}

/// TCP connections a second from as many threads as `clients`, each of which makes `each`, one
/// after the other: connect, accept, one byte from the server, close.
///
/// # Errors
/// What the sockets say.
pub(crate) fn connects(clients: usize, each: usize) -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let accepting = thread::spawn(move || -> io::Result<()> {
        for _ in 0..clients * each {
            let (mut stream, _) = listener.accept()?;
            stream.write_all(&[1])?;
        }
        Ok(())
    });
    let connect = move || -> io::Result<()> {
        for _ in 0..each {
            let mut stream = TcpStream::connect(address)?;
            stream.read_exact(&mut [0])?;
        }
        Ok(())
    };
    let begin = Instant::now();
    let connecting: Vec<_> = (0..clients).map(|_| thread::spawn(connect)).collect();
    connecting.into_iter().try_for_each(join)?;
    let took = begin.elapsed();
    join(accepting)?;
    Ok((clients * each) as f64 / took.as_secs_f64())
}

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open while `socket` lives, and the pointer and length describe
    // `value`, which is only read.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn join<T>(thread: thread::JoinHandle<io::Result<T>>) -> io::Result<T> {
    thread.join().map_err(|_| io::Error::other("a measuring thread panicked"))?
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
