//! The question to the administration of an InfiniBand subnet for a path between two GIDs
//! (PathRecord, IBA 1.4 §15.2.5.16), which rdma_resolve_route(3) asks.

use std::sync::Arc;
use std::time::Duration;

use cm::PathRecord;
use nic::Device;
use nic::rdma_cm::EventKind;
use wire::mad::{method, sa};
use wire::{Gid, LidAddress, Mtu, Pkey};

use crate::env::Env;
use crate::id::{Id, PathChoice, Progress};
use crate::sa_client::{Answer, Purpose, Request, manager_of};
use crate::{Errno, Error, Node};

impl<W: Env> Node<W> {
    /// Asks for the path of an identifier whose address is resolved.
    pub(crate) fn ask_for_path(&self, id: &Arc<Id>, timeout: Duration) -> Result<(), Error> {
        let mut core = self.cm_agent.lock();
        core.sa_queries.check_room()?;
        let (device, (sgid, dgid), wanted) = {
            let mut inner = id.lock();
            let (Progress::AddressResolved, Some(gids), Some(device)) =
                (inner.progress, inner.gids, inner.device.clone())
            else {
                return Err(inner.progress.refuses());
            };
            manager_of(&device).ok_or(Error::System(Errno::EAGAIN))?;
            inner.progress = Progress::RouteQuery;
            (device, gids, inner.ib_dest)
        };
        let pkey = match wanted {
            Some(service) => Pkey(service.pkey),
            None => device.port().pkeys().first().copied().unwrap_or_default(),
        };
        let record = sa::PathRecord { dgid, sgid, pkey: pkey.0, ..sa::PathRecord::default() };
        let request = Request {
            method: method::GET,
            attribute: sa::attribute::PATH_RECORD,
            components: sa::path::DGID | sa::path::SGID | sa::path::PKEY,
            record: &record.emit(),
        };
        self.ask_administration(&mut core, device, Purpose::Path(id.clone()), &request, timeout);
        Ok(())
    }

    /// The question for the path of an identifier has its answer, or none.
    pub(crate) fn path_answered(&self, id: &Arc<Id>, device: &Device, answer: Answer<'_>) {
        let gids = id.lock().gids;
        let path = answer.and_then(|record| {
            let record = sa::PathRecord::parse(record).map_err(|_| Errno::EINVAL)?;
            let fits = gids == Some((record.sgid, record.dgid));
            path_of(&record, device).filter(|_| fits).ok_or(Errno::EINVAL)
        });
        self.finish_route(id, path);
    }

    /// The program gives the path, and nothing is asked. EINVAL for LIDs that there are not.
    pub(crate) fn take_record(
        &self,
        id: &Arc<Id>,
        (sgid, dgid): (Gid, Gid),
        choice: &PathChoice,
    ) -> Result<(), Error> {
        let record = sa::PathRecord {
            sgid,
            dgid,
            slid: choice.lids[0],
            dlid: choice.lids[1],
            flow_and_hops: choice.flow_label << 8 | u32::from(choice.hop_limit),
            traffic_class: choice.traffic_class,
            pkey: choice.pkey.0,
            sl: choice.service_level,
            mtu: choice.mtu.code(),
            rate: choice.packet_rate,
            life_time: choice.packet_life_time,
            ..sa::PathRecord::default()
        };
        let path = {
            let mut inner = id.lock();
            let (Progress::AddressResolved, Some(device)) = (inner.progress, &inner.device) else {
                return Err(inner.progress.refuses());
            };
            let path = path_of(&record, device).ok_or(Error::Invalid("the path names no LIDs"))?;
            inner.progress = Progress::RouteQuery;
            path
        };
        self.finish_route(id, Ok(path));
        Ok(())
    }

    /// The question has its answer, or none.
    fn finish_route(&self, id: &Arc<Id>, path: Result<PathRecord, Errno>) {
        {
            let mut inner = id.lock();
            if inner.progress != Progress::RouteQuery {
                return;
            }
            inner.progress = match path {
                Ok(_) => Progress::RouteResolved,
                Err(_) => Progress::AddressResolved,
            };
            // Between GIDs there are none.
            let ends = inner.source.zip(inner.dest).filter(|_| inner.ib_dest.is_none());
            let ips = ends.map(|(source, dest)| [source.ip(), dest.ip()]);
            inner.record = path.ok().map(|path| PathRecord { ips, ..path });
        }
        match path {
            Ok(_) => self.tell(id, EventKind::RouteResolved, 0),
            Err(why) => self.tell(id, EventKind::RouteError, -why.0),
        }
    }
}

/// A path from a device, as a record says it; `None` where the record names what there is not.
fn path_of(record: &sa::PathRecord, device: &Device) -> Option<PathRecord> {
    /// The bits of a field below its selector.
    const CODE: u8 = 0x3f;
    let mtu = Mtu::from_code(record.mtu & CODE)?.min(device.port().mtu);
    let lid = |lid| LidAddress::new(lid, 0, 0).ok();
    let path = PathRecord::new(record.sgid, record.dgid, device.config.interface, mtu);
    Some(PathRecord {
        lids: Some([lid(record.slid)?, lid(record.dlid)?]),
        traffic_class: record.traffic_class,
        flow_label: record.flow_and_hops >> 8 & 0xf_ffff,
        hop_limit: record.flow_and_hops as u8,
        service_level: record.sl & 15,
        packet_rate: record.rate & CODE,
        packet_life_time: (record.life_time & CODE).min(31),
        pkey: Pkey(record.pkey),
        ..path
    })
}
