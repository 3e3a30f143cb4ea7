//! Shared receive queues (ibv_create_srq(3), ibv_post_srq_recv(3), ibv_post_srq_ops(3)).
//!
//! | module | what |
//! |---|---|
//! | `object` | the queue as C sees it: made, asked, changed, posted to, destroyed |
//! | `tags` | its list of tags |

pub(crate) mod object;
pub(crate) mod tags;

pub use object::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};
