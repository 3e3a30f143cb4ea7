//! What identifiers learn of their device: that its hardware address changed, that it bears their
//! address no more, that its interface is gone.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use locks::{Mutex, Rank};
use nic::rdma_cm::EventKind;
use nic::{Device, GidTable};

use crate::Node;
use crate::cm_agent::Core;
use crate::disconnect::stop_listening;
use crate::env::Env;
use crate::id::{Id, Progress};

/// All identifiers there are.
pub(crate) struct Everyone(Mutex<List>);

impl Default for Everyone {
    fn default() -> Self {
        Self(Mutex::new(Rank::Identifiers, List::default()))
    }
}

#[derive(Default)]
struct List {
    ids: Vec<Weak<Id>>,
    /// Length of the list at which identifiers that are gone are looked for.
    sweep_at: usize,
}

impl Everyone {
    pub(crate) fn add(&self, id: &Arc<Id>) {
        let mut list = self.0.lock();
        if list.ids.len() >= list.sweep_at {
            list.ids.retain(|id| id.strong_count() > 0);
            list.sweep_at = (2 * list.ids.len()).max(64);
        }
        list.ids.push(Arc::downgrade(id));
    }

    /// How many identifiers are still held.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().ids.iter().filter(|id| id.strong_count() > 0).count()
    }

    /// The identifiers that are held, one after the other: the list is locked for one look-up each.
    /// One that ends meanwhile may have another left out.
    pub(crate) fn one_by_one(&self) -> impl Iterator<Item = Arc<Id>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let id = self.0.lock().ids.get(at)?.upgrade();
                at += 1;
                if id.is_some() {
                    return id;
                }
            }
        })
    }

    /// Identifiers on a device that the program has not destroyed.
    pub(crate) fn on(&self, device: &Arc<Device>) -> Vec<Arc<Id>> {
        let list = self.0.lock();
        let all: Vec<Arc<Id>> = list.ids.iter().filter_map(Weak::upgrade).collect();
        drop(list);
        let is_on = |id: &Arc<Id>| {
            let inner = id.lock();
            inner.progress != Progress::Destroyed
                && inner.device.as_ref().is_some_and(|d| Arc::ptr_eq(d, device))
        };
        all.into_iter().filter(is_on).collect()
    }
}

impl<W: Env> Node<W> {
    /// RDMA_CM_EVENT_ADDR_CHANGE (rdma_get_cm_event(3)) for the identifiers it concerns. With
    /// another hardware address, which the default GID is made from, that is every one on the
    /// device; else those whose own address it bears no more.
    pub(crate) fn addresses_changed(&self, device: &Arc<Device>, before: &GidTable) {
        let now = &device.port().gids;
        let other_hardware = before.get(0).is_some_and(|old| now.get(0).is_none_or(|new| new.gid != old.gid));
        let lost = |ip: IpAddr| before.index_of(ip).is_some() && now.index_of(ip).is_none();
        for id in self.cm_agent.everyone.on(device) {
            let source = id.lock().source.map(|source| source.ip());
            if other_hardware || source.is_some_and(lost) {
                self.tell(&id, EventKind::AddrChange, 0);
            }
        }
    }

    /// The interface of a device is gone: RDMA_CM_EVENT_DEVICE_REMOVAL for every identifier on it
    /// and nothing after it. Its queue pairs flush, and the program that opened it is told
    /// (IBV_EVENT_DEVICE_FATAL). Peers find out by themselves: there is no way to them.
    pub(crate) fn device_removed(&self, now: Instant, device: &Arc<Device>) {
        let mut core = self.cm_agent.lock();
        let ids = self.cm_agent.everyone.on(device);
        for id in &ids {
            self.take_off(&mut core, now, id);
        }
        self.carry_out(core, now);
        device.remove(now);
    }

    fn take_off(&self, core: &mut Core, now: Instant, id: &Arc<Id>) {
        if core.withdraw(now, id) {
            return;
        }
        let (key, listened, was) = {
            let mut inner = id.lock();
            let was = std::mem::replace(&mut inner.progress, Progress::Disconnected);
            (inner.conn, inner.listens_at(), was)
        };
        if let (Progress::Listening, Some(listened)) = (was, listened) {
            stop_listening(core, now, &listened);
        }
        if let Some(key) = key {
            core.ids.remove(&key);
            if let Some((cm, conn)) = core.cm(key) {
                cm.destroy(now, conn);
            }
        }
        self.tell(id, EventKind::DeviceRemoval, 0);
    }
}
