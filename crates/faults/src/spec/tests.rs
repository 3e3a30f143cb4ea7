use super::*;

fn rules(text: &str) -> Vec<Rule> {
    text.parse::<Spec>().map(|spec| spec.rules).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn rules_say_what_happens_and_to_which_packets() {
    let all = rules(
        "loss=1%,dir=out; corrupt=0.5,peer=fd00::1,op=read-response; \
         duplicate=100%,type=ud,nth=3,from=1.5s,until=20s,qp=0x11",
    );
    let [loss, corrupt, duplicate] = &all[..] else { panic!("{all:?}") };
    assert_eq!((loss.action, loss.probability, loss.when.is_out), (Action::Loss, 0.01, Some(true)));
    assert_eq!((corrupt.probability, corrupt.when.operation), (0.5, Some(Operation::ReadResponse)));
    assert_eq!(corrupt.when.peer, Address::parse_peer("fd00::1"));
    let When { service, nth, from, until, qp, .. } = duplicate.when;
    assert_eq!((service, nth, qp), (Some(3), Some(3), Some(Qpn::new(0x11))));
    assert_eq!((from, until), (Duration::from_millis(1500), Some(Duration::from_secs(20))));
    assert_eq!(rules("chaos").len(), 5);
}

#[test]
fn rules_hold_packets_up() {
    let all = rules(
        "delay=10ms,jitter=2ms,reorder=25%; reorder=5%,limit=20; rate=1.5gbit; delay=1s,probability=3%",
    );
    let ms = Duration::from_millis;
    let late =
        |delay, jitter, reorder| Action::Delay(Delay { delay: ms(delay), jitter: ms(jitter), reorder });
    let expected = [
        (late(10, 2, 0.25), 1.0, 1_000),
        (late(1, 0, 0.05), 1.0, 20),
        (Action::Rate(1_500_000_000), 1.0, 1_000),
        (late(1_000, 0, 0.0), 0.03, 1_000),
    ];
    let read: Vec<_> = all.iter().map(|rule| (rule.action, rule.probability, rule.limit)).collect();
    assert_eq!(read, expected);
}

#[test]
fn rules_are_about_requests_connections_objects_and_ports_too() {
    let all = rules(
        "error=rem-access,nth=3; rnr,until=2s; reject; reject=no-qp,dir=in; reject=32; unanswered,nth=1; \
         enomem,object=qp,nth=2; port-down,from=1s,until=2s; device-removal,device=rxe0,from=1s,until=2s; \
         stop,from=1s,until=2s; partition,peer=10.0.0.2",
    );
    let subjects: Vec<_> = all.iter().map(|rule| rule.action.subject()).collect();
    use Subject::{Connection, Engine, Object, Packet, Port, Receive, Request};
    let expected = [
        Request, Receive, Connection, Connection, Connection, Connection, Object, Port, Port, Engine, Packet,
    ];
    assert_eq!(subjects, expected);
    assert_eq!((all[0].when.is_out, all[1].when.is_out, all[2].when.is_out), (Some(true), Some(false), None));
    let reasons: Vec<_> = all[2..5].iter().map(|rule| rule.action).collect();
    assert_eq!(reasons, [Action::Reject(28), Action::Reject(1), Action::Reject(32)]);
    assert!(all.iter().all(|rule| rule.probability == 1.0));
}

#[test]
fn a_mistake_is_said_with_its_place() {
    for (text, said) in [
        ("loss=1%, dir=up", "a direction is in, out\n  loss=1%, dir=up\n               ^^"),
        ("loss=2", "a probability is 0% to 100%\n  loss=2\n       ^"),
        ("los=1%", "a term is loss"),
        ("dir=in", "the rule says to what, and not what happens"),
        (
            "loss=1%,corrupt=1%",
            "a rule does one thing; another one begins after a semicolon\n  loss=1%,corrupt=1%\n          ^^^^^^^^^^",
        ),
        ("", "no rule"),
        ("loss=1%,op=sned", "an operation is send, write"),
        ("loss=1%,nth=0", "one counts from 1"),
        ("loss=1%,from=5", "a time is"),
        ("corrupt=1%,dir=out", "packets are damaged where they arrive"),
        ("jitter=1ms", "jitter is of a delay: delay=10ms,jitter=2ms\n  jitter=1ms\n  ^^^^^^^^^^"),
        ("loss=1%,limit=3", "a limit is of packets that are held"),
        ("delay=1ms,limit=0", "a limit is 1 to 100000 packets"),
        ("delay=1ms,loss=1%", "a rule does one thing"),
        ("rate=1gb", "a rate is 1gbit"),
        ("error=flush", "a status is retry-exc"),
        ("error=rem-abort,dir=in", "a receive ends with loc-len"),
        ("error=loc-prot,dir=in,type=xrc", "receives of rc, uc and ud fail"),
        ("error=loc-prot,dir=in,op=write", "receives take SENDs"),
        ("error=rem-access,dir=in,type=ud", "no peer of UC or UD is told"),
        ("error=rem-op,type=ud", "a send of UC, UD or raw packets ends with loc-len"),
        ("error=rem-op,type=raw", "a send of UC, UD or raw packets ends with loc-len"),
        ("error=general,type=raw,dir=in", "receives of rc, uc and ud fail"),
        ("enomem,object=qps", "an object is pd, cq, qp"),
        (
            "enomem, peer=10.0.0.2",
            "enomem has the conditions object, device, nth, probability, from, until\n  enomem, peer=10.0.0.2\n          ^^^^^^^^^^^^^",
        ),
        ("loss=1%,object=qp", "loss has the conditions dir"),
        ("loss=1%,probability=2%", "a rule has one probability"),
        ("reject=never", "a reason is a number, or consumer-defined"),
        ("unanswered=3", "unanswered has no value"),
        ("port-down,nth=1", "port-down has the conditions device, interface, from, until"),
        ("stop,from=2s,until=1s", "the time ends before it begins"),
    ] {
        let error = text.parse::<Spec>().unwrap_err().to_string();
        assert!(error.starts_with(said), "{text}: {error}");
    }
}

#[test]
fn rules_that_do_nothing_on_a_kind_of_device_are_said() {
    let spec: Spec =
        "loss=1%; duplicate=1%; rnr; error=fatal; delay=1ms,op=ack; loss=1%,qp=3; reset,nth=2; corrupt=1%,type=uc"
            .parse()
            .unwrap();
    let streams = spec.notes(true, false);
    assert_eq!(streams.len(), 6, "{streams:?}");
    assert_eq!(streams[0], "duplicate does nothing: TCP delivers each byte once");
    assert!(spec.notes(true, true)[0].starts_with("duplicate does nothing on devices of iWARP: "));
    assert_eq!(spec.notes(false, true), ["reset does nothing: there is no device of iWARP"]);
}
