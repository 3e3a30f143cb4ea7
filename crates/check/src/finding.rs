//! A finding: what is wrong, the calls that brought it about, the rule, and what to do.

use std::fmt::{self, Debug, Display, Formatter};
use std::hash::Hash;

use serde_json::{Value, json};

/// Where in the program a call is: it prints a line for each frame, the innermost first.
pub trait Site: Clone + Eq + Hash + Debug + Display {
    /// The innermost frame, in one line.
    fn innermost(&self) -> String;
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Bytes of a SEND or WRITE changed, or were unmapped, before its completion was taken.
    SendBufferChanged,
    /// Two outstanding requests write to the same bytes.
    OverlappingReceives,
    /// An outstanding request writes to bytes that another one sends.
    ReceiveOverSend,
    /// The local key of an element is of no memory region.
    UnknownKey,
    /// An element reaches beyond its memory region.
    OutsideRegion,
    /// The memory region is of another protection domain than the queue pair.
    WrongDomain,
    /// A request writes to a region without IBV_ACCESS_LOCAL_WRITE.
    NoLocalWrite,
    /// A receive of datagrams is shorter than the header that comes before each.
    NoRoomForHeader,
    /// A memory region was deregistered under an outstanding request.
    RegionInUse,
    /// More requests are outstanding than their completion queue holds.
    QueueMayOverrun,
    /// More sends are outstanding than the queue pair was asked to hold, and none gives a
    /// completion.
    NeverSignaled,
    /// More requests are outstanding than the queue pair was asked to hold.
    MoreRequestsThanAsked,
    /// More inline bytes than the queue pair was asked for.
    MoreInlineThanAsked,
    /// More READs and atomics are outstanding than the peer serves.
    MoreReadsThanServed,
    /// A request was refused as invalid.
    RefusedRequest,
    /// A change of a queue pair's state or attributes was refused as invalid.
    RefusedModify,
    /// A call that makes, resolves or connects something was refused as invalid.
    RefusedCall,
    /// An object was not destroyed, as others use it.
    ObjectInUse,
    /// A request failed.
    FailedRequest,
    /// A completion queue was armed and waited for, and not polled in between.
    LostEvent,
    /// A thread waits for an event that no completion queue was asked for.
    EventNotAskedFor,
    /// An object is destroyed by the thread that owes the acknowledgement of an event about it.
    UnacknowledgedEvent,
    /// More events of an object are acknowledged than were taken.
    AcknowledgedTooOften,
    /// An object was used after its destruction.
    UseAfterDestroy,
    /// A process forked with memory regions, without ibv_fork_init(3).
    ForkUnprepared,
    /// Objects were not destroyed.
    Leak,
}

/// What is said of a rule.
struct Entry {
    rule: Rule,
    /// The name, as in reports.
    name: &'static str,
    /// What the manual page says, in short.
    law: &'static str,
    /// What to do.
    remedy: &'static str,
}

const BUFFERS: &str =
    "ibv_post_send(3): the buffers of a request may be used again once its completion is taken";

