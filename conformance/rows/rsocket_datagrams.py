"""rsockets' datagrams: Debian's udpong between two Verbenas by memory, by packets and over a veth, and with Debian's librdmacm on the
kernel's rdma_rxe in a guest."""
import os, shutil, tempfile

from .harness import HERE, PATIENCE, Guest, need, row, sh, sockets
from .kernel import Side

GROUP = "rsockets"
PORT = 7174
# udpong's ways to wait; with e the server sends all back, so that the client knows what came.
WAYS = (("b",), ("n",), ("a",), ("b", "e"), ("n", "e"), ("a", "e"))
SIZE = 1000
# udpong sends anew after a millisecond, and each answer to that is one more for good: on a busy machine few echoes take as long as many.
COUNT, COUNT_GUEST = 100, 40
# The header before a datagram over IPv4 takes 8 bytes of the MTU.
JUMBO = 4200


def argv(way, *more, count=COUNT):
    return ["udpong", *(word for one in way for word in ("-T", one)), "-C", str(count), "-S", str(SIZE), *more]


def bound(r, server):
    r._until(server, PATIENCE, lambda: any(port == PORT for port, _ in sockets(server.pid, "udp")))


def carried(file):
    """Datagrams that queue pairs of a process have sent and received."""
    with open(file) as f:
        counts = {name: int(n) for name, n in (line.split() for line in f)}
    return sum(n for name, n in counts.items() if name.startswith("rxe_") and name.endswith(".received")), counts


def result(r, what, client, server, way, count=COUNT):
    """Its line: name, bytes, datagrams, bytes in all, ..."""
    r.check(client.wait(40) == 0, f"{what}: exit {client.rc}", client, server)
    lines = [line.split() for line in client.out.lines if line.startswith("custom")]
    r.check(len(lines) == 1, f"{what}: no result", client, server)
    came = int(lines[0][2])
    # An echo is waited for each time. Of others the network may lose some, as a full queue does.
    good = came == 2 * count if "e" in way else 0 < came <= count
    r.check(good, f"{what}: {came} of {count} datagrams", client, server)


def here(r):
    ns = r.namespace()
    return ns, ns, "127.0.0.1", ()


def wire(r):
    return (*here(r)[:3], ("--wire",))


def veth(r):
    return (*r.veth(JUMBO), "10.90.0.2", ())


def pong(r, where):
    a, b, address, options = where(r)
    counts = os.path.join(r.work, "counters")
    for way in WAYS:
        what = "-T " + " -T ".join(way)
        server = r.run(*argv(way, "-b", address), ns=b, options=options)
        bound(r, server)
        client = r.run(*argv(way, "-s", address), ns=a, options=options, env={"VERBENA_COUNTERS": counts})
        result(r, what, client, server, way)
        received, all = carried(counts)
        # The start, the end and each echo are answered.
        r.check(received >= (COUNT if "e" in way else 2) - 5, f"{what}: {received} came by RDMA: {all}", client, server)
        server.end()
        r.programs.clear()


for place, where in (("by memory", here), ("--wire", wire), ("between two hosts, MTU 4200", veth)):
    row(GROUP, f"{place}: udpong, each way to wait, datagrams and echoes", "udpong -T {b,n,a} [-T e]", limit=90)(
        lambda r, where=where: pong(r, where))


def sizes(r):
    """Up to the longest datagram over IPv4; of longer ones udpong prints the error."""
    a, b, address, _ = veth(r)
    server = r.run("udpong", "-T", "b", "-b", address, ns=b)
    bound(r, server)
    for size in (16, 64, 1016, 1536, 2032, 2033):
        client = r.run("udpong", "-T", "b", "-T", "e", "-C", "50", "-S", str(size), "-s", address, ns=a)
        r.check(client.wait(20) == 0, f"{size} bytes: exit {client.rc}", client, server)
        done = any(line.startswith("custom") for line in client.out.lines)
        refused = any("Message too long" in line for line in client.err.lines)
        r.check((done, refused) == ((True, False) if size <= 2032 else (False, True)), f"{size} bytes", client, server)
    server.end()


row(GROUP, "between two hosts, MTU 4200: udpong, up to 2,032 bytes and beyond", "udpong -T b -T e -S SIZE", limit=60)(sizes)


# -- the kernel ---------------------------------------------------------------------------------------------------------------

SHIM = "/ah_with_grh.so"


def guest():
    """The guest, with an object that lets Debian's librdmacm send datagrams on RoCE at all."""
    g = Guest.get("A")
    if SHIM not in g.given:
        need("gcc")
        built = os.path.join(tempfile.mkdtemp(), "shim.so")
        sh("gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", built, os.path.join(HERE, "programs", "ah_with_grh.c"), "-libverbs")
        g.k("put", g.name, built, SHIM)
        g.given.add(SHIM)
        shutil.rmtree(os.path.dirname(built))
    return g


