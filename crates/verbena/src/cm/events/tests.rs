//! What events say of a connection.

use super::*;

fn seen(events: &[(EventKind, i32)]) -> Seen {
    let mut seen = Seen::default();
    for &(kind, status) in events {
        let (param, private_data) = (nic::rdma_cm::ConnParam::default(), vec![7]);
        let event = Event { request: None, kind, status, param, ud: None, private_data };
        if let Some(why) = seen.take_in(event) {
            seen.end(&why);
        }
    }
    seen
}

#[test]
fn a_rejection_before_the_answer_is_the_answer_and_after_it_the_end() {
    let rejected = seen(&[(EventKind::Rejected, 28)]);
    let error = rejected.answer.and_then(Result::err).expect("refused");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    let rejection = Rejection { reason: RejectReason::Consumer, private_data: vec![7] };
    assert_eq!(error.rejection(), Some(&rejection));

    let ended = seen(&[(EventKind::Established, 0), (EventKind::Rejected, 28)]);
    assert!(matches!(ended.answer, Some(Ok(_))));
    assert_eq!(ended.ended.map(|e| e.kind()), Some(ErrorKind::Disconnected));
}

#[test]
fn a_peer_that_disconnects_has_had_our_acceptance() {
    let mut seen = Seen { accepted: true, ..Seen::default() };
    let (kind, param) = (EventKind::Disconnected, nic::rdma_cm::ConnParam::default());
    let event = Event { request: None, kind, status: 0, param, ud: None, private_data: Vec::new() };
    let why = seen.take_in(event).expect("an end");
    seen.end(&why);
    assert!(matches!(seen.answer, Some(Ok(_))), "what it sent before is received");
    assert_eq!(seen.ended.map(|e| e.kind()), Some(ErrorKind::Disconnected));
}

#[test]
fn the_first_end_is_the_one_that_counts() {
    let seen = seen(&[(EventKind::Unreachable, -110), (EventKind::Disconnected, 0)]);
    assert_eq!(seen.ended.map(|e| e.kind()), Some(ErrorKind::TimedOut));
    assert_eq!(seen.answer.and_then(Result::err).and_then(|e| e.errno()), Some(110));
}

/// The documentation of the variant of [`RejectReason`] that this line declares.
fn documented(line: &str) -> String {
    let before = include_str!("../../error.rs").split_once(&format!("\n    {line},\n"));
    let (before, _) = before.expect("a variant");
    let lines = before.lines().rev().map_while(|line| line.strip_prefix("    /// "));
    lines.collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ")
}

#[test]
fn each_reason_of_a_rejection_has_the_number_and_the_name_of_the_standard() {
    use RejectReason::{Consumer, InvalidServiceId, NoResources, Other, StaleConnection, Timeout};
    // IBA 1.4 table 109 (12.6.7.2). The compiler asks for a variant that is not here.
    let named = |reason| match reason {
        NoResources => Some((3, "no resources")),
        Timeout => Some((4, "timeout")),
        InvalidServiceId => Some((8, "invalid service ID")),
        StaleConnection => Some((10, "stale connection")),
        Consumer => Some((28, "consumer")),
        Other(_) => None,
    };
    for code in 0..=u16::MAX {
        let reason = rejection(code.into(), Vec::new()).reason;
        let words = reason.to_string();
        assert!(words.trim_end_matches(')').ends_with(&format!("reason {code}")), "{words}");
        match named(reason) {
            Some((number, name)) => {
                let says = documented(&format!("{reason:?}"));
                assert_eq!(number, code);
                assert!(says.starts_with(&format!("{code}, {name}: ")), "{reason:?}: {says}");
            }
            None => assert!(reason == Other(code) && ![3, 4, 8, 10, 28].contains(&code)),
        }
    }
}
