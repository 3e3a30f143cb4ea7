//! XRC domains (IBA annex A14): what their targets share, and the shared receive queues that
//! requests to them may name.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use locks::{Mutex, Rank, RwLock};

use crate::device::adapter::Adapter;
use crate::error::Error;
use crate::memory::pd::Pd;
use crate::srq::Srq;

/// What names a domain that several open: device and number of a file's inode.
pub type Inode = (u64, u64);

/// An XRC domain. Its targets and its shared receive queues keep it; it keeps none of them, and is
/// gone with the last.
#[derive(Debug)]
pub struct Xrcd {
    /// Of a domain in which nothing is registered: what its targets see before a request chose a
    /// queue.
    pub(crate) pd: Arc<Pd>,
    srqs: RwLock<BTreeMap<u32, Weak<Srq>>>,
}

impl Xrcd {
    /// The adapter it is of.
    pub fn device(&self) -> &Arc<Adapter> {
        &self.pd.device
    }

    /// The domain's shared receive queue of a number.
    pub fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.srqs.read().get(&number)?.upgrade()
    }

    /// Requests may name the queue from now on.
    pub(crate) fn insert_srq(&self, srq: &Arc<Srq>) {
        let mut srqs = self.srqs.write();
        srqs.insert(srq.number(), Arc::downgrade(srq));
    }

    /// No XRC message can name the queue any more.
    pub(crate) fn remove_srq(&self, number: u32) {
        self.srqs.write().remove(&number);
    }
}

/// The domains of a device that have names.
#[derive(Debug)]
pub(crate) struct Domains(Mutex<BTreeMap<Inode, Weak<Xrcd>>>);

impl Default for Domains {
    fn default() -> Self {
        Self(Mutex::new(Rank::XrcDomains, BTreeMap::new()))
    }
}

impl Domains {
    /// See [`Device::open_xrcd`](crate::Device::open_xrcd).
    pub(crate) fn open(
        &self,
        adapter: &Arc<Adapter>,
        inode: Option<Inode>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>, Error> {
        let make = || {
            let pd = Arc::new(Pd::alloc(adapter)?);
            Ok(Arc::new(Xrcd { pd, srqs: RwLock::new(Rank::Srqs, BTreeMap::new()) }))
        };
        let Some(inode) = inode else {
            return if create {
                make()
            } else {
                Err(Error::Invalid("an XRC domain of no file (fd -1) is opened without O_CREAT"))
            };
        };
        let mut named = self.0.lock();
        named.retain(|_, x| x.strong_count() > 0);
        match named.get(&inode).and_then(Weak::upgrade) {
            Some(_) if exclusive => {
                Err(Error::number("O_EXCL, and the file has an XRC domain: inode", inode.1))
            }
            Some(found) => Ok(found),
            None if create => {
                let made = make()?;
                named.insert(inode, Arc::downgrade(&made));
                Ok(made)
            }
            None => Err(Error::Missing("the file has no XRC domain")),
        }
    }
}
