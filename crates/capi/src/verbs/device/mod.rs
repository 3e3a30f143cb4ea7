//! Devices, opened and asked (ibv_get_device_list(3), ibv_open_device(3), ibv_query_device(3)).
//!
//! | module | what |
//! |---|---|
//! | `list` | which there are |
//! | `open` | opening and closing: fills the function tables |
//! | `context` | an opened device as C sees it |
//! | `command_fd` | what `cmd_fd` is |
//! | `query` | attributes of devices and ports, GIDs and partition keys |
//! | `infiniband` | what a port of InfiniBand says beside that |
//! | `async_event` | asynchronous events |
//! | `import` | objects shared between contexts |
//! | `fork` | fork(2) |
//! | `provider` | what provider libraries ask when they are loaded |

pub(crate) mod async_event;
mod command_fd;
pub(crate) mod context;
pub(crate) mod fork;
pub(crate) mod import;
mod infiniband;
pub(crate) mod list;
pub(crate) mod open;
pub(crate) mod provider;
pub(crate) mod query;

pub use async_event::{ibv_ack_async_event, ibv_get_async_event};
pub use fork::{ibv_dofork_range, ibv_dontfork_range, ibv_fork_init, ibv_is_fork_initialized};
pub use import::{
    ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd, ibv_unimport_dm, ibv_unimport_mr,
    ibv_unimport_pd,
};
pub use list::{
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list, ibv_get_device_name,
};
pub use open::{ibv_close_device, ibv_open_device};
pub use provider::{ibv_get_sysfs_path, ibv_read_sysfs_file, ibv_register_driver, verbs_register_driver};
pub use query::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_device, ibv_query_gid,
    ibv_query_gid_type, ibv_query_pkey, ibv_query_port, ibv_query_port_speed,
};
