"""What programs of verbs meet on InfiniBand ports that they do not meet on RoCE's: paths with and without a GRH, ports that need one, LIDs that are
made up, ports whose subnet manager is away, partitions that only one end is in."""
import os, re, signal

from .fabric_data import DATA, HERE, THERE, Ends, every_pingpong, numbers, until
from .fabric_rules import fails
from .harness import row

# Two hosts whose ports need a GRH, at two switches that a third one joins.
NEEDS_GRH = """\
Switch 4 "leaf0"
[1] "a"[1]
[3] "spine"[1]
Switch 4 "leaf1"
[1] "b"[1]
[3] "spine"[2]
Switch 4 "spine"
Ca 1 "a" # "host0 mlx5_0"
#verbena grh=required
Ca 1 "b" # "host7 mlx5_0"
#verbena grh=required
"""


@row(DATA, "ports that need a GRH refuse paths without one; UCX, which looks, makes it", "ibv_rc_pingpong, ibv_ud_pingpong and their like, -g 0; ucx_perftest", limit=180, parallel=True)
def needs_grh(r):
    path = os.path.join(r.work, "grh.net")
    with open(path, "w") as f:
        f.write(NEEDS_GRH)
    e = Ends(r, path, builtin=True)
    for program, said in (("ibv_rc_pingpong", "Failed to modify QP to RTR"), ("ibv_ud_pingpong", "Failed to create AH")):
        before = e.passed(e.there)
        s, c = e.start([program, "-d", "mlx5_0"])
        r.check(c.wait() != 0, f"{program} is content without a GRH", c, s)
        s.end()
        r.check(any(said in line for p in (s, c) for line in p.out.lines + p.err.lines), f"{program} does not say why", c, s)
        r.check(e.more(before, e.there) == (0, 0), f"{program} has sent packets", c)
    every_pingpong(r, e, 100, "-g", "0")
    for transport in ("rc_v,self", "ud_v,self"):
        before = e.passed(e.there)
        argv, env = ["ucx_perftest", "-p", "13338"], {"UCX_TLS": transport, "UCX_NET_DEVICES": "mlx5_0:1"}
        s = e.on(THERE, *argv, env=env)
        r.tcp_listening(s, 13338)
        c = e.on(HERE, *argv, "127.0.0.1", "-t", "tag_lat", "-s", "64", "-n", "200", "-w", "10", env=env)
        for p in (c, s):
            r.check(p.wait(40) == 0, f"{transport}: exit {p.rc}", c, s)
        r.check(e.more(before, e.there)[0] >= 200, f"{transport} took another way", c, s)


@row(DATA, "receives of connections tell of no GRH, those of datagrams where one came", "programs/lids.c: self", limit=90, parallel=True)
def flags(r):
    e = Ends(r)
    p = e.on(HERE, r.compiled("lids"), "self")
    r.check(p.wait() == 0, f"exit {p.rc}", p)
    expected = [f"{kind}{global_}: status 0, {len_} bytes, GRH {int(kind == 'UD' and bool(global_))}"
                for kind, len_ in (("RC", 64), ("UC", 64), ("UD", 104)) for global_ in ("", " with a GRH")]
    r.check(p.out.lines == expected, f"said {p.out.lines}", p)


@row(DATA, "a program that makes up LIDs, as one that was only run on RoCE does, fails", "programs/lids.c: rc to LID 1, rc to LID 0", limit=60, parallel=True)
def made_up(r):
    e = Ends(r)
    program = r.compiled("lids")
    server = e.on(THERE, program, "listen")
    server.until(r"\d+ \d+ \d+")
    lid, qpn, _ = server.out.lines[0].split()
    # OpenSM's own port has LID 1.
    r.check(lid != "1", "the server has LID 1", server)
    for made, code, said in (("1", 0, "status 12"), ("0", 2, "RTR: Invalid argument")):
        sent = e.at(*e.there[-1])
        p = e.on(HERE, program, "rc", made, qpn)
        r.check(p.wait() == code and said in p.out.lines + p.err.lines, f"LID {made}: exit {p.rc}", p)
        r.check(e.at(*e.there[-1]) == sent, f"packets to LID {made} came to the server's port", p)
    server.end()


@row(DATA, "a port that no subnet manager has made active discards packets: RC ends with RETRY_EXC", "kill -STOP OpenSM; verbena fabric down, up; programs/lids.c", limit=90, parallel=True)
def not_active(r):
    e = Ends(r)
    program, last = r.compiled("lids"), e.there[-1]

    def state():
        return next(words[1] for words in map(str.split, e.f.ask("show", THERE)) if words[0] == "1")

    def sends(kind, qpn):
        p = e.on(HERE, program, kind, str(e.f.lid(THERE)), qpn)
        r.check(p.wait() == 0, f"{kind}: exit {p.rc}", p)
        return p.out.lines[-1]
    server = e.on(THERE, program, "listen")
    server.until(r"\d+ \d+ \d+")
    _, rc, ud = server.out.lines[0].split()
    e.sm.process.signal(signal.SIGSTOP)
    e.f.ask("down", *last)
    e.f.ask("up", *last)
    until(r, "the port is not initialized", lambda: state() == "init")
    sent, discarded = e.at(*last), e.at(*last, "PortXmitDiscards")
    r.check(sends("rc", rc) == "status 12" and sends("ud", ud) == "status 0", "messages complete otherwise", *r.programs)
    discarded = e.at(*last, "PortXmitDiscards") - discarded
    # A message and its two repetitions, and the datagram.
    r.check(discarded == 4 and e.at(*last) == sent, f"{discarded} packets discarded, {e.at(*last) - sent} let out", *r.programs)
    server.end()
    e.sm.process.signal(signal.SIGCONT)
    until(r, "the port is not active again", lambda: state() == "active", 30)
    e.pair(["ibv_rc_pingpong", "-d", "mlx5_0", "-n", "100"])


@row(DATA, "packets of a partition that only the sender is in arrive where no switch enforces it, and are not taken", "opensm -P partitions.conf -Z off; ib_send_lat --pkey_index 1", limit=60, parallel=True)
def one_end(r):
    conf = os.path.join(r.work, "partitions.conf")
    # By the GUIDs of a fat tree's ports host0 is a member, host7 is not.
    with open(conf, "w") as file:
        file.write("Default=0x7fff,ipoib:ALL=full;\nstorage=0x12:0x0002c90300100000=full,0x0002c90300100002=full;\n")
    e = Ends(r, manager=("-P", conf, "-Z", "off"))
    last, argv = e.there[-1], ["ib_send_lat", "-F", "-d", "mlx5_0", "-n", "100", "-u", "10"]
    s, c = e.pair(argv)
    r.check([int(n[1]) for n in numbers(c.out.lines)] == [100], "no result by the default partition", c, s)
    sent = e.at(*last)
    c = fails(r, e, argv, [*argv, "--pkey_index", "1"])
    r.check(any(re.search(r"status 12|ransport retry", line) for line in c.out.lines + c.err.lines), "another error", c)
    r.check(e.at(*last) > sent and e.at(*last, "PortXmitConstraintErrors") == 0, "the switch refused them", c)
