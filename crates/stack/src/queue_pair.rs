//! The queue pair of an identifier: given, taken away, and moved to RTS with what the connection
//! manager negotiated.

use std::sync::Arc;
use std::time::Instant;

use nic::memory::Access;
use nic::{Qp, QpAttr, QpState, Transport, mask};

use crate::address_vector::{address_vector, pkey_index};
use crate::cm_agent::{ConnKey, Core};
use crate::env::Env;
use crate::id::{Id, Progress};
use crate::{Error, Node};

impl<W: Env> Node<W> {
    /// Gives an identifier its queue pair, in state Reset, and takes it to INIT as `rdma_create_qp`
    /// does; one for datagrams to RTS.
    pub fn set_qp(&self, id: &Arc<Id>, qp: &Arc<Qp>) -> Result<(), Error> {
        {
            let mut inner = id.lock();
            if inner.qp.is_some() {
                return Err(Error::Invalid("the identifier has a queue pair already"));
            }
            if inner.device.is_none() {
                return Err(inner.progress.refuses());
            }
            inner.qp = Some(qp.clone());
        }
        let now = self.env.now();
        let mut core = self.cm_agent.lock();
        core.begun(now, id);
        self.carry_out(core, now);
        let begun = if id.is_datagram() {
            self.begin_datagram_qp(id, now, qp)
        } else {
            let attr = QpAttr { state: QpState::Init, port: 1, ..QpAttr::default() };
            qp.modify(now, &attr, mask::INIT)
        };
        begun.inspect_err(|_| id.lock().qp = None)
    }

    /// The identifier's queue pair from now on, `None` for none: one that the program has made
    /// itself, in whatever state, or the one that it has. Connecting announces it and moves it.
    /// EINVAL for another device's.
    pub fn take_in_qp(&self, id: &Id, qp: Option<Arc<Qp>>) -> Result<(), Error> {
        let mut inner = id.lock();
        if let (Some(qp), Some(device)) = (&qp, &inner.device)
            && !Arc::ptr_eq(qp.device(), device)
        {
            return Err(Error::Invalid("the queue pair is another device's"));
        }
        inner.qp = qp;
        Ok(())
    }

    /// Takes the queue pair from the identifier, `rdma_destroy_qp`.
    pub fn take_qp(&self, id: &Arc<Id>) -> Option<Arc<Qp>> {
        self.detach_all(id);
        id.lock().qp.take()
    }

    /// The attributes that `rdma_init_qp_attr` gives for a move to `state`, with their mask.
    pub fn init_qp_attr(&self, id: &Arc<Id>, state: QpState) -> Result<(QpAttr, u32), Error> {
        if id.is_datagram() {
            {
                let inner = id.lock();
                inner.device.as_ref().ok_or(inner.progress.refuses())?;
            }
            return self.datagram_attr(id, state);
        }
        let (key, device) = {
            let inner = id.lock();
            (inner.conn, inner.device.clone().ok_or(inner.progress.refuses())?)
        };
        let wants = key.and_then(|key| {
            let mut core = self.cm_agent.lock();
            let (cm, conn) = core.cm(key)?;
            cm.qp_attr(conn).or_else(|| cm.requested_qp_attr(conn))
        });
        let mut attr = match &wants {
            Some(wants) => self.rtr_attributes(id, &device, wants)?,
            None => QpAttr { port: 1, ..QpAttr::default() },
        };
        let (is_requested, told) = {
            let inner = id.lock();
            (inner.progress == Progress::Requested, inner.starting_psn)
        };
        if is_requested {
            // The program moves its queue pair before it accepts: the PSN is chosen now, and the
            // REP will tell it.
            let chosen = told.unwrap_or_else(|| self.random_psn());
            attr.rq_psn = *id.lock().starting_psn.get_or_insert(chosen);
        }
        let bits = match state {
            QpState::Init => mask::INIT,
            QpState::Rtr if wants.is_some() => mask::RTR & !id.kind.lacks(),
            QpState::Rts if wants.is_some() => mask::RTS & !id.kind.lacks(),
            _ => return Err(Error::name("the connection has no attributes for a move to", state.name())),
        };
        Ok((attr.with_state(state), bits))
    }

    /// Takes an identifier's queue pair to RTS with what the connection manager negotiated.
    pub(crate) fn connect_qp(
        &self,
        core: &mut Core,
        now: Instant,
        key: ConnKey,
        id: &Arc<Id>,
    ) -> Result<(), Error> {
        let wants = core
            .cm(key)
            .and_then(|(cm, conn)| cm.qp_attr(conn))
            .ok_or(Error::Invalid("the connection has no attributes yet"))?;
        let (qp, device) = {
            let inner = id.lock();
            let missing = Error::Invalid("the identifier has no queue pair");
            (inner.qp.clone().ok_or(missing)?, inner.device.clone().ok_or(missing)?)
        };
        let attr = self.rtr_attributes(id, &device, &wants)?;
        let lacks = qp.init().kind.lacks();
        qp.modify(now, &attr.with_state(QpState::Init), mask::INIT)?;
        if device.config.transport == Transport::Iwarp {
            return qp.await_stream(now, &attr);
        }
        qp.modify(now, &attr.with_state(QpState::Rtr), mask::RTR & !lacks)?;
        qp.modify(now, &attr.with_state(QpState::Rts), mask::RTS & !lacks)
    }

    /// The attributes of all steps to RTS.
    pub(crate) fn rtr_attributes(
        &self,
        id: &Id,
        device: &nic::Device,
        wants: &cm::QpAttributes,
    ) -> Result<QpAttr, Error> {
        let (ack_timeout, more_access, min_rnr_timer) = {
            let inner = id.lock();
            (inner.ack_timeout, inner.more_access, inner.min_rnr_timer)
        };
        // As the kernel grants: writes always; READs, atomics and, on a device that has it, FLUSH
        // where the connection accepts any.
        let reads = match wants.max_dest_rd_atomic {
            0 => 0,
            _ => {
                let flush = Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
                Access::REMOTE_READ | Access::REMOTE_ATOMIC | flush
            }
        };
        Ok(QpAttr {
            port: 1,
            access: Access::REMOTE_WRITE | reads | more_access,
            path_mtu: wants.path_mtu.min(device.port().mtu),
            dest_qpn: wants.dest_qpn,
            rq_psn: wants.rq_psn,
            sq_psn: wants.sq_psn,
            max_rd_atomic: wants.max_rd_atomic,
            max_dest_rd_atomic: wants.max_dest_rd_atomic,
            min_rnr_timer: min_rnr_timer.unwrap_or(wants.min_rnr_timer),
            timeout: ack_timeout.unwrap_or(wants.timeout),
            retry_cnt: wants.retry_cnt,
            rnr_retry: wants.rnr_retry,
            pkey_index: pkey_index(&device.port(), wants.path.pkey)?,
            av: address_vector(&device.port(), &wants.path)?,
            ..QpAttr::default()
        })
    }
}
