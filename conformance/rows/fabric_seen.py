"""`verbena run --on HOST` with --capture and --faults: packets between LIDs are seen, as tshark decodes them, and broken."""
import os, re, signal, subprocess

from .fabric_cm import address
from .fabric_data import HERE, THERE, Ends, until
from .harness import need, row

SEEN = "InfiniBand, seen and broken"
FIELDS = (
    "frame.packet_flags_direction", "frame.len", "infiniband.lrh.slid", "infiniband.lrh.dlid", "infiniband.lrh.pktlen", "infiniband.lrh.lnh",
    "infiniband.lrh.sl", "infiniband.lrh.vl", "infiniband.bth.opcode", "infiniband.grh.paylen", "frame.comment",
)


def run(e, host, options, *argv):
    """A program on a host, with more options of `verbena run`."""
    return e.r.run(*argv, ns=e.ns, options=("--on", host, "--fabric", e.f.name, *options))


def decoded(r, file, *fields):
    """What tshark, without a setting, says of each packet of a file."""
    argv = ["tshark", "-n", "-r", file, "-T", "fields", *(word for field in fields for word in ("-e", field))]
    lines = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
    malformed = subprocess.run(["tshark", "-n", "-r", file, "-Y", "_ws.malformed"], capture_output=True, text=True).stdout
    r.check(not malformed, f"malformed: {malformed[:300]}")
    return [dict(zip(fields, line.split("\t"))) for line in lines]


def leave(packets):
    return [p for p in packets if int(p["frame.packet_flags_direction"], 0) == 2]


@row(SEEN, "tshark decodes packets between LIDs, with their LRH, without a setting", "ib_send_lat over RC, ibv_ud_pingpong with a GRH, ucmatose; tshark", limit=120, parallel=True)
def captured(r):
    need("tshark")
    e = Ends(r)
    lids = [e.f.lid(HERE), e.f.lid(THERE)]
    for argv, to, port, kind, global_of in (
        (["ib_send_lat", "-F", "-d", "mlx5_0", "-s", "1000", "-n", "50"], "127.0.0.1", 18515, "rc", 0),
        (["ibv_ud_pingpong", "-d", "mlx5_0", "-g", "0", "-n", "50"], "127.0.0.1", 18515, "ud", 50),
        (["ucmatose", "-C", "10"], address(e, THERE), 7471, "rc", 0),
    ):
        file = os.path.join(r.work, f"{argv[0]}.pcapng")
        s = run(e, THERE, (), *argv)
        (r.listening if argv[0] == "ucmatose" else r.tcp_listening)(s, port)
        client = [*argv, "-s", to] if argv[0] == "ucmatose" else [*argv, to]
        c = run(e, HERE, ("--capture", file), *client)
        for p in (c, s):
            r.check(p.wait(30) == 0, f"{argv[0]}: exit {p.rc}", c, s)
        packets = decoded(r, file, *FIELDS)
        out = leave(packets)
        back = [p for p in packets if p not in out]
        # Of ucmatose ten SENDs, and two messages of the connection manager; an ACK may be for many.
        least = 12 if argv[0] == "ucmatose" else 50
        r.check(len(out) >= least and len(back) >= least, f"{argv[0]}: {len(out)} out, {len(back)} in", c)
        for p in packets:
            ends = [int(p[f"infiniband.lrh.{end}"], 0) for end in ("slid", "dlid")]
            r.check(ends == (lids if p in out else lids[::-1]), f"{argv[0]}: from LID {ends[0]} to {ends[1]}", c)
            # The packet's length is in words, and does not count the VCRC.
            r.check(4 * int(p["infiniband.lrh.pktlen"], 0) + 2 == int(p["frame.len"]), f"{argv[0]}: {p}", c)
            r.check(int(p["infiniband.lrh.vl"], 0) == 0 and not p["frame.comment"], f"{argv[0]}: {p}", c)
        with_grh = [p for p in packets if int(p["infiniband.lrh.lnh"], 0) == 3]
        r.check(len(with_grh) == 2 * global_of, f"{argv[0]}: {len(with_grh)} packets with a GRH", c)
        for p in with_grh:
            r.check(int(p["infiniband.grh.paylen"]) == int(p["frame.len"]) - 8 - 40 - 2, f"{argv[0]}: {p}", c)
        kinds = {int(p["infiniband.bth.opcode"], 0) >> 5 for p in packets}
        # Messages of the connection manager are datagrams.
        r.check(kinds == ({0, 3} if argv[0] == "ucmatose" else {{"rc": 0, "ud": 3}[kind]}), f"{argv[0]}: services {kinds}", c)


