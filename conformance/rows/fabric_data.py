"""Queue pairs over LIDs: programs of verbs on hosts of `verbena fabric`, whose packets take the ways of OpenSM's tables. Each row asserts
on the counters of switches on the way, because two programs of one machine would reach each other also without any fabric."""
import re, signal, time

from .fabric import Fabric
from .fabric_sm import Managed
from .harness import PATIENCE, need, row
from .perftest import numbers
from .programs import judge_xsrq_pingpong

DATA = "InfiniBand data"
HERE, THERE = "host0", "host7"
# Bytes of the payload of a packet, and of its LRH, BTH and ICRC.
MTU, HEADERS = 4096, 8 + 12 + 4


class Ends:
    """Two hosts of a fabric with OpenSM, or with the built-in subnet manager, and the ways between them."""

    def __init__(self, r, *what, manager=(), builtin=False):
        self.r, self.ns = r, r.namespace()
        what = what or ("--fat-tree", "2,4")
        if builtin:
            self.f = Managed(r, *what)
        else:
            need("opensm")
            self.f = Fabric(r, *what)
            self.sm = self.f.opensm("host1", *manager)
        self.look()

    def look(self):
        self.there, self.back = self.f.way(HERE, THERE), self.f.way(THERE, HERE)
        self.r.check(len(self.there) == 4, f"the way is {self.there}")

    def at(self, node, port, counter="PortXmitPkts"):
        return next(int(line.split()[1]) for line in self.f.ask("counters", node, port) if line.split()[0] == counter)

    def passed(self, way):
        """Packets and words that left each port of a way so far."""
        return [(self.at(*hop), self.at(*hop, "PortXmitData")) for hop in way]

    def on(self, host, *argv, **more):
        return self.f.on(host, *argv, ns=self.ns, **more)

    def pair(self, argv, *client, env=None, port=18515, seconds=40):
        """Server and client of a program; both have ended, and well."""
        s, c = self.start(argv, *client, env=env, port=port)
        for p in (c, s):
            self.r.check(p.wait(seconds) == 0, f"{' '.join(argv)}: exit {p.rc}", c, s)
        return s, c

    def start(self, argv, *client, env=None, port=18515):
        s = self.on(THERE, *argv, env=env)
        self.r.tcp_listening(s, port)
        return s, self.on(HERE, *argv, *client, "127.0.0.1", env=env)

    def way_in(self, host):
        """The switch's port that a host's packets come in by."""
        line = next(line for line in self.f.ask("trace", host, THERE) if " -> " in line)
        return tuple(line.split(" -> ")[1].rsplit(" ", 1))

    def more(self, before, way):
        """What left each port of a way since then: the same at each."""
        more = [(packets - was[0], words - was[1]) for (packets, words), was in zip(self.passed(way), before)]
        self.r.check(len(set(more)) == 1, f"ports of one way counted {more}")
        return more[0]


