//! Which rules do nothing on a kind of device, said before a program starts.

use super::words::Operation;
use super::{Action, Rule, Spec};

impl Spec {
    /// What of the rules has no meaning on the devices that there are: those that travel on
    /// streams (iWARP), those that send packets (RoCE), or both. A line for each.
    pub fn notes(&self, has_streams: bool, has_packets: bool) -> Vec<String> {
        let of_rule = |rule: &Rule| {
            let why = match (has_streams, has_packets) {
                (true, _) => on_streams(rule)?,
                (false, true) if rule.action == Action::Reset => "there is no device of iWARP".to_owned(),
                _ => return None,
            };
            let name = rule.action.name();
            let place = if has_streams && has_packets { " on devices of iWARP" } else { "" };
            Some(format!("{name} does nothing{place}: {why}"))
        };
        self.rules.iter().filter_map(of_rule).collect()
    }
}

/// Why a rule does nothing to a stream.
fn on_streams(rule: &Rule) -> Option<String> {
    let when = &rule.when;
    let by_action = match rule.action {
        Action::Duplicate => Some("TCP delivers each byte once"),
        Action::Rnr => Some("iWARP has no RNR NAK"),
        Action::Error(_) => Some("no message of iWARP fails a single work request"),
        Action::Delay(delay) if delay.reorder >= 1.0 => Some("TCP keeps the order"),
        _ => None,
    };
    let by_condition = || match when.operation {
        _ if when.qp.is_some() => Some("no message of iWARP names a queue pair"),
        Some(Operation::Ack | Operation::Atomic | Operation::Flush | Operation::AtomicWrite) => {
            Some("iWARP has no such operation")
        }
        _ if when.service.is_some_and(|service| service != 0) => Some("queue pairs of iWARP are RC"),
        _ => None,
    };
    by_action.or_else(by_condition).map(str::to_owned)
}
