//! Datagram services (RDMA_PS_UDP, on InfiniBand RDMA_PS_IPOIB, and RDMA_PS_IB with datagram queue
//! pairs): identifiers whose queue pairs have no peer. Connecting is one question, SIDR_REQ, for
//! the number and Q_Key of the queue pair that serves; accepting or rejecting is the answer.
//!
//! | private data | bytes |
//! |---|---|
//! | of a question | 216, of which the first 36 are the RDMA IP CM header and 180 the program's |
//! | of an answer | 136 |

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cm::{Cm, ConnId, PortSpace, PrivateData, Refusal, SidrAnswer};
use nic::rdma_cm::{EventKind, UDP_QKEY, UdParam};
use nic::{AddressVector, Device, Qp, QpAttr, QpState, QpType, Transport, mask};
use wire::{Qkey, Qpn};

use crate::cm_agent::{Core, plain};
use crate::connect::{path, refused};
use crate::env::Env;
use crate::event::{Event, check_private_data};
use crate::id::{Id, NOT_CONNECTED, Progress};
use crate::{Errno, Error, Node};

/// Consumer private data of a request for a datagram service, in bytes (rdma_connect(3)): what the
/// most spacious protocol takes.
pub const ASK_DATA: usize = PrivateData::MAX.question;
/// Consumer private data of its answer, accept or reject, in bytes (rdma_accept(3)): what the most
/// spacious protocol takes.
pub const ANSWER_DATA: usize = PrivateData::MAX.answer;
/// The Q_Key of the group to which IPoIB sends broadcasts, as subnet managers make it.
const IPOIB_QKEY: Qkey = Qkey(0xb1b);
/// Hop limit of the addresses that events bear, as the kernel's.
const HOP_LIMIT: u8 = 64;

impl Id {
    /// Whether its queue pairs send datagrams.
    pub fn is_datagram(&self) -> bool {
        self.kind == QpType::Ud
    }

    /// The Q_Key of its queue pair and its groups. In RDMA_PS_IPOIB that of IPoIB's group for
    /// broadcasts; ENODEV there on a device without an IPoIB interface.
    pub(crate) fn qkey(&self) -> Result<Qkey, Error> {
        match self.space {
            PortSpace::Udp | PortSpace::Ib => Ok(UDP_QKEY),
            PortSpace::Ipoib if self.lock().device.as_ref().is_some_and(has_ipoib) => Ok(IPOIB_QKEY),
            _ => Err(Error::System(Errno::ENODEV)),
        }
    }
}

