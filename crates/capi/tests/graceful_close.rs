//! What was delivered before the end of a connection completes as delivered, between processes that
//! share an address.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/alone.rs"]
mod alone;
#[path = "support/cm.rs"]
mod cm;
mod support;

use std::collections::VecDeque;
use std::ptr::null_mut;

use capi::cma::{channel, connect};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use alone::alone;
use cm::*;
use support::{errno, in_a_child};

/// Connections; before this held, one in twenty lost its last acknowledgement.
const ROUNDS: usize = 60;

fn poll(id: *mut rdma_cm_id, cq: *mut ibv_cq) -> Option<ibv_wc_status> {
    unsafe {
        let mut wc: ibv_wc = std::mem::zeroed();
        let n = (*(*id).verbs).ops.poll_cq.expect("built")(cq, 1, &raw mut wc);
        assert!(n >= 0, "errno {}", errno());
        (n == 1).then_some(wc.status)
    }
}

/// A message without bytes.
fn send(id: *mut rdma_cm_id) {
    unsafe {
        let mut wr: ibv_send_wr = std::mem::zeroed();
        (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
        let mut bad = null_mut();
        assert_eq!((*(*id).verbs).ops.post_send.expect("built")((*id).qp, &raw mut wr, &raw mut bad), 0);
    }
}

fn post_receive(id: *mut rdma_cm_id) {
    unsafe {
        let mut wr: ibv_recv_wr = std::mem::zeroed();
        let mut bad = null_mut();
        assert_eq!((*(*id).verbs).ops.post_recv.expect("built")((*id).qp, &raw mut wr, &raw mut bad), 0);
    }
}

/// Says something, hears the answer, and is gone at once.
fn client(port: u16) {
    let ours = channel();
    let active = routed(ours, RDMA_PS_TCP, port);
    with_qp(active);
    post_receive(active);
    works(unsafe { connect::rdma_connect(active, null_mut()) });
    expect(ours, RDMA_CM_EVENT_ESTABLISHED);
    send(active);
    unsafe {
        while poll(active, (*active).send_cq).is_none() {}
        while poll(active, (*active).recv_cq).is_none() {}
    }
    works(unsafe { connect::rdma_disconnect(active) });
}

/// The server's end: its channel, and the clients that have asked so far. The next client may ask
/// before the end of the one before is heard.
struct Server {
    channel: *mut rdma_event_channel,
    asked: VecDeque<*mut rdma_cm_id>,
}

impl Server {
    /// Takes one event: whether it is this one. Clients that ask are kept for later.
    #[track_caller]
    fn hears(&mut self, event: u32) -> bool {
        let seen = next(self.channel);
        if seen.event == RDMA_CM_EVENT_CONNECT_REQUEST {
            self.asked.push_back(seen.id);
        } else {
            assert_eq!(seen.event, event, "status {}", seen.status);
        }
        seen.event == event
    }

    /// Answers, and flushes what it has not heard of as soon as it hears of the end. How the answer
    /// completed.
    fn serve(&mut self) -> ibv_wc_status {
        while self.asked.is_empty() {
            self.hears(RDMA_CM_EVENT_CONNECT_REQUEST);
        }
        let passive = self.asked.pop_front().unwrap();
        with_qp(passive);
        post_receive(passive);
        works(unsafe { connect::rdma_accept(passive, null_mut()) });
        while !self.hears(RDMA_CM_EVENT_ESTABLISHED) {}
        while poll(passive, unsafe { (*passive).recv_cq }).is_none() {}
        send(passive);
        let mut ended = false;
        let status = loop {
            if !ended && comes(self.channel, 0) && self.hears(RDMA_CM_EVENT_DISCONNECTED) {
                works(unsafe { connect::rdma_disconnect(passive) });
                ended = true;
            }
            if let Some(status) = poll(passive, unsafe { (*passive).send_cq }) {
                break status;
            }
        };
        while !ended {
            ended = self.hears(RDMA_CM_EVENT_DISCONNECTED);
        }
        // Takes the events about it with it that have not been fetched.
        destroy(passive);
        status
    }
}

#[test]
fn a_message_completes_as_delivered_though_its_receiver_disconnects_and_exits_at_once() {
    // A process that is killed takes with it what others wait for: other tests kill some.
    alone!();
    let theirs = channel();
    let (listener, port) = listener(theirs, RDMA_PS_TCP, 4);
    let clients = std::thread::spawn(move || (0..ROUNDS).filter(|_| in_a_child(|| client(port))).count());
    let mut server = Server { channel: theirs, asked: VecDeque::new() };
    let delivered = (0..ROUNDS).filter(|_| server.serve() == IBV_WC_SUCCESS).count();
    assert_eq!((delivered, clients.join().unwrap()), (ROUNDS, ROUNDS));
    destroy(listener);
    unsafe { channel::rdma_destroy_event_channel(theirs) };
}
