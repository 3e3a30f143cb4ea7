//! The model and the screens, of processes that are made up here.

use inspect::{CmId, Cq, Device, LastError, Process, Qp, Reliable, Stream};
use linux::inspector::{Answer, Asked};
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::KeyCode;

use super::model::{Look, Model, Next, Shown};
use super::screens;

fn qp(lqpn: u32, completed: u64) -> Qp {
    let reliable = Reliable { completed, in_flight: 3, retransmissions: 2, ..Reliable::default() };
    Qp {
        lqpn,
        rqpn: Some(lqpn + 1),
        kind: "RC".into(),
        state: "RTS".into(),
        sq_psn: Some(7),
        rq_psn: Some(8),
        src_addr: Some("10.0.0.1".into()),
        dst_addr: Some("10.0.0.2".into()),
        via: Some("memory".into()),
        path_mtu: 1024,
        sends: 4,
        max_send_wr: 16,
        recvs: 2,
        max_recv_wr: 2,
        received: 5,
        reliable: Some(reliable),
        ..Qp::default()
    }
}

/// A process with one device, which has been up for so long and has sent so many packets.
fn process(comm: &str, uptime_ms: u64, sent: u64, qps: Vec<Qp>) -> Process {
    let cqs = vec![Cq { cqe: 32, fill: 8, added: sent, channel: true, users: 2, ..Cq::default() }];
    let device = Device {
        ifname: "rxe0".into(),
        netdev: "eth0".into(),
        state: "ACTIVE".into(),
        mtu: 1024,
        qps,
        cqs,
        ..Device::default()
    };
    let counters = [("host.packets_sent", sent), ("host.ring_packets_sent", sent), ("host.receives", 99)];
    Process {
        comm: comm.into(),
        uptime_ms,
        devices: vec![device],
        counters: counters.map(|(name, count)| (name.to_owned(), count)).into(),
        ..Process::default()
    }
}

fn asked(pid: u32, answer: Answer) -> Asked {
    Asked { name: format!("verbena-state/{pid}/0"), pid: Some(pid), answer }
}

/// A look at these processes.
fn look(processes: Vec<(u32, Process)>) -> Look {
    let answers = processes.into_iter().map(|(pid, process)| asked(pid, Answer::Process(process.into())));
    Look::of(answers.collect())
}

/// Three processes, of which the second one sends the most.
fn three(uptime_ms: u64) -> Look {
    let sent = uptime_ms - 1000;
    look(vec![
        (30, process("rping", uptime_ms, sent, vec![qp(1, sent)])),
        (20, process("ib_write_bw", uptime_ms, 10 * sent, vec![qp(1, sent), qp(5, 3 * sent)])),
        (4, process("udaddy", uptime_ms, 0, Vec::new())),
    ])
}

/// The model after two looks, one second apart.
fn model() -> Model {
    let mut model = Model::default();
    model.look(three(1000));
    model.look(three(2000));
    model
}

fn keys(model: &mut Model, keys: &str) {
    for key in keys.chars() {
        let key = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            '\u{8}' => KeyCode::Backspace,
            '>' => KeyCode::Right,
            key => KeyCode::Char(key),
        };
        assert_eq!(model.key(key), Next::Go, "{key:?}");
    }
}

/// The lines of a terminal of this size, without spaces at their ends.
fn screen(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| screens::draw(frame, model));
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width.max(1)));
    lines
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

/// The first words of the rows of the table that is shown.
fn first_words(model: &mut Model) -> Vec<String> {
    let (_, rows, _) = model.table();
    rows.iter().map(|row| row.cells[0].to_string()).collect()
}

/// The first word of the selected row.
fn selected(model: &mut Model) -> String {
    let (_, rows, view) = model.table();
    rows[view.at].cells[0].to_string()
}

#[test]
fn the_list_has_a_line_for_each_process_with_its_rates() {
    let lines = screen(&mut model(), 100, 8);
    assert_eq!(
        lines,
        [
            "verbena top: 3 processes, sorted by PID",
            "PID COMM        UPTIME QP CQ MR CM_ID SENDS RECVS IN_FLIGHT  TX/s RX/s RETR/s DEVICES",
            "  4 udaddy          2s  0  1  0     0     0     0         0     0    0      0 rxe0",
            " 20 ib_write_bw     2s  2  1  0     0     8     4         6 20000    0      0 rxe0",
            " 30 rping           2s  1  1  0     0     4     2         3  2000    0      0 rxe0",
            "",
            "",
            "h: help  q: quit",
        ]
    );
}

