//! Sizes of an rsocket: their defaults, ranges, and the files of rsocket(7) that change the
//! defaults.

use nic::limits;

use crate::conn_data;

/// Fewest entries of a queue.
const MIN_QUEUE: u32 = 16;
/// Receives beside those that the peer has credits for: its control messages need none.
pub const EXTRA_RECEIVES: u32 = 16;
/// Entries of the send queue that data leaves to control messages.
pub const CONTROL_SLOTS: u32 = 4;
/// A stream takes data when so many bytes of its send buffer are free.
pub const LOW_WATER: u32 = 2048;
/// Bytes of the longest datagram, its header included.
pub const DATAGRAM: u32 = 2048;
/// Bytes of a buffer.
const BUFFERS: std::ops::RangeInclusive<u32> = 2 * LOW_WATER..=256 << 20;

/// Sizes. [`Settings::in_range`] brings each into its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive ring; even.
    pub receive_buffer: u32,
    /// Entries of the send queue.
    pub send_queue: u32,
    /// Receives that the peer has credits for.
    pub receive_queue: u32,
    /// Inline bytes, as the program asked.
    pub inline: u32,
    /// Mappings that the peer may make for us.
    pub mappings: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            send_buffer: 1 << 17,
            receive_buffer: 1 << 17,
            send_queue: 384,
            receive_queue: 384,
            inline: 64,
            mappings: 0,
        }
    }
}

impl Settings {
    /// The nearest sizes that a queue pair can have.
    #[must_use]
    pub fn in_range(self) -> Self {
        let queue = |n: u32| n.clamp(MIN_QUEUE, limits::MAX_QP_WR - EXTRA_RECEIVES - 1);
        let buffer = |n: u32| n.clamp(*BUFFERS.start(), *BUFFERS.end());
        Self {
            send_buffer: buffer(self.send_buffer),
            receive_buffer: buffer(self.receive_buffer) & !1,
            send_queue: queue(self.send_queue),
            receive_queue: queue(self.receive_queue),
            inline: self.inline.min(limits::MAX_INLINE),
            mappings: conn_data::unscale(conn_data::scale(self.mappings)),
        }
    }

    /// Datagrams that may be on their way, and that may wait for the program. Settings are in
    /// range.
    pub fn datagrams(&self) -> (u32, u32) {
        let places = |queue: u32, buffer: u32| queue.min(buffer / DATAGRAM);
        (places(self.send_queue, self.send_buffer), places(self.receive_queue, self.receive_buffer))
    }

    /// Takes the number in a file of the configuration directory of rsocket(7). Other names, and
    /// text that is no number, change nothing.
    pub fn configure(&mut self, name: &str, text: &str) {
        let Ok(value) = text.trim().parse::<u32>() else { return };
        match name {
            "mem_default" => self.receive_buffer = value,
            "wmem_default" => self.send_buffer = value,
            "sqsize_default" => self.send_queue = value,
            "rqsize_default" => self.receive_queue = value,
            "inline_default" => self.inline = value,
            "iomap_size" => self.mappings = u16::try_from(value).unwrap_or(u16::MAX),
            _ => {}
        }
    }
}

/// The files of the configuration directory that [`Settings::configure`] knows.
pub const FILES: [&str; 6] =
    ["mem_default", "wmem_default", "sqsize_default", "rqsize_default", "inline_default", "iomap_size"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_defaults_and_sizes_come_into_range() {
        let mut settings = Settings::default();
        for (name, text) in [("mem_default", "1000001\n"), ("sqsize_default", "1"), ("iomap_size", "x")] {
            settings.configure(name, text);
        }
        let settings = settings.in_range();
        assert_eq!((settings.receive_buffer, settings.send_queue, settings.mappings), (1_000_000, 16, 0));
        let all = Settings {
            send_buffer: 0,
            receive_buffer: u32::MAX,
            send_queue: u32::MAX,
            receive_queue: u32::MAX,
            inline: u32::MAX,
            mappings: u16::MAX,
        };
        let all = all.in_range();
        assert_eq!((all.send_buffer, all.receive_buffer), (4096, 256 << 20));
        assert!(all.receive_queue + EXTRA_RECEIVES < limits::MAX_QP_WR);
        assert_eq!(Settings::default().in_range(), Settings::default());
    }
}
