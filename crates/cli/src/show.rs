//! `verbena show`: what one process on Verbena has, a line for each object.

use std::fmt::Write as _;
use std::process::ExitCode;

use inspect::{CmId, Cq, Mr, Process, Qp, Reliable, Srq, Stream};
use linux::inspector::{self, Answer};
use serde_json::Value;

use crate::{output, ps};

/// Show what a process on Verbena has: devices, queue pairs, memory, connections, counters
///
/// A line for each object, in the words of rdma-resource(8) where it has them. Keys and contents of
/// memory are not shown. The process must be of this user, or the caller root.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of the process (`verbena ps`)
    pid: u32,
    /// Print JSON, counters that are 0 included
    #[arg(long)]
    json: bool,
}

/// Prints what a process has.
///
/// # Errors
/// A message: there is no such process on Verbena, it is another user's, or it does not answer.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let pid = args.pid;
    let process = match inspector::process(pid) {
        Some(Answer::Process(process)) => process,
        Some(Answer::OtherUser) => {
            return Err(format!("process {pid} belongs to another user: Operation not permitted"));
        }
        Some(Answer::Silent) => return Err(format!("process {pid} does not answer; is it stopped?")),
        Some(Answer::OtherBuild) => return Err(format!("process {pid} runs another build of Verbena")),
        None => {
            return Err(format!(
                "process {pid} is not on Verbena in this network namespace (see `verbena ps`)"
            ));
        }
    };
    // In its own PID namespace it may have another number.
    let process = Process { pid, ..*process };
    output::write(if args.json { json(&process)? } else { text(&process) })
}

