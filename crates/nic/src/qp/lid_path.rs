//! Paths of an InfiniBand port, between LIDs: what an address vector means there (IBA 1.4
//! §11.2.2.1, ibv_create_ah(3)).

use wire::grh::Grh;
use wire::{Address, LidAddress, Qpn};

use crate::device::{IbPort, Transport};
use crate::error::Error;
use crate::link::Path;
use crate::memory::pd::Pd;
use crate::qp::Qp;
use crate::qp::attr::AddressVector;

impl Pd {
    /// The way to a LID as things are now.
    pub(super) fn lid_path_to(&self, av: &AddressVector, dest_qpn: Qpn) -> Result<Path, Error> {
        let port = self.device.port();
        let ib = port.ib.as_deref().ok_or(Error::Invalid("the InfiniBand port is gone"))?;
        let dest = destination(ib, av)?;
        let source = ib.source(av.src_path_bits, av.sl);
        let source = source.ok_or(Error::Invalid("the port has no LID yet"))?;
        let global = |lid: LidAddress| if av.is_global { lid.with_grh() } else { lid };
        Ok(Path {
            source: source.into(),
            dest: global(dest).into(),
            interface: self.device.config.interface,
            dest_qpn,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            source_port_epoch: 0,
            no_multicast_loop: false,
        })
    }

    /// The GRH of datagrams to an address: `None` where they have none, and on other link layers.
    ///
    /// # Errors
    ///
    /// `Vacant`: no GID at `sgid_index`.
    pub(super) fn grh_to(&self, av: &AddressVector) -> Result<Option<Grh>, Error> {
        if self.device.config.transport != Transport::Ib || !av.is_global {
            return Ok(None);
        }
        let sgid = self.sgid_of(av)?;
        let &AddressVector { traffic_class, flow_label, hop_limit, dgid, .. } = av;
        Ok(Some(Grh::Ib { traffic_class, flow_label, payload_len: 0, hop_limit, sgid, dgid }))
    }

    fn sgid_of(&self, av: &AddressVector) -> Result<wire::Gid, Error> {
        let index = av.sgid_index.into();
        let entry = self.device.gid(av.sgid_index);
        Ok(entry.ok_or(Error::Vacant { what: "sgid_index", index })?.gid)
    }
}

impl Qp {
    /// The way to the peer of a connection. Its packets show no GRH, whatever the address says: no
    /// receiver looks at one.
    pub(super) fn peer_path(&self, av: &AddressVector, dest_qpn: Qpn) -> Result<Path, Error> {
        let mut path = self.pd().checked_path_to(av, dest_qpn)?;
        if let Some(lid) = path.dest.lid() {
            self.pd().grh_to(av)?;
            if lid.is_multicast() {
                return Err(Error::number("the LID of a connection's peer is multicast", lid.lid()));
            }
            path.dest = Address::Lid(lid.without_grh());
        }
        Ok(path)
    }
}

/// The LID that an address vector names.
fn destination(ib: &IbPort, av: &AddressVector) -> Result<LidAddress, Error> {
    if ib.grh_required && !av.is_global {
        return Err(Error::Invalid("the port needs a GRH (IBV_QPF_GRH_REQUIRED): is_global is not set"));
    }
    let dest = LidAddress::new(av.dlid, av.sl, 0).map_err(|wrong| Error::number(wrong.what, wrong.value))?;
    if av.is_global && !dest.is_multicast() && !ib.is_in_subnet(av.dgid) {
        return Err(Error::Invalid("dgid is of another subnet, and no router leads there"));
    }
    Ok(dest)
}
