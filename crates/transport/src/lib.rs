//! Protocol engines, sans-IO: they take work requests, packets and the time, and give packets,
//! completions and the next deadline. No socket, no clock, no thread.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what it is |
//! |---|---|
//! | [`op`] | the operation: work requests, [`Memory`], completions, and [`Context`], what an engine may use of its queue pair |
//! | [`execute`] | execution of inbound messages: checks, receives, copies, completions; the same for all below, and for carriers without packets |
//! | [`rc`] | the reliable connection, a requester and a responder; XRC is RC with one half at work |
//! | [`uc`] | the unreliable connection |
//! | [`ud`] | the unreliable datagram |
//! | [`iwarp`] | RDMAP and DDP on a stream of bytes |
//! | `segmentation` | how RC and UC cut a message into packets |
//! | [`batch`] | packets on their way out, built in place for segmented sends |
//! | [`congestion_window`] | packets under way to one destination, shared by the RC queue pairs that send there |
//! | [`short`] | short messages between processes of one host, without packets |
//! | [`likely`] | what the compiler is told of branches |
//! | [`pacing`] | the states of UC and UD, and the pace at which they send |
//!
//! # How a message flows
//!
//! An RC SEND, from the call that posts it to the completion that says that it arrived. The caller
//! drives every step; nothing here calls the network.
//!
//! ```text
//! sender                                          receiver
//! Rc::post       queues the work request
//! Rc::fill       requester: window, depth, fence
//!                request: opcode, headers
//!                Memory::gather into the TxBatch
//!                                 ---- packets --->
//!                                                 Rc::receive   responder: PSN, opcode, length
//!                                                               Inbound::send (execute):
//!                                                                 Context::place, the receive
//!                                                                 Memory::scatter
//!                                                                 Context::complete, Side::Receive
//!                                                               or a Refusal, which becomes a NAK
//!                                                 Rc::fill      answers: an ACK, READ responses
//!                                 <--- packets ----
//! Rc::receive    responses: retires requests
//!                Context::complete, Side::Send
//! ```
//!
//! UC and UD are the same without the way back: a request completes when its last packet has left,
//! and a refused message is dropped. [`Rc::deadline`] says when [`Rc::expire`] is due; what was
//! lost is then sent again.
#![forbid(unsafe_code)]

pub mod batch;
pub mod congestion_window;
pub mod execute;
pub mod iwarp;
pub mod likely;
pub mod op;
pub mod pacing;
pub mod rc;
mod segmentation;
pub mod short;
pub mod uc;
pub mod ud;

pub use batch::TxBatch;
pub use congestion_window::CongestionWindow;
pub use iwarp::Iwarp;
pub use op::{Context, Fault, Memory, Remote, Sge};
pub use rc::Rc;
pub use short::Short;
pub use uc::Uc;
pub use ud::Ud;
