//! What processes of one host share.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | module | what |
//! |---|---|
//! | [`ring`] | a ring of records in memory that two processes share |

pub mod ring;
