"""One end killed in every state of a connection, and devices that change (programs/ends.c): the other end learns of it in time, its
receives are flushed, it can destroy everything."""
import os
import re
import signal
import sys
import time

from .harness import HERE, Fail, Guest, need, row, sh
from .kernel import guest_listening

KILLED = "ends that vanish"
OTHER = os.path.join(HERE, "programs", "stranger.py")
STAGES = ("requested", "answered", "established")
PLACES = {
    "one namespace": "both in one network namespace",
    "veth": "two namespaces; nobody else has the UDP port of the one that is killed",
    "veth, port shared": "two namespaces; another process shares the UDP port of the one that is killed",
}
END = r"RDMA_CM_EVENT_(DISCONNECTED|REJECTED|UNREACHABLE|CONNECT_ERROR)"
# What the end that lives is told: by stage and victim, in the order of PLACES (guide/src/deviations.md).
TOLD = {
    ("requested", "server"): ("REJECTED (28|8)", "UNREACHABLE -110", "REJECTED 8"),
    ("requested", "client"): ("REJECTED 4",) * 3,
    ("answered", "server"): ("REJECTED 28",) * 3,
    ("answered", "client"): ("REJECTED 28", "UNREACHABLE -110", "REJECTED 6"),
    ("established", "server"): ("DISCONNECTED 0",) * 3,
    ("established", "client"): ("DISCONNECTED 0",) * 3,
}
# When the connection is where it shall stay: what the client and what the server has said.
REACHED = {
    "requested": ("ROUTE_RESOLVED", "CONNECT_REQUEST"),
    "answered": ("CONNECT_RESPONSE", "CONNECT_REQUEST"),
    "established": ("RDMA_CM_EVENT_ESTABLISHED", "RDMA_CM_EVENT_ESTABLISHED"),
}


def pair(r, stage, place):
    """(client, server), as far as the stage."""
    if place == "one namespace":
        a = b = r.namespace()
        address = "127.0.0.1"
    else:
        a, b = r.veth()
        address = "10.90.0.2"
    ends = r.compiled("ends")
    server = r.run(ends, "server", stage, address, ns=b)
    r.listening(server, 7300)
    client = r.run(ends, "client", stage, address, ns=a)
    for end, said in zip((client, server), REACHED[stage]):
        end.until(said)
    return client, server


def gone(r, end, since, seconds, event=END):
    """The end that lives is told in time, and has tidied up after itself."""
    took = end.until(event) - since
    r.check(took <= seconds, "too late", end)
    flushed = end.until(r"^flushed ")
    r.check(flushed - since <= seconds + 1, "flushed too late", end)
    r.check(end.wait(10) == 0, f"exit {end.rc}", end)


for stage in STAGES:
    for victim in ("server", "client"):
        for place, what in PLACES.items():
            def killed(r, stage=stage, victim=victim, place=place):
                client, server = pair(r, stage, place)
                dead, other = (server, client) if victim == "server" else (client, server)
                if place == "veth, port shared":
                    idle = r.run(r.compiled("ends"), "idle", stage, "10.90.0.2" if victim == "server" else "10.90.0.1", "7301", ns=dead.ns)
                    r.listening(idle, 7301)
                # Long enough for requests to have been repeated, and for an MRA to have asked for patience.
                time.sleep(1.2)
                at = time.monotonic()
                dead.signal(signal.SIGKILL)
                told = TOLD[stage, victim][list(PLACES).index(place)]
                gone(r, other, at, 2, f"{END} -?[0-9]+$")
                r.check(any(re.fullmatch(f"RDMA_CM_EVENT_{told}", line) for line in other.out.lines), "told otherwise", other)
                without = stage == "answered" and other is client
                wanted = 0 if without or (stage == "requested" and other is server) else 4
                r.check(f"flushed {wanted}" in other.out.lines, "receives not flushed", other)
            row(KILLED, f"{victim} killed when {stage}, {place}: known within 2 s", "programs/ends.c, SIGKILL", parallel=True)(killed)


@row(KILLED, "two that live and say nothing stay connected, veth", "programs/ends.c", limit=40, parallel=True)
def quiet(r):
    client, server = pair(r, "established", "veth")
    time.sleep(12)
    r.check(client.running() and server.running(), "ended without cause")


@row(KILLED, "a server stopped for 6 s is not taken for dead, veth", "programs/ends.c, SIGSTOP", limit=40, parallel=True)
def stopped(r):
    client, server = pair(r, "established", "veth")
    server.signal(signal.SIGSTOP)
    time.sleep(6)
    server.signal(signal.SIGCONT)
    time.sleep(1)
    r.check(client.running() and server.running(), "ended without cause")


@row(KILLED, "interface deleted: DEVICE_REMOVAL, receives flushed", "programs/ends.c, ip link del")
def removal(r):
    client, server = pair(r, "established", "veth")
    at = time.monotonic()
    sh("ip", "-n", client.ns, "link", "del", "veth0")
    # Deleting one end of a veth takes the other with it.
    for end in (client, server):
        gone(r, end, at, 1, "RDMA_CM_EVENT_DEVICE_REMOVAL 0")
        r.check("flushed 4" in end.out.lines, "receives not flushed", end)


