//! Every limit of the adapter, in one table. A full resource is ENOMEM, never a wait and never a
//! panic.
//!
//! | what | limit |
//! |---|---|
//! | queue pairs of a process | 65,536 |
//! | completion queues of a device and process | 65,536 |
//! | completion counters of a device and process | 65,536 |
//! | memory regions and windows of a device and process | 65,535 |
//! | shared receive queues of a device and process | 65,536 |
//! | protection domains of a device and process | 65,536 |
//! | address handles of a protection domain | none but memory; 2^20 are promised |
//! | work requests of a send, receive or shared receive queue | 32,768 |
//! | tags of a tag-matching queue | 4,096 |
//! | completions of a CQ | 4,194,303 |
//! | scatter/gather elements of a request | 32 |
//! | inline bytes of a request | 1,024 |
//! | multicast groups of a device and process | 256 |
//! | queue pairs of a multicast group | 1,024 |
//! | flow rules of a device and process | 1,024 |
//! | work queues of a device and process | 65,536 |
//! | work queues of an indirection table | 4,096 |
//! | READs and atomics under way a queue pair, each side | 128 |
//! | device memory of a device and process | 16 MiB |
//! | size of a memory region | 2^64 - 1 bytes, as the address space allows |
//! | size of a message | 2^31 bytes |

/// Queue pairs of a process, on all devices.
pub const MAX_QP: u32 = 65_536;
/// Completion queues.
pub const MAX_CQ: u32 = 65_536;
/// Completion counters.
pub const MAX_COMPLETION_COUNTERS: u32 = 65_536;
/// Shared receive queues.
pub const MAX_SRQ: u32 = 65_536;
/// Receives of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 32_768;
/// Memory regions and windows together; slot 0 of the table stays empty.
pub const MAX_MR: u32 = 65_535;
/// Tags of a tag-matching queue.
pub const MAX_TAGS: u32 = 4_096;
/// Pending operations on a tag list; each completes when it is posted.
pub const MAX_TAG_OPS: u32 = 32_768;
/// Bytes of a rendezvous request header; a packet of any path MTU holds it.
pub const MAX_RENDEZVOUS_HEADER: usize = 64;
/// Protection domains.
pub const MAX_PD: u32 = 65_536;
/// Address handles that a device promises; only memory limits them.
pub const MAX_AH: u32 = 1 << 20;
/// Multicast groups; each takes a socket.
pub const MAX_GROUPS: usize = 256;
/// Queue pairs of a multicast group.
pub const MAX_GROUP_QP: usize = 1_024;
/// Flow rules.
pub const MAX_FLOWS: usize = 1_024;
/// Work queues outside queue pairs.
pub const MAX_WQ: u32 = 65_536;
/// Entries of an indirection table, as a binary logarithm.
pub const MAX_LOG_TABLE: u32 = 12;
/// Work requests of a send or receive queue.
pub const MAX_QP_WR: u32 = 32_768;
/// Completions of a completion queue.
pub const MAX_CQE: u32 = 4_194_303;
/// Scatter/gather elements of a request.
pub const MAX_SGE: u32 = transport::op::MAX_SGE as u32;
/// Inline bytes of a request.
pub const MAX_INLINE: u32 = transport::op::MAX_INLINE as u32;
/// Outstanding READs and atomics of a queue pair, in each direction.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Bytes of device memory, all buffers together.
pub const MAX_DM: u64 = 16 << 20;
/// Bytes of a message (IBA 1.4 §9.7.7).
pub const MAX_MESSAGE: u64 = 1 << 31;
/// Entries of a port's GID table.
pub const MAX_GIDS: usize = 256;
/// Entries of a port's partition key table.
pub const PKEYS: u16 = 1;
/// Asynchronous events that wait unread; newer ones are dropped.
pub const MAX_EVENTS: usize = 4_096;
