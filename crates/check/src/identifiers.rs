//! Identifiers and event channels of rdma_cm.

use crate::checker::Checker;
use crate::finding::Site;
use crate::objects::{Handle, Identifier};

impl<S: Site> Checker<S> {
    /// The program has an identifier more.
    pub fn identifier_made(&mut self, handle: Handle, identifier: Identifier<S>) {
        self.identifiers.insert(handle, identifier);
    }
    /// An identifier's events go to another channel; `None` is one of its own.
    pub fn identifier_moved(&mut self, handle: Handle, channel: Option<Handle>) {
        if let Some(identifier) = self.identifiers.get_mut(&handle) {
            identifier.channel = channel;
        }
    }
    /// An identifier is destroyed.
    pub fn identifier_gone(&mut self, handle: Handle) {
        self.identifiers.remove(&handle);
    }
    /// An event channel was made.
    pub fn channel_made(&mut self, handle: Handle, site: &S) {
        self.channels.insert(handle, site.clone());
    }
    /// An event channel was destroyed.
    pub fn channel_gone(&mut self, handle: Handle) {
        self.channels.remove(&handle);
    }
}
