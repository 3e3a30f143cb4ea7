//! Datagram services (RDMA_PS_UDP, RDMA_PS_IPOIB, and RDMA_PS_IB with datagram queue pairs): identifiers whose queue pairs have no peer. Connecting is one
//! question, SIDR_REQ, for the number and Q_Key of the queue pair that serves; accepting or rejecting is the answer.
//!
//! | private data | bytes |
//! |---|---|
//! | of a question | 216, of which the first 36 are the RDMA IP CM header and 180 the program's |
//! | of an answer | 136 |

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use nic::{AddressVector, Qp, QpAttr, QpState, QpType, mask};
use wire::mad::{IpCm, PortSpace, SidrReq, sidr_status};
use wire::{Qkey, Qpn, ServiceId};

use crate::cm_agent::{ConnKey, Core, plain};
use crate::connect::{consumer_data, path, refused};
use crate::event::{Event, EventKind, UdParam};
use crate::id::{Id, Progress, WRONG_STATE, libc_errno};
use crate::world::World;
use crate::{Error, Node};

/// Q_Key of every queue pair and group of RDMA_PS_UDP, and of datagrams in RDMA_PS_IB (RDMA_UDP_QKEY of <rdma/rdma_cma.h>).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);
/// Consumer private data of a request for a datagram service, in bytes (rdma_connect(3)).
pub const ASK_DATA: usize = 180;
/// Consumer private data of its answer, accept or reject, in bytes (rdma_accept(3)).
pub const ANSWER_DATA: usize = 136;
/// Hop limit of the addresses that events bear, as the kernel's.
const HOP_LIMIT: u8 = 64;

impl Id {
    /// Whether its queue pairs send datagrams.
    pub fn is_datagram(&self) -> bool {
        self.kind == QpType::Ud
    }

    /// The Q_Key of its queue pair and its groups. ENODEV in RDMA_PS_IPOIB: there it is the IPoIB broadcast group's, and no
    /// device here has an IPoIB interface.
    pub(crate) fn qkey(&self) -> Result<Qkey, Error> {
        match self.space {
            PortSpace::Udp | PortSpace::Ib => Ok(UDP_QKEY),
            _ => Err(Error::System(libc_errno::ENODEV)),
        }
    }
}

