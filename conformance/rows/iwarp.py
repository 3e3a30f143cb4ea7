"""iWARP: Debian's programs over MPA, DDP and RDMAP on TCP, between two Verbenas and with the kernel's siw."""
import itertools, os, re, subprocess, time

from . import rpma
from .guest import Guest
from .harness import HERE as DIR
from .harness import LeftOut, need, row
from .loopback import judge_client, judge_server
from .perftest import PORT, numbers, sane_bandwidth, sane_latency
from .programs import judge_golden

IWARP = "iWARP"
OPTIONS = ("--iwarp",)
# Programs of perftest, whose queue pairs are rdma_cm's, as siw's all are: what judges a line, and arguments.
PERFTEST = {
    "ib_send_lat": sane_latency, "ib_send_bw": sane_bandwidth, "ib_write_bw": sane_bandwidth,
    "ib_write_lat": sane_latency, "ib_read_bw": sane_bandwidth, "ib_read_lat": sane_latency,
}
# Scenarios of librpma that need what iWARP has not: immediate data, private data of InfiniBand's lengths, a refusal of a WRITE that
# comes back to its request.
NOT_OVER_IWARP = ("imm", "descriptors", "read")
UML = os.path.join(DIR, "kernel-peer", "uml.sh")


def places(r):
    """(client's namespace, server's, server's address): on lo, and between two hosts."""
    one = r.namespace("one")
    yield one, one, "127.0.0.1"
    a, b = r.veth()
    yield a, b, "10.90.0.2"


def rping(r, a, b, address, count, size, verbose=True):
    said = ["-v"] if verbose else ["-V"]
    server = r.run("rping", "-s", *said, "-C", str(count), "-S", str(size), "-a", address, ns=b, options=OPTIONS)
    r.listening(server, 7174)
    client = r.run("rping", "-c", *said, "-C", str(count), "-S", str(size), "-a", address, ns=a, options=OPTIONS)
    judge_client(r, client, count, size, verbose)
    judge_server(r, server, count, size, verbose)


@row(IWARP, "pings of 64 bytes and of 64 KiB, verified", "rping -v -C 200 -S 64; rping -V -C 20 -S 65535", limit=60, parallel=True)
def pings(r):
    for a, b, address in places(r):
        rping(r, a, b, address, 200, 64)
        rping(r, a, b, address, 20, 65535, verbose=False)


@row(IWARP, "IPv6", "rping -a ::1 -v -C 200", parallel=True)
def ipv6(r):
    ns = r.namespace()
    rping(r, ns, ns, "::1", 200, 64)


@row(IWARP, "what it prints is what it prints over rdma_rxe", "ucmatose, rdma_client, rdma_server", parallel=True)
def golden(r):
    for a, b, address in places(r):
        server = r.run("ucmatose", ns=b, options=OPTIONS)
        r.listening(server, 7471)
        judge_golden(r, "rxe-ucmatose.txt", server, r.run("ucmatose", "-s", address, ns=a, options=OPTIONS))
        server = r.run("rdma_server", ns=b, options=OPTIONS)
        r.listening(server, 7471)
        judge_golden(r, "rxe-rdma_client.txt", server, r.run("rdma_client", "-s", address, ns=a, options=OPTIONS))


def both_end(r, server, client):
    r.check(client.wait() == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)


@row(IWARP, "many connections, long messages, endpoints", "ucmatose -c 20 -C 50 -S 100000, rdma_xserver, cmtime -c 100", limit=60, parallel=True)
def many(r):
    for a, b, address in places(r):
        argv = ["-c", "20", "-C", "50", "-S", "100000"]
        server = r.run("ucmatose", *argv, ns=b, options=OPTIONS)
        r.listening(server, 7471)
        both_end(r, server, r.run("ucmatose", *argv, "-s", address, ns=a, options=OPTIONS))
        server = r.run("rdma_xserver", "-p", "7998", "-c", "r", ns=b, options=OPTIONS)
        r.listening(server, 7998)
        both_end(r, server, r.run("rdma_xclient", "-s", address, "-p", "7998", "-c", "r", ns=a, options=OPTIONS))
        server = r.run("cmtime", "-c", "100", ns=b, options=OPTIONS)
        r.listening(server, 7471)
        client = r.run("cmtime", "-c", "100", "-s", address, ns=a, options=OPTIONS)
        r.check(client.wait() == 0, f"exit {client.rc}", client, server)
        # It serves on, as with the kernel.
        server.end()


def early(client):
    """The client connected to measure before the server listened anew (perftest 3d9d8d0)."""
    return client.rc in (-11, 139) or any(re.search("REJECTED; error: -1(04|11)|Failed to create RDMA CM connection", line) for line in client.err.lines)