/// All rules, in their order.
const ENTRIES: [Entry; 26] = [
    Entry {
        rule: Rule::SendBufferChanged,
        name: "send-buffer-changed",
        law: BUFFERS,
        remedy: "Take the completion before the buffer is written, or send a copy",
    },
    Entry {
        rule: Rule::OverlappingReceives,
        name: "overlapping-receives",
        law: "ibv_post_recv(3): the buffers of a request may be used again once its completion is taken",
        remedy: "Give each receive and each READ that is outstanding bytes of its own",
    },
    Entry {
        rule: Rule::ReceiveOverSend,
        name: "receive-over-send",
        law: BUFFERS,
        remedy: "Send from other bytes than a message or a READ may arrive in",
    },
    Entry {
        rule: Rule::UnknownKey,
        name: "unknown-key",
        law: "ibv_post_send(3): each element bears the lkey of a memory region",
        remedy: "Take lkey from the ibv_mr that covers the bytes, and keep that registered",
    },
    Entry {
        rule: Rule::OutsideRegion,
        name: "outside-region",
        law: "ibv_reg_mr(3): a region covers the bytes from addr to addr + length",
        remedy: "Register all bytes that requests use, or correct addr, length or lkey",
    },
    Entry {
        rule: Rule::WrongDomain,
        name: "wrong-domain",
        law: "ibv_alloc_pd(3): a queue pair reaches regions of its own protection domain",
        remedy: "Register the memory in the queue pair's protection domain",
    },
    Entry {
        rule: Rule::NoLocalWrite,
        name: "no-local-write",
        law: "ibv_reg_mr(3): receives, READs and atomics need IBV_ACCESS_LOCAL_WRITE",
        remedy: "Register the memory with IBV_ACCESS_LOCAL_WRITE",
    },
    Entry {
        rule: Rule::NoRoomForHeader,
        name: "no-room-for-header",
        law: "ibv_post_recv(3): the first 40 bytes of a UD receive are for the global route header (GRH)",
        remedy: "Make receives of UD queue pairs 40 bytes longer than the longest datagram, which begins behind them",
    },
    Entry {
        rule: Rule::RegionInUse,
        name: "region-in-use",
        law: "ibv_dereg_mr(3): a region is not to go while requests use it",
        remedy: "Take all completions, or destroy the queue pair, before the region is deregistered",
    },
    Entry {
        rule: Rule::QueueMayOverrun,
        name: "queue-may-overrun",
        law: "ibv_create_cq(3): a completion that finds the queue full is lost, and the queue fails",
        remedy: "Make the queue as deep as the signaled sends and receives that may be outstanding",
    },
    Entry {
        rule: Rule::NeverSignaled,
        name: "never-signaled",
        law: "ibv_post_send(3): a send leaves the queue when its completion, or a later one, is taken",
        remedy: "Set IBV_SEND_SIGNALED on one request of each half of the queue, and take it; other devices answer ENOMEM",
    },
    Entry {
        rule: Rule::MoreRequestsThanAsked,
        name: "more-requests-than-asked",
        law: "ibv_create_qp(3): max_send_wr and max_recv_wr are what may be outstanding, until completions are taken",
        remedy: "Take completions before more is posted, or ask for deeper queues; other devices answer ENOMEM",
    },
    Entry {
        rule: Rule::MoreInlineThanAsked,
        name: "more-inline-than-asked",
        law: "ibv_create_qp(3): max_inline_data is what a queue pair may send inline",
        remedy: "Ask for the inline bytes in ibv_qp_init_attr.cap; other devices grant no more",
    },
    Entry {
        rule: Rule::MoreReadsThanServed,
        name: "more-reads-than-served",
        law: "ibv_modify_qp(3), rdma_accept(3): max_rd_atomic and initiator_depth are at most what the peer serves",
        remedy: "Exchange max_dest_rd_atomic with the peer, and set max_rd_atomic to no more; other devices answer IBV_WC_REM_INV_REQ_ERR",
    },
    Entry {
        rule: Rule::RefusedRequest,
        name: "refused-request",
        law: "ibv_post_send(3), ibv_post_recv(3): a call that fails has not posted bad_wr and what is behind it",
        remedy: "Correct the request or the state of the queue pair, and look at what the call returns",
    },
    Entry {
        rule: Rule::RefusedModify,
        name: "refused-modify",
        law: "ibv_modify_qp(3): each transition has attributes that it requires, others that it allows, and each has a range",
        remedy: "Correct attr and attr_mask, and look at what the call returns: the queue pair stays in its state",
    },
    Entry {
        rule: Rule::RefusedCall,
        name: "refused-call",
        law: "ibv_create_qp(3), ibv_reg_mr(3), rdma_connect(3) and others: a call that fails has made nothing, and changed nothing",
        remedy: "Correct the argument, or call what comes first, and look at what the call returns",
    },
    Entry {
        rule: Rule::ObjectInUse,
        name: "object-in-use",
        law: "ibv_alloc_pd(3), ibv_create_cq(3), ibv_create_srq(3): an object is not destroyed while others use it",
        remedy: "Destroy what uses the object first; it is still there",
    },
    Entry {
        rule: Rule::FailedRequest,
        name: "failed-request",
        law: "ibv_poll_cq(3): after a status other than IBV_WC_SUCCESS the queue pair is in error",
        remedy: "Mend the cause; all other requests of the queue pair are flushed",
    },
    Entry {
        rule: Rule::LostEvent,
        name: "lost-event",
        law: "ibv_get_cq_event(3): poll the queue after it is armed, before the next event is waited for",
        remedy: "Arm the queue, then poll it until it is empty, then wait",
    },
    Entry {
        rule: Rule::EventNotAskedFor,
        name: "event-not-asked-for",
        law: "ibv_req_notify_cq(3): one call asks for one event",
        remedy: "Arm the queue again when its event was taken, then poll it until it is empty, then wait",
    },
    Entry {
        rule: Rule::UnacknowledgedEvent,
        name: "unacknowledged-event",
        law: "ibv_get_cq_event(3), ibv_get_async_event(3), rdma_get_cm_event(3): destruction waits for acknowledgements",
        remedy: "Acknowledge the event before its object is destroyed",
    },
    Entry {
        rule: Rule::AcknowledgedTooOften,
        name: "acknowledged-too-often",
        law: "ibv_get_cq_event(3), rdma_get_cm_event(3): each event that was taken is acknowledged once",
        remedy: "Acknowledge each event once, of the object that the event names; elsewhere the destruction of the object hangs",
    },
    Entry {
        rule: Rule::UseAfterDestroy,
        name: "use-after-destroy",
        law: "ibv_create_qp(3), rdma_create_id(3) and others: an object is there until the call that destroys it",
        remedy: "Destroy the object behind its last use, and once",
    },
    Entry {
        rule: Rule::ForkUnprepared,
        name: "fork-unprepared",
        law: "ibv_fork_init(3): to be called before fork, by a process that registers memory",
        remedy: "Call ibv_fork_init before the first region is registered; kernels before 5.12 lose the pages otherwise",
    },
    Entry {
        rule: Rule::Leak,
        name: "leak",
        law: "ibv_create_qp(3), ibv_reg_mr(3), rdma_create_id(3) and others: each object is given back by its own call",
        remedy: "Destroy queue pairs, then completion queues and regions, then protection domains",
    },
];

