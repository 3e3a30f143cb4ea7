//! The fabric through its public face: programs write messages, time passes, messages come out.

mod agents;
mod faults;
mod hostile;
mod performance;
mod rmpp;
mod routes;
mod settings;
mod subnet_management;
mod support;
mod traps;