def with_kernel(r, we_serve):
    g = guest()
    us = Side(r, g)
    preloaded = ("env", f"LD_PRELOAD={SHIM}")
    for way in WAYS:
        what = "-T " + " -T ".join(way)
        address = us.ip if we_serve else g.ip
        serving, asking = argv(way, "-b", address), argv(way, "-s", address, count=COUNT_GUEST)
        if we_serve:
            server = us.start(*serving)
            bound(r, server)
            client = r.guest(g, *preloaded, *asking)
        else:
            server = r.guest(g, *preloaded, *serving)
            g.until(f"netstat -lun | grep -q ':{PORT} '", "the guest's server does not listen")
            client = us.start(*asking)
        result(r, what, client, server, way, COUNT_GUEST)
        server.end()
        if not we_serve:
            g.until(f"! netstat -lun | grep -q ':{PORT} '", "the guest's server does not end")
        r.programs.clear()


for who, we_serve in (("rdma_rxe serves", False), ("rdma_rxe asks", True)):
    row(GROUP, f"{who}, with a GRH in librdmacm's address handle: udpong, each way to wait", "udpong -T {b,n,a} [-T e]", limit=120, kernel=True)(
        lambda r, we_serve=we_serve: with_kernel(r, we_serve))


@row(GROUP, "rdma_rxe at both ends, without: librdmacm sends no datagrams on RoCE", "udpong", limit=60, kernel=True)
def both(r):
    g = Guest.get("A")
    client = r.guest(g, *argv(("b",), "-s", g.ip))
    r.check(client.wait(20) == 255 and any("rconnect" in line for line in client.err.lines), f"exit {client.rc}", client)


# -- what a peer may send -----------------------------------------------------------------------------------------------------

# udpong writes no counters, because it ends only by a signal. This takes datagrams until one says that it is the last.
TAKER = f"""
import ctypes, socket, struct
c = ctypes.CDLL("librdmacm.so.1")
c.rrecvfrom.restype = ctypes.c_ssize_t
fd = c.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0)
here = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", {PORT}, socket.inet_aton("127.0.0.1"))
assert c.rbind(fd, here, 16) == 0
bytes, sender, size, own, others = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(16), ctypes.c_uint32(16), [], 0
while own[-1:] != [b"last"]:
    n = c.rrecvfrom(fd, bytes, 4096, 0, sender, ctypes.byref(size))
    assert n >= 0 and sender.raw[4:8] == socket.inet_aton("127.0.0.1")
    if bytes.raw[:n] in (b"first", b"last"): own.append(bytes.raw[:n])
    else: others += 1
print(own.count(b"first") > 0, others, flush=True)
c.rclose(fd)
"""
# Sends for two seconds: on a busy machine it takes a while until each end knows the other's queue pair.
GIVER = f"""
import ctypes, socket, struct, sys, time
c = ctypes.CDLL("librdmacm.so.1")
c.rsend.restype = ctypes.c_ssize_t
fd = c.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0)
there = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", {PORT}, socket.inet_aton("127.0.0.1"))
assert c.rconnect(fd, there, 16) == 0
for word in [b"first"] * 100 + [b"last"]:
    assert c.rsend(fd, word, len(word), 0) == len(word); time.sleep(0.02)
c.rclose(fd)
"""
UNSOLICITED = f"""
import random, socket, struct
r, s = random.Random(1), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(20_000):
    head = struct.pack(">IBBBBI", 0x55555555, r.choice((4, 6, 9)), r.choice((0, 1, 7)), r.choice((16, 28, 0)), 0, r.getrandbits(32))
    s.sendto((head + r.randbytes(4) if n % 4 else b"") + r.randbytes(r.randrange(60)), ("127.0.0.1", {PORT}))
"""


@row(GROUP, "datagrams: 20,000 messages of another program are counted, and a peer gets through", "python3, UDP of any bytes", limit=60)
def unsolicited(r):
    ns, counts = r.namespace(), os.path.join(r.work, "counters")
    taker = r.run("python3", "-c", TAKER, ns=ns, env={"VERBENA_COUNTERS": counts})
    bound(r, taker)
    sender = r.plain("python3", "-c", UNSOLICITED, ns=ns)
    r.check(sender.wait(30) == 0, f"exit {sender.rc}", sender, taker)
    giver = r.run("python3", "-c", GIVER, ns=ns)
    r.check(giver.wait(20) == 0 and taker.wait(10) == 0, f"exit {giver.rc}, {taker.rc}", giver, taker)
    heard, others = taker.out.lines[0].split()
    received, counted = carried(counts)
    # Of well formed headers one in 27 is a datagram. The kernel drops what the UDP socket has no room for.
    r.check(heard == "True" and 1 <= int(others) < 2000 and received >= 10, f"heard {heard}, {others} others, {received} by RDMA", taker)
    r.check(counted["host.rsocket_refused"] >= 500, f"{counted['host.rsocket_refused']} refused", taker)
