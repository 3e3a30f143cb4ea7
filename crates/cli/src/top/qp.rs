//! The screen of one queue pair: what `verbena show` tells of it, its completion queues and its
//! connection, with rates.

use inspect::{CmId, Cq, Device, Process, Qp, Reliable};

use super::rates::{self, Between};
use super::table;
use crate::ps;

/// A line of the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) label: &'static str,
    pub(super) content: Content,
}

/// What follows the label of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Text of another process may be in it.
    Text(String),
    /// Why the queue pair failed, or what was lost.
    Alarm(String),
    /// How full a queue is.
    Gauge { fill: u32, of: u32 },
}

/// The lines of a queue pair.
pub(super) fn lines(process: &Process, device: &Device, qp: &Qp, between: Option<Between<'_>>) -> Vec<Line> {
    let rate = |count| between.and_then(|between| between.of_qp(&device.ifname, qp, count));
    let mut lines = identity(device, qp);
    lines.push(gauge("sends", qp.sends, qp.max_send_wr));
    lines.push(gauge("recvs", qp.recvs, qp.max_recv_wr));
    let is_one = qp.send_cqn == qp.recv_cqn;
    let cqs = [(if is_one { "cq" } else { "send cq" }, qp.send_cqn), ("recv cq", qp.recv_cqn)];
    for (label, cqn) in cqs.into_iter().take(if is_one { 1 } else { 2 }) {
        if let Some(cq) = device.cqs.iter().find(|cq| cq.cqn == cqn) {
            let added = between.and_then(|between| between.of_cq(&device.ifname, cq));
            lines.extend(of_cq(label, cq, added));
        }
    }
    lines.push(text("received", format!("{}{}", qp.received, per_second(rate(|qp| qp.received)))));
    if let Some(stream) = &qp.stream {
        let [sent, received] = [rate(rates::sent_bytes), rate(rates::received_bytes)];
        lines.push(of_way("bytes out", stream.sent_bytes, sent, stream.sent_fpdus));
        lines.push(of_way("bytes in", stream.received_bytes, received, stream.received_fpdus));
    }
    if let Some(reliable) = &qp.reliable {
        lines.extend(of_reliable(reliable, rate(rates::completed), rate(rates::retransmissions)));
    }
    let is_its = |id: &&CmId| id.lqpn == Some(qp.lqpn) && id.ifname.as_ref() == Some(&device.ifname);
    lines.extend(process.cm_ids.iter().filter(is_its).flat_map(of_cm_id));
    lines
}

fn text(label: &'static str, text: String) -> Line {
    Line { label, content: Content::Text(text) }
}

fn gauge(label: &'static str, fill: u32, of: u32) -> Line {
    Line { label, content: Content::Gauge { fill, of } }
}

fn per_second(rate: Option<f64>) -> String {
    rate.map(|rate| format!(" ({}/s)", table::short(rate))).unwrap_or_default()
}

/// What is known, after a word.
fn known<T: std::fmt::Display>(word: &str, value: Option<T>) -> String {
    value.map(|value| format!(" {word} {value}")).unwrap_or_default()
}

fn identity(device: &Device, qp: &Qp) -> Vec<Line> {
    let Device { ifname, netdev, state, mtu, .. } = device;
    let via = known("via", qp.via.as_ref());
    let path_mtu = known("path-mtu", qp.rqpn.map(|_| qp.path_mtu));
    let own = qp.src_addr.as_deref().unwrap_or("-");
    let mut lines = vec![
        text("device", format!("{ifname} netdev {netdev} state {state} mtu {mtu}")),
        text("state", format!("{} type {}{via}{path_mtu} pdn {}", qp.state, qp.kind, qp.pdn)),
        text("local", format!("{own} lqpn {}{}", qp.lqpn, known("sq-psn", qp.sq_psn))),
    ];
    if qp.rqpn.is_some() || qp.dst_addr.is_some() {
        let peer = qp.dst_addr.as_deref().unwrap_or("-");
        lines.push(text("peer", format!("{peer}{}{}", known("rqpn", qp.rqpn), known("rq-psn", qp.rq_psn))));
    }
    lines
}

fn of_way(label: &'static str, bytes: u64, rate: Option<f64>, fpdus: u64) -> Line {
    text(label, format!("{bytes}{} fpdus {fpdus}", per_second(rate)))
}

fn of_cq(label: &'static str, cq: &Cq, rate: Option<f64>) -> Vec<Line> {
    let channel = if cq.channel { " channel" } else { "" };
    let mut said =
        format!("cqn {} users {} added {}{}{channel}", cq.cqn, cq.users, cq.added, per_second(rate));
    let content = if cq.overrun {
        said += " OVERRUN";
        Content::Alarm(said)
    } else {
        Content::Text(said)
    };
    vec![gauge(label, cq.fill, cq.cqe), Line { label: "", content }]
}

fn of_reliable(reliable: &Reliable, completed: Option<f64>, retransmitted: Option<f64>) -> Vec<Line> {
    let Reliable { retransmissions, timeouts, rcvd_rnr_naks, sent_rnr_naks, .. } = reliable;
    let mut lines = vec![
        text("completed", format!("{}{}", reliable.completed, per_second(completed))),
        text("in flight", reliable.in_flight.to_string()),
        text(
            "recovery",
            format!("retransmissions {retransmissions}{} timeouts {timeouts}", per_second(retransmitted)),
        ),
        text("rnr naks", format!("received {rcvd_rnr_naks} sent {sent_rnr_naks}")),
    ];
    if let Some(error) = &reliable.last_error {
        let said = format!("{} {} ago", error.status, ps::uptime(error.ms_ago / 1000));
        lines.push(Line { label: "last error", content: Content::Alarm(said) });
    }
    lines
}

fn of_cm_id(id: &CmId) -> [Line; 2] {
    let CmId { state, progress, ps, channel, events, .. } = id;
    let own = id.src_addr.as_deref().unwrap_or("-");
    [
        text("cm_id", format!("{state} ({progress}) ps {ps} channel {channel} events {events}")),
        text("", format!("src-addr {own}{}", known("dst-addr", id.dst_addr.as_ref()))),
    ]
}
