//! Queue pairs (ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3)).
//!
//! | module | what |
//! |---|---|
//! | `object` | a queue pair as C sees it, and which there are |
//! | `users` | what it uses, which is not destroyed before it |
//! | `create` | made |
//! | `create_ex` | made with extended attributes |
//! | `rss` | made over an indirection table |
//! | `xrc` | XRC targets, made and opened |
//! | `modify` | state and attributes |
//! | `destroy` | destroyed |
//! | `request` | parts of work requests that all posting calls convert alike |
//! | `post` | `ibv_post_send` and `ibv_post_recv` |
//! | `wr` | `ibv_wr_start` to `ibv_wr_complete`: requests built one part at a time |
//! | `builder` | what stands behind those |
//! | `ece` | what some adapters have and these have not |

mod builder;
pub(crate) mod create;
pub(crate) mod create_ex;
pub(crate) mod destroy;
pub(crate) mod ece;
pub(crate) mod modify;
pub(crate) mod object;
pub(crate) mod post;
pub(crate) mod request;
pub(crate) mod rss;
pub(crate) mod users;
pub(crate) mod wr;
pub(crate) mod xrc;

pub use create::ibv_create_qp;
pub use destroy::ibv_destroy_qp;
pub use ece::{ibv_query_ece, ibv_query_qp_data_in_order, ibv_set_ece};
pub use modify::{ibv_modify_qp, ibv_query_qp};
pub use wr::ibv_qp_to_qp_ex;
