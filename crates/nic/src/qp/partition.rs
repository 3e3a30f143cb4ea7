//! The partition that a queue pair is in: the entry of its port's P_Key table that its attributes
//! name (IBA 1.4 §10.9). Every port but those of InfiniBand has one entry.

use wire::Pkey;

use crate::error::{Error, in_range};
use crate::qp::attr::{QpAttr, mask};
use crate::qp::{Inner, Qp};

impl Qp {
    /// The port has another P_Key table.
    pub(crate) fn follow_pkeys(&self) {
        let mut inner = self.lock();
        let pkeys = self.pd().device.port();
        // An entry that the table has no more is empty.
        let pkey = pkeys.pkeys().get(usize::from(inner.attr.pkey_index)).copied().unwrap_or(Pkey(0));
        inner.enter_partition(pkey);
        inner.open_or_close(self);
    }

    /// The P_Key that new attributes name, where they name one.
    ///
    /// # Errors
    ///
    /// `OutOfRange`: an index beyond the port's table.
    pub(super) fn named_pkey(&self, new: &QpAttr, bits: u32) -> Result<Option<Pkey>, Error> {
        if bits & mask::PKEY_INDEX == 0 {
            return Ok(None);
        }
        let port = self.pd().device.port();
        let last = port.pkeys().len().saturating_sub(1) as u64;
        in_range("pkey_index", u64::from(new.pkey_index), 0_u64, last)?;
        Ok(port.pkeys().get(usize::from(new.pkey_index)).copied())
    }
}

impl Inner {
    /// Packets bear this P_Key, and come in where it matches theirs. What reaches the memory of a
    /// process without a packet has none, so it stays within the default partition.
    pub(super) fn enter_partition(&mut self, pkey: Pkey) {
        self.pkey = pkey;
        self.engine.set_pkey(pkey);
        self.carrier.keep_to_packets(pkey != Pkey::default());
    }
}