def packets(size):
    return max(1, -(-size // MTU))


# What leaves the client for each message: packets, bytes of headers beside HEADERS a packet; and whether the server answers with as many.
OPERATIONS = [
    ("ib_write_bw", "RC", 65536, 200), ("ib_write_bw", "UC", 65536, 200), ("ib_read_bw", "RC", 65536, 200),
    ("ib_send_bw", "RC", 65536, 200), ("ib_send_bw", "UC", 4096, 200), ("ib_send_bw", "UD", 2048, 200),
    ("ib_send_lat", "RC", 8, 500), ("ib_send_lat", "UD", 8, 500), ("ib_atomic_bw", "RC", 8, 200),
]


@row(DATA, "every operation of perftest over RC, UC and UD, by LIDs, counted at each switch", "ib_write_bw, ib_read_bw, ib_send_lat, ib_atomic_bw and their like", limit=180, parallel=True)
def operations(r):
    perform(r, Ends(r), OPERATIONS)


def perform(r, e, operations):
    lids = {host: e.f.lid(host) for host in (HERE, THERE)}
    for program, transport, size, count in operations:
        there, back = e.passed(e.there), e.passed(e.back)
        more = [] if "atomic" in program else ["-s", str(size)]
        s, c = e.pair([program, "-F", "-d", "mlx5_0", "-c", transport, "-n", str(count), *more])
        text = "\n".join(c.out.lines)
        r.check(re.search(r"Link type +: IB", text), f"{program}: not InfiniBand", c)
        said = [int(lid, 16) for lid in re.findall(r"address: LID (0x[0-9a-f]+)", text)]
        r.check(said[:2] == [lids[HERE], lids[THERE]], f"{program}: LIDs {said}", c)
        r.check([int(n[1]) for n in numbers(c.out.lines)] == [count], f"{program}: no result", c)
        (sent, words), (came, words_back) = e.more(there, e.there), e.more(back, e.back)
        how = f"{program} over {transport}: {sent} packets and {words} words there, {came} and {words_back} back"
        data = count * packets(size)
        payload = count * size // 4
        if program == "ib_write_bw" and transport == "UC":
            r.check(sent == data and words >= payload + data * HEADERS // 4 and came == 0, how, c)
        elif "read" in program:
            r.check(sent >= count and came >= data and words_back >= payload + data * HEADERS // 4, how, c)
        elif program.endswith("_lat"):
            r.check(sent >= count and came >= count, how, c)
        else:
            r.check(sent >= data and words >= payload + data * HEADERS // 4, how, c)
            r.check(came > 0 or transport != "RC", how, c)


@row(DATA, "rdma-core's pingpongs without a GID index", "ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong, ibv_xsrq_pingpong", limit=180, parallel=True)
def pingpongs(r):
    every_pingpong(r, Ends(r), 1000)


def every_pingpong(r, e, count, *options):
    for program in ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong", "ibv_xsrq_pingpong"):
        there, back = e.passed(e.there), e.passed(e.back)
        s, c = e.start([program, "-d", "mlx5_0", "-n", str(count), *options])
        judge = judge_xsrq_pingpong if "xsrq" in program else judged
        judge(r, s, c)
        r.check(e.more(there, e.there)[0] >= count and e.more(back, e.back)[0] >= count, f"{program} took another way", c)


def judged(r, s, c):
    for p in (c, s):
        r.check(p.wait(60) == 0 and any(re.match(r"\d+ iters in", line) for line in p.out.lines), f"{p.name}: exit {p.rc}", c, s)


def until(r, what, good, seconds=PATIENCE):
    end = time.monotonic() + min(seconds, r.left())
    while not good():
        r.check(time.monotonic() < end, what)
        time.sleep(0.05)


@row(DATA, "a cable is cut in the midst: packets are lost, then take OpenSM's other way", "ib_send_lat -u 18; verbena fabric down", limit=120, parallel=True)
def reroute(r):
    e = Ends(r)
    # Long enough for some messages before and behind, of two ends that poll beside other rows: 77 a second were seen.
    s, c = e.start(["ib_send_lat", "-F", "-d", "mlx5_0", "-u", "18", "-D", "10"])
    node, port = e.there[1]
    began = e.at(node, port)
    until(r, "nothing passes", lambda: e.at(node, port) > began + 50)
    before, ups = e.there, e.sm.count("SUBNET UP")
    # OpenSM waits until a packet is lost: on a busy machine it is faster than the next message.
    e.sm.process.signal(signal.SIGSTOP)
    e.f.ask("down", node, port)
    until(r, "no packet is lost at the cut", lambda: e.at(node, port, "PortXmitDiscards") > 0)
    e.sm.process.signal(signal.SIGCONT)
    e.sm.until("SUBNET UP", ups + 1)
    lost = e.at(node, port, "PortXmitDiscards")
    r.check(lost < 100, f"{lost} packets are lost at the cut", c)
    e.look()
    r.check(e.there[1] != before[1], "OpenSM has found no other way", e.sm.process)
    other = e.at(*e.there[1])
    for p in (c, s):
        r.check(p.wait(40) == 0, f"ib_send_lat: exit {p.rc}", c, s)
    r.check(e.at(*e.there[1]) > other + 50, "packets do not take the other way", c)
    r.note = f"{lost} lost"


@row(DATA, "no way is left: the retries of both ends end", "ib_send_lat; verbena fabric down", limit=90, parallel=True)
def without_way(r):
    e = Ends(r)
    s, c = e.start(["ib_send_lat", "-F", "-d", "mlx5_0", "-D", "30"])
    node, port = e.there[-1]
    began = e.at(node, port)
    until(r, "nothing passes", lambda: e.at(node, port) > began + 50)
    leaf_in = e.way_in(HERE)
    errors = e.at(*leaf_in, "PortRcvSwitchRelayErrors")
    e.f.ask("down", node, port)
    # 67 ms, eight times. The end whose last message was acknowledged waits for the other one's next, as on cables.
    until(r, "the retries do not end", lambda: not (c.running() and s.running()))
    ended = s if c.running() else c
    r.check(ended.wait() != 0 and "Failed status 12" in "\n".join(ended.err.lines), "another end than by the retries", ended)
    lost, back = e.at(node, port, "PortXmitDiscards"), e.at(*e.back[0], "PortXmitDiscards")
    # Beside other rows OpenSM may take the LID out of the tables before the last retry, which then finds no way at the first switch.
    relayed = e.at(*leaf_in, "PortRcvSwitchRelayErrors") - errors
    # The first packet may have passed before the cut, whose acknowledgement finds no way any more: seven come again.
    r.check(lost + back + relayed >= 7, f"{lost} and {back} packets are lost at the cut, {relayed} at the first switch", c, s)


@row(DATA, "a drop rule loses packets of every kind, and reliable ones come again", "ib_send_bw over RC, ib_write_bw over RC; verbena fabric drop 1%", limit=120, parallel=True)
def dropped(r):
    e = Ends(r)
    node, port = e.there[1]
    e.f.ask("drop", node, port, "1%")
    for program in ("ib_write_bw", "ib_send_bw"):
        lost = e.at(node, port, "PortXmitDiscards")
        sent = e.at(node, port)
        s, c = e.pair([program, "-F", "-d", "mlx5_0", "-n", "500", "-s", "4096"])
        lost, sent = e.at(node, port, "PortXmitDiscards") - lost, e.at(node, port) - sent
        r.check(lost > 0 and 0.002 < lost / (lost + sent) < 0.03, f"{program}: {lost} of {lost + sent} lost", c)
        r.check(sent >= 500, f"{program}: {sent} passed", c)


@row(DATA, "UCX over reliable connections and datagrams", "ucx_perftest, UCX_TLS=rc_v and ud_v", limit=150, parallel=True)
def ucx(r):
    e = Ends(r)
    for transport in ("rc_v,self", "ud_v,self"):
        env = {"UCX_TLS": transport, "UCX_NET_DEVICES": "mlx5_0:1"}
        for test, size, count in (("tag_lat", 64, 1000), ("tag_bw", 300_000, 20)):
            there = e.passed(e.there)
            argv = ["ucx_perftest", "-p", "13338"]
            s = e.on(THERE, *argv, env=env)
            r.tcp_listening(s, 13338)
            c = e.on(HERE, *argv, "127.0.0.1", "-t", test, "-s", str(size), "-n", str(count), "-w", "10", env=env)
            for p in (c, s):
                r.check(p.wait(40) == 0, f"{transport}: exit {p.rc}", c, s)
            r.check(any(re.match(rf"Final: +{count} ", line) for line in c.out.lines), f"{transport}: no result", c, s)
            sent, words = e.more(there, e.there)
            r.check(sent >= count and words >= count * size // 4, f"{transport} {test}: {sent} packets, {words} words", c)


@row(DATA, "/sys and the verbs tell of the port what OpenSM has told it, and counters move", "ibv_devinfo; ibstat; counters/port_xmit_packets", limit=90, parallel=True)
def described(r):
    e = Ends(r)
    lid = e.f.lid(HERE)
    said = "\n".join(line.strip() for line in e.f.says(HERE, "ibv_devinfo", "-d", "mlx5_0", "-v"))
    for wanted in (r"link_layer:\s+InfiniBand", rf"port_lid:\s+{lid}\b", rf"sm_lid:\s+{e.f.lid('host1')}\b", r"state:\s+PORT_ACTIVE", r"active_mtu:\s+4096", r"GID\[\s*0\]:\s+fe80:"):
        r.check(re.search(wanted, said), f"ibv_devinfo does not say {wanted}", *r.programs)
    file = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets"
    before = int(e.f.says(HERE, "cat", file)[0])
    e.pair(["ibv_rc_pingpong", "-d", "mlx5_0"])
    until(r, "the file does not move", lambda: int(e.f.says(HERE, "cat", file)[0]) >= before + 1000, 5)


@row(DATA, "the fabric ends: devices are fatal, and no program hangs", "ib_send_lat; verbena fabric stop", limit=60, parallel=True)
def ended(r):
    e = Ends(r)
    s, c = e.start(["ib_send_lat", "-F", "-d", "mlx5_0", "-D", "30"])
    began = e.at(*e.there[1])
    until(r, "nothing passes", lambda: e.at(*e.there[1]) > began + 50)
    e.f.ask("stop")
    for p in (c, s):
        r.check(p.ends_within(20) and p.rc != 0, "the program hangs, or is content", c, s)


@row(DATA, "datagrams to a group take the multicast tables that OpenSM writes", "ib_send_lat -c UD -g: joined by MADs of its own", limit=60, parallel=True)
def groups(r):
    e = Ends(r)
    there, back = e.passed(e.there), e.passed(e.back)
    s, c = e.pair(["ib_send_lat", "-F", "-d", "mlx5_0", "-c", "UD", "-g", "-n", "500"])
    r.check([int(n[1]) for n in numbers(c.out.lines)] == [500], "no result", c)
    # OpenSM's tree is not the way of unicast packets, but for the ends.
    for way, before in ((e.there, there), (e.back, back)):
        for n in (0, -1):
            sent = e.at(*way[n]) - before[n][0]
            r.check(sent >= 500, f"{sent} packets left {way[n]}", c)


@row(DATA, "wrong LIDs: RC ends with RETRY_EXC, UD is lost without a word", "programs/lids.c: rc, ud to the right LID, to none, to another host's", limit=90, parallel=True)
def wrong(r):
    e = Ends(r)
    program = r.compiled("lids")
    server = e.on(THERE, program, "listen")
    server.until(r"\d+ \d+ \d+")
    lid, rc, ud = server.out.lines[0].split()
    r.check(int(lid) == e.f.lid(THERE), f"LID {lid}", server)

    def sends(kind, lid, qpn):
        p = e.on(HERE, program, kind, str(lid), qpn)
        r.check(p.wait(20) == 0, f"{kind}: exit {p.rc}", p)
        return p.out.lines[-1]
    # leaf0 has no way to a LID that no port has; another host has no such queue pair.
    first = e.there[0]
    leaf_in = e.way_in(HERE)
    errors = e.at(*leaf_in, "PortRcvSwitchRelayErrors")
    r.check(sends("rc", 999, rc) == "status 12", "a message to no LID completes otherwise", *r.programs)
    more = e.at(*leaf_in, "PortRcvSwitchRelayErrors") - errors
    r.check(more == 3, f"{more} relay errors of 3 packets", *r.programs)
    sent = e.at(*first)
    r.check(sends("rc", e.f.lid("host2"), rc) == "status 12" and e.at(*first) - sent == 3, "a message to another host completes otherwise", *r.programs)
    r.check(sends("ud", 999, ud) == "status 0" and e.at(*leaf_in, "PortRcvSwitchRelayErrors") - errors == 4, "a datagram to no LID", *r.programs)
    r.check(sends("ud", e.f.lid("host2"), ud) == "status 0", "a datagram to another host", *r.programs)
    r.check(sends("ud", lid, ud) == "status 0" and server.wait(20) == 0, "a datagram", server)
    r.check(server.out.lines[1:] == [f"came from LID {e.f.lid(HERE)}, 104 bytes, GRH 0", "1 messages"], "other datagrams arrived", server)


def best(r, pairs, column, better):
    """The best of some runs, each from the last table of the client."""
    found = []
    for c in pairs:
        table = numbers(c.out.lines)
        r.check(table, "no result", c)
        found.append(table[-1][column])
    return better(found)


@row(DATA, "over five hops as fast as without a fabric, but for a part", "ib_write_bw -s 65536; ib_send_lat -s 8", limit=150)
def speed(r):
    e = Ends(r)
    notes = []
    # By the number of the device perftest takes inline data and the ibv_wr_ functions, or not: here the same on both sides.
    same = ["-F", "--use_old_post_send", "-n", "20000"]
    for argv, column, better in ((["ib_write_bw", *same, "-s", "65536"], 3, max), (["ib_send_lat", *same, "-I", "0", "-s", "8"], 4, min)):
        by_fabric, plain, share = [], [], 0
        # Other programs may have the processors during one of two runs, and seldom during all of a few pairs.
        for pairs in range(1, 7):
            by_fabric.append(e.pair([*argv, "-d", "mlx5_0"])[1])
            s = r.run(*argv, ns=e.ns)
            r.tcp_listening(s)
            c = r.run(*argv, "127.0.0.1", ns=e.ns)
            for p in (c, s):
                r.check(p.wait(30) == 0, f"exit {p.rc}", c, s)
            plain.append(c)
            a, b = (best(r, side, column, better) for side in (by_fabric, plain))
            share = a / b if better is max else b / a
            if pairs >= 2 and share > 0.5:
                break
        notes.append(f"{argv[0]} {100 * share:.0f} %")
        # The figure is the note's.
        r.check(share > 0.5, f"{argv[0]}: {a} over the fabric, {b} without")
    r.note = ", ".join(notes)
