"""`verbena run --check`: each kind of mistake is found where it is made, and the same program without it hears nothing
(programs/check.c). What Debian's programs do against the manual pages is written down here: those findings are theirs."""
import json, os, re

from .harness import need, need_root, row

CHECKED = "check"
# Each mistake, by the name of its rule, and the findings that follow from it.
LOCAL_ERROR = ("failed-request",)
MISTAKES = {
    "more-requests-than-asked": (), "refused-request": (), "lost-event": (), "unacknowledged-event": (),
    "use-after-destroy": (), "more-reads-than-served": (), "fork-unprepared": (), "steps": (),
    "send-buffer-changed": (), "overlapping-receives": (), "receive-over-send": (), "unknown-key": LOCAL_ERROR,
    "outside-region": LOCAL_ERROR, "wrong-domain": LOCAL_ERROR, "no-local-write": LOCAL_ERROR * 2, "region-in-use": (),
    "queue-may-overrun": (), "never-signaled": (), "more-inline-than-asked": (),
    "failed-request": LOCAL_ERROR, "leak": (),
}
FOUND = 23


def lines_of(mistake):
    """The lines of check.c in which a mistake is made."""
    source = os.path.join(os.path.dirname(__file__), "..", "programs", "check.c")
    with open(source) as f:
        lines = f.read().splitlines()
    begin = next(n for n, line in enumerate(lines) if f'strcmp(bug, "{mistake}")' in line)
    end = next(n for n, line in enumerate(lines[begin + 1:], begin + 1) if "strcmp(bug" in line)
    return range(begin + 1, end + 1)


def checked(r, ns, name, *argv):
    """A program that is checked, and the file of what is found."""
    file = os.path.join(r.work, f"{name}.json")
    return r.run(*argv, ns=ns, options=("--check=error", "--check-json", file)), file


def found(file):
    if not os.path.exists(file):
        return []
    with open(file) as f:
        return [json.loads(line) for line in f]


@row(CHECKED, "each mistake is found where it is made, and without it nothing is", "programs/check.c", parallel=True, limit=120)
def mistakes(r):
    ns, program = r.namespace(), r.compiled("check")
    for mistake, also in MISTAKES.items():
        p, file = checked(r, ns, mistake, program, mistake)
        r.check(p.wait(20) == FOUND, f"{mistake}: exit {p.rc}", p)
        findings = found(file)
        rules = [finding["rule"] for finding in findings]
        r.check(rules == ["send-buffer-changed" if mistake == "steps" else mistake, *also], f"{mistake}: found {rules}", p)
        said = [line.rsplit(" ", 1)[1] for line in p.err.lines if ": check: " in line]
        r.check(said == rules, f"{mistake}: said {said}, and {rules} as JSON", p)
        frames = [frame for call in findings[0]["calls"] for frame in call["frames"]] or [findings[0]["what"]]
        places = {int(n) for frame in frames for n in re.findall(r"\(check\.c:(\d+)\)", frame)}
        # What leaks is made in open_all, and functions of their own wait for events and post by steps.
        r.check(bool(places & set(lines_of(mistake))) or mistake == "leak", f"{mistake}: at lines {sorted(places)}", p)
        p, file = checked(r, ns, f"{mistake}-mended", program, mistake, "mended")
        r.check(p.wait(20) == 0 and p.out.lines == ["done"], f"{mistake}, mended: exit {p.rc}", p)
        r.check(not found(file), f"{mistake}, mended: found {[f['rule'] for f in found(file)]}", p)


# Mistakes of other programs: what is found, and the call that made it.
OF_OTHER_KINDS = {
    "checkkinds": {
        "xrc-send": ("send-buffer-changed", "send_to_srq"), "xrc-steps": ("send-buffer-changed", "send_by_steps"),
        "xrc-receives": ("overlapping-receives", "receive_by_srq"), "xrc-overrun": ("queue-may-overrun", "receive_by_srq"),
        "xrc-region": ("region-in-use", "receive_by_srq"), "xrc-leak": ("leak", "open_xrc"),
        "raw-receives": ("overlapping-receives", "raw_receive"), "raw-send": ("send-buffer-changed", "raw_send"),
        "wq-receives": ("overlapping-receives", "receive_by_wq"), "wq-region": ("region-in-use", "receive_by_wq"), "wq-leak": ("leak", "work_queue"),
    },
    "checkcm": {
        "more-reads-than-served": ("more-reads-than-served", "read_twice"), "leak": ("leak", "main"),
        "refused-call": ("refused-call", "main"), "acknowledged-twice": ("use-after-destroy", "main"),
        "use-after-destroy": ("use-after-destroy", "main"), "unacknowledged-event": ("unacknowledged-event", "await"),
    },
}


