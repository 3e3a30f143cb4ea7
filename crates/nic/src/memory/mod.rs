//! Registered memory: the table of regions and the only code that touches what they name.
//!
//! No slice of plain bytes is ever formed over registered memory: the program, other threads and
//! peers change it at will. Bytes move by raw copies between it and buffers of our own.
//!
//! A region is a slot of a table, one block of plain atomics:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | key: slot number, itself random, in the upper 16 bits, random lower 16; 0 while the slot is free |
//! | 4..8 | protection domain |
//! | 8..12 | access flags |
//! | 12..16 | accesses in flight |
//! | 16..24 | address of the first byte |
//! | 24..32 | length in bytes |
//! | 32..40 | iova: the address that peers and work requests use for the first byte |
//! | 40..44 | kind: 0 region, 1 and 2 window of that type, 3 null region |
//! | 44..48 | serial number: counts the windows that have had the slot |
//! | 48..52 | windows bound to this region |
//! | 52..56 | of a window: the slot of its region |
//! | 56..60 | of a window: the one queue pair it is good on; of a region: the queue pair that uses it without being counted (`lock_pinned`); or 0 |
//! | 60..64 | of a region that may be flushed to persistence: how that is done (`backing`) |
//!
//! A thread that copies counts itself in, then reads the key. A thread that deregisters clears the
//! key, then waits for the count. So one of the two sees the other. The queue pair that uses a
//! region mostly is not counted: a thread that deregisters takes its lock. The block is this
//! process's own. What other processes of the host may reach by themselves they see in tables that
//! the environment keeps ([`crate::peer_memory`]). A process that dies while it copies leaves
//! nothing behind here.
//!
//! | file | story |
//! |---|---|
//! | [`pd`], [`buffer`] | protection domains, through which all is registered; memory that belongs to its registration |
//! | `table`, `slot`, `free`, `rights` | registration and its end; a slot, and which are free; access flags |
//! | `view`, `copy` | what a queue pair sees of the table, each range checked, then copied |
//! | `lock_pinned` | the queue pair that uses a region again and again |
//! | `window`, `rereg` | memory windows; regions that change |
//! | `reached`, `transfer` | what other processes reach by themselves; what is copied so |
//! | `flush`, `backing` | FLUSH; what lies behind memory, and how that persists |
//! | [`vectored`], `piece` | what a stream sends from and reads into, without a copy of ours |
//! | `located` | where bytes of a stream lie |
//! | [`dm`] | device memory |
//! | `pages`, `large` | pages brought in at registration; small ones that become large after it |
//! | `late` | regions that are watched by userfaultfd(2) |
//! | `guard` | instructions that fail where memory faults, which write back cache lines, and which copy while another process lets them |
//! | `first_thread` | whether this is the thread that the process began with |

mod backing;
pub mod buffer;
mod copy;
pub mod dm;
pub(crate) mod first_thread;
mod flush;
mod free;
mod guard;
mod large;
mod late;
mod located;
pub(crate) mod lock_pinned;
mod pages;
pub mod pd;
pub(crate) mod peer_copy;
mod piece;
pub(crate) mod rereg;
pub(crate) mod rights;
mod slot;
pub(crate) mod table;
pub(crate) mod transfer;
pub mod vectored;
pub(crate) mod view;
pub(crate) mod window;

pub use backing::NO_FILE;
pub use guard::granted::{Ended, Grant, IN_ORDER, can_copy_granted, change_granted, copy_granted};
pub use guard::handler::{program_sets, system_sets};
pub use rereg::Advice;
pub use rights::{Access, access_names};
pub use slot::RegionSnapshot;
pub use table::{Mr, Table};
pub use transfer::copy_here;
pub use view::View;
pub use window::{Mw, WindowType};

#[cfg(test)]
mod tests;