@row(IWARP, "SEND, WRITE and READ, each line sane", "ib_{send,write,read}_{lat,bw} -R -s 64, -s 1048576", limit=120, parallel=True)
def perftest(r):
    need("ib_send_bw")
    a, b = r.veth()
    for program, size in itertools.product(PERFTEST, (64, 1 << 20)):
        argv = [program, "-R", "-s", str(size), "-n", "100", "-F", "-d", "siw_veth0"]
        for _ in range(3):
            server = r.run(*argv, ns=b, options=OPTIONS)
            r.listening(server, PORT)
            client = r.run(*argv, "10.90.0.2", ns=a, options=OPTIONS)
            # Beside others that compute it may come early all the same.
            if client.wait(60) == 0 or not early(client):
                break
            server.end()
        r.check(client.rc == 0 and server.wait(10) == 0, f"{program}: exit {client.rc}, {server.rc}", client, server)
        lines = numbers(client.out.lines)
        r.check(len(lines) == 1 and all(map(PERFTEST[program], lines)), f"{program}: the line is not sane", client)


@row(IWARP, "qperf: messages and READs", "qperf -cm 1 rc_lat, rc_rdma_read_lat, rc_rdma_read_bw", limit=100, parallel=True)
def qperf(r):
    """Its other tests write with immediate data, which iWARP has not, or send without regard to receives."""
    for a, b, address in places(r):
        server = r.run("qperf", ns=b, options=OPTIONS)
        r.tcp_listening(server, 19765)
        for test in ("rc_lat", "rc_rdma_read_lat", "rc_rdma_read_bw"):
            for _ in range(5):
                client = r.run("qperf", "-t", "1", "-cm", "1", address, test, ns=a, options=OPTIONS)
                # Its two ends meet over TCP, then one connects as the other begins to listen: once in a while it comes too early.
                if client.wait(15) == 0 or not any("Event rejected" in line for line in client.out.lines + client.err.lines):
                    break
            r.check(client.rc == 0, f"{test}: client exit {client.rc}", client, server)
            values = [float(m.group(1)) for line in client.out.lines if (m := re.match(r"\s+\w+\s+=\s+([\d.]+)", line))]
            r.check(values and all(v > 0 for v in values), f"{test}: no numbers", client, server)


@row(IWARP, "librpma: its scenarios, but for three", "programs/rpma/*", limit=240, parallel=True)
def librpma(r):
    """Debian's library serves ours in one scenario, and ours serves Debian's in the next."""
    a, b = r.veth()
    for at, (name, _) in enumerate(scenario for scenario in rpma.SCENARIOS if scenario[0] not in NOT_OVER_IWARP):
        r.programs.clear()
        servers, clients = (rpma.SYSTEM, rpma.OURS) if at % 2 else (rpma.OURS, rpma.SYSTEM)
        binary, where = rpma.program(r, name), ("10.90.0.2", str(rpma.PORT + at))
        server = r.run(binary, "server", *where, ns=b, options=(*servers.options, *OPTIONS))
        r.listening(server, rpma.PORT + at)
        client = r.run(binary, "client", *where, ns=a, options=(*clients.options, *OPTIONS))
        rpma.judged(r, client, clients)
        rpma.judged(r, server, servers)


@row(IWARP, "the Rust crate's rping, with itself and with Debian's", "crates/verbena/examples/rping.rs", limit=600, parallel=True)
def crate(r):
    ns, example, device = r.namespace(), r.example("rping"), {"VERBENA_DEVICES": "siw_lo=iwarp:lo"}
    ours, theirs = (lambda *args: r.plain(example, *args, ns=ns, env=device)), (lambda *args: r.run("rping", *args, ns=ns, options=OPTIONS))
    for serves, asks in ((ours, ours), (theirs, ours), (ours, theirs)):
        server = serves("-s", "-a", "127.0.0.1", "-C", "20", "-v")
        r.listening(server, 7174)
        client = asks("-c", "-a", "127.0.0.1", "-C", "20", "-v")
        for p in (client, server):
            r.check(p.wait(20) == 0, f"exit {p.rc}", client, server)
        r.check(any("rdma-ping-19" in line for line in client.out.lines), "no last ping", client, server)


@row(IWARP, "what is no MPA, or nothing, holds up no other connection", "rping beside TCP clients", limit=60, parallel=True)
def hostile(r):
    ns = r.namespace()
    server = r.run("rping", "-s", "-P", "-a", "127.0.0.1", "-p", "7200", ns=ns, options=OPTIONS)
    r.listening(server, 7200)
    # Beyond 128 without a whole request the oldest are closed: those may be gone when they speak.
    script = """
import socket, time
def speak(s, words):
    try: s.sendall(words)
    except ConnectionError: pass
def is_gone(s):
    s.settimeout(5)
    try: return s.recv(1) == b''
    except ConnectionError: return True
held = [socket.create_connection(('127.0.0.1', 7200)) for _ in range(200)]
for s in held[:50]: speak(s, b'GET / HTTP/1.1\\r\\n\\r\\n')
for s in held[50:100]: speak(s, b'MPA ID Req Fr')
print('held', flush=True)
print('gone', sum(map(is_gone, held[:50])), flush=True)
time.sleep(30)
"""
    stranger = r.plain("python3", "-c", script, ns=ns)
    stranger.until("held")
    for _ in range(3):
        client = r.run("rping", "-c", "-a", "127.0.0.1", "-p", "7200", "-C", "20", "-v", ns=ns, options=OPTIONS)
        judge_client(r, client, 20, 64)
    stranger.until("gone 50")
    r.check(server.running(), "the server has ended", server)
    stranger.end()
    server.end()