#[test]
fn rates_are_over_the_time_that_passed_in_the_process() {
    let mut model = Model::default();
    let tx = |model: &mut Model| model.table().1[0].cells[10].to_string();
    model.look(look(vec![(7, process("rping", 1000, 0, Vec::new()))]));
    assert_eq!(tx(&mut model), "-", "one look has no rate");
    model.look(look(vec![(7, process("rping", 1500, 100, Vec::new()))]));
    assert_eq!(tx(&mut model), "400");
    model.look(look(vec![(7, process("rping", 1500, 100, Vec::new()))]));
    assert_eq!(tx(&mut model), "-", "no time has passed");
    model.look(look(vec![(7, process("rping", 2500, 50, Vec::new()))]));
    assert_eq!(tx(&mut model), "-", "the counter went back");
    model.look(look(vec![(7, process("rping", 10, 60, Vec::new()))]));
    assert_eq!(tx(&mut model), "-", "it began anew");
}

#[test]
fn retransmissions_of_a_new_queue_pair_count_and_those_of_a_destroyed_one_do_not() {
    let mut model = Model::default();
    model.look(look(vec![(7, process("rping", 1000, 0, vec![qp(1, 0), qp(2, 0)]))]));
    let mut again = qp(2, 0);
    again.reliable = again.reliable.map(|reliable| Reliable { retransmissions: 5, ..reliable });
    model.look(look(vec![(7, process("rping", 2000, 0, vec![again, qp(3, 0)]))]));
    assert_eq!(model.table().1[0].cells[12].to_string(), "5.0");
}

#[test]
fn s_sorts_by_each_column_in_turn_and_r_turns_the_order() {
    let mut model = model();
    assert_eq!(first_words(&mut model), ["4", "20", "30"]);
    keys(&mut model, "r");
    assert_eq!(first_words(&mut model), ["30", "20", "4"]);
    keys(&mut model, "s");
    assert_eq!(first_words(&mut model), ["20", "30", "4"], "by name");
    keys(&mut model, "sssssssss");
    assert!(screen(&mut model, 80, 8)[0].ends_with("sorted by TX/s"));
    assert_eq!(first_words(&mut model), ["20", "30", "4"], "the most first");
    keys(&mut model, "ssss");
    assert!(screen(&mut model, 80, 8)[0].ends_with("sorted by PID"));
}

#[test]
fn what_is_not_known_is_sorted_last_in_either_order() {
    let mut model = model();
    let silent = asked(1, Answer::Silent);
    let answer = Answer::Process(process("rping", 9, 0, Vec::new()).into());
    model.look(Look::of(vec![silent, asked(2, answer)]));
    keys(&mut model, "ss");
    assert_eq!(first_words(&mut model), ["2", "1"]);
    keys(&mut model, "r");
    assert_eq!(first_words(&mut model), ["2", "1"]);
}

#[test]
fn the_selection_stays_with_its_process() {
    let mut model = model();
    keys(&mut model, "jj");
    assert_eq!(selected(&mut model), "30");
    keys(&mut model, "r");
    assert_eq!(selected(&mut model), "30", "and not with the line");
    keys(&mut model, "jkkj");
    assert_eq!(selected(&mut model), "20");
    model.look(look(vec![(30, process("rping", 1, 0, Vec::new()))]));
    assert_eq!(selected(&mut model), "30", "it has ended: another one is selected");
    model.look(look(Vec::new()));
    keys(&mut model, "jk\n");
    assert_eq!(model.shown(), Shown::Processes);
}

#[test]
fn the_filter_takes_a_part_of_a_name_or_the_beginning_of_a_pid() {
    let mut model = model();
    keys(&mut model, "/RPing");
    assert_eq!(screen(&mut model, 40, 6)[5], "filter: RPing_");
    assert_eq!(first_words(&mut model), ["30"]);
    keys(&mut model, "q\u{8}\n");
    assert!(screen(&mut model, 80, 6)[0].ends_with(", filter RPing"));
    keys(&mut model, "\u{1b}/2");
    assert_eq!(first_words(&mut model), ["20"]);
    keys(&mut model, "x");
    assert_eq!(screen(&mut model, 80, 6)[2], "No process has this name or pid.");
    keys(&mut model, "\u{1b}");
    assert_eq!(first_words(&mut model).len(), 3);
}

#[test]
fn a_process_that_does_not_answer_says_so_in_the_list_and_when_it_is_open() {
    let mut model = Model::default();
    model.look(Look::of(vec![asked(u32::MAX, Answer::Silent), asked(u32::MAX - 1, Answer::OtherBuild)]));
    let lines = screen(&mut model, 80, 6);
    assert!(lines[2].ends_with("another build of Verbena"), "{lines:?}");
    assert!(lines[3].ends_with("does not answer"), "{lines:?}");
    keys(&mut model, "j\n");
    let lines = screen(&mut model, 80, 6);
    assert_eq!(lines[1], "The process does not answer.", "{lines:?}");
    model.look(look(Vec::new()));
    assert_eq!(screen(&mut model, 80, 6)[1], "The process has ended.");
    keys(&mut model, "\u{1b}");
    assert_eq!(screen(&mut model, 80, 6)[2], "No process is on Verbena in this network namespace.");
}

