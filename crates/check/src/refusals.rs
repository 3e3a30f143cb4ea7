//! Calls that were refused, and why.

use crate::checker::Checker;
use crate::finding::{Finding, Rule, Site};
use crate::objects::Handle;

/// Objects that a finding lists at most.
const LISTED: usize = 8;

impl<S: Site> Checker<S> {
    /// A change of a queue pair was refused as invalid, and why.
    pub fn modify_refused(&mut self, pair: Handle, why: &str, site: &S) -> Vec<Finding<S>> {
        let Some(pair) = self.pairs.get(&pair) else { return Vec::new() };
        let what = format!("ibv_modify_qp refused a change of queue pair {}: {why}.", pair.number);
        let calls = vec![("modified", site.clone()), ("the queue pair was made", pair.made.clone())];
        self.report(Rule::RefusedModify, what, calls)
    }

    /// A function that makes, resolves or connects something was refused as invalid, and why.
    pub fn call_refused(&mut self, function: &str, why: &str, site: &S) -> Vec<Finding<S>> {
        let what = format!("{function} was refused: {why}.");
        self.report(Rule::RefusedCall, what, vec![("called", site.clone())])
    }

    /// The function that destroys an object was refused, as others use the object.
    pub fn in_use(&mut self, function: &str, object: Handle, site: &S) -> Vec<Finding<S>> {
        let mut users = Vec::new();
        self.in_domain(object, "  ", &mut users);
        let uses = |queues: &[Option<Handle>]| queues.contains(&Some(object));
        for pair in self.pairs.values() {
            if uses(&[Some(pair.send_queue), Some(pair.receive_queue), pair.shared]) {
                users.push(format!("  queue pair {}, made at {}", pair.number, pair.made.innermost()));
            }
        }
        for queue in self.shared.values().filter(|queue| uses(&[queue.receive_queue])) {
            users.push(format!("  {}, made at {}", queue.kind, queue.made.innermost()));
        }
        for queue in self.queues.values().filter(|queue| uses(&[queue.channel])) {
            users.push(format!(
                "  completion queue of {} entries, made at {}",
                queue.depth,
                queue.made.innermost()
            ));
        }
        if users.is_empty() {
            users.push("  address handles, memory windows, or other objects that are not listed".to_owned());
        }
        let more = users.len().saturating_sub(LISTED);
        users.truncate(LISTED);
        if more > 0 {
            users.push(format!("  and {more} more"));
        }
        let what =
            format!("{function} was refused with EBUSY: the object is still used by\n{}", users.join("\n"));
        self.report(Rule::ObjectInUse, what, vec![("called", site.clone())])
    }
}
