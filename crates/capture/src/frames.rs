//! Whole Ethernet frames, as they are sent.

use std::sync::Arc;

use nic::{Errno, Frames};

use crate::Recorder;
use crate::message::{Direction, NOWHERE, Outcome, Packet, Protocol};

/// Frames of another environment, each of which is shown to a recorder.
pub(crate) struct CaptureFrames {
    frames: Arc<dyn Frames>,
    recorder: Arc<dyn Recorder>,
}

/// A frame, as a recorder takes it.
pub(crate) fn packet<'a>(
    time: u64,
    direction: Direction,
    interface: u32,
    outcome: Outcome<'a>,
    bytes: &'a [u8],
) -> Packet<'a> {
    let (source, dest, traffic_class, hop_limit) = (NOWHERE, NOWHERE, 0, 0);
    let protocol = Protocol::Ethernet;
    Packet { time, direction, interface, source, dest, traffic_class, hop_limit, outcome, protocol, bytes }
}

impl CaptureFrames {
    pub(crate) fn new(frames: Arc<dyn Frames>, recorder: Arc<dyn Recorder>) -> Self {
        Self { frames, recorder }
    }

    fn show(&self, time: u64, interface: u32, frame: &[u8], outcome: Outcome<'_>) {
        self.recorder.record(&packet(time, Direction::Out, interface, outcome, frame));
    }
}

impl Frames for CaptureFrames {
    fn open_frames(&self, interface: u32) -> Result<(), Errno> {
        self.frames.open_frames(interface)
    }
    fn close_frames(&self, interface: u32) {
        self.frames.close_frames(interface);
    }
    fn send_frame(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        let time = self.recorder.time();
        let sent = self.frames.send_frame(interface, frame);
        let outcome = match sent {
            Ok(()) => Outcome::Good,
            Err(_) => Outcome::Dropped("packets_dropped_sending"),
        };
        self.show(time, interface, frame, outcome);
        sent
    }
    fn watch_frames(&self, interface: u32, watch: bool) -> Result<(), Errno> {
        self.frames.watch_frames(interface, watch)
    }
    fn frame_fault(&self, interface: u32, frame: &[u8], what: &'static str) {
        self.show(self.recorder.time(), interface, frame, Outcome::Fault(what));
    }
}
