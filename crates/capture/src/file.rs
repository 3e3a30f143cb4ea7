//! A file of packets, in the format of pcapng (draft-ietf-opsawg-pcapng): one interface for each
//! device of a process, and one more for its Ethernet frames, nanoseconds, the direction, and a
//! comment where a packet was dropped or a fault was at work.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness, PcapError};

use crate::erf;
use crate::frame::with_headers;
use crate::message::{Direction, Outcome, Packet, Protocol};

/// Nanoseconds, as the exponent of if_tsresol.
const NANOSECONDS: u8 = 9;

/// A device of a process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The device's name.
    pub name: String,
    /// The name of its interface.
    pub over: String,
    /// The number and the name of the process.
    pub process: (u32, String),
    /// What its packets begin with.
    pub begins: Begins,
}

/// What packets in a file begin with (the link type).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Begins {
    /// The IP header.
    Ip,
    /// The Ethernet header.
    Ethernet,
    /// A header of ERF, then the local routing header of InfiniBand.
    Lrh,
}

impl Begins {
    fn link_type(self) -> DataLink {
        match self {
            Self::Ip => DataLink::RAW,
            Self::Ethernet => DataLink::ETHERNET,
            Self::Lrh => DataLink::ERF,
        }
    }
}

/// A packet with its headers, as it is in the file.
#[derive(Clone, Debug)]
pub struct Frame {
    interface: u32,
    time: u64,
    len: u32,
    bytes: Vec<u8>,
    is_out: bool,
    comment: Option<String>,
}

impl Frame {
    /// A packet of the device with this number in the file. At most `snap_len` bytes are kept, from
    /// the first header on.
    pub fn new(interface: u32, packet: &Packet<'_>, snap_len: u32) -> Self {
        let mut bytes = with_headers(packet);
        let mut len = bytes.len() as u32;
        bytes.truncate(snap_len as usize);
        if let Protocol::Infiniband(_) = packet.protocol {
            let header = erf::header(packet.time, bytes.len(), len);
            len += header.len() as u32;
            bytes.splice(..0, header);
        }
        let comment = match packet.outcome {
            Outcome::Good => None,
            Outcome::Dropped(reason) => Some(format!("dropped: {reason}")),
            Outcome::Fault(what) => Some(format!("fault: {what}")),
            Outcome::Lost(why) => Some(format!("lost: {why}")),
        };
        let is_out = packet.direction == Direction::Out;
        Self { interface, time: packet.time, len, bytes, is_out, comment }
    }

    /// The packet's time, in nanoseconds since 1970.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// About how many bytes it takes in the file.
    pub fn len_in_file(&self) -> u64 {
        self.bytes.len() as u64 + 56
    }
}

/// Writes packets.
pub struct Writer<W: Write> {
    file: PcapNgWriter<W>,
    snap_len: u32,
    interfaces: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a file; `program` is the command that is captured.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn new(to: W, program: &str, snap_len: u32) -> io::Result<Self> {
        let user = concat!("Verbena ", env!("CARGO_PKG_VERSION"));
        let options = vec![
            SectionHeaderOption::UserApplication(user.into()),
            SectionHeaderOption::Comment(Cow::Owned(program.to_owned())),
        ];
        let section = SectionHeaderBlock { endianness: Endianness::Big, options, ..Default::default() };
        let file = PcapNgWriter::with_section_header(to, section).map_err(error)?;
        Ok(Self { file, snap_len, interfaces: 0 })
    }

    /// Adds a device; its number in the file.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn device(&mut self, device: &Device) -> io::Result<u32> {
        let (pid, program) = &device.process;
        let options = vec![
            InterfaceDescriptionOption::IfName(device.name.as_str().into()),
            InterfaceDescriptionOption::IfDescription(
                format!("over {}, process {pid}, {program}", device.over).into(),
            ),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let linktype = device.begins.link_type();
        let snaplen = self.snap_len;
        self.write(InterfaceDescriptionBlock { linktype, snaplen, options }.into_block())?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Adds a packet.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn packet(&mut self, frame: &Frame) -> io::Result<()> {
        let mut options = vec![EnhancedPacketOption::Flags(if frame.is_out { 2 } else { 1 })];
        options.extend(frame.comment.as_deref().map(|text| EnhancedPacketOption::Comment(text.into())));
        let block = EnhancedPacketBlock {
            interface_id: frame.interface,
            timestamp: Duration::from_nanos(frame.time),
            original_len: frame.len,
            data: Cow::Borrowed(&frame.bytes),
            options,
        };
        self.write(block.into_block())
    }

    /// Says how many packets of a device are missing.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn missing(&mut self, interface: u32, time: u64, packets: u64) -> io::Result<()> {
        let options = vec![InterfaceStatisticsOption::IsbIfDrop(packets)];
        self.write(
            InterfaceStatisticsBlock { interface_id: interface, timestamp: time, options }.into_block(),
        )
    }

    /// Hands on what was written so far.
    ///
    /// # Errors
    ///
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.get_mut().flush()
    }

    fn write(&mut self, block: Block<'_>) -> io::Result<()> {
        self.file.write_block(&block).map(drop).map_err(error)
    }
}

fn error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
