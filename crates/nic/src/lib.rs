//! A RoCE v2 adapter in software: the objects that a verbs program makes (device, domain, region,
//! queues, queue pair), and the checks between them. The checks are of keys, states and limits. It
//! opens no socket, has no thread and never waits. The environment around it gives what [`link`]
//! asks for, and an owner that is to be told of something gave a [`Signal`].
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what lives there |
//! |---|---|
//! | [`link`] | what the adapter asks of the environment: [`Link`] (packets), [`Frames`] (Ethernet), [`Platform`] (time, randomness, storage) |
//! | [`device`] | [`Adapter`], what all objects of a device share: port, GID table, limits, asynchronous events; [`Device`], which adds the queue pairs and takes packets and the time in |
//! | [`memory`] | protection domains, regions, windows, device memory, and the only code that touches registered bytes |
//! | [`cq`] | completion queues, their channels, moderation, completion counters |
//! | [`srq`] | shared receive queues, tag matching |
//! | [`qp`] | queue pairs: calls (`post`, `modify`, `receive`), the engine of each transport, what they travel on (`carrier`), what follows each step (`finish_step`, `schedule`), XRC domains |
//! | [`faults`] | faults that a link brings about on purpose, as the adapter and the node meet them |
//! | [`fate`] | what becomes of a packet that arrives, and its counter |
//! | [`rdma_cm`] | events, connection parameters and limits of rdma_cm, as every provider has them |
//! | [`peer_memory`] | what the adapter asks of an environment whose processes reach each other's memory |
//! | [`steering`] | which queue pair gets what names none: flow rules, multicast groups, the hash over work queues |
//! | [`deferred_work`] | what is done when no lock is held |
//! | [`program`] | the program's code where the stack calls it, and what becomes of its panics |
//! | [`limits`] | every limit in one table |
//! | [`Error`], [`PostError`], [`Errno`] | why a call, or a work request, is refused, and the number that C sees |
//!
//! Lower modules know none above them: memory and completion queues know no queue pair, and
//! [`Adapter`] knows neither. Only [`Device`] and [`Qp`] know each other. A list of something
//! higher is generic (`RunQueue<T>`, `Groups<T>`, `Flows<T>`).
//!
//! # A request's way
//!
//! [`Qp::sender`] locks the queue pair; [`Sender::post`] checks state, size and operation, and
//! gives the request to the engine, which may complete it at once (`EngineContext` collects what
//! must be told). [`Sender::finish`] settles: `Inner::transmit` asks the engine to fill a batch,
//! copying the payload out of registered memory, and [`Link::send`] takes it to the peer, until the
//! engine has no more or may send no more; then the timer is set, the lock is released, and
//! completion events and asynchronous events are told.
//!
//! # A packet's way
//!
//! [`Device::input`] finds the queue pair by its number; `qp::receive` locks it, drops what is not
//! from its peer, and hands the rest to the engine, which executes it: keys are checked and bytes
//! copied by [`memory`], receives taken from the queue pair or its [`Srq`], completions put into a
//! [`Cq`]. An ACK that may wait is listed (`qp::delayed_ack`), then the queue pair settles as
//! above. Datagrams to groups come by [`Device::input_group`], frames by [`Device::input_frame`],
//! and the time by [`Device::expire`].
//!
//! # Which object keeps which, and until when
//!
//! An object keeps what it was made from (a queue pair its device, domain and queues; a region's
//! [`Buffer`] its domain), so nothing goes that is used. Two hold each other, and each has a call
//! that ends it: a device and its queue pairs, with their places in groups and flow rules
//! ([`Qp::destroy`]), and an object and the events that tell of it ([`Channel::forget`],
//! [`AsyncEventQueue::forget`](device::async_events::AsyncEventQueue::forget), or fetching them).
//! All other lists hold weak handles.
//!
//! # Locks
//!
//! Each has its place in the order of all locks, [`locks::Rank`], which debug builds assert. The
//! adapter's part of it:
//!
//! 1. XRC domains by name; the registries that call the environment, groups and flow rules (never
//!    with a queue pair's lock held);
//! 2. a queue pair, or a work queue: one at a time, never two;
//! 3. the table of queue pairs, shared receive queues by number, a tag list, then the receives of
//!    its shared receive queue;
//! 4. a completion queue;
//! 5. the leaves, under which no other of the adapter's is taken: binding of memory windows, free
//!    slots, congestion windows, delayed ACKs, turns, timers, moderated completion queues,
//!    listeners, channels and event queues.
//!
//! [`Signal`]s are called under the lock of their queue. Completion events and asynchronous events
//! are told when queue pairs, shared receive queues and completion queues are unlocked
//! (`cq::Notification`). [`Link::send`] is called under a queue pair's lock.
#![deny(unsafe_code)]

pub mod cq;
mod deferred_counter;
pub mod deferred_work;
pub mod device;
mod errno;
mod error;
pub mod fate;
pub mod faults;
pub mod limits;
pub mod link;
#[expect(unsafe_code, reason = "memory of the program is read and written here, and nowhere else")]
pub mod memory;
pub mod peer_memory;
pub mod program;
pub mod qp;
mod quota;
pub mod rdma_cm;
pub mod srq;
pub mod steering;
pub mod stream;
mod sync;

pub use cq::counter::CompletionCounter;
pub use cq::moderation::{Moderated, Moderation};
pub use cq::{Arm, Channel, Clock, Cq, CqExtras, Stamp};
pub use deferred_counter::DeferredCounter;
pub use deferred_work::{DeferredWork, Work};
pub use device::async_events::{AsyncEvent, Element, EventKind, Subject};
pub use device::gid::{GidEntry, GidTable};
pub use device::{Adapter, Device, DeviceConfig, DeviceId, Numbers, Transport};
pub use errno::Errno;
pub use error::{Error, PostError, Value, in_range};
pub use fate::{Arrival, Fate, FrameArrival};
pub use faults::Faults;
pub use link::{Frames, Link, Path, PathCache, Persist, Platform, Signal, Storage, Tap};
pub use memory::buffer::Buffer;
pub use memory::pd::Pd;
pub use memory::{Access, Advice, Mr, Mw, WindowType};
pub use peer_memory::LocalLink;
pub use qp::ah::{Ah, Datagram};
pub use qp::attr::{AddressVector, QpAttr, QpState, QpType, mask};
pub use qp::now::Time;
pub use qp::post::{PostFlags, Request, Sender};
pub use qp::xrc::domain::{Inode, Xrcd};
pub use qp::{Qp, QpCap, QpInit};
pub use srq::tag_matching::{TagOp, TagWr};
pub use srq::{Srq, SrqAttr};
pub use steering::flow::{Flow, FlowId, FlowKind};
pub use steering::rss::{Spread, Wq, WqState};
pub use stream::{Gather, NewStream, Scatter, Stream};
