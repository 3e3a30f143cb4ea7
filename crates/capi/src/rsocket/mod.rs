//! rsockets in C (rsocket(7)): calls like those of sockets, over RDMA. The protocol is the crate
//! `rsocket`'s.
//!
//! | file | what |
//! |---|---|
//! | `open` | from a socket to a connection and its end |
//! | `transfer` | bytes: the families of recv(2), send(2), read(2) and write(2) |
//! | `datagram` | what all of these do with datagrams |
//! | `mapped` | memory that a peer writes to by offsets |
//! | `poll`; `epoll`, `set`, `set_list` | poll(2), select(2); epoll(7) |
//! | `options`, `option_calls` | options and flags |
//! | `timers` | SO_KEEPALIVE, and bytes that wait for more |
//! | `object`, `table` | an rsocket, and which descriptor is which |
//! | `mirror` | its descriptor |
//! | `waiting` | how a thread waits |
//! | `memory`, `config` | registered memory, of the library and of the program; the configuration directory |

mod config;
mod datagram;
mod epoll;
mod mapped;
mod memory;
mod mirror;
mod object;
mod open;
mod option_calls;
mod options;
mod poll;
mod set;
mod set_list;
mod table;
mod timers;
mod transfer;
mod waiting;

pub use epoll::{repoll_create, repoll_ctl, repoll_wait};
pub use mapped::{riomap, riounmap, riowrite};
pub use open::{
    own_socket, raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rlisten, rshutdown, rsocket,
};
pub use option_calls::{rfcntl, rgetsockopt, rsetsockopt};
pub use poll::{rpoll, rselect};
pub use transfer::{rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rsend, rsendmsg, rsendto, rwrite, rwritev};
