//! Questions to the administration of an InfiniBand subnet (IBA 1.4 §15.2): for a path, to join a
//! multicast group, to leave one. The subnet manager's LID is the port's. A question that gets no
//! answer is asked again until its time is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nic::{Device, Transport};
use wire::mad::rmpp::Rmpp;
use wire::mad::sa::{self, SaHeader};
use wire::mad::{Header, MAD_LEN, class, method, status};
use wire::{Gid, LidAddress};

use crate::cm_agent::Core;
use crate::env::Env;
use crate::id::Id;
use crate::{Errno, Error, Node};

/// How often a question is asked, as the kernel's ib_sa asks.
const TIMES: u32 = 10;
/// The least time between two questions.
const MIN_STEP: Duration = Duration::from_millis(10);
/// Questions under way at most; one more is refused.
const MAX_QUERIES: usize = 65_536;

/// Questions without an answer so far, by the lower half of their transaction ids.
#[derive(Default)]
pub(crate) struct SaQueries {
    asked: BTreeMap<u32, Query>,
    next: u32,
}

struct Query {
    purpose: Purpose,
    attribute: u16,
    device: Arc<Device>,
    mad: Box<[u8; MAD_LEN]>,
    until: Instant,
    again: Instant,
    step: Duration,
}

/// What a question is for.
pub(crate) enum Purpose {
    /// A path for an identifier.
    Path(Arc<Id>),
    /// The membership of an identifier in a group.
    Join {
        id: Arc<Id>,
        mgid: Gid,
        /// What the program gave with its call.
        context: u64,
    },
    /// The end of a membership.
    Leave,
}

/// What is asked.
pub(crate) struct Request<'a> {
    pub(crate) method: u8,
    pub(crate) attribute: u16,
    /// The components of the record that have a value.
    pub(crate) components: u64,
    pub(crate) record: &'a [u8],
}

/// The record of an answer, or why there is none: EINVAL, as the kernel's ib_sa says for any
/// status, ETIMEDOUT.
pub(crate) type Answer<'a> = Result<&'a [u8], Errno>;

impl SaQueries {
    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.asked.values().map(|query| query.until.min(query.again)).min()
    }

    /// Refuses one more question where there are too many.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        if self.asked.len() < MAX_QUERIES {
            Ok(())
        } else {
            Err(Error::Limit("questions to the subnet's administration"))
        }
    }

    fn free_number(&mut self) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.asked.contains_key(&self.next) {
                return self.next;
            }
        }
    }
}

impl<W: Env> Node<W> {
    /// Asks a question. The answer goes to what it is for, or ETIMEDOUT does after `timeout`.
    pub(crate) fn ask_administration(
        &self,
        core: &mut Core,
        device: Arc<Device>,
        purpose: Purpose,
        request: &Request<'_>,
        timeout: Duration,
    ) {
        let now = self.env.now();
        let queries = &mut core.sa_queries;
        let number = queries.free_number();
        let step = (timeout / TIMES).max(MIN_STEP);
        let query = Query {
            purpose,
            attribute: request.attribute,
            device,
            mad: Box::new(request.mad(number.into())),
            until: now + timeout,
            again: now + step,
            step,
        };
        self.send_query(&query);
        queries.asked.insert(number, query);
        self.cm_agent.asked.store(queries.asked.len(), Ordering::Relaxed);
        self.env.wake_at(now + step.min(timeout));
    }

    /// Questions that are asked again, and those whose time is over.
    pub(crate) fn expire_sa_queries(&self, now: Instant) {
        if self.cm_agent.asked.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut core = self.cm_agent.lock();
        let over = core.sa_queries.asked.extract_if(.., |_, query| query.until <= now);
        let over: Vec<Query> = over.map(|(_, query)| query).collect();
        for query in core.sa_queries.asked.values_mut().filter(|query| query.again <= now) {
            query.again = now + query.step;
            self.send_query(query);
        }
        self.cm_agent.asked.store(core.sa_queries.asked.len(), Ordering::Relaxed);
        drop(core);
        over.into_iter().for_each(|query| self.answered(query, Err(Errno::ETIMEDOUT)));
    }

    fn send_query(&self, query: &Query) {
        // Without a manager the question is lost, as any packet may be.
        if let Some(manager) = manager_of(&query.device) {
            self.env.send_mad(query.device.config.interface, manager, &query.mad);
        }
    }

    /// A MAD of the administration of a subnet: the answer to a question of ours, or none.
    pub(crate) fn subnet_administration(&self, interface: u32, mad: &[u8]) {
        let (Ok(header), Some(record)) = (Header::parse(mad), mad.get(sa::DATA..)) else {
            return self.counters.bad_mad.add(1);
        };
        let is_answer = matches!(header.method, method::GET_RESP | sa::method::DELETE_RESP);
        if header.class != class::SUBN_ADM || !is_answer {
            return self.counters.bad_mad.add(1);
        }
        let number = header.transaction_id as u32;
        let query = {
            let mut core = self.cm_agent.lock();
            let is_it = core.sa_queries.asked.get(&number).is_some_and(|query| {
                query.device.config.interface == interface && query.attribute == header.attribute
            });
            is_it.then(|| core.sa_queries.asked.remove(&number)).flatten()
        };
        let Some(query) = query else { return self.counters.cm_unmatched.add(1) };
        self.answered(query, if header.status == status::OK { Ok(record) } else { Err(Errno::EINVAL) });
    }

    fn answered(&self, query: Query, answer: Answer<'_>) {
        match query.purpose {
            Purpose::Path(id) => self.path_answered(&id, &query.device, answer),
            Purpose::Join { id, mgid, context } => {
                self.join_answered(&id, &query.device, (mgid, context), answer);
            }
            // A manager that does not know the member says so, and one that is gone says nothing.
            Purpose::Leave => {}
        }
    }
}

impl Request<'_> {
    fn mad(&self, transaction_id: u64) -> [u8; MAD_LEN] {
        let header = Header {
            base_version: 1,
            class: class::SUBN_ADM,
            class_version: sa::VERSION,
            method: self.method,
            transaction_id,
            attribute: self.attribute,
            ..Header::default()
        };
        let administration = SaHeader { components: self.components, ..SaHeader::default() };
        let mut mad = [0; MAD_LEN];
        mad[..Header::LEN].copy_from_slice(&header.emit());
        mad[Header::LEN + Rmpp::LEN..sa::DATA].copy_from_slice(&administration.emit());
        mad[sa::DATA..sa::DATA + self.record.len()].copy_from_slice(self.record);
        mad
    }
}

/// Where the manager of a device's subnet is; `None` where packets do not pass, or none is known.
pub(crate) fn manager_of(device: &Device) -> Option<LidAddress> {
    let port = device.port();
    let ib = port.ib.as_ref().filter(|_| port.up && device.config.transport == Transport::Ib)?;
    LidAddress::new(ib.sm_lid, ib.sm_sl, 0).ok()
}
