//! The fabric through its public face: programs write messages, time passes, messages come out.

mod agents;
mod faults;
mod hostile;
mod performance;
mod plane;
mod plane_rules;
mod rmpp;
mod routes;
mod settings;
mod sm;
mod sm_records;
mod subnet_management;
mod support;
mod traps;
