//! Memory that work requests name (ibv_alloc_pd(3), ibv_reg_mr(3), ibv_alloc_mw(3),
//! ibv_alloc_dm(3)).
//!
//! | module | what |
//! |---|---|
//! | `pd` | protection domains, thread domains, parent domains |
//! | `mr` | memory regions |
//! | `mw` | memory windows |
//! | `dm` | device memory |
//! | `buf` | buffers of the library, and dma-bufs, as regions |
//! | `mapping` | shared memory mapped for a region |
//! | `handles` | what the handles of domains and device memory name |

pub(crate) mod buf;
pub(crate) mod dm;
pub(crate) mod handles;
mod mapping;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;

pub use buf::{
    ibv_alloc_buf, ibv_alloc_dmah, ibv_dealloc_dmah, ibv_dm_export_dmabuf_fd, ibv_export_buf_dmabuf_fd,
    ibv_free_buf, ibv_reg_buf_mr, ibv_reg_dmabuf_mr, ibv_reg_mr_ex,
};
pub use mr::{ibv_dereg_mr, ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr};
pub use pd::{ibv_alloc_pd, ibv_dealloc_pd};
