//! librdmacm.

pub mod strings;
