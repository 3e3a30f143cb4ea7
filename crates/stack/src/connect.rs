//! The side that connects: `rdma_connect`, and what follows when the peer says yes.

use std::sync::Arc;
use std::time::Instant;

use cm::{PathRecord, PrivateData, Refusal};
use nic::Device;
use nic::rdma_cm::{ConnParam, EventKind};
use wire::Psn;

use crate::cm_agent::{ConnKey, Core, plain};
use crate::env::{Env, Route, Watch};
use crate::event::{Event, check_private_data, parameters, told};
use crate::id::{Id, Inner, NOT_CONNECTED, Progress};
use crate::number_blocks::process_name;
use crate::{Errno, Error, Node};

/// Consumer private data of a request for RDMA_PS_TCP, in bytes (rdma_connect(3)): what the most
/// spacious protocol takes.
pub const CONNECT_DATA: usize = PrivateData::MAX.request;

impl<W: Env> Node<W> {
    /// `rdma_connect`: sends a request. EINVAL for parameters beyond the device's limits or more
    /// private data than the device's protocol takes ([`CONNECT_DATA`] at most); what comes of it
    /// is an event.
    pub fn connect(&self, id: &Arc<Id>, param: &ConnParam, private_data: &[u8]) -> Result<(), Error> {
        if id.is_datagram() {
            return self.ask(id, private_data);
        }
        param.check()?;
        check_private_data(id, private_data, |most| most.request)?;
        let (now, starting_psn) = (self.env.now(), self.random_psn());
        let mut core = self.cm_agent.lock();
        let (device, connect) = asked(id, param, starting_psn, private_data)?;
        let conn = self.with_cm(&mut core, &device, |cm| cm.connect(now, &connect)).map_err(refused)?;
        core.ids.insert((device.config.id, conn), id.clone());
        {
            let mut inner = id.lock();
            inner.conn = Some((device.config.id, conn));
            inner.param = *param;
            inner.progress = Progress::Connecting;
        }
        self.carry_out(core, now);
        Ok(())
    }

    /// Waits for the answer to a request until `at` and no longer: Unreachable with ETIMEDOUT
    /// follows then, even where the peer has asked for more time. Nothing where there is no
    /// request under way.
    pub fn give_up_at(&self, id: &Id, at: Instant) {
        let mut core = self.cm_agent.lock();
        let key = id.lock().conn;
        if let Some((cm, conn)) = key.and_then(|key| core.cm(key)) {
            cm.give_up_at(conn, at);
        }
        self.carry_out(core, self.env.now());
    }

    /// The peer accepted: the queue pair goes to RTS, then the peer is told.
    pub(crate) fn on_reply(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        id: &Arc<Id>,
        reply: cm::Reply,
    ) {
        let (has_qp, local) = {
            let mut inner = id.lock();
            inner.remote_ece = reply.parameters.ece;
            (inner.qp.is_some(), inner.route.is_some_and(|route| route.local))
        };
        let watch = self.watch_peer(local, reply.process);
        id.lock().watch = watch;
        let kind = if has_qp {
            if self.join(core, now, key, id).is_err() {
                return core.push(plain(id, EventKind::ConnectError, -Errno::EINVAL.0));
            }
            EventKind::Established
        } else {
            id.lock().progress = Progress::Answered;
            EventKind::ConnectResponse
        };
        let param = told(&reply.parameters);
        core.push(Event { param, private_data: reply.private_data, ..plain(id, kind, 0) });
        if watch.is_none()
            && let Some((cm, conn)) = core.cm(key)
        {
            cm.end_of_peer(now, conn);
        }
    }

    /// The queue pair goes to RTS, then the peer is told; where it can not, the peer is refused.
    fn join(&self, core: &mut Core, now: Instant, key: ConnKey, id: &Arc<Id>) -> Result<(), Error> {
        if let Err(why) = self.connect_qp(core, now, key, id) {
            if let Some((cm, conn)) = core.cm(key) {
                // An error says that the connection has ended.
                _ = cm.reject(now, conn, Refusal::ConsumerDefined, &[]);
            }
            self.end(id, now, true);
            return Err(why);
        }
        if let Some((cm, conn)) = core.cm(key) {
            // An error says that the connection has ended.
            _ = cm.established(now, conn);
        }
        self.note_acceptor(core, key);
        id.lock().progress = Progress::Connected;
        Ok(())
    }

