//! The one instance of Verbena in a process: made at the first call that needs a device, never by loading the library. A
//! forked child finds its parent's inert and makes its own.

use std::sync::{Arc, Mutex, PoisonError};

use host::{Host, RealWorld};
use nic::Device;
use node::Node;

use crate::border::Errno;

/// A host and its node, running.
pub(crate) struct Instance {
    pub host: Arc<Host<Node<RealWorld>>>,
}

impl Instance {
    pub fn node(&self) -> &Arc<Node<RealWorld>> {
        self.host.guest()
    }

    /// Whether this process made it; false in a forked child.
    pub fn is_ours(&self) -> bool {
        self.host.is_ours()
    }

    /// Opens the UDP port of a device before its first packet. The one failure that a user can mend is explained.
    pub fn attach(&self, device: &Device) -> Result<(), Errno> {
        self.node().attach(device).map_err(|e| {
            if e.errno() == libc::EADDRINUSE {
                eprintln!(
                    "verbena: UDP port 4791 of {} belongs to another user or to the kernel's rdma_rxe; \
                     use an address or interface of its own (VERBENA_DEVICES=name=roce:interface)",
                    device.config.interface_name
                );
            }
            Errno(e.errno())
        })
    }
}

static CURRENT: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// The instance of this process, made if there is none.
pub(crate) fn get() -> Result<Arc<Instance>, Errno> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(instance) = current.as_ref().filter(|i| i.is_ours()) {
        return Ok(instance.clone());
    }
    let instance = Arc::new(start()?);
    if let Some(parents) = current.replace(instance.clone()) {
        // Of another process: its threads do not exist here, and what it holds is no longer ours to end.
        std::mem::forget(parents);
    }
    Ok(instance)
}

fn start() -> Result<Instance, Errno> {
    let devices = match std::env::var("VERBENA_DEVICES").as_deref().map(node::devices::parse) {
        Err(_) => None,
        Ok(Ok(specs)) => Some(specs),
        Ok(Err(e)) => {
            eprintln!("verbena: {e}");
            Some(Vec::new())
        }
    };
    let config = node::Config { devices, ..node::Config::default() };
    let make = |world: Arc<RealWorld>| {
        let interfaces = world.interfaces();
        Node::new(world, &config, &interfaces)
    };
    let host = Host::start(make, host::Config::default())?;
    Ok(Instance { host })
}

impl From<nic::Error> for Errno {
    fn from(e: nic::Error) -> Errno {
        Errno(e.errno())
    }
}
