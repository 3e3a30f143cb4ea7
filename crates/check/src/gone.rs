//! Objects that were destroyed: their use afterwards.

use std::collections::{BTreeMap, VecDeque};

use crate::checker::Checker;
use crate::finding::{Finding, Rule, Site};
use crate::objects::Handle;

/// Regions that were deregistered, of which the checker knows where.
const REGIONS: usize = 4096;

/// What was destroyed.
#[derive(Debug)]
pub(crate) struct Gone<S> {
    /// Objects by handle: what it was, and the call that destroyed it.
    objects: BTreeMap<Handle, (&'static str, S)>,
    /// Regions by key, and the keys in the order of their end.
    regions: BTreeMap<u32, S>,
    order: VecDeque<u32>,
}

impl<S> Default for Gone<S> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), regions: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<S: Site> Gone<S> {
    pub(crate) fn region_gone(&mut self, key: u32, site: &S) {
        if self.regions.insert(key, site.clone()).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REGIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.regions.remove(&oldest);
        }
    }

    /// Where the region with a key was deregistered.
    pub(crate) fn region(&self, key: u32) -> Option<&S> {
        self.regions.get(&key)
    }
}

impl<S: Site> Checker<S> {
    /// An object was destroyed. Its handle is of no other object until [`Checker::forgotten`].
    pub fn destroyed(&mut self, handle: Handle, kind: &'static str, site: &S) {
        self.gone.objects.insert(handle, (kind, site.clone()));
    }

    /// The handle of a destroyed object may be used again.
    pub fn forgotten(&mut self, handle: Handle) {
        self.gone.objects.remove(&handle);
    }

    /// Whether a handle is of a destroyed object.
    pub fn is_gone(&self, handle: Handle) -> bool {
        self.gone.objects.contains_key(&handle)
    }

    /// A call names an object that may have been destroyed.
    pub fn used(&mut self, handle: Handle, site: &S) -> Vec<Finding<S>> {
        let Some((kind, destroyed)) = self.gone.objects.get(&handle) else { return Vec::new() };
        let what = format!("The {kind} was destroyed before this call.");
        let calls = vec![("used", site.clone()), ("destroyed", destroyed.clone())];
        self.report(Rule::UseAfterDestroy, what, calls)
    }
}