#[test]
fn a_process_is_a_table_of_its_queue_pairs() {
    let mut model = model();
    keys(&mut model, "j\n");
    let lines = screen(&mut model, 110, 6);
    assert_eq!(
        lines[..4],
        [
            "process 20 ib_write_bw, sorted by LQPN",
            "LQPN TYPE STATE PEER     RQPN VIA    SENDS RECVS IN_FLIGHT COMPL/s RETRANS LAST_ERROR DEVICE",
            "   1 RC   RTS   10.0.0.2    2 memory     4     2         3    1000       2 -          rxe0",
            "   5 RC   RTS   10.0.0.2    6 memory     4     2         3    3000       2 -          rxe0",
        ]
    );
    keys(&mut model, "sssssssss");
    assert_eq!(first_words(&mut model), ["5", "1"], "by COMPL/s");
    keys(&mut model, ">>>>");
    assert!(screen(&mut model, 110, 6)[1].starts_with("LQPN TYPE SENDS RECVS "));
    keys(&mut model, "/\u{8}");
    assert_eq!(model.shown(), Shown::Processes);
    assert_eq!(selected(&mut model), "20");
}

/// A process whose only queue pair has all that can be told of one.
fn failed() -> Process {
    let mut qp = qp(17, 40);
    let last_error = Some(LastError { status: "RETRY_EXC_ERR".into(), ms_ago: 65_000 });
    let reliable = qp.reliable.take().unwrap_or_default();
    qp.reliable = Some(Reliable { last_error, timeouts: 8, ..reliable });
    qp.recv_cqn = 1;
    let mut process = process("rping", 3000, 40, vec![qp]);
    process.devices[0].cqs.push(Cq { cqn: 1, cqe: 4, fill: 4, overrun: true, ..Cq::default() });
    process.cm_ids.push(CmId {
        ifname: Some("rxe0".into()),
        lqpn: Some(17),
        state: "CONNECT".into(),
        progress: "connected".into(),
        ps: "TCP".into(),
        src_addr: Some("10.0.0.1:7174".into()),
        dst_addr: Some("10.0.0.2:9".into()),
        ..CmId::default()
    });
    process
}

#[test]
fn a_queue_pair_is_a_screen_with_its_gauges_and_rates() {
    let mut model = Model::default();
    model.look(look(vec![(9, process("rping", 1000, 0, vec![qp(17, 0)]))]));
    model.look(look(vec![(9, failed())]));
    keys(&mut model, "\n\n");
    assert_eq!(
        screen(&mut model, 70, 20),
        [
            "process 9 rping: qp rxe0/1 lqpn 17",
            "device     rxe0 netdev eth0 state ACTIVE mtu 1024",
            "state      RTS type RC via memory path-mtu 1024 pdn 0",
            "local      10.0.0.1 lqpn 17 sq-psn 7",
            "peer       10.0.0.2 rqpn 18 rq-psn 8",
            "sends      [||||||||||||||                                       4/16]",
            "recvs      [||||||||||||||||||||||||||||||||||||||||||||||||||||||2/2]",
            "send cq    [||||||||||||||                                       8/32]",
            "           cqn 0 users 2 added 40 (20/s) channel",
            "recv cq    [||||||||||||||||||||||||||||||||||||||||||||||||||||||4/4]",
            "           cqn 1 users 0 added 0 OVERRUN",
            "received   5 (0/s)",
            "completed  40 (20/s)",
            "in flight  3",
            "recovery   retransmissions 2 (0/s) timeouts 8",
            "rnr naks   received 0 sent 0",
            "last error RETRY_EXC_ERR 1m05s ago",
            "cm_id      CONNECT (connected) ps TCP channel 0 events 0",
            "           src-addr 10.0.0.1:7174 dst-addr 10.0.0.2:9",
            "h: help  q: quit",
        ]
    );
    keys(&mut model, "jj");
    assert!(screen(&mut model, 70, 10)[1].starts_with("local"), "it scrolls");
    model.look(look(vec![(9, process("rping", 4000, 0, Vec::new()))]));
    assert_eq!(screen(&mut model, 70, 10)[1], "The queue pair has been destroyed.");
    keys(&mut model, "\u{1b}");
    assert_eq!(screen(&mut model, 70, 10)[2], "The process has no queue pairs.");
}

