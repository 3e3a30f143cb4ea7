//! Registered memory: the table of regions and the only code that touches what they name.
//!
//! No slice of plain bytes is ever formed over registered memory: the program, other threads and peers change it at will. Bytes move
//! by raw copies between it and buffers of our own.
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
//! | 56..60 | of a window: the one queue pair it is good on, or 0 |
//! | 60..64 | reserved |
//!
//! Whoever copies counts itself in, then reads the key; whoever deregisters clears the key, then waits for the count:
//! one of the two sees the other. The block is this process's own. Before another process could check and copy by itself it would have to
//! lie in shared memory, and the count be one for each process: who dies while it copies would leave a single count up for ever.
//!
//! | file | story |
//! |---|---|
//! | [`pd`], [`buffer`] | protection domains, through which all is registered; memory that belongs to its registration |
//! | `table`, `slot`, `free` | registration and its end; a slot, and which are free |
//! | `view`, `copy` | what a queue pair sees of the table, each range checked, then copied |
//! | `window`, `rereg`, `flush` | memory windows; regions that change; FLUSH |
//! | [`dm`] | device memory |
//! | `pages`, `guard` | pages brought in at registration; instructions that fail where memory faults |

pub mod buffer;
mod copy;
pub mod dm;
mod flush;
mod free;
mod guard;
mod pages;
pub mod pd;
mod rereg;
mod slot;
mod table;
mod view;
mod window;

pub use guard::handler::{program_sets, system_sets};
pub use rereg::Advice;
pub use table::{Mr, Table};
pub use view::View;
pub use window::{Mw, WindowType};

/// Bits of `enum ibv_access_flags`.
#[allow(missing_docs, non_snake_case)]
pub mod Access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// Bits from here up are hints that may be ignored (IBV_ACCESS_OPTIONAL_RANGE).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

#[cfg(test)]
mod tests;
