"""rdma_cm on hosts of `verbena fabric`: addresses of IPoIB, paths that OpenSM gives. Each row asserts on the counters of switches on the
way, because two programs of one machine would reach each other also without any fabric."""
import re

from .fabric_data import HERE, THERE, Ends
from .harness import row
from .perftest import measured, spoilt

CM = "InfiniBand connections"


def address(e, host):
    return next(m.group(1) for m in (re.search(r" ip (\S+)", line) for line in e.f.ask("show", host)) if m)


def between(e):
    """The ways between the switches: the ports of hosts also count what they ask OpenSM."""
    return e.there[1:-1], e.back[1:-1]


def passed(r, e, before, least, *programs):
    """Packets took the way between the hosts, in both directions."""
    for way, was in zip(between(e), before):
        more = e.more(was, way)[0]
        r.check(more >= least, f"{more} packets took the way {way}", *programs)


def both(e):
    return [e.passed(way) for way in between(e)]


def ended(r, *programs, seconds=30):
    for p in programs:
        r.check(p.wait(seconds) == 0, f"{p.name}: exit {p.rc}", *programs)


@row(CM, "rping, ucmatose, udaddy and cmtime, each to a listener of all addresses", "rping -C 200 -v; ucmatose -C 50; udaddy; cmtime -c 20", limit=120)
def connects(r):
    e = Ends(r)
    to = address(e, THERE)
    before = both(e)
    s = e.on(THERE, "rping", "-s", "-v", "-C", "200")
    r.listening(s, 7174)
    c = e.on(HERE, "rping", "-c", "-a", to, "-v", "-C", "200")
    ended(r, c, s)
    r.check(sum(line.startswith("ping data:") for line in c.out.lines) == 200, "not 200 pings", c, s)
    passed(r, e, before, 400, c, s)
    for server, client, port, least in (
        (["ucmatose", "-C", "50"], ["ucmatose", "-s", to, "-C", "50"], 7471, 50),
        (["udaddy", "-c", "2", "-C", "20"], ["udaddy", "-s", to, "-c", "2", "-C", "20"], 7174, 40),
        (["cmtime", "-c", "20"], ["cmtime", "-s", to, "-c", "20"], 7471, 40),
    ):
        before = both(e)
        s = e.on(THERE, *server)
        r.listening(s, port)
        c = e.on(HERE, *client)
        ended(r, c)
        if server[0] == "cmtime":
            # It serves on, as with the kernel.
            s.end()
        else:
            ended(r, s)
        passed(r, e, before, least, c, s)


@row(CM, "endpoints of librdmacm, with receive queues of their own, shared, and of XRC", "rdma_server, rdma_client; rdma_xserver, rdma_xclient -c r, -c x", limit=60, parallel=True)
def endpoints(r):
    e = Ends(r)
    to = address(e, THERE)
    for server, client in (
        (["rdma_server"], ["rdma_client", "-s", to]),
        (["rdma_xserver", "-c", "r"], ["rdma_xclient", "-s", to, "-c", "r"]),
        (["rdma_xserver", "-c", "x"], ["rdma_xclient", "-s", to, "-c", "x"]),
    ):
        before = both(e)
        s = e.on(THERE, *server)
        r.listening(s, 7471)
        c = e.on(HERE, *client)
        ended(r, c, s)
        passed(r, e, before, 3, c, s)


@row(CM, "listeners of all addresses on two hosts have one port, and each gets its own", "rping -s on two hosts", limit=90)
def one_port(r):
    e = Ends(r)
    servers = {}
    for host in (THERE, "host4"):
        servers[host] = e.on(host, "rping", "-s", "-v", "-C", "10")
        r.listening(servers[host], 7174)
    for host, server in servers.items():
        way = e.f.way(HERE, host)[1:]
        before = e.passed(way)
        c = e.on(HERE, "rping", "-c", "-a", address(e, host), "-v", "-C", "10")
        ended(r, c, server)
        more = e.more(before, way)[0]
        r.check(more >= 10, f"{more} packets took the way to {host}", c, server)
    first = e.on(THERE, "rping", "-s")
    r.listening(first, 7174)
    second = e.on(THERE, "rping", "-s")
    r.check(second.wait() != 0 and first.running(), "two listeners of one host have one port", first, second)


@row(CM, "OpenSM ends: no path is given, and connections live", "rping; kill OpenSM; ucmatose", limit=90)
def without_manager(r):
    e = Ends(r)
    to = address(e, THERE)
    s = e.on(THERE, "rping", "-s", "-v")
    r.listening(s, 7174)
    c = e.on(HERE, "rping", "-c", "-a", to, "-v", lines=True)
    c.until("ping data: rdma-ping-9")
    e.sm.process.end()
    began = e.at(*e.there[1])
    other = e.on(HERE, "ucmatose", "-s", to, "-c", "1")
    r.check(other.wait(20) != 0, "a connection is made without a path", other)
    text = "\n".join(other.out.lines + other.err.lines)
    r.check(re.search(r"ROUTE_ERROR.*-110|event: RDMA_CM_EVENT_ROUTE_ERROR", text), "no ROUTE_ERROR", other)
    r.check(c.running() and s.running(), "the connection ended with OpenSM", c, s)
    r.check(e.at(*e.there[1]) > began, "no packets pass any more", c, s)


@row(CM, "perftest with rdma_cm", "ib_write_bw -R", limit=90)
def perftest(r):
    e = Ends(r)
    argv = ["ib_write_bw", "-F", "-R", "-d", "mlx5_0", "-n", "200"]

    def once():
        before = both(e)
        s = e.on(THERE, *argv)
        r.listening(s, 18515)
        c = e.on(HERE, *argv, address(e, THERE))
        c.wait()
        if spoilt(c, s):
            s.running() and s.wait()
            return False
        ended(r, c, s)
        there = e.more(before[0], between(e)[0])[0]
        r.check(there >= 200 * 16, f"{there} packets took the way", c, s)
        return True
    measured(r, once)