@row(KILLED, "another hardware address: ADDR_CHANGE, the connection stays", "programs/ends.c, ip link set address", parallel=True)
def address_change(r):
    client, server = pair(r, "established", "veth")
    sh("ip", "-n", client.ns, "link", "set", "veth0", "address", "02:aa:bb:cc:dd:ee")
    client.until("RDMA_CM_EVENT_ADDR_CHANGE 0", 2)
    time.sleep(2)
    r.check(client.running() and server.running(), "ended without cause")


@row(KILLED, "VERBENA_CM_TIMEOUT=2: a silent host is UNREACHABLE -110 after 2 s", "rping")
def silent(r):
    need("ip")
    a, _ = r.veth()
    # A neighbour that everybody knows and nobody is.
    sh("ip", "-n", a, "neigh", "add", "10.90.0.99", "lladdr", "02:00:00:00:00:99", "dev", "veth0")
    client = r.run("rping", "-c", "-a", "10.90.0.99", "-C", "1", "-d", ns=a, lines=True, env={"VERBENA_CM_TIMEOUT": "2"})
    took = client.until("RDMA_CM_EVENT_UNREACHABLE, error -110") - client.until("ROUTE_RESOLVED")
    r.check(1.9 <= took <= 3, "too late" if took > 3 else "too early", client)


def hears_of_the_end(kill):
    """`kill` ends the guest's rping and returns ours and when; ours hears of it within five seconds (the guest is emulated:
    seconds there are long). A kernel takes the regions of a killed process away before its queue pairs: a request between the two
    is refused, and rping ends before it hears more. Then another is killed."""
    for _ in range(3):
        ours, at = kill()
        try:
            ours.row.check(ours.until("RDMA_CM_EVENT_DISCONNECTED", 20) - at <= 5, "too late", ours)
            return
        except Fail:
            # Remote access error, remote operation error.
            refused = not ours.running() and any(re.search("completion failed status 1[01]", line) for line in ours.err.lines)
            if not refused:
                raise
    raise Fail("refused three times", ours.tail())


def told(line):
    """What these rows look at of rping's words, which are many."""
    return any(word in line for word in ("cma", "completion", "DISCONNECT", "ESTABLISHED"))


@row(KILLED, "the kernel's server killed: DISCONNECTED 0", "rping, SIGKILL", limit=90, kernel=True)
def kernel_server(r):
    g = Guest.get("A")

    def kill():
        server = r.guest(g, "rping", "-s", "-a", g.ip, "-d")
        guest_listening(g)
        client = r.run("rping", "-c", "-a", g.ip, "-d", ns=g.ns, lines=True, keep=told)
        client.until("ESTABLISHED")
        time.sleep(1)
        g.k("kill", g.name, server.job, "KILL")
        return client, time.monotonic()

    hears_of_the_end(kill)


@row(KILLED, "an attacker calls a connection with the kernel stale: it stays; the kernel's client killed: DISCONNECTED 0", "rping, programs/stranger.py", limit=120, kernel=True)
def kernel_and_stranger(r):
    g = Guest.get("A")

    def kill():
        server = r.run("rping", "-s", "-a", "10.77.0.1", "-d", ns=g.ns, lines=True, keep=told)
        r.listening(server, 7174)
        stranger = r.plain(sys.executable, OTHER, "br0", g.ip, "10.77.0.1", ns=g.ns)
        stranger.until("listening")
        client = r.guest(g, "rping", "-c", "-a", "10.77.0.1", "-d")
        server.until("ESTABLISHED")
        r.check(stranger.wait(30) == 0, "the stranger failed", stranger)
        n = {name: int(value) for name, value in (line.split() for line in stranger.out.lines if line != "listening")}
        r.check(n["refused"] == 1, "the stranger's request was not refused", stranger)
        r.check(3 <= n["asked"] <= 6, "the kernel was not asked", stranger)
        r.check(n["answered"] == 0, "the kernel does not know the connection", stranger)
        r.check(n["unknown"] == 1, "the kernel does not say what it does not know", stranger)
        r.check(server.running() and not any("DISCONNECT" in line for line in server.out.lines), "the connection has ended", server)
        g.k("kill", g.name, client.job, "KILL")
        return server, time.monotonic()

    hears_of_the_end(kill)


@row(KILLED, "the kernel's server stopped for 8 s before it answers: ESTABLISHED all the same", "rping, SIGSTOP", limit=60, kernel=True)
def kernel_slow(r):
    g = Guest.get("A")
    server = r.guest(g, "rping", "-s", "-a", g.ip, "-C", "3", "-d")
    guest_listening(g)
    g.k("kill", g.name, server.job, "STOP")
    client = r.run("rping", "-c", "-a", g.ip, "-C", "3", "-d", ns=g.ns, lines=True)
    client.until("ROUTE_RESOLVED")
    # The kernel asks for patience (MRA) when the request comes again.
    time.sleep(8)
    g.k("kill", g.name, server.job, "CONT")
    client.until("RDMA_CM_EVENT_ESTABLISHED", 10)
    client.wait(20)
    r.check(not any("REJECTED" in line or "UNREACHABLE" in line for line in client.out.lines + client.err.lines), "given up", client)