    /// The identifier was given a queue pair after the peer accepted: it goes to RTS, then the peer
    /// is told. Where it can not be moved the peer is refused.
    pub fn finish_connect(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let inner = id.lock();
            let waits = inner.progress == Progress::Answered && !inner.accepted;
            inner.conn.filter(|_| waits).ok_or(inner.progress.refuses())?
        };
        let joined = self.join(&mut core, now, key, id);
        self.carry_out(core, now);
        joined
    }

    /// `rdma_establish`: the active side's queue pair, not owned by the identifier, is ready.
    pub fn establish(&self, id: &Arc<Id>) -> Result<(), Error> {
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        let key = {
            let mut inner = id.lock();
            if inner.progress != Progress::Answered {
                return Err(inner.progress.refuses());
            }
            if inner.qp.is_some() {
                return Err(Error::Invalid(
                    "the identifier's own queue pair is established without this call",
                ));
            }
            inner.progress = Progress::Connected;
            inner.conn.ok_or(NOT_CONNECTED)?
        };
        let (cm, conn) = core.cm(key).ok_or(NOT_CONNECTED)?;
        cm.established(now, conn).map_err(refused)?;
        self.carry_out(core, now);
        Ok(())
    }

    /// Watches a peer that is a process of this host, to be told when it ends, because no DREQ
    /// comes for one that was killed. `None` where it has ended already.
    pub(crate) fn watch_peer(&self, local: bool, process: u32) -> Option<Watch> {
        let owner = process_name(process);
        if !local || process == cm::NO_PROCESS || self.blocks.owns(owner) {
            Some(Watch::NONE)
        } else {
            self.env.watch(owner)
        }
    }

    pub(crate) fn random_psn(&self) -> Psn {
        let mut bytes = [0; 4];
        self.env.fill_random(&mut bytes);
        Psn::new(u32::from_ne_bytes(bytes))
    }
}

/// What an identifier asks its peer for, and by which device.
fn asked(
    id: &Id,
    param: &ConnParam,
    starting_psn: Psn,
    private_data: &[u8],
) -> Result<(Arc<Device>, cm::Connect), Error> {
    let inner = id.lock();
    if inner.progress != Progress::RouteResolved {
        return Err(inner.progress.refuses());
    }
    let (Some(source), Some(dest), Some(route), Some(device)) =
        (inner.source, inner.dest, inner.route, &inner.device)
    else {
        return Err(inner.progress.refuses());
    };
    let connect = cm::Connect {
        service: inner.wanted_service(id.space, dest.port()),
        source_port: source.port(),
        path: path(device, &route, &inner),
        transport_service: id.transport_service(),
        parameters: parameters(param, inner.qp.as_deref(), starting_psn, inner.local_ece),
        private_data: private_data.to_vec(),
    };
    Ok((device.clone(), connect))
}

/// The way that messages and data take, with what the program said about it.
pub(crate) fn path(device: &Device, route: &Route, inner: &Inner) -> PathRecord {
    if let Some(record) = inner.record {
        return PathRecord { traffic_class: inner.tos.unwrap_or(record.traffic_class), ..record };
    }
    let mtu = wire::Mtu::for_link(route.mtu).unwrap_or(wire::Mtu::M256).min(device.port().mtu);
    let path = PathRecord::new(route.source.into(), route.dest.into(), device.config.interface, mtu);
    let path = match &inner.path {
        None => path,
        Some(chosen) => PathRecord {
            mtu: path.mtu.min(chosen.mtu),
            traffic_class: chosen.traffic_class,
            flow_label: chosen.flow_label,
            hop_limit: if chosen.hop_limit == 0 { path.hop_limit } else { chosen.hop_limit },
            service_level: chosen.service_level,
            packet_life_time: chosen.packet_life_time,
            ..path
        },
    };
    PathRecord { traffic_class: inner.tos.unwrap_or(path.traffic_class), ..path }
}

/// The connection manager's errors as the program gets them.
pub(crate) fn refused(e: cm::Error) -> Error {
    match e {
        cm::Error::Full(_) | cm::Error::CommIds(_) => Error::Limit("connections"),
        cm::Error::State(_, state) => Error::name("the connection's state does not allow the call", state),
        cm::Error::Unknown(_) => NOT_CONNECTED,
        cm::Error::NoDatagrams => Error::System(Errno::EOPNOTSUPP),
        cm::Error::OutOfRange { what, value, most } => {
            Error::OutOfRange { what, value: value.into(), least: 0, most: most.into() }
        }
        cm::Error::Gid { .. } => Error::Invalid("the identifier has no path: an end has no GID"),
        cm::Error::PrivateData(len, most) => {
            Error::OutOfRange { what: "private_data_len", value: len as u64, least: 0, most: most as u64 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_connection_manager_refuses_keeps_its_value_and_has_its_errno() {
        for (refusal, errno, message) in [
            (cm::Error::Full(4096), Errno::ENOMEM, "limit reached: connections"),
            (cm::Error::CommIds(wire::CommId(7)), Errno::ENOMEM, "limit reached: connections"),
            (
                cm::Error::OutOfRange { what: "retry_count", value: 9, most: 7 },
                Errno::EINVAL,
                "invalid argument: retry_count is 9, not 0 to 7",
            ),
            (
                cm::Error::PrivateData(57, 56),
                Errno::EINVAL,
                "invalid argument: private_data_len is 57, not 0 to 56",
            ),
            (cm::Error::NoDatagrams, Errno::EOPNOTSUPP, &*Error::System(Errno::EOPNOTSUPP).to_string()),
            (
                cm::Error::Gid { from: wire::Gid::default(), to: wire::Gid::default() },
                Errno::EINVAL,
                "invalid argument: the identifier has no path: an end has no GID",
            ),
        ] {
            let refused = refused(refusal);
            assert_eq!((refused.errno(), refused.to_string().as_str()), (errno, message));
        }
    }
}
