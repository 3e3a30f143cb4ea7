//! Flow rules for raw packet queue pairs (ibv_create_flow(3)).

use std::sync::Arc;

use crate::error::Error;
use crate::qp::Qp;
use crate::qp::attr::QpType;
use crate::steering::flow::{Flow, FlowCounter, FlowId, FlowKind};

impl Qp {
    /// `ibv_create_flow`: frames that match go to this queue pair from now on.
    ///
    /// # Errors
    ///
    /// `Value`: not a raw packet queue pair. `Invalid`: defaults and sniffers with specifications
    /// or "don't trap". `Limit`: more rules than the device has. `Unsupported`: a datagram
    /// queue pair. `System`: the environment refused to listen.
    pub fn steer(self: &Arc<Self>, flow: Flow) -> Result<FlowId, Error> {
        self.steer_counted(flow, None)
    }

    /// Like [`Qp::steer`], with a counter of what the rule matches (IBV_FLOW_SPEC_ACTION_COUNT).
    /// Errors as there.
    pub fn steer_counted(
        self: &Arc<Self>,
        flow: Flow,
        counter: Option<Arc<FlowCounter>>,
    ) -> Result<FlowId, Error> {
        match self.init().kind {
            QpType::RawPacket => {}
            QpType::Ud => return Err(Error::Unsupported("flow rules for datagram queue pairs")),
            kind => return Err(Error::name("only raw packet queue pairs take frames", kind.name())),
        }
        if flow.kind != FlowKind::Normal && (flow.dont_trap || !flow.specs.is_empty()) {
            return Err(Error::Invalid("a default or sniffer rule has specifications or \"don't trap\""));
        }
        let device = self.device();
        let watch = || device.frames.watch_frames(device.config.interface, true).map_err(Error::System);
        device.flows.add(flow, self, counter, watch)
    }

    /// Whether any rule steers frames to it.
    pub fn is_steered_to(self: &Arc<Self>) -> bool {
        self.device().flows.has(self)
    }
}