/// The fields of [`Process`], without those of which nothing is known.
fn json(process: &Process) -> Result<String, String> {
    let mut value = serde_json::to_value(process).map_err(|error| error.to_string())?;
    remove_nulls(&mut value);
    Ok(format!("{value:#}\n"))
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn text(process: &Process) -> String {
    let mut lines =
        vec![format!("process {} {} up {}", process.pid, process.comm, ps::uptime(process.uptime_ms / 1000))];
    for device in &process.devices {
        lines.push(format!(
            "dev {} netdev {} state {} mtu {} pd {}",
            device.ifname, device.netdev, device.state, device.mtu, device.pds
        ));
        let name = &device.ifname;
        lines.extend(device.qps.iter().map(|qp| format!("qp {name}/1 {}", of_qp(qp))));
        lines.extend(device.cqs.iter().map(|cq| format!("cq {name} {}", of_cq(cq))));
        lines.extend(device.srqs.iter().map(|srq| format!("srq {name} {}", of_srq(srq))));
        lines
            .extend(device.mrs.iter().zip(0..).map(|(mr, mrn)| format!("mr {name} mrn {mrn} {}", of_mr(mr))));
    }
    lines.extend(process.cm_ids.iter().map(of_cm_id));
    let counted = process.counters.iter().filter(|(_, count)| **count > 0);
    lines.extend(counted.map(|(name, count)| format!("counter {name} {count}")));
    lines.iter().map(|line| output::printable(line) + "\n").collect()
}

/// The words and values that are known, with a space before each.
fn known<T: std::fmt::Display>(
    text: &mut String,
    fields: impl IntoIterator<Item = (&'static str, Option<T>)>,
) {
    for (word, value) in fields {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = write!(text, " {word} {value}");
        }
    }
}

fn of_qp(qp: &Qp) -> String {
    let mut text = format!("lqpn {}", qp.lqpn);
    known(&mut text, [("rqpn", qp.rqpn)]);
    let _ = write!(text, " type {} state {}", qp.kind, qp.state);
    known(&mut text, [("rq-psn", qp.rq_psn), ("sq-psn", qp.sq_psn)]);
    known(
        &mut text,
        [("src-addr", &qp.src_addr), ("dst-addr", &qp.dst_addr), ("via", &qp.via)]
            .map(|(w, v)| (w, v.as_ref())),
    );
    known(&mut text, [("path-mtu", qp.rqpn.map(|_| qp.path_mtu))]);
    let _ = write!(
        text,
        " pdn {} send-cqn {} recv-cqn {} sends {}/{} recvs {}/{} received {}",
        qp.pdn, qp.send_cqn, qp.recv_cqn, qp.sends, qp.max_send_wr, qp.recvs, qp.max_recv_wr, qp.received
    );
    known(&mut text, [("srqn", qp.srqn)]);
    if let Some(stream) = &qp.stream {
        text += &of_stream(stream);
    }
    if let Some(reliable) = &qp.reliable {
        text += &of_reliable(reliable);
    }
    text
}

fn of_stream(stream: &Stream) -> String {
    let Stream { sent_bytes, sent_fpdus, received_bytes, received_fpdus } = stream;
    format!(
        " sent-bytes {sent_bytes} sent-fpdus {sent_fpdus} received-bytes {received_bytes} received-fpdus \
         {received_fpdus}"
    )
}

fn of_reliable(reliable: &Reliable) -> String {
    let mut text = format!(" completed {} in-flight {}", reliable.completed, reliable.in_flight);
    let recovered = [
        ("retransmissions", reliable.retransmissions),
        ("timeouts", reliable.timeouts),
        ("rcvd-rnr-naks", reliable.rcvd_rnr_naks),
        ("sent-rnr-naks", reliable.sent_rnr_naks),
    ];
    known(&mut text, recovered.map(|(word, count)| (word, (count > 0).then_some(count))));
    if let Some(error) = &reliable.last_error {
        let _ = write!(text, " last-error \"{}\" {} ago", error.status, ps::uptime(error.ms_ago / 1000));
    }
    text
}

fn of_cq(cq: &Cq) -> String {
    let mut text =
        format!("cqn {} cqe {} users {} fill {} added {}", cq.cqn, cq.cqe, cq.users, cq.fill, cq.added);
    text += if cq.channel { " channel" } else { "" };
    text += if cq.overrun { " OVERRUN" } else { "" };
    text
}

fn of_srq(srq: &Srq) -> String {
    let mut text = format!("srqn {} type {} pdn {}", srq.srqn, srq.kind, srq.pdn);
    known(&mut text, [("cqn", srq.cqn)]);
    let _ = write!(text, " recvs {}/{}", srq.recvs, srq.max_recv_wr);
    known(&mut text, [("limit", (srq.limit > 0).then_some(srq.limit))]);
    text
}

fn of_mr(mr: &Mr) -> String {
    let access = if mr.access.is_empty() { "LOCAL_READ".to_owned() } else { mr.access.join(",") };
    format!("mrlen {} pdn {} addr {:#x} access {access}", mr.mrlen, mr.pdn, mr.addr)
}

fn of_cm_id(id: &CmId) -> String {
    let mut text =
        format!("cm_id {}", id.ifname.as_ref().map_or_else(|| "-".to_owned(), |name| format!("{name}/1")));
    known(&mut text, [("lqpn", id.lqpn)]);
    let _ = write!(text, " qp-type {} state {} ({}) ps {}", id.qp_type, id.state, id.progress, id.ps);
    known(&mut text, [("src-addr", id.src_addr.as_ref()), ("dst-addr", id.dst_addr.as_ref())]);
    let _ = write!(text, " channel {} events {}", id.channel, id.events);
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use inspect::{Device, LastError};

    use super::*;

    fn process() -> Process {
        let last_error = Some(LastError { status: "RETRY_EXC_ERR".into(), ms_ago: 65_000 });
        let reliable =
            Reliable { completed: 9, in_flight: 2, timeouts: 8, last_error, ..Reliable::default() };
        let connected = Qp {
            lqpn: 17,
            rqpn: Some(18),
            kind: "RC".into(),
            state: "ERR".into(),
            rq_psn: Some(1),
            sq_psn: Some(2),
            src_addr: Some("10.0.0.1".into()),
            dst_addr: Some("10.0.0.2".into()),
            via: Some("wire".into()),
            path_mtu: 1024,
            reliable: Some(reliable),
            ..Qp::default()
        };
        let stream = Stream { sent_bytes: 84, sent_fpdus: 2, received_bytes: 44, received_fpdus: 1 };
        let streamed =
            Qp { lqpn: 20, kind: "RC".into(), state: "RTS".into(), stream: Some(stream), ..Qp::default() };
        let datagrams = Qp { lqpn: 19, kind: "UD".into(), state: "RTS".into(), ..Qp::default() };
        let id = CmId {
            state: "LISTEN".into(),
            progress: "listening".into(),
            ps: "TCP".into(),
            qp_type: "RC".into(),
            ..CmId::default()
        };
        Process {
            pid: 4711,
            comm: "rping".into(),
            devices: vec![Device {
                ifname: "rxe0".into(),
                netdev: "eth0".into(),
                state: "ACTIVE".into(),
                mtu: 1024,
                qps: vec![connected, datagrams, streamed],
                cqs: vec![Cq { cqe: 16, fill: 16, overrun: true, ..Cq::default() }],
                srqs: vec![Srq {
                    srqn: 5,
                    kind: "XRC".into(),
                    cqn: Some(0),
                    recvs: 3,
                    max_recv_wr: 8,
                    ..Srq::default()
                }],
                mrs: vec![Mr {
                    addr: 0x1000,
                    mrlen: 64,
                    access: vec!["LOCAL_WRITE".into()],
                    ..Mr::default()
                }],
                ..Device::default()
            }],
            cm_ids: vec![id],
            counters: BTreeMap::from([("host.packets_sent".into(), 7), ("node.icrc".into(), 0)]),
            ..Process::default()
        }
    }

    #[test]
    fn each_object_is_a_line_with_what_is_known_of_it() {
        assert_eq!(
            text(&process()),
            "process 4711 rping up 0s\n\
             dev rxe0 netdev eth0 state ACTIVE mtu 1024 pd 0\n\
             qp rxe0/1 lqpn 17 rqpn 18 type RC state ERR rq-psn 1 sq-psn 2 src-addr 10.0.0.1 dst-addr 10.0.0.2 \
             via wire path-mtu 1024 pdn 0 send-cqn 0 recv-cqn 0 sends 0/0 recvs 0/0 received 0 completed 9 \
             in-flight 2 timeouts 8 last-error \"RETRY_EXC_ERR\" 1m05s ago\n\
             qp rxe0/1 lqpn 19 type UD state RTS pdn 0 send-cqn 0 recv-cqn 0 sends 0/0 recvs 0/0 received 0\n\
             qp rxe0/1 lqpn 20 type RC state RTS pdn 0 send-cqn 0 recv-cqn 0 sends 0/0 recvs 0/0 received 0 \
             sent-bytes 84 sent-fpdus 2 received-bytes 44 received-fpdus 1\n\
             cq rxe0 cqn 0 cqe 16 users 0 fill 16 added 0 OVERRUN\n\
             srq rxe0 srqn 5 type XRC pdn 0 cqn 0 recvs 3/8\n\
             mr rxe0 mrn 0 mrlen 64 pdn 0 addr 0x1000 access LOCAL_WRITE\n\
             cm_id - qp-type RC state LISTEN (listening) ps TCP channel 0 events 0\n\
             counter host.packets_sent 7\n"
        );
    }

    #[test]
    fn json_has_the_same_and_nothing_that_is_not_known() {
        let value: Value = serde_json::from_str(&json(&process()).unwrap()).unwrap();
        let qps = &value["devices"][0]["qps"];
        assert_eq!(qps[0]["rqpn"], 18);
        assert_eq!(qps[0]["type"], "RC");
        assert_eq!(qps[0]["reliable"]["last-error"]["status"], "RETRY_EXC_ERR");
        assert!(qps[1].get("rqpn").is_none() && qps[1].get("reliable").is_none());
        assert_eq!(qps[2]["stream"]["sent-fpdus"], 2);
        assert_eq!(value["counters"]["node.icrc"], 0);
    }
}
