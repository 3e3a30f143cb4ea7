//! Whoever asks for a socket's port is told its queue pair (SIDR_REQ, SIDR_REP): at once, by the thread that brings the question, whatever the
//! program does meanwhile.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use nic::{Later, Signal, Work};
use node::{ConnParam, EventChannel, EventKind};
use wire::mad::PortSpace;

use crate::cm::listen::taken;
use crate::error::{Error, Result};
use crate::provider::{Ours, Provider, Stack, node};

/// Answers for a queue pair, until it is dropped.
pub(super) struct Service {
    answers: Arc<Answers>,
    id: Arc<node::Id>,
}

struct Answers {
    stack: Stack,
    ours: Ours,
    channel: Arc<EventChannel>,
    qp_num: u32,
    data: Vec<u8>,
}

/// Has the questions answered when no lock is held.
struct Bell {
    later: Arc<Later>,
    answers: Weak<Answers>,
}

impl Signal for Bell {
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
        node!(&self.ours, node => {
            while let Some(event) = node.next_event(&self.channel) {
                if event.kind == EventKind::ConnectRequest {
                    // An error says that whoever asked has given up.
                    _ = node.accept(&event.id, Some(&answer), &self.data);
                    // The answer is remembered for a question that comes again.
                    node.destroy(&event.id);
                }
            }
        });
    }
}

impl Service {
    /// Answers at an address with this queue pair.
    pub fn begin(provider: &Provider, on: SocketAddr, qp_num: u32, data: &[u8]) -> Result<Service> {
        let (stack, ours) = (provider.stack(), provider.stack().ours()?);
        let answers = Arc::new_cyclic(|answers| {
            let bell = Bell { later: stack.later().clone(), answers: answers.clone() };
            let channel = EventChannel::new(Box::new(bell));
            Answers { stack: stack.clone(), ours: ours.clone(), channel, qp_num, data: data.to_vec() }
        });
        let id = node!(ours, node => node.create_id(&answers.channel, PortSpace::Udp));
        let service = Service { answers, id };
        node!(ours, node => {
            service.called("rdma_bind_addr", node.bind(&service.id, on)).map_err(|e| taken(provider, on, e))?;
            service.called("rdma_listen", node.listen(&service.id, 0)).map_err(|e| taken(provider, on, e))?;
            node.serve_out_of_turn(&service.id);
        });
        Ok(service)
    }

    /// The address, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.lock().source.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
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
            node!(&self.answers.ours, node => node.destroy(&self.id));
            stack.later().run();
        }
    }
}
