//! Connection parameters: what both sides tell each other of a connection that is to be.

use super::{at_most, limits};
use crate::error::Result;

/// Retries of a sender that finds no receive posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RnrRetry {
    /// 0 to 6 times.
    Times(u8),
    /// Always (7 on the wire).
    Forever,
}

/// Whether a side has end-to-end flow control: the bit of REQ and REP (IBA 12.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FlowControl {
    /// No end-to-end flow control.
    #[default]
    None,
    /// ACKs say how many receives the side that sends them has posted.
    EndToEnd,
}

impl FlowControl {
    /// What a peer has told.
    pub(super) fn told(has: bool) -> Self {
        if has { Self::EndToEnd } else { Self::None }
    }
}

/// What both sides can say of a connection (`struct rdma_conn_param`).
///
/// ```
/// use verbena::{ConnParam, RnrRetry};
///
/// let param = ConnParam::default().retry_count(3).rnr_retry_count(RnrRetry::Times(6));
/// let connect = verbena::connect("10.0.0.2:7471").param(param);
/// # drop(connect);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnParam {
    /// READs and atomics of the peer that we serve at once, 0 to [`limits::RD_ATOMIC_MAX`]; none:
    /// the peer can do neither. Default: what the device has. What the peer will start at once
    /// bounds it.
    pub responder_resources: Option<u8>,
    /// READs and atomics that we start at once, 0 to [`limits::RD_ATOMIC_MAX`]. Default: what the
    /// device has. What the peer serves bounds it.
    pub initiator_depth: Option<u8>,
    /// Told to the peer only.
    pub flow_control: FlowControl,
    /// Retries after a timeout, 0 to 7: our own as the side that connects, which tells the peer to
    /// do the same.
    pub retry_count: u8,
    /// What our peer's sends do when we have no receive posted: we tell it this.
    pub rnr_retry_count: RnrRetry,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            responder_resources: None,
            initiator_depth: None,
            flow_control: FlowControl::None,
            retry_count: limits::RETRY_COUNT_MAX,
            rnr_retry_count: RnrRetry::Forever,
        }
    }
}

impl ConnParam {
    /// Sets [`ConnParam::responder_resources`].
    pub fn responder_resources(mut self, n: u8) -> Self {
        self.responder_resources = Some(n);
        self
    }
    /// Sets [`ConnParam::initiator_depth`].
    pub fn initiator_depth(mut self, n: u8) -> Self {
        self.initiator_depth = Some(n);
        self
    }
    /// Sets [`ConnParam::flow_control`].
    pub fn flow_control(mut self, flow_control: FlowControl) -> Self {
        self.flow_control = flow_control;
        self
    }
    /// Sets [`ConnParam::retry_count`].
    pub fn retry_count(mut self, n: u8) -> Self {
        self.retry_count = n;
        self
    }
    /// Sets [`ConnParam::rnr_retry_count`].
    pub fn rnr_retry_count(mut self, n: RnrRetry) -> Self {
        self.rnr_retry_count = n;
        self
    }

    /// What a peer has told.
    pub(super) fn told(told: &nic::rdma_cm::ConnParam) -> Self {
        Self {
            responder_resources: Some(told.responder_resources),
            initiator_depth: Some(told.initiator_depth),
            flow_control: FlowControl::told(told.flow_control),
            retry_count: told.retry_count,
            rnr_retry_count: match told.rnr_retry_count {
                times @ 0..=limits::RNR_RETRY_COUNT_MAX => RnrRetry::Times(times),
                _ => RnrRetry::Forever,
            },
        }
    }

    pub(super) fn check(&self, call: &'static str) -> Result<()> {
        let most = limits::RD_ATOMIC_MAX;
        at_most(call, "responder_resources", self.responder_resources.unwrap_or(most), most)?;
        at_most(call, "initiator_depth", self.initiator_depth.unwrap_or(most), most)?;
        at_most(call, "retry_count", self.retry_count, limits::RETRY_COUNT_MAX)?;
        match self.rnr_retry_count {
            RnrRetry::Times(times) => at_most(call, "rnr_retry_count", times, limits::RNR_RETRY_COUNT_MAX),
            RnrRetry::Forever => Ok(()),
        }
    }

    /// As the node takes it; the queue pair speaks for itself.
    pub(super) fn to_node(&self) -> nic::rdma_cm::ConnParam {
        nic::rdma_cm::ConnParam {
            responder_resources: self.responder_resources.unwrap_or(limits::RD_ATOMIC_MAX),
            initiator_depth: self.initiator_depth.unwrap_or(limits::RD_ATOMIC_MAX),
            flow_control: self.flow_control == FlowControl::EndToEnd,
            retry_count: self.retry_count,
            rnr_retry_count: match self.rnr_retry_count {
                RnrRetry::Times(times) => times,
                RnrRetry::Forever => limits::RNR_RETRY_COUNT_MAX + 1,
            },
            ..nic::rdma_cm::ConnParam::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorKind, Value};

    #[test]
    fn a_parameter_out_of_range_is_named_with_its_value_and_limit() {
        let refused = |param: ConnParam| {
            let error = param.check("rdma_connect").expect_err("out of range");
            assert_eq!(error.kind(), ErrorKind::OutOfRange);
            error.value().cloned()
        };
        let number = |name, is, most| Some(Value::Number { name, is, allowed: 0..=most });
        let base = ConnParam::default();
        assert_eq!(refused(ConnParam { retry_count: 8, ..base.clone() }), number("retry_count", 8, 7));
        let rnr_retry_count = RnrRetry::Times(7);
        assert_eq!(refused(ConnParam { rnr_retry_count, ..base.clone() }), number("rnr_retry_count", 7, 6));
        let responder_resources = Some(129);
        assert_eq!(
            refused(ConnParam { responder_resources, ..base.clone() }),
            number("responder_resources", 129, 128)
        );
        assert_eq!(
            refused(ConnParam { initiator_depth: Some(255), ..base }),
            number("initiator_depth", 255, 128)
        );
        assert!(ConnParam::default().check("rdma_connect").is_ok());
    }

    #[test]
    fn what_is_told_is_what_was_said() {
        for rnr_retry_count in [RnrRetry::Times(0), RnrRetry::Times(6), RnrRetry::Forever] {
            let said = ConnParam {
                responder_resources: Some(3),
                initiator_depth: Some(4),
                flow_control: FlowControl::EndToEnd,
                retry_count: 5,
                rnr_retry_count,
            };
            assert_eq!(ConnParam::told(&said.to_node()), said);
        }
    }
}