impl<W: World> Node<W> {
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
            _ => return Err(WRONG_STATE),
        };
        Ok((attr, bits))
    }

    /// `rdma_connect`: asks for the service's queue pair. Established or Unreachable follows. EINVAL for more than
    /// [`ASK_DATA`] bytes of private data.
    pub(crate) fn ask(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        if private_data.len() > ASK_DATA {
            return Err(Error::Invalid("more than 180 bytes of private data"));
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let (device, ask) = {
            let inner = id.lock();
            let (Progress::RouteResolved, Some(source), Some(dest), Some(route), Some(device)) =
                (inner.progress, inner.source, inner.dest, inner.route, &inner.device)
            else {
                return Err(WRONG_STATE);
            };
            if route.dest.is_multicast() {
                return Err(Error::Invalid("a multicast group answers no requests: join it"));
            }
            let header = IpCm { source: route.source, source_port: source.port(), dest: route.dest };
            let mut data = [0; IpCm::LEN + ASK_DATA];
            data[..IpCm::LEN].copy_from_slice(&header.emit());
            data[IpCm::LEN..][..private_data.len()].copy_from_slice(private_data);
            let ask = cm::SidrAsk {
                service_id: ServiceId::from_port(id.space, dest.port()),
                path: path(device, &route, &inner),
                private_data: data,
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
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_accept`: answers with the identifier's queue pair, or where it has none with `qp_num`. EINVAL for more than
    /// [`ANSWER_DATA`] bytes of private data.
    pub(crate) fn serve(&self, id: &Arc<Id>, qp_num: u32, private_data: &[u8]) -> Result<(), Error> {
        let qpn = id.lock().qp.as_ref().map_or(Qpn::new(qp_num), |qp| qp.qpn());
        self.answer(id, sidr_status::VALID, qpn, id.qkey()?, private_data, Progress::Connected)
    }

    /// `rdma_reject`: the peer's event is Unreachable with status 2, as the kernel has it.
    pub(crate) fn decline(&self, id: &Arc<Id>, private_data: &[u8]) -> Result<(), Error> {
        let (qpn, qkey) = (Qpn::default(), Qkey::default());
        self.answer(id, sidr_status::REJECTED, qpn, qkey, private_data, Progress::Disconnected)
    }

    fn answer(
        &self,
        id: &Arc<Id>,
        status: u8,
        qpn: Qpn,
        qkey: Qkey,
        private_data: &[u8],
        then: Progress,
    ) -> Result<(), Error> {
        if private_data.len() > ANSWER_DATA {
            return Err(Error::Invalid("more than 136 bytes of private data"));
        }
        let now = self.world.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            inner.conn.filter(|_| inner.progress == Progress::Requested).ok_or(WRONG_STATE)?
        };
        let mut data = [0; ANSWER_DATA];
        data[..private_data.len()].copy_from_slice(private_data);
        let answer = cm::SidrAnswer { status, qpn, qkey, private_data: data };
        let (cm, conn) = core.cm(key).ok_or(WRONG_STATE)?;
        cm.sidr_reply(now, conn, &answer).map_err(refused)?;
        core.begun(now, id);
        // The exchange is over; what remembers the answer for a question that comes again is not the identifier.
        core.ids.remove(&key);
        {
            let mut inner = id.lock();
            inner.conn = None;
            inner.progress = then;
        }
        self.settle(core, now);
        Ok(())
    }

    /// `rdma_disconnect`: there is nobody to tell; the queue pair goes to the error state.
    pub(crate) fn stop(&self, id: &Id) -> Result<(), Error> {
        let qp = {
            let inner = id.lock();
            match inner.progress {
                Progress::Connected | Progress::Connecting | Progress::Requested | Progress::Disconnected => {
                }
                _ => return Err(WRONG_STATE),
            }
            inner.qp.clone()
        };
        if let Some(qp) = qp {
            qp.fail(self.world.now());
        }
        Ok(())
    }

    /// Somebody asks for a service of ours, or for one that nobody has.
    pub(crate) fn on_sidr_request(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        req: &SidrReq,
        path: &cm::Path,
    ) {
        let refuse = |core: &mut Core, status| refuse(core, now, key, status);
        let header = IpCm::parse(&req.private_data[..IpCm::LEN]);
        let (Some((space, port)), Ok(header)) = (req.service_id.ip_port(), header) else {
            return refuse(core, sidr_status::UNSUPPORTED);
        };
        let Some(listen) = core.listener(space, path.local_gid.ip(), port) else {
            return refuse(core, sidr_status::UNSUPPORTED);
        };
        let listeners = core.listeners.len();
        let Some(listener) = core.listeners.get(&listen) else { return };
        let (listener, is_full) = (listener.id.clone(), listener.is_full(listeners));
        if !listener.is_datagram() {
            return refuse(core, sidr_status::UNSUPPORTED);
        }
        if is_full {
            return self.no_room(core, now, key);
        }
        let id = self.incoming(&listener, key, path, &header, port);
        if id.lock().device.is_none() {
            return refuse(core, sidr_status::NO_QP);
        }
        let ud = toward(&id, Qpn::default(), Qkey::default());
        let private_data = req.private_data[consumer_data(&id)..].to_vec();
        let event = Event { ud, private_data, ..plain(&id, EventKind::ConnectRequest, 0) };
        self.admit(core, now, key, listen, req.request_id, event);
    }

    /// Answers a question for which a listener has no place.
    pub(crate) fn no_room(&self, core: &mut Core, now: Instant, key: ConnKey) {
        self.counters.no_resources.fetch_add(1, Ordering::Relaxed);
        refuse(core, now, key, sidr_status::NO_QP);
    }

    /// The answer to a question of ours. One that says no leaves the queue pair as it is: it may have other peers.
    pub(crate) fn on_sidr_reply(
        &self,
        core: &mut Core,
        id: &Arc<Id>,
        status: u8,
        qpn: Qpn,
        qkey: Qkey,
        private_data: &[u8],
    ) {
        let ud = toward(id, qpn, qkey);
        let (kind, status, progress) = match (status, &ud) {
            (sidr_status::VALID, Some(_)) => (EventKind::Established, 0, Progress::Connected),
            (sidr_status::VALID, None) => {
                (EventKind::Unreachable, -libc_errno::EADDRNOTAVAIL, Progress::Disconnected)
            }
            (status, _) => (EventKind::Unreachable, status.into(), Progress::Disconnected),
        };
        id.lock().progress = progress;
        let ud = ud.filter(|_| kind == EventKind::Established);
        core.push(Event { ud, private_data: private_data.to_vec(), ..plain(id, kind, status) });
    }
}

/// Answers a question that no identifier of the program will see.
pub(crate) fn refuse(core: &mut Core, now: Instant, key: ConnKey, status: u8) {
    let (qpn, qkey) = (Qpn::default(), Qkey::default());
    let answer = cm::SidrAnswer { status, qpn, qkey, private_data: [0; ANSWER_DATA] };
    if let Some((cm, conn)) = core.cm(key) {
        // An error says that it was answered already.
        _ = cm.sidr_reply(now, conn, &answer);
    }
}

/// How to send to the peer of an identifier; `None` where its device does not bear the address any more.
fn toward(id: &Id, qpn: Qpn, qkey: Qkey) -> Option<UdParam> {
    let inner = id.lock();
    let (source, dest, device) = (inner.source?.ip(), inner.dest?.ip(), inner.device.as_ref()?);
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