@row(IWARP, "a TCP socket has the port: EADDRINUSE", "rping", parallel=True)
def taken(r):
    ns = r.namespace()
    script = "import socket, time; s = socket.create_server(('127.0.0.1', 7201)); print('listening', flush=True); time.sleep(30)"
    holder = r.plain("python3", "-c", script, ns=ns)
    holder.until("listening")
    server = r.run("rping", "-s", "-a", "127.0.0.1", "-p", "7201", ns=ns, options=OPTIONS)
    r.check(server.wait(10) != 0, "it listens", server)
    r.check(any("Address already in use" in line for line in server.err.lines), "it does not say why", server)
    holder.end()


def siw():
    """A guest whose device is siw: in the user mode kernel only."""
    if subprocess.run([UML, "--find"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise LeftOut("siw is in the user mode kernel, which is not built (KERNEL_PEER_ACCEL=uml kernel-peer build)")
    return Guest.get("S")


class Kernel:
    """A guest's siw on one side, ours on the other, by the bridge between them."""

    def __init__(self, r, serves):
        self.row, self.guest, self.serves = r, siw(), serves

    def pair(self, server, client, port):
        """Both programs; each is given the address to listen at or to ask for."""
        g, r = self.guest, self.row
        if self.serves:
            s = r.guest(g, *server(g.ip))
            g.until("rdma resource show cm_id | grep -q LISTEN", "the guest's server does not listen")
            return s, r.run(*client(g.ip), ns=g.ns, options=OPTIONS)
        s = r.run(*server("10.77.0.1"), ns=g.ns, options=OPTIONS)
        r.listening(s, port)
        return s, r.guest(g, *client("10.77.0.1"))

    def ends_well(self, server, client, seconds=60):
        rc = client.wait(seconds), server.wait(20)
        self.row.check(rc == (0, 0), f"exit {rc[0]}, {rc[1]}", client, server)


def with_siw(serves):
    side = "server" if serves else "client"

    @row(IWARP, f"siw as {side}: pings of 64 bytes and of 64 KiB, verified", "rping -v -C 50 -S 64; rping -V -C 10 -S 65535", limit=120, kernel=True)
    def pings(r):
        kernel = Kernel(r, serves)
        for flags in (["-v", "-C", "50", "-S", "64"], ["-V", "-C", "10", "-S", "65535"]):
            s, c = kernel.pair(lambda a: ["rping", "-s", "-a", a, *flags], lambda a: ["rping", "-c", "-a", a, *flags], 7174)
            # rping's server may end with an error of its event thread, on kernels too.
            r.check(c.wait(30) in (0, 255) and s.wait(20) in (0, 255), f"exit {c.rc}, {s.rc}", c, s)

    @row(IWARP, f"siw as {side}: connections, data both ways, endpoints", "ucmatose -c 4 -C 20, rdma_server, rdma_client", limit=120, kernel=True)
    def connections(r):
        kernel = Kernel(r, serves)
        argv = ["-c", "4", "-C", "20", "-S", "10000"]
        kernel.ends_well(*kernel.pair(lambda a: ["ucmatose", "-b", a, *argv], lambda a: ["ucmatose", "-s", a, *argv], 7471))
        kernel.ends_well(*kernel.pair(lambda a: ["rdma_server", "-s", a], lambda a: ["rdma_client", "-s", a], 7471))

    # In the guest perftest does not know how fast its clock runs, and prints nonsense or nothing.
    what = "SEND, WRITE and READ, each line sane" if serves else "SEND, WRITE and READ"

    @row(IWARP, f"siw as {side}: {what}", "ib_{send,write,read}_{lat,bw} -R -n 50", limit=200, kernel=True)
    def perftest(r):
        kernel = Kernel(r, serves)
        for program, is_sane in PERFTEST.items():
            argv = [program, "-R", "-n", "50", "-F", "-s", "4096"]
            for _ in range(6):
                s, c = kernel.pair(lambda a: argv, lambda a: [*argv, a], PORT)
                if c.wait(60) == 0 or not early(c):
                    break
                s.end()
                # Until the guest has ended it.
                time.sleep(1)
            r.check(c.rc == 0 and s.wait(20) == 0, f"{program}: exit {c.rc}, {s.rc}", c, s)
            lines = numbers(c.out.lines)
            r.check(not serves or (len(lines) == 1 and is_sane(lines[0])), f"{program}: the line is not sane", c)


with_siw(True)
with_siw(False)
