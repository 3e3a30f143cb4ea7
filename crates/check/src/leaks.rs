//! Objects that a program did not destroy, as a tree.

use std::collections::BTreeSet;

use crate::checker::Checker;
use crate::finding::{Finding, Rule, Site};
use crate::objects::{Handle, Identifier};

impl<S: Site> Checker<S> {
    /// What is there when the program ends.
    pub fn leaks(&mut self) -> Vec<Finding<S>> {
        let mut lines = Vec::new();
        for (&handle, domain) in &self.domains {
            lines.push(format!("  {}, made at {}", domain.kind, domain.made.innermost()));
            self.in_domain(handle, "    ", &mut lines);
        }
        // The connection manager has domains of its own.
        let others: BTreeSet<_> = self.used_domains().filter(|d| !self.domains.contains_key(d)).collect();
        others.into_iter().for_each(|handle| self.in_domain(handle, "  ", &mut lines));
        for queue in self.queues.values() {
            let (depth, at) = (queue.depth, queue.made.innermost());
            lines.push(format!("  completion queue of {depth} entries, made at {at}"));
        }
        self.of_connection_manager(&mut lines);
        if lines.is_empty() {
            return Vec::new();
        }
        let own = self.regions.values().filter(|region| region.addr.is_some());
        let bytes: u64 = own.map(|region| region.len).sum();
        let objects =
            if lines.len() == 1 { "1 object was" } else { &format!("{} objects were", lines.len()) };
        let tree = lines.join("\n");
        let what = format!("{objects} not destroyed, {bytes} bytes are registered:\n{tree}");
        self.report(Rule::Leak, what, Vec::new())
    }

    fn used_domains(&self) -> impl Iterator<Item = Handle> {
        let regions = self.regions.values().map(|region| region.domain);
        let pairs = self.pairs.values().map(|pair| pair.domain);
        regions.chain(pairs).chain(self.shared.values().map(|queue| queue.domain))
    }

    /// Event channels with their identifiers, then identifiers with channels of their own.
    fn of_connection_manager(&self, lines: &mut Vec<String>) {
        let line = |indent, identifier: &Identifier<S>| {
            format!("{indent}identifier of rdma_cm, made at {}", identifier.made.innermost())
        };
        let on = |channel: Option<Handle>| self.identifiers.values().filter(move |id| id.channel == channel);
        for (&handle, made) in &self.channels {
            lines.push(format!("  event channel, made at {}", made.innermost()));
            lines.extend(on(Some(handle)).map(|id| line("    ", id)));
        }
        let is_elsewhere =
            |id: &&Identifier<S>| id.channel.is_none_or(|channel| !self.channels.contains_key(&channel));
        lines.extend(self.identifiers.values().filter(is_elsewhere).map(|id| line("  ", id)));
    }

    pub(crate) fn in_domain(&self, domain: Handle, indent: &str, lines: &mut Vec<String>) {
        for region in self.regions.values().filter(|region| region.domain == domain) {
            let at = region.made.innermost();
            lines.push(format!("{indent}memory region of {} bytes, made at {at}", region.len));
        }
        for pair in self.pairs.values().filter(|pair| pair.domain == domain) {
            lines.push(format!("{indent}queue pair {}, made at {}", pair.number, pair.made.innermost()));
        }
        for queue in self.shared.values().filter(|queue| queue.domain == domain) {
            lines.push(format!("{indent}{}, made at {}", queue.kind, queue.made.innermost()));
        }
    }
}