@row(CHECKED, "mistakes with XRC, raw packets and rdma_cm are found, and without them nothing is", "programs/checkkinds.c, checkcm.c", parallel=True, limit=120)
def other_kinds(r):
    need_root()
    ns = r.namespace()
    for name, all_of_it in OF_OTHER_KINDS.items():
        program = r.compiled(name)
        for mistake, (rule, function) in all_of_it.items():
            p, file = checked(r, ns, f"{name}-{mistake}", program, mistake)
            r.check(p.wait(20) == FOUND, f"{name} {mistake}: exit {p.rc}", p)
            findings = found(file)
            rules = [finding["rule"] for finding in findings]
            r.check(rules == [rule], f"{name} {mistake}: found {rules}", p)
            said = json.dumps(findings[0])
            r.check(re.search(rf"{function} \({name}\.c:\d+\)", said), f"{name} {mistake}: not in {function}: {said}", p)
            p, file = checked(r, ns, f"{name}-{mistake}-mended", program, mistake, "mended")
            r.check(p.wait(20) == 0 and p.out.lines == ["done"], f"{name} {mistake}, mended: exit {p.rc}", p)
            r.check(not found(file), f"{name} {mistake}, mended: found {[f['rule'] for f in found(file)]}", p)


# Bugs that many programs have had: what is found, and words of the cause.
OLD = {
    "not-armed-again": (["event-not-asked-for"], "was not armed again since its event was taken"),
    "no-room-for-the-header": (["no-room-for-header"], "The header takes 40, so each datagram is dropped"),
    "unaligned-atomic": (["refused-request"], "The peer's address of an atomic is a multiple of 8"),
    "attribute-forgotten": (["refused-modify"], "IBV_QP_MIN_RNR_TIMER"),
    "attribute-out-of-range": (["refused-modify"], "timeout is 40, not 0 to 31"),
    "too-many-elements": (["refused-request"], "It has 3 elements; the queue pair was asked for 2"),
    "late-receive": (["failed-request"], "The peer had no receive posted"),
    "not-polled-until-empty": (["lost-event"], "gives no event; the queue holds 1"),
    "acknowledged-too-often": (["acknowledged-too-often"], "acknowledges 1 events of the object; of those taken, 0 were left"),
    "waits-for-no-completion": (["never-signaled"], "without IBV_SEND_SIGNALED"),
    "half-an-address": (["failed-request"], "the address has lost its upper 32 bits"),
    "number-in-network-order": (["failed-request"], "the bytes of dest_qp_num are in reverse order"),
    "foreign-address-handle": (["refused-request"], "The address handle is of another protection domain"),
    "queue-pair-too-large": (["refused-call"], "ibv_create_qp was refused: invalid argument: max_send_wr is 1000000, not"),
    "remote-write-alone": (["refused-call"], "access with remote write or atomic, without local write"),
    "domain-before-region": (["object-in-use"], "memory region of 4096 bytes, made at open_memory"),
}


@row(CHECKED, "the cause of bugs that many programs have had is shown", "programs/checkold.c", parallel=True, limit=120)
def old(r):
    ns, program = r.namespace(), r.compiled("checkold")
    for mistake, (rules, words) in OLD.items():
        p, file = checked(r, ns, mistake, program, mistake)
        r.check(p.wait(20) == FOUND, f"{mistake}: exit {p.rc}", p)
        findings = found(file)
        r.check([finding["rule"] for finding in findings] == rules, f"{mistake}: found {[f['rule'] for f in findings]}", p)
        r.check(words in findings[0]["what"], f"{mistake}: {findings[0]['what']}", p)
        p, file = checked(r, ns, f"{mistake}-mended", program, mistake, "mended")
        r.check(p.wait(20) == 0 and p.out.lines == ["done"], f"{mistake}, mended: exit {p.rc}", p)
        r.check(not found(file), f"{mistake}, mended: found {[f['rule'] for f in found(file)]}", p)


