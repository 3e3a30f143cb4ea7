//! The tests of `transport`. One binary, so that what they share is compiled once.

mod deadlines;
mod delayed_acks;
mod direct;
mod duplicates;
mod execute;
mod fast_path;
mod flush;
mod fragments;
mod iwarp;
mod iwarp_cuts;
mod observed;
mod pair;
mod reading;
mod requester;
mod requester_limits;
mod responder;
mod responder_resources;
mod runs;
mod sharing;
mod short;
mod support;
mod turns;
mod uc;
mod ud;
mod xrc;