#[test]
fn a_stream_has_its_bytes_and_its_fpdus_count_as_packets() {
    let streamed = |bytes, fpdus| {
        let stream = Stream { sent_bytes: bytes, sent_fpdus: fpdus, received_bytes: 7, received_fpdus: 1 };
        vec![Qp { stream: Some(stream), reliable: None, ..qp(17, 0) }]
    };
    let mut model = Model::default();
    model.look(look(vec![(9, process("rping", 1000, 0, streamed(100, 2)))]));
    model.look(look(vec![(9, process("rping", 2000, 0, streamed(300, 7)))]));
    let row = screen(&mut model, 100, 4).remove(2);
    assert!(
        row.split_whitespace()
            .eq(["9", "rping", "2s", "1", "1", "0", "0", "4", "2", "0", "5.0", "0", "0", "rxe0"]),
        "{row}"
    );
    keys(&mut model, "\n\n");
    let lines = screen(&mut model, 70, 20);
    assert!(lines.contains(&"bytes out  300 (200/s) fpdus 7".to_owned()), "{lines:?}");
    assert!(lines.contains(&"bytes in   7 (0/s) fpdus 1".to_owned()), "{lines:?}");
}

#[test]
fn the_selected_row_is_on_the_screen_however_many_there_are() {
    let mut model = Model::default();
    let many = |uptime| (1..=10_000).map(|lqpn| qp(lqpn, uptime)).collect();
    model.look(look(vec![(9, process("hold", 1000, 0, many(1000)))]));
    model.look(look(vec![(9, process("hold", 2000, 0, many(2000)))]));
    keys(&mut model, "\n");
    model.key(KeyCode::End);
    assert!(screen(&mut model, 80, 12)[10].starts_with("10000 RC"));
    model.key(KeyCode::PageUp);
    assert!(screen(&mut model, 80, 12)[2].starts_with("9990 RC"));
    model.key(KeyCode::Home);
    assert!(screen(&mut model, 80, 12)[2].starts_with("   1 RC"));
}

#[test]
fn no_text_of_another_process_moves_the_cursor() {
    let bad = "a\u{1b}[2J\n";
    let mut process = failed();
    process.comm = bad.into();
    process.devices[0].ifname = bad.into();
    process.devices[0].qps[0].dst_addr = Some(bad.into());
    process.cm_ids[0].progress = bad.into();
    let mut model = Model::default();
    model.look(look(vec![(9, process)]));
    for place in ["list", "process", "queue pair"] {
        let text = screen(&mut model, 120, 30).concat();
        assert!(!text.contains(|c: char| c.is_control()) && text.contains("a?[2J?"), "{place}: {text}");
        keys(&mut model, "\n");
    }
}

#[test]
fn no_size_of_the_terminal_is_too_small() {
    for opened in ["", "\n", "\n\n", "h", "h\n\n", "/r"] {
        for (width, height) in (0..=25).flat_map(|width| (0..=9).map(move |height| (width, height))) {
            let mut model = model();
            keys(&mut model, "j>>");
            keys(&mut model, opened);
            let lines = screen(&mut model, width, height);
            if width >= 20 && height >= 5 {
                assert!(lines[0].contains("verbena top: 3") || lines[0].contains("process 20"), "{lines:?}");
            }
        }
    }
}

#[test]
fn h_lists_the_keys_and_q_quits() {
    let mut model = model();
    keys(&mut model, "?");
    let lines = screen(&mut model, 60, 12);
    for key in ["Enter: open", "s: sort", "/: filter", "q: quit"] {
        assert!(lines.iter().any(|line| line.contains(key)), "{key}: {lines:?}");
    }
    keys(&mut model, "h");
    assert_eq!(screen(&mut model, 60, 12)[11], "h: help  q: quit");
    assert_eq!(model.key(KeyCode::Char('q')), Next::Quit);
}

#[test]
fn before_the_first_answer_the_title_says_so() {
    let mut model = Model::default();
    assert_eq!(screen(&mut model, 60, 12)[0], "verbena top: asking processes");
    keys(&mut model, "\njs");
}

#[test]
fn gauges_and_rates_are_short() {
    assert_eq!(screens::gauge(0, 0, 8), "[   0/0]");
    assert_eq!(screens::gauge(1, 1000, 10), "[| 1/1000]");
    assert_eq!(screens::gauge(9, 4, 2), "[9/4]");
    let rates = [0.0, 0.04, 9.94, 12.3, 99_999.0, 123_456.0, 9_999_400.0, 12_345_678.0];
    let said = rates.map(super::table::short);
    assert_eq!(said, ["0", "0.0", "9.9", "12", "99999", "123k", "9999k", "12M"]);
}

#[test]
fn an_interval_is_a_time_in_its_range() {
    assert_eq!(super::interval("0.1").map(|time| time.as_millis()), Ok(100));
    assert_eq!(super::interval("60").map(|time| time.as_secs()), Ok(60));
    for bad in ["0", "0.09", "61", "-1", "NaN", "inf", "1s", ""] {
        assert!(super::interval(bad).is_err(), "{bad}");
    }
}