@row(CHECKED, "ends that do not fit are told where a request fails", "programs/check.c", parallel=True)
def ends(r):
    ns, program = r.namespace(), r.compiled("check")
    p, file = checked(r, ns, "ends", program, "ends")
    r.check(p.wait(20) == FOUND, f"exit {p.rc}", p)
    (finding,) = found(file)
    r.check("The peer expects PSN 100; requests from PSN 0 on are sent" in finding["what"], finding["what"], p)
    p, file = checked(r, ns, "range", program, "remote-range")
    r.check(p.wait(20) == FOUND, f"exit {p.rc}", p)
    (finding,) = found(file)
    r.check("No memory region of the peer has all of the 64 bytes at" in finding["what"], finding["what"], p)
    for mistake in ("ends", "remote-range"):
        p, file = checked(r, ns, f"{mistake}-mended", program, mistake, "mended")
        r.check(p.wait(20) == 0 and not found(file), f"{mistake}, mended: exit {p.rc}, {found(file)}", p)


@row(CHECKED, "findings that a file lists are not told", "programs/check.c", parallel=True)
def suppressed(r):
    ns, program = r.namespace(), r.compiled("check")
    list_of = os.path.join(r.work, "suppressions")
    for text, code in (("leak:check.c", 0), ("leak:server.c", FOUND), ("unknown-key:*", FOUND)):
        with open(list_of, "w") as f:
            f.write(f"# {text}\n{text}\n")
        p = r.run(program, "leak", ns=ns, options=("--check=error", "--check-suppressions", list_of))
        r.check(p.wait(20) == code and bool(p.err.lines) == bool(code), f"{text}: exit {p.rc}", p)
    with open(list_of, "w") as f:
        f.write("no-such-rule:*\n")
    p = r.run(program, "leak", ns=ns, options=("--check", "--check-suppressions", list_of))
    said = f"verbena: --check-suppressions: {list_of}: line 1: 'no-such-rule' is no rule"
    r.check(p.wait(20) == 1 and p.err.lines == [said], f"exit {p.rc}", p)


# rdma-core's examples receive all messages at one place, and the pingpong programs send from there, too: nothing looks at
# the bytes.
THEIRS = {"overlapping-receives", "receive-over-send"}
PROGRAMS = [
    (["rping", "-s", "-a", "127.0.0.1", "-C", "20", "-V"], ["rping", "-c", "-a", "127.0.0.1", "-C", "20", "-V"], 7174, set()),
    (["rdma_server"], ["rdma_client"], 7471, set()),
    (["ucmatose", "-c", "3", "-C", "5"], ["ucmatose", "-s", "127.0.0.1", "-c", "3", "-C", "5"], 7471, THEIRS),
    (["ibv_rc_pingpong", "-g", "0"], ["ibv_rc_pingpong", "-g", "0", "127.0.0.1"], 0, THEIRS),
    (["ibv_ud_pingpong", "-g", "0"], ["ibv_ud_pingpong", "-g", "0", "127.0.0.1"], 0, THEIRS),
    (["ibv_srq_pingpong", "-g", "0"], ["ibv_srq_pingpong", "-g", "0", "127.0.0.1"], 0, THEIRS),
    (["ib_write_bw", "-F", "-n", "100"], ["ib_write_bw", "-F", "-n", "100", "127.0.0.1"], 0, set()),
    (["ib_read_bw", "-F", "-n", "100"], ["ib_read_bw", "-F", "-n", "100", "127.0.0.1"], 0, {"overlapping-receives"}),
    # Its client does not destroy the completion queue of its receives.
    (["ib_send_bw", "-F", "-n", "100"], ["ib_send_bw", "-F", "-n", "100", "127.0.0.1"], 0, THEIRS | {"leak"}),
]


@row(CHECKED, "of programs of others nothing is found that they do not do", "rping, ucmatose, ibv_*_pingpong, perftest, fi_info", parallel=True, limit=120)
def others(r):
    ns = r.namespace()
    for n, (server, client, port, theirs) in enumerate(PROGRAMS):
        need(server[0])
        s, at_server = checked(r, ns, f"server{n}", *server)
        r.listening(s, port) if port else r.tcp_listening(s)
        c, at_client = checked(r, ns, f"client{n}", *client)
        for p, file in ((c, at_client), (s, at_server)):
            p.wait(30)
            rules = {finding["rule"] for finding in found(file)}
            r.check(rules <= theirs, f"{p.name}: found {sorted(rules - theirs)}", p)
            r.check(p.rc == (FOUND if rules else 0), f"{p.name}: exit {p.rc}", p)
    need("fi_info")
    # libfabric finds out how many bytes go inline by queue pairs that are refused.
    p, file = checked(r, ns, "tries", "fi_info", "-p", "verbs")
    r.check(p.wait(20) == 0 and "provider: verbs" in p.out.lines, f"fi_info: exit {p.rc}", p)
    r.check(not found(file), f"fi_info: found {[f['rule'] for f in found(file)]}", p)
