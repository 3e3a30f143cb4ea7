//! Whole Ethernet frames, on which faults happen. Rules that name a peer, a queue pair, an
//! operation or a transport match none, but for `type=raw`. No checksum tells that a frame is
//! damaged.

use std::sync::Arc;

use nic::{Errno, Fate, FrameArrival, Frames};

use crate::decide::{Decision, Item, Seen};
use crate::held::{Size, What};
use crate::judged::Judged;
use crate::shared::{Rules, Shared};
use crate::spec::Action;

/// Frames of another environment, on which faults happen.
pub(crate) struct FaultFrames {
    frames: Arc<dyn Frames>,
    shared: Arc<Shared>,
}

impl FaultFrames {
    pub(crate) fn new(frames: Arc<dyn Frames>, shared: Arc<Shared>) -> Arc<Self> {
        // All devices of a node have the same.
        let _ = shared.frames.set(frames.clone());
        Arc::new(Self { frames, shared })
    }
}

impl Shared {
    fn judge_frame(&self, rules: &Rules, is_out: bool, interface: u32, frame: &[u8]) -> Judged {
        let now = self.around.now();
        let time = now.saturating_duration_since(rules.began);
        let device = self.device(interface, false);
        let (peer, item) = (None, Item::Frame);
        let (begins_request, begins_connection) = (false, false);
        let seen = Seen { is_out, peer, device, item, time, begins_request, begins_connection };
        let mut verdict = rules.decider.decide(&seen);
        if rules.decider.port(device, time).is_some() {
            verdict.fate = Some(Decision { action: Action::PortDown, bits: 0 });
        }
        let size = Size::of_frame(is_out, frame.len());
        Judged::of(&verdict, size, rules, now, &mut self.state.lock())
    }

    /// Takes a frame that has arrived on to the node, or not.
    pub(crate) fn frame_arrives(
        &self,
        rules: &Rules,
        frame: &FrameArrival<'_>,
        bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]) -> Fate,
    ) -> Fate {
        let &FrameArrival { interface, outgoing, .. } = frame;
        let judged = self.judge_frame(rules, false, interface, bytes);
        let bytes = judged.damage(bytes);
        let mut fate = Fate::Taken;
        for copy in &judged.copies {
            match copy {
                None => fate = deliver(&bytes),
                Some(ticket) => {
                    self.hold(*ticket, What::FrameIn { interface, outgoing, bytes: bytes.to_vec() });
                }
            }
        }
        judged.fault.map_or(fate, |(name, _)| Fate::Fault(name))
    }

    /// Sends a frame that was held. The environment counts one that it loses.
    pub(crate) fn send_held(&self, interface: u32, frame: &[u8]) {
        let _ = self.frames.get().map(|frames| frames.send_frame(interface, frame));
    }
}

impl Frames for FaultFrames {
    fn open_frames(&self, interface: u32) -> Result<(), Errno> {
        self.frames.open_frames(interface)
    }
    fn close_frames(&self, interface: u32) {
        self.frames.close_frames(interface);
    }
    fn send_frame(&self, interface: u32, frame: &[u8]) -> Result<(), Errno> {
        let rules = self.shared.rules.load();
        let Some(rules) = &*rules else { return self.frames.send_frame(interface, frame) };
        let judged = self.shared.judge_frame(rules, true, interface, frame);
        if let Some(what) = judged.lost() {
            self.frames.frame_fault(interface, frame, what);
            return Ok(());
        }
        for copy in judged.copies {
            match copy {
                None => self.frames.send_frame(interface, frame)?,
                Some(ticket) => {
                    self.shared.hold(ticket, What::FrameOut { interface, bytes: frame.to_vec() });
                }
            }
        }
        Ok(())
    }
    fn watch_frames(&self, interface: u32, watch: bool) -> Result<(), Errno> {
        self.frames.watch_frames(interface, watch)
    }
    fn frame_fault(&self, interface: u32, frame: &[u8], what: &'static str) {
        self.frames.frame_fault(interface, frame, what);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::decide::Decider;
    use crate::link::Surroundings;

    /// Keeps what is sent, and what is said to be lost.
    struct Kept {
        sent: Mutex<Vec<u8>>,
        lost: Mutex<Vec<(u8, &'static str)>>,
        began: Instant,
    }

    impl Frames for Kept {
        fn send_frame(&self, _interface: u32, frame: &[u8]) -> Result<(), Errno> {
            self.sent.lock().unwrap().push(frame[14]);
            Ok(())
        }
        fn frame_fault(&self, _interface: u32, frame: &[u8], what: &'static str) {
            self.lost.lock().unwrap().push((frame[14], what));
        }
    }

    impl Surroundings for Kept {
        fn now(&self) -> Instant {
            self.began
        }
        fn wake_at(&self, _at: Instant) {}
    }

    #[test]
    fn frames_meet_the_rules_that_name_no_packet_of_roce() {
        let (sent, lost) = (Mutex::default(), Mutex::default());
        let kept = Arc::new(Kept { sent, lost, began: Instant::now() });
        let shared = Shared::new(kept.clone());
        let spec = "loss=100%,type=rc; loss=100%,peer=10.0.0.2; loss=100%,qp=0; loss=100%,op=send; rnr; \
                    error=general; reject; loss=100%,type=raw,nth=2,dir=out; duplicate=100%,nth=3; \
                    delay=1ms,nth=4,dir=out; corrupt=100%,nth=1,dir=in";
        let decider = Decider::new(&spec.parse().unwrap(), 1);
        shared.state.lock().held.restart(kept.began, decider.len());
        let rules = Rules { decider, began: kept.began };
        let of = |n: u8| [&[0; 14][..], &[n], &[7; 45]].concat();
        let mut damaged: Vec<u32> = Vec::new();
        for n in 0..2 {
            let sent = of(n);
            let frame = FrameArrival { interface: 1, outgoing: false, bytes: &sent };
            shared.frame_arrives(&rules, &frame, frame.bytes, &mut |bytes| {
                let bits = bytes.iter().zip(&sent).map(|(came, sent)| (came ^ sent).count_ones());
                damaged.push(bits.sum());
                Fate::Taken
            });
        }
        assert_eq!(damaged, [1, 0]);
        shared.rules.store(Some(Arc::new(rules)));
        let frames = FaultFrames::new(kept.clone(), shared.clone());
        for n in 0..4 {
            assert_eq!(frames.send_frame(1, &of(n)), Ok(()));
        }
        assert_eq!(*kept.sent.lock().unwrap(), [0, 2, 2]);
        assert_eq!(*kept.lost.lock().unwrap(), [(1, "loss")]);
        let due = kept.began + Duration::from_millis(1);
        assert!(
            matches!(shared.state.lock().held.pop(due), Some(What::FrameOut { bytes, .. }) if bytes == of(3))
        );
    }
}