impl<W: Env> Node<W> {
    /// Takes the new queue pair of a datagram identifier to RTS: it needs no peer.
    pub(crate) fn begin_datagram_qp(&self, id: &Id, now: Instant, qp: &Qp) -> Result<(), Error> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, bits) = self.datagram_attr(id, state)?;
            qp.modify(now, &attr, bits)?;
        }
        Ok(())
    }

    /// What `rdma_init_qp_attr` gives for a move to `state`.
    pub(crate) fn datagram_attr(&self, id: &Id, state: QpState) -> Result<(QpAttr, u32), Error> {
        let attr =
            QpAttr { state, port: 1, qkey: id.qkey()?, sq_psn: self.random_psn(), ..QpAttr::default() };
        let bits = match state {
            QpState::Init => mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY,
            QpState::Rtr => mask::STATE,
            QpState::Rts => mask::STATE | mask::SQ_PSN,
            _ => {
                return Err(Error::name(
                    "a datagram queue pair is moved to INIT, RTR or RTS, not to",
                    state.name(),
                ));
            }
        };
        Ok((attr, bits))
    }

    /// The way to the destination of an identifier whose route is resolved, for datagrams of its
    /// device; `None` where the device does not bear the source any more.
    pub fn datagram_path(&self, id: &Id) -> Option<AddressVector> {
        toward(id, Qpn::default(), UDP_QKEY).map(|ud| ud.av)
    }

    /// `rdma_connect`: asks for the service's queue pair. Established or Unreachable follows.
    /// EINVAL for more private data than the device's protocol takes ([`ASK_DATA`] at most).
    pub(crate) fn ask(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        check_private_data(id, private_data, |most| most.question)?;
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let (device, ask) = {
            let inner = id.lock();
            let (Progress::RouteResolved, Some(source), Some(dest), Some(route), Some(device)) =
                (inner.progress, inner.source, inner.dest, inner.route, &inner.device)
            else {
                return Err(inner.progress.refuses());
            };
            if route.dest.is_multicast() {
                return Err(Error::address(
                    "a multicast group answers no requests, it is joined",
                    route.dest,
                ));
            }
            let ask = cm::SidrAsk {
                service: inner.wanted_service(id.space, dest.port()),
                source_port: source.port(),
                path: path(device, &route, &inner),
                private_data: private_data.to_vec(),
            };
            (device.clone(), ask)
        };
        let conn = self.with_cm(&mut core, &device, |cm| cm.sidr_request(now, &ask)).map_err(refused)?;
        core.ids.insert((device.config.id, conn), id.clone());
        {
            let mut inner = id.lock();
            inner.conn = Some((device.config.id, conn));
            inner.progress = Progress::Connecting;
        }
        self.carry_out(core, now);
        Ok(())
    }

    /// `rdma_accept`: answers with the identifier's queue pair, or where it has none with `qp_num`.
    /// EINVAL for more than [`ANSWER_DATA`] bytes of private data.
    pub(crate) fn serve(&self, id: &Arc<Id>, qp_num: u32, private_data: &[u8]) -> Result<(), Error> {
        let qpn = id.lock().qp.as_ref().map_or(Qpn::new(qp_num), |qp| qp.qpn());
        let answer = SidrAnswer { qpn, qkey: id.qkey()?, private_data: private_data.to_vec() };
        self.answer(id, private_data, Progress::Connected, |cm, now, conn| cm.sidr_reply(now, conn, &answer))
    }

    /// `rdma_reject`: the peer's event is Unreachable with status 2, as the kernel has it.
    pub(crate) fn decline(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        self.answer(id, private_data, Progress::Disconnected, |cm, now, conn| {
            cm.reject(now, conn, Refusal::ConsumerDefined, private_data)
        })
    }

    fn answer(
        &self,
        id: &Arc<Id>,
        private_data: &[u8],
        then: Progress,
        say: impl FnOnce(&mut dyn Cm, Instant, ConnId) -> Result<(), cm::Error>,
    ) -> Result<(), Error> {
        check_private_data(id, private_data, |most| most.answer)?;
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            inner.conn.filter(|_| inner.progress == Progress::Requested).ok_or(inner.progress.refuses())?
        };
        let (cm, conn) = core.cm(key).ok_or(NOT_CONNECTED)?;
        say(cm, now, conn).map_err(refused)?;
        core.begun(now, id);
        // The exchange is over; what remembers the answer for a question that comes again is not
        // the identifier.
        core.ids.remove(&key);
        {
            let mut inner = id.lock();
            inner.conn = None;
            inner.progress = then;
        }
        self.carry_out(core, now);
        Ok(())
    }

    /// `rdma_disconnect`: there is no peer to tell; the queue pair goes to the error state.
    pub(crate) fn stop(&self, id: &Id) -> Result<(), Error> {
        let qp = {
            let inner = id.lock();
            match inner.progress {
                Progress::Connected | Progress::Connecting | Progress::Requested | Progress::Disconnected => {
                }
                progress => return Err(progress.refuses()),
            }
            inner.qp.clone()
        };
        if let Some(qp) = qp {
            qp.fail(self.env.now());
        }
        Ok(())
    }
}

/// Whether a device's port has an interface of IPoIB.
pub(crate) fn has_ipoib(device: &Arc<Device>) -> bool {
    device.config.transport == Transport::Ib
}

/// The answer to a question of ours. One that says no leaves the queue pair as it is: it may have
/// other peers.
pub(crate) fn on_sidr_reply(
    core: &mut Core,
    id: &Arc<Id>,
    status: u8,
    qpn: Qpn,
    qkey: Qkey,
    private_data: Vec<u8>,
) {
    let ud = toward(id, qpn, qkey);
    let (kind, status, progress) = match (status, &ud) {
        (0, Some(_)) => (EventKind::Established, 0, Progress::Connected),
        (0, None) => (EventKind::Unreachable, -Errno::EADDRNOTAVAIL.0, Progress::Disconnected),
        (status, _) => (EventKind::Unreachable, status.into(), Progress::Disconnected),
    };
    id.lock().progress = progress;
    let ud = ud.filter(|_| kind == EventKind::Established);
    core.push(Event { ud, private_data, ..plain(id, kind, status) });
}

/// How to send to the peer of an identifier; `None` where its device does not bear the address any
/// more.
pub(crate) fn toward(id: &Id, qpn: Qpn, qkey: Qkey) -> Option<UdParam> {
    let inner = id.lock();
    let (source, dest, device) = (inner.source?.ip(), inner.dest?.ip(), inner.device.as_ref()?);
    if let Some(record) = &inner.record {
        let av = crate::address_vector::address_vector(&device.port(), record).ok()?;
        return Some(UdParam { av, qpn, qkey, context: 0 });
    }
    let sgid_index = device.port().gids.index_of(source)?;
    let av = address_vector(dest, sgid_index, inner.tos);
    Some(UdParam { av, qpn, qkey, context: 0 })
}

/// Where datagrams of an identifier go.
pub(crate) fn address_vector(dest: IpAddr, sgid_index: u8, tos: Option<u8>) -> AddressVector {
    AddressVector {
        dgid: dest.into(),
        sgid_index,
        hop_limit: HOP_LIMIT,
        traffic_class: tos.unwrap_or(0),
        is_global: true,
        port: 1,
        ..AddressVector::default()
    }
}
