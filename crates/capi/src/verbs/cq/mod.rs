//! Completion queues, their channels and events (ibv_create_cq(3), ibv_poll_cq(3),
//! ibv_get_cq_event(3)).
//!
//! | module | what |
//! |---|---|
//! | `object` | a completion queue as C sees it |
//! | `create` | made, resized, changed, destroyed |
//! | `poll` | completions taken, events asked for |
//! | `cq_ex` | extended queues: completions read field by field |
//! | `reader` | the completion being read |
//! | `clock` | the clocks of completion timestamps |
//! | `channel` | completion channels |
//! | `event` | completion events |
//! | `comp_cntr` | completion counters |

pub(crate) mod channel;
pub(crate) mod clock;
pub(crate) mod comp_cntr;
pub(crate) mod cq_ex;
pub(crate) mod create;
pub(crate) mod event;
pub(crate) mod object;
pub(crate) mod poll;
mod reader;

pub use channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
pub use comp_cntr::{
    _ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_destroy_comp_cntr, ibv_inc_comp_cntr,
    ibv_inc_err_comp_cntr, ibv_qp_attach_comp_cntr, ibv_read_comp_cntr, ibv_read_err_comp_cntr,
    ibv_set_comp_cntr, ibv_set_err_comp_cntr,
};
pub use create::{ibv_create_cq, ibv_destroy_cq, ibv_resize_cq};
pub use event::{ibv_ack_cq_events, ibv_get_cq_event};
