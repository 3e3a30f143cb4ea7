//! `rdma resource show` and `rdma statistic show` (rdma-resource(8), rdma-statistic(8)): the
//! objects and the counters of the processes that one `verbena run` has started. Without a view of
//! the file system, by which these are known, of all processes of the user.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};

use inspect::{Device, Process};
use linux::inspector::{self, Answer};
use linux::port_counters::{HW_COUNTERS, PortFiles, VARIABLE};
use nic::DeviceConfig;
use serde_json::Value;

use super::{Fields, fields};
use crate::output;

/// What `rdma resource show` tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// How many objects there are of each kind.
    Summary,
    Qp,
    CmId,
    Cq,
    Mr,
    Pd,
}

impl Kind {
    /// The kinds that can be named.
    pub(super) const NAMED: [(&'static str, Self); 5] =
        [("qp", Self::Qp), ("cm_id", Self::CmId), ("cq", Self::Cq), ("mr", Self::Mr), ("pd", Self::Pd)];
}

/// The files of a device's port, where its counters are.
fn port_files(device: &str) -> PortFiles {
    let class =
        env::var_os(VARIABLE).map_or_else(|| Path::new("/sys/class/infiniband").into(), PathBuf::from);
    PortFiles::of(&class, device)
}

/// What a link has counted; `None` where there are no counters.
pub(super) fn statistic(config: &DeviceConfig) -> Option<Fields> {
    let counters = port_files(&config.name).read("hw_counters", &HW_COUNTERS);
    let mut said = fields([
        ("ifindex", config.interface.into()),
        ("ifname", config.name.as_str().into()),
        ("port", 1.into()),
    ]);
    said.extend(counters.iter().map(|(name, n)| ((*name).to_owned(), Value::from(*n))));
    (!counters.is_empty()).then_some(said)
}

/// The processes that count in the same files as this one does, or all of them.
pub(super) fn processes(devices: &[&DeviceConfig]) -> Vec<Process> {
    let is_counted = env::var_os(VARIABLE).is_some();
    let view = devices.iter().find_map(|config| port_files(&config.name).view()).filter(|_| is_counted);
    let answers = inspector::processes().into_iter().filter_map(|asked| match asked.answer {
        // In another PID namespace it has another number.
        Answer::Process(process) => Some(Process { pid: asked.pid.unwrap_or(process.pid), ..*process }),
        Answer::Silent | Answer::OtherBuild | Answer::OtherUser => None,
    });
    answers.filter(|process| view.is_none() || process.view == view).collect()
}

/// What is told of a device, a line for each object.
pub(super) fn of_device(kind: Kind, config: &DeviceConfig, processes: &[Process]) -> Vec<Fields> {
    let of = |process: &Process| -> Option<Device> {
        process.devices.iter().find(|device| device.ifname == config.name).cloned()
    };
    let all = processes.iter().filter_map(|process| Some((process, of(process)?)));
    if kind == Kind::Summary {
        return vec![summary(config, &all.collect::<Vec<_>>())];
    }
    all.flat_map(|(process, device)| objects(kind, config, process, &device)).collect()
}

fn summary(config: &DeviceConfig, all: &[(&Process, Device)]) -> Fields {
    let count = |of: fn(&Device) -> u64| all.iter().map(|(_, device)| of(device)).sum::<u64>();
    let is_here = |id: &&inspect::CmId| id.ifname.as_deref() == Some(config.name.as_str());
    let cm_ids = all.iter().flat_map(|(process, _)| process.cm_ids.iter().filter(is_here)).count();
    fields([
        ("ifindex", config.interface.into()),
        ("ifname", config.name.as_str().into()),
        ("pd", count(|device| device.pds).into()),
        ("cq", count(|device| device.cqs.len() as u64).into()),
        ("qp", count(|device| device.qps.len() as u64).into()),
        ("cm_id", cm_ids.into()),
        ("mr", count(|device| device.mrs.len() as u64).into()),
        ("ctx", all.len().into()),
    ])
}

/// The objects of one kind that a process has on a device.
fn objects(kind: Kind, config: &DeviceConfig, process: &Process, device: &Device) -> Vec<Fields> {
    let on = |port: bool| {
        let mut said =
            fields([("ifindex", config.interface.into()), ("ifname", config.name.as_str().into())]);
        if port {
            said.insert("port".to_owned(), 1.into());
        }
        said
    };
    let line = |port: bool, own: Fields| {
        let mut said = on(port);
        said.extend(own.into_iter().filter(|(_, value)| !value.is_null()));
        said.extend(fields([("pid", process.pid.into()), ("comm", output::printable(&process.comm).into())]));
        said
    };
    match kind {
        Kind::Summary => Vec::new(),
        Kind::Qp => device.qps.iter().map(|qp| line(true, of_qp(qp))).collect(),
        Kind::Cq => device.cqs.iter().map(|cq| line(false, of_cq(cq))).collect(),
        Kind::Mr => device.mrs.iter().zip(0..).map(|(mr, mrn)| line(false, of_mr(mr, mrn))).collect(),
        Kind::Pd => of_pds(device).into_iter().map(|pd| line(false, pd)).collect(),
        Kind::CmId => {
            let here = process.cm_ids.iter().filter(|id| id.ifname.as_deref() == Some(&device.ifname));
            here.zip(0..).map(|(id, cm_idn)| line(true, of_cm_id(id, cm_idn))).collect()
        }
    }
}

fn of_qp(qp: &inspect::Qp) -> Fields {
    fields([
        ("lqpn", qp.lqpn.into()),
        ("rqpn", qp.rqpn.into()),
        ("type", qp.kind.as_str().into()),
        ("state", qp.state.as_str().into()),
        ("rq-psn", qp.rq_psn.into()),
        ("sq-psn", qp.sq_psn.into()),
        ("path-mig-state", "MIGRATED".into()),
        ("pdn", qp.pdn.into()),
    ])
}

fn of_cq(cq: &inspect::Cq) -> Fields {
    fields([("cqn", cq.cqn.into()), ("cqe", cq.cqe.into()), ("users", cq.users.into())])
}

fn of_mr(mr: &inspect::Mr, mrn: u32) -> Fields {
    fields([("mrn", mrn.into()), ("mrlen", mr.mrlen.into()), ("pdn", mr.pdn.into())])
}

/// The protection domains that queue pairs or regions are of: others have no number here.
fn of_pds(device: &Device) -> Vec<Fields> {
    let used = device.qps.iter().map(|qp| qp.pdn).chain(device.mrs.iter().map(|mr| mr.pdn));
    let used: BTreeSet<u32> = used.collect();
    used.into_iter().map(|pdn| fields([("pdn", pdn.into())])).collect()
}

fn of_cm_id(id: &inspect::CmId, cm_idn: u32) -> Fields {
    fields([
        ("cm-idn", cm_idn.into()),
        ("lqpn", id.lqpn.into()),
        ("qp-type", id.qp_type.as_str().into()),
        ("state", id.state.as_str().into()),
        ("ps", id.ps.as_str().into()),
        ("src-addr", id.src_addr.as_deref().into()),
        ("dst-addr", id.dst_addr.as_deref().into()),
    ])
}

#[cfg(test)]
mod tests {
    use inspect::{CmId, Cq, Mr, Qp};

    use super::*;

    fn config(name: &str) -> DeviceConfig {
        DeviceConfig {
            id: nic::DeviceId(0),
            name: name.to_owned(),
            transport: nic::Transport::Roce,
            guid: wire::Guid(1),
            interface: 1,
            interface_name: "lo".to_owned(),
            mac: [0; 6],
        }
    }

    fn process() -> Process {
        let qp =
            Qp { lqpn: 17, rqpn: Some(18), kind: "RC".into(), state: "RTS".into(), pdn: 2, ..Qp::default() };
        let device = Device {
            ifname: "rxe_lo".into(),
            pds: 2,
            qps: vec![qp.clone(), Qp { lqpn: 19, rqpn: None, pdn: 1, ..qp }],
            cqs: vec![Cq { cqe: 32, users: 4, ..Cq::default() }],
            mrs: vec![Mr { mrlen: 4096, pdn: 2, ..Mr::default() }],
            ..Device::default()
        };
        let id = CmId { ifname: Some("rxe_lo".into()), state: "CONNECT".into(), ..CmId::default() };
        let ids = vec![id, CmId::default()];
        Process { pid: 7, comm: "rping".into(), devices: vec![device], cm_ids: ids, ..Process::default() }
    }

    #[test]
    fn a_summary_adds_up_what_all_processes_have() {
        let said = &of_device(Kind::Summary, &config("rxe_lo"), &[process(), process()])[0];
        let counts: Vec<_> = ["pd", "cq", "qp", "cm_id", "mr", "ctx"].map(|name| said[name].as_u64()).into();
        assert_eq!(counts, [4, 2, 4, 2, 2, 2].map(Some));
        let none = &of_device(Kind::Summary, &config("rxe_eth0"), &[process()])[0];
        assert_eq!((none["qp"].as_u64(), none["ctx"].as_u64()), (Some(0), Some(0)));
    }

    #[test]
    fn each_object_says_which_process_has_it() {
        let of = |kind| of_device(kind, &config("rxe_lo"), &[process()]);
        let qps = of(Kind::Qp);
        assert_eq!((qps.len(), qps[0]["rqpn"].as_u64()), (2, Some(18)));
        assert!(!qps[1].contains_key("rqpn"), "of an unconnected one nothing is said");
        assert_eq!(of(Kind::Pd).iter().map(|pd| pd["pdn"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!(of(Kind::CmId).len(), 1, "those of other devices are not told");
        for kind in Kind::NAMED.map(|(_, kind)| kind) {
            assert!(of(kind).iter().all(|said| said["pid"] == 7 && said["comm"] == "rping"), "{kind:?}");
        }
    }
}
