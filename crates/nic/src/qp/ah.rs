//! Address handles: where a datagram goes (`ibv_create_ah(3)`).

use std::sync::Arc;
use std::time::Instant;

use transport::op::SendWr;
use transport::ud::Destination;
use wire::grh::Grh;
use wire::{Qkey, Qpn};

use crate::device::Transport;
use crate::error::{Error, PostError, in_range};
use crate::faults::Object;
use crate::link::Path;
use crate::memory::pd::Pd;
use crate::qp::Qp;
use crate::qp::attr::{AddressVector, QpType};
use crate::qp::post::Sender;

/// An address handle. It keeps its domain.
#[derive(Clone, Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
    /// The GRH of InfiniBand packets there, where they have one.
    grh: Option<Arc<Grh>>,
}

/// The destination of a datagram (`ibv_send_wr::wr.ud`).
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Where it goes.
    pub ah: Ah,
    /// The queue pair there, [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key it expects; with the top bit set the sender's own.
    pub qkey: Qkey,
}

impl Ah {
    /// A handle for an address.
    ///
    /// # Errors
    ///
    /// `OutOfRange`: another port than 1. `Invalid`: no GRH, where the port needs one. `Vacant`: no
    /// GID at `sgid_index`. `Value`: a `dgid` of another address family; on InfiniBand a LID or a
    /// service level that there is not. `Unsupported` on an iWARP device.
    pub fn new(pd: &Arc<Pd>, av: AddressVector) -> Result<Self, Error> {
        in_range("port_num", av.port, 1_u8, 1_u8)?;
        pd.device.needs_packets("address handles")?;
        pd.device.allow(Object::Ah)?;
        // What can be wrong with the address is found out here; how it is reached is asked again
        // with each request, as interfaces change.
        pd.checked_path_to(&av, Qpn::default())?;
        let grh = pd.grh_to(&av)?.map(Arc::new);
        Ok(Self { pd: pd.clone(), av, grh })
    }
    /// The address.
    pub fn av(&self) -> &AddressVector {
        &self.av
    }
}

impl Pd {
    /// Like [`Pd::path_to`], for an address that is new: the link must be able to reach it.
    pub(crate) fn checked_path_to(&self, av: &AddressVector, dest_qpn: Qpn) -> Result<Path, Error> {
        let path = self.path_to(av, dest_qpn)?;
        self.device.link.can_reach(path.dest).map_err(Error::System)?;
        Ok(path)
    }

    /// The way to an address as things are now.
    pub(crate) fn path_to(&self, av: &AddressVector, dest_qpn: Qpn) -> Result<Path, Error> {
        let device = &self.device;
        if device.config.transport == Transport::Ib {
            return self.lid_path_to(av, dest_qpn);
        }
        if !av.is_global {
            return Err(Error::Invalid("RoCE needs a GRH: is_global is not set"));
        }
        let index = av.sgid_index.into();
        let ours = device.gid(av.sgid_index).ok_or(Error::Vacant { what: "sgid_index", index })?;
        let no_address = || Error::number("the interface has no address for sgid_index", av.sgid_index);
        let dest = device.address_of(av.dgid, &ours)?;
        let source = device.source_to(dest, &ours).ok_or_else(no_address)?;
        if source.is_ipv4() != dest.is_ipv4() {
            return Err(Error::address("dgid is of another address family than the GID at sgid_index", dest));
        }
        Ok(Path {
            source: source.into(),
            dest: dest.into(),
            interface: device.config.interface,
            dest_qpn,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
            source_port_epoch: 0,
            no_multicast_loop: false,
        })
    }
}

impl Qp {
    /// Posts one datagram and sends it; errors as of [`Sender::post_datagram`].
    pub fn post_datagram(&self, now: Instant, mut wr: SendWr, to: &Datagram) -> Result<(), PostError> {
        let mut sender = self.sender(now);
        let posted = sender.post_datagram(&mut wr, to);
        sender.finish();
        posted
    }
}

impl Sender<'_> {
    /// Where a request goes: one of a datagram queue pair says so, others must not.
    #[inline]
    pub(crate) fn destination(&self, to: Option<&Datagram>) -> Result<Option<Destination<Path>>, PostError> {
        let to = match (self.qp.init().kind, to) {
            (QpType::Ud, Some(to)) => to,
            (QpType::Ud, None) => return Err(PostError::Invalid("a datagram needs an address handle")),
            (_, Some(_)) => {
                return Err(PostError::Invalid("an address handle, and not a datagram queue pair"));
            }
            (_, None) => return Ok(None),
        };
        if !Arc::ptr_eq(&to.ah.pd, self.qp.pd()) {
            return Err(PostError::Invalid("the address handle is of another protection domain"));
        }
        let path = to.ah.pd.path_to(&to.ah.av, to.qpn);
        let address = path.map_err(|_| PostError::Unreachable(to.ah.av.dgid.ip().into()))?;
        Ok(Some(Destination { address, grh: to.ah.grh.clone(), qpn: to.qpn, qkey: to.qkey }))
    }
}