impl Rule {
    fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// The rule of a name.
    pub fn of(name: &str) -> Option<Self> {
        ENTRIES.iter().find(|entry| entry.name == name).map(|entry| entry.rule)
    }

    /// The name, as in reports.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// What the manual page says, in short, and what to do.
    pub fn law_and_remedy(self) -> (&'static str, &'static str) {
        (self.entry().law, self.entry().remedy)
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding<S> {
    /// The rule that is broken.
    pub rule: Rule,
    /// What is wrong, one sentence or more.
    pub what: String,
    /// The calls that brought it about, the last first, each with what it did.
    pub calls: Vec<(&'static str, S)>,
}

impl<S: Site> Finding<S> {
    /// The finding as an object, with the frames of each call as strings.
    pub fn to_json(&self) -> Value {
        let calls = self.calls.iter().map(|(did, site)| {
            let frames: Vec<String> = site.to_string().lines().map(str::to_owned).collect();
            json!({ "did": did, "frames": frames })
        });
        let (law, remedy) = self.rule.law_and_remedy();
        json!({
            "rule": self.rule.name(),
            "what": self.what,
            "calls": calls.collect::<Vec<_>>(),
            "law": law,
            "remedy": remedy,
        })
    }
}

impl<S: Site> Display for Finding<S> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "check: {}", self.rule.name())?;
        self.what.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        for (did, site) in &self.calls {
            writeln!(f, "  {did} at")?;
            site.to_string().lines().try_for_each(|frame| writeln!(f, "      {frame}"))?;
        }
        let (law, remedy) = self.rule.law_and_remedy();
        writeln!(f, "  {law}.\n  {remedy}.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_stands_at_its_place() {
        for (n, entry) in ENTRIES.iter().enumerate() {
            assert_eq!((entry.rule as usize, Rule::of(entry.name)), (n, Some(entry.rule)));
        }
    }
}