@row(SEEN, "a filter shows packets of a LID, and the packets that the fabric loses have left", "ib_write_bw; verbena fabric drop; tshark", limit=90, parallel=True)
def filtered(r):
    need("tshark")
    e = Ends(r)
    e.f.ask("drop", *e.there[1], "2%")
    there = e.f.lid(THERE)
    for peer, sees in ((there, True), (there + 100, False)):
        file = os.path.join(r.work, f"{peer}.pcapng")
        s = run(e, THERE, (), "ib_write_bw", "-F", "-d", "mlx5_0", "-s", "4096", "-n", "500")
        r.tcp_listening(s, 18515)
        left, lost = e.at(*e.there[0]), e.at(*e.there[1], "PortXmitDiscards")
        c = run(e, HERE, ("--capture", file, "--capture-filter", f"peer={peer}"), "ib_write_bw", "-F", "-d", "mlx5_0", "-s", "4096", "-n", "500", "127.0.0.1")
        for p in (c, s):
            r.check(p.wait(30) == 0, f"exit {p.rc}", c, s)
        left, lost = e.at(*e.there[0]) - left, e.at(*e.there[1], "PortXmitDiscards") - lost
        out = leave(decoded(r, file, *FIELDS))
        r.check(len(out) == (left if sees else 0) and lost > 0, f"{len(out)} packets shown, {left} left, {lost} lost", c)


@row(SEEN, "a process that is stopped is waited for, also where packets are captured", "ib_write_bw -u 10; --capture; kill -STOP, -CONT", limit=60, parallel=True)
def stopped(r):
    e = Ends(r, builtin=True)
    argv = ["ib_write_bw", "-F", "-d", "mlx5_0", "-u", "10", "-D", "2"]
    s = run(e, THERE, (), *argv)
    r.tcp_listening(s, 18515)
    c = run(e, HERE, ("--capture", os.path.join(r.work, "stopped.pcapng")), *argv, "127.0.0.1")
    began = e.at(*e.there[1])
    until(r, "nothing passes", lambda: e.at(*e.there[1]) > began + 50)
    s.signal(signal.SIGSTOP)
    # Its retries are over after 34 ms.
    r.check(not c.ends_within(0.4), f"exit {c.rc} while the peer is stopped", c)
    s.signal(signal.SIGCONT)
    for p in (c, s):
        r.check(p.wait(30) == 0, f"exit {p.rc}", c, s)


@row(SEEN, "packets are lost, late and damaged, and reliable ones come again", "ib_send_bw -s 4096; --faults loss=2%, corrupt=2%, delay=1ms", limit=90, parallel=True)
def mended(r):
    need("tshark")
    e = Ends(r)
    for rules, names in (("loss=2%; corrupt=2%; duplicate=2%", ["corrupt", "duplicate", "loss"]), (f"delay=1ms,jitter=500us,peer={e.f.lid(HERE)},dir=in", ["delay"])):
        file = os.path.join(r.work, f"{names[0]}.pcapng")
        s = run(e, THERE, ("--faults", rules, "--seed", "3", "--capture", file), "ib_send_bw", "-F", "-d", "mlx5_0", "-s", "4096", "-n", "400")
        r.tcp_listening(s, 18515)
        c = run(e, HERE, (), "ib_send_bw", "-F", "-d", "mlx5_0", "-s", "4096", "-n", "400", "127.0.0.1")
        for p in (c, s):
            r.check(p.wait(40) == 0, f"{rules}: exit {p.rc}", c, s)
        said = {p["frame.comment"].removeprefix("fault: ") for p in decoded(r, file, *FIELDS)} - {""}
        r.check(sorted(said) == names, f"{rules}: {sorted(said)}", s)


@row(SEEN, "a request, a receive and a connection request fail by rules", "ibv_rc_pingpong, ibv_ud_pingpong, rping; --faults error, reject, partition", limit=120, parallel=True)
def failed(r):
    e = Ends(r)
    there = e.f.lid(THERE)
    for rules, number in (("error=rem-access,nth=100", 10), ("error=general,nth=100", 21), (f"partition,peer={there},from=100ms", 12), (f"partition,peer={there + 100}", None)):
        argv = ["ibv_rc_pingpong", "-d", "mlx5_0", "-n", "1000000" if number == 12 else "1000"]
        s = run(e, THERE, (), *argv)
        r.tcp_listening(s, 18515)
        c = run(e, HERE, ("--faults", rules), *argv, "127.0.0.1")
        if number is None:
            r.check(c.wait(30) == 0 and s.wait(30) == 0, f"{rules}: exit {c.rc}", c, s)
            continue
        said = rf"Failed status .* \({number}\) for wr_id 2"
        r.check(c.wait(30) == 1 and any(re.fullmatch(said, line) for line in c.err.lines), f"{rules}: exit {c.rc}", c, s)
        s.end()
    argv = ["ibv_ud_pingpong", "-d", "mlx5_0", "-g", "0", "-n", "50"]
    s = run(e, THERE, ("--faults", "error=general,dir=in,type=ud,nth=2"), *argv)
    r.tcp_listening(s, 18515)
    c = run(e, HERE, (), *argv, "127.0.0.1")
    r.check(s.wait(20) == 1 and any("Failed status general error (21)" in line for line in s.err.lines), f"ud: exit {s.rc}", s, c)
    c.end()
    s = run(e, THERE, (), "rping", "-s", "-C", "5")
    r.listening(s, 7174)
    c = run(e, HERE, ("--faults", "reject,dir=out,nth=1"), "rping", "-c", "-a", address(e, THERE), "-C", "5")
    r.check(c.wait(20) != 0 and any("RDMA_CM_EVENT_REJECTED" in line for line in c.err.lines + c.out.lines), f"rping: exit {c.rc}", c, s)
    s.end()
