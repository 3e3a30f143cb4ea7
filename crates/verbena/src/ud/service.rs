//! A peer that asks for a socket's port is told its queue pair (SIDR_REQ, SIDR_REP): at once, by
//! the thread that brings the question, whatever the program does meanwhile.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use nic::rdma_cm::ConnParam;
use nic::{DeferredWork, QpType, Signal, Work};

use crate::cm::below::{Events, Id};
use crate::cm::listener::taken;
use crate::error::{Error, Result};
use crate::provider::{Provider, Stack};

/// Answers for a queue pair, until it is dropped.
pub(super) struct Service {
    answers: Arc<Answers>,
    id: Id,
}

struct Answers {
    stack: Stack,
    events: Events,
    qp_num: u32,
    data: Vec<u8>,
}

/// Has the questions answered when no lock is held.
struct EventSignal {
    later: Arc<DeferredWork>,
    answers: Weak<Answers>,
}

impl Signal for EventSignal {
    fn signal(&self) {
        if let Some(answers) = self.answers.upgrade() {
            self.later.add(answers);
        }
    }
    fn take_back(&self) {}
}

impl Work for Answers {
    fn run(self: Arc<Self>) {
        let answer = ConnParam { qp_num: self.qp_num, ..ConnParam::default() };
        while let Some(event) = self.events.next() {
            if let Some(question) = event.request {
                // An error says that the peer that asked has given up.
                _ = question.accept(&answer, &self.data);
                // The answer is remembered for a question that comes again.
                question.destroy();
            }
        }
    }
}

impl Service {
    /// Answers at an address with this queue pair.
    pub(super) fn begin(provider: &Provider, on: SocketAddr, qp_num: u32, data: &[u8]) -> Result<Self> {
        let stack = provider.stack();
        let answers = Arc::new_cyclic(|answers| {
            let signal = EventSignal { later: stack.later().clone(), answers: answers.clone() };
            let events = Events::new(stack, Box::new(signal));
            Answers { stack: stack.clone(), events, qp_num, data: data.to_vec() }
        });
        let id = answers.events.create_id(QpType::Ud).map_err(|e| Error::of_nic("rdma_create_id", e))?;
        let service = Self { answers, id };
        service.called("rdma_bind_addr", service.id.bind(on)).map_err(|e| taken(provider, on, e))?;
        service.called("rdma_listen", service.id.listen(0)).map_err(|e| taken(provider, on, e))?;
        Ok(service)
    }

    /// The address, with the port that was chosen.
    pub(super) fn local_addr(&self) -> SocketAddr {
        self.id.local_addr().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    fn called(&self, call: &'static str, result: Result<(), nic::Error>) -> Result<()> {
        self.answers.stack.later().run();
        result.map_err(|e| Error::of_nic(call, e))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let stack = &self.answers.stack;
        // In a forked child the parent's services are the parent's.
        if stack.is_ours() {
            self.id.destroy();
            stack.later().run();
        }
    }
}
