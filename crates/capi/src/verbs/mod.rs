//! libibverbs.

pub mod fork;
pub mod provider;
pub mod rate;
pub mod strings;
