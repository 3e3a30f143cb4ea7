"""rsockets: Debian's programs of rsocket(7), between two Verbenas by memory, by packets, over a veth and over iWARP, and with Debian's
librdmacm on the kernel's rdma_rxe and siw in a guest."""
import hashlib, json, os, signal, time

from .harness import LeftOut, need, row
from .iwarp import Kernel as Siw
from .kernel import kernel_asks, kernel_serves

GROUP = "rsockets"
PORT = 7471
# rstream and riostream with each way to wait, each byte verified; sizes that fit the ring and that go round it often.
SHAPES = (("64", "200"), ("5000", "100"), ("300000", "10"))
WAYS = ("b", "n", "a")


def argv(program, way, size, count):
    return [program, "-T", "v", "-T", way, "-S", size, "-C", count, "-I", "3"]


# Debian's librdmacm says POLLHUP beside the last bytes, where the peer has closed by then. rstream takes it for a failure and exits so, with
# the kernel at both ends, too.
HUNG_UP = 16


def ends_well(r, what, server, client, seconds=40, may_hang_up=False):
    rc = client.wait(seconds), server.wait(20)
    hung_up = may_hang_up and rc[0] == HUNG_UP
    r.check(rc[1] == 0 and (rc[0] == 0 or hung_up), f"{what}: exit {rc[0]}, {rc[1]}", client, server)
    for p in (client, server):
        r.check(not any("failed" in line for line in p.out.lines), f"{what}: wrong bytes", client, server)
        is_done = any(line.startswith("custom") for line in p.out.lines)
        r.check(is_done or (hung_up and p is client), f"{what}: no result", client, server)


def here(r):
    ns = r.namespace()
    return ns, ns, "127.0.0.1", ()


def wire(r):
    return (*here(r)[:3], ("--wire",))


def veth(r):
    a, b = r.veth()
    return a, b, "10.90.0.2", ()


def iwarp(r):
    return (*veth(r)[:3], ("--iwarp",))


PLACES = (("by memory", here), ("--wire", wire), ("between two hosts", veth), ("iWARP", iwarp))


def streams(r, where, program):
    a, b, address, options = where(r)
    for way in WAYS:
        for size, count in SHAPES:
            args = argv(program, way, size, count)
            server = r.run(*args, ns=b, options=options)
            r.listening(server, PORT)
            ends_well(r, f"-T {way} -S {size}", server, r.run(*args, "-s", address, ns=a, options=options))
    r.programs.clear()


def copy(r, where):
    """rcopy ends only by a signal: it serves one file after the other."""
    a, b, address, options = where(r)
    source, target = os.path.join(r.work, "source"), os.path.join(r.work, "target")
    data = os.urandom(1 << 20) * 32
    with open(source, "wb") as f:
        f.write(data)
    server = r.run("rcopy", ns=b, options=options)
    r.listening(server, 7427)
    client = r.run("rcopy", source, f"{address}:{target}", ns=a, options=options)
    r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    with open(target, "rb") as f:
        r.check(hashlib.sha256(f.read()).digest() == hashlib.sha256(data).digest(), "another file has come", client, server)
    server.end()


for place, where in PLACES:
    row(GROUP, f"{place}: rstream, each way to wait, verified", "rstream -T v -T {b,n,a} -S {64,5000,300000}", limit=90)(
        lambda r, where=where: streams(r, where, "rstream"))
    row(GROUP, f"{place}: riostream, each way to wait, verified", "riostream -T v -T {b,n,a} -S {64,5000,300000}", limit=90)(
        lambda r, where=where: streams(r, where, "riostream"))
    row(GROUP, f"{place}: a file of 32 MiB, its checksum", "rcopy", limit=60)(lambda r, where=where: copy(r, where))


# -- the kernel ---------------------------------------------------------------------------------------------------------------

def with_kernel(r, pair, program, asks):
    """`pair` starts a server and a client, one of them in a guest, of argv and argv by address."""
    for way in WAYS:
        for size, count in SHAPES:
            args = argv(program, way, size, count)
            server, client = pair(r, args)
            ends_well(r, f"-T {way} -S {size}", server, client, 60, may_hang_up=way == "a" and asks)
            r.programs.clear()


def rxe_serves(r, args):
    return kernel_serves(r, lambda g, us: args, lambda g, us: [*args, "-s", g.ip], port=PORT)


def rxe_asks(r, args):
    return kernel_asks(r, lambda g, us: args, lambda g, us: [*args, "-s", us.ip], port=PORT)


def siw_serves(r, args):
    return Siw(r, True).pair(lambda a: args, lambda a: [*args, "-s", a], PORT)


def siw_asks(r, args):
    return Siw(r, False).pair(lambda a: args, lambda a: [*args, "-s", a], PORT)


for who, pair in (("rdma_rxe serves", rxe_serves), ("rdma_rxe asks", rxe_asks), ("siw serves", siw_serves), ("siw asks", siw_asks)):
    for program in ("rstream", "riostream"):
        row(GROUP, f"{who}: {program}, each way to wait, verified", f"{program} -T v -T {{b,n,a}} -S {{64,5000,300000}}", limit=240, kernel=True)(
            lambda r, pair=pair, program=program: with_kernel(r, pair, program, pair in (rxe_asks, siw_asks)))


# -- programs of sockets, preloaded -------------------------------------------------------------------------------------------

OURS = ("--rsockets",)
DEBIANS = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"
# What has come by RDMA to a program whose bytes did.
BY_RDMA = ("rxe_lo.received",)


def by_rdma(file):
    """What a program counted: packets of the device on lo, which it has none of where it has used TCP."""
    try:
        with open(file) as f:
            counts = dict(line.split() for line in f)
    except OSError:
        counts = {}
    return any(int(counts.get(name, 0)) >= 5 for name in BY_RDMA)


class Preloaded:
    """Programs on one host, with our object or Debian's before the C library."""

    def __init__(self, r, debians=False):
        self.row, self.ns, self.debians = r, r.namespace(), debians
        if debians and not os.path.exists(DEBIANS):
            raise LeftOut("librdmacm1's librspreload.so is not installed")

    def run(self, *command, counters=None, env=None, options=None):
        env = {**(env or {}), **({"VERBENA_COUNTERS": counters} if counters else {})}
        if self.debians:
            # Not for `verbena` itself.
            need(command[0])
            command = ("env", f"LD_PRELOAD={DEBIANS}", *command)
        return self.row.run(*command, ns=self.ns, env=env, options=(() if self.debians else OURS) if options is None else options)

    def plain(self, *command):
        return self.row.plain(*command, ns=self.ns)

    def file(self, name, size):
        path, data = os.path.join(self.row.work, name), os.urandom(1 << 20) * (size >> 20)
        with open(path, "wb") as f:
            f.write(data)
        return path, hashlib.sha256(data).hexdigest()

    def same(self, path, digest, *programs):
        try:
            with open(path, "rb") as f:
                found = hashlib.sha256(f.read()).hexdigest()
        except OSError:
            found = None
        self.row.check(found == digest, "other bytes have come", *programs)

    def carried(self, file, *programs):
        self.row.check(by_rdma(file), "its bytes did not go by RDMA", *programs)


def netcat(r):
    need("nc")
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    target, counts = os.path.join(r.work, "target"), os.path.join(r.work, "counters")
    server = place.run("sh", "-c", f"exec nc -l 127.0.0.1 9000 > {target}")
    r.listening(server, 9000)
    client = place.run("sh", "-c", f"exec nc -N 127.0.0.1 9000 < {source}", counters=counts)
    r.check(client.wait(30) == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
    place.same(target, digest, client, server)
    place.carried(counts, client, server)


def http(r):
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    target, counts = os.path.join(r.work, "target"), os.path.join(r.work, "counters")
    server = place.run("python3", "-m", "http.server", "-b", "127.0.0.1", "-d", r.work, "9000")
    r.listening(server, 9000)
    client = place.run("curl", "-sS", "-o", target, "http://127.0.0.1:9000/source", counters=counts)
    r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    place.same(target, digest, client, server)
    place.carried(counts, client, server)
    server.end()


def iperf(r, debians=False):
    need("iperf3")
    place = Preloaded(r, debians)
    counts = os.path.join(r.work, "counters")
    server = place.run("iperf3", "-s", "-B", "127.0.0.1")
    r.listening(server, 5201)
    for more in ((), ("-R",), ("-P", "4")):
        client = place.run("iperf3", "-c", "127.0.0.1", "-n", "64M", "-J", *more, counters=counts)
        r.check(client.wait(30) == 0, f"{more}: exit {client.rc}", client, server)
        sums = json.loads("\n".join(client.out.lines))["end"]
        r.check(sums["sum_received"]["bytes"] >= 60_000_000, f"{more}: not all came", client, server)
        place.carried(counts, client, server)
    server.end()


def redis(r):
    need("redis-server", "redis-benchmark", "redis-cli")
    place = Preloaded(r)
    counts = os.path.join(r.work, "counters")
    server = place.run("redis-server", "--bind", "127.0.0.1", "--port", "9000", "--save", "", "--appendonly", "no", "--dir", r.work)
    r.listening(server, 9000)
    for clients, size in (("1", "64"), ("50", "16384")):
        bench = place.run("redis-benchmark", "-h", "127.0.0.1", "-p", "9000", "-c", clients, "-d", size, "-n", "2000", "-t", "set,get", "--csv", counters=counts)
        r.check(bench.wait(60) == 0, f"{clients} clients: exit {bench.rc}", bench, server)
        rates = [float(line.split('"')[3]) for line in bench.out.lines if line.startswith(('"SET"', '"GET"'))]
        r.check(len(rates) == 2 and min(rates) > 0, f"{clients} clients: no rates", bench, server)
        place.carried(counts, bench, server)
    value = "x" * 100_000
    for command, answer in ((("set", "k", value), "OK"), (("get", "k"), value), (("strlen", "k"), "100000")):
        cli = place.run("redis-cli", "-h", "127.0.0.1", "-p", "9000", *command)
        r.check(cli.wait(10) == 0 and answer in cli.out.lines[0], f"{command[0]}: another answer", cli, server)
    # A client that knows no RDMA, at the same server.
    plain = place.plain("redis-cli", "-h", "127.0.0.1", "-p", "9000", "strlen", "k")
    r.check(plain.wait(10) == 0 and "100000" in plain.out.lines[0], "another answer by TCP", plain, server)
    server.end()


def mixed(r):
    """A client, then a server, that have no rsockets."""
    place = Preloaded(r)
    source, digest = place.file("source", 4 << 20)
    target = os.path.join(r.work, "target")
    argv = ["python3", "-m", "http.server", "-b", "127.0.0.1", "-d", r.work, "9000"]
    ask = ["curl", "-sS", "-o", target, "http://127.0.0.1:9000/source"]
    for serve, client in ((place.run, place.plain), (place.plain, place.run)):
        server = serve(*argv)
        r.tcp_listening(server, 9000)
        p = client(*ask)
        r.check(p.wait(20) == 0, f"exit {p.rc}", p, server)
        place.same(target, digest, p, server)
        os.remove(target)
        server.end()


PROGRAMS = (
    ("nc, a file of 16 MiB", "nc", netcat),
    ("python3 -m http.server and curl", "python3 -m http.server, curl", http),
    ("iperf3", "iperf3, -R, -P 4", iperf),
    ("redis, its event loop", "redis-server, redis-benchmark, redis-cli", redis),
)
for what, program, run in PROGRAMS:
    row(GROUP, f"preloaded: {what}, by RDMA", program, limit=90)(run)
row(GROUP, "preloaded: a client or a server without rsockets, by TCP", "python3 -m http.server, curl", limit=60)(mixed)


def memcached(r):
    need("memcached")
    place = Preloaded(r)
    counts = os.path.join(r.work, "counters")
    server = place.run("memcached", "-u", "root", "-l", "127.0.0.1", "-p", "9000", "-U", "0", "-t", "2")
    r.listening(server, 9000)
    script = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 9000)); f = b""
def ask(data, end):
    s.sendall(data); got = b""
    while not got.endswith(end): got += s.recv(1 << 16) or sys.exit("the end came")
    return got
for n in range(200):
    value = bytes([n]) * (n * 500 + 1)
    assert ask(b"set k%d 0 0 %d\\r\\n%s\\r\\n" % (n, len(value), value), b"\\r\\n") == b"STORED\\r\\n"
for n in range(200):
    value = bytes([n]) * (n * 500 + 1)
    assert ask(b"get k%d\\r\\n" % n, b"END\\r\\n") == b"VALUE k%d 0 %d\\r\\n%s\\r\\nEND\\r\\n" % (n, len(value), value)
print("all there")
"""
    client = place.run("python3", "-c", script, counters=counts)
    r.check(client.wait(30) == 0 and client.out.lines == ["all there"], f"exit {client.rc}", client, server)
    place.carried(counts, client, server)
    server.end()


def start_nginx(place, processes="master_process off", http="access_log off; sendfile on"):
    """nginx at port 9000, of the files of the row's directory."""
    need("nginx")
    r = place.row
    conf = os.path.join(r.work, "nginx.conf")
    os.chmod(r.work, 0o755)
    with open(conf, "w") as f:
        f.write(f"daemon off; {processes}; user root; pid {r.work}/pid; error_log stderr; events {{ worker_connections 64; }}\n"
                f"http {{ {http}; client_body_temp_path {r.work}/b; proxy_temp_path {r.work}/p; fastcgi_temp_path {r.work}/f; "
                f"uwsgi_temp_path {r.work}/u; scgi_temp_path {r.work}/s; server {{ listen 127.0.0.1:9000; root {r.work}; }} }}\n")
    server = place.run("nginx", "-c", conf)
    r.listening(server, 9000)
    return server


def nginx(r):
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    target, counts = os.path.join(r.work, "target"), os.path.join(r.work, "counters")
    server = start_nginx(place)
    client = place.run("curl", "-sS", "-o", target, "http://127.0.0.1:9000/source", counters=counts)
    r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    place.same(target, digest, client, server)
    place.carried(counts, client, server)
    server.end()


def socat(r):
    need("socat")
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    target, counts = os.path.join(r.work, "target"), os.path.join(r.work, "counters")
    server = place.run("socat", "-u", "TCP-LISTEN:9000,bind=127.0.0.1", f"CREATE:{target}")
    r.listening(server, 9000)
    client = place.run("socat", "-u", f"FILE:{source}", "TCP:127.0.0.1:9000", counters=counts)
    r.check(client.wait(30) == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
    place.same(target, digest, client, server)
    place.carried(counts, client, server)


for what, program, run in (
    ("memcached, values of 200 sizes", "memcached", memcached),
    ("nginx with sendfile, and curl", "nginx, curl", nginx),
    ("socat, a file of 16 MiB", "socat", socat),
):
    row(GROUP, f"preloaded: {what}, by RDMA", program, limit=60)(run)

# Debian's has no accept4(2), as Python and nc call it, and no epoll.
row(GROUP, "Debian's librspreload.so: iperf3, by RDMA", "iperf3, -R, -P 4", limit=60)(lambda r: iperf(r, debians=True))


# -- ends ---------------------------------------------------------------------------------------------------------------------

# Python by way of the preloaded object: sockets as anyone's.
PEER = """
import os, signal, socket, sys, threading, time
def serve(handle, count=1, backlog=128):
    s = socket.create_server(("127.0.0.1", 9000), backlog=backlog); print("listening", flush=True)
    for _ in range(count): handle(s.accept()[0])
def ask(): return socket.create_connection(("127.0.0.1", 9000))
def read_all(s):
    got = 0
    try:
        while chunk := s.recv(1 << 16): got += len(chunk)
    except OSError as e: return got, type(e).__name__
    return got, "end"
"""


def peers(r, server, client, options=OURS, seconds=40):
    place = Preloaded(r)
    s = place.run("python3", "-c", PEER + server, options=options)
    s.until("listening")
    c = place.run("python3", "-c", PEER + client, options=options, counters=os.path.join(r.work, "counters"))
    return place, s, c


@row(GROUP, "ends: a peer killed by SIGKILL: all that arrived, then ECONNRESET", "python3, SIGKILL")
def killed(r):
    place, s, c = peers(r, """
def handle(c): c.sendall(b"x" * 100_000); c.recv(1); print("dies", flush=True); os.kill(os.getpid(), signal.SIGKILL)
serve(handle)
""", """
s = ask(); got = 0
while got < 50_000: got += len(s.recv(50_000 - got))
s.sendall(b"!"); time.sleep(0.5)
more, how = read_all(s); print(got + more, how, flush=True)
""")
    r.check(c.wait(25) == 0 and c.out.lines == ["100000 ConnectionResetError"], "another end", c, s)


@row(GROUP, "ends: a peer stopped for a second: nothing is lost", "python3, SIGSTOP, SIGCONT")
def stopped(r):
    place, s, c = peers(r, "serve(lambda c: print(*read_all(c), flush=True))", """
s = ask(); data = b"y" * (1 << 20)
for n in range(64): s.sendall(data)
s.shutdown(socket.SHUT_WR); print(*read_all(s), flush=True)
""")
    s.signal(signal.SIGSTOP)
    time.sleep(1)
    r.check(c.running(), "it did not wait for room", c, s)
    s.signal(signal.SIGCONT)
    r.check(c.wait(30) == 0 and s.wait(10) == 0, f"exit {c.rc}, {s.rc}", c, s)
    r.check(s.out.lines[1:] == [f"{64 << 20} end"], "other bytes", s, c)


@row(GROUP, "ends: a peer stopped: a close that may not wait returns at once, and all arrives afterwards", "python3, SIGSTOP, SIGCONT")
def closed(r):
    place, s, c = peers(r, "def handle(c): c.recv(1); print('accepted', flush=True); print(*read_all(c), flush=True)\nserve(handle)", """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
s = ask(); s.sendall(b"!"); signal.sigwait([signal.SIGUSR1]); s.setblocking(False); sent = 0
try:
    while True: sent += s.send(b"z" * 65536)
except BlockingIOError: pass
began = time.monotonic(); s.close(); print("at once" if time.monotonic() - began < 0.9 else "late", sent, flush=True)
""")
    s.until("accepted")
    s.signal(signal.SIGSTOP)
    c.signal(signal.SIGUSR1)
    c.until("at once|late")
    s.signal(signal.SIGCONT)
    r.check(c.wait(30) == 0 and s.wait(10) == 0, f"exit {c.rc}, {s.rc}", c, s)
    said, _, sent = c.out.lines[-1].rpartition(" ")
    r.check(said == "at once", "close has waited", c, s)
    r.check(int(sent) > 50_000 and s.out.lines[2:] == [f"{sent} end"], "other bytes", c, s)


def full(r, options):
    """Both ends write until no more goes, then both read: no end waits for ever, and all arrives."""
    both = """
def run(c):
    c.setblocking(False); sent = 0
    try:
        while True: sent += c.send(b"z" * 65536)
    except BlockingIOError: pass
    c.setblocking(True); c.shutdown(socket.SHUT_WR)
    print(sent > 0, flush=True); got, how = read_all(c); print("sent", sent, "got", got, how, flush=True)
"""
    place, s, c = peers(r, both + "serve(run)", both + "run(ask())", options)
    r.check(c.wait(30) == 0 and s.wait(20) == 0, f"exit {c.rc}, {s.rc}", c, s)
    (one,), (other,) = ([line.split() for line in p.out.lines if line.startswith("sent")] for p in (c, s))
    r.check((one[1], one[4]) == (other[3], "end") and (other[1], other[4]) == (one[3], "end"), "other bytes", c, s)


row(GROUP, "ends: full windows both ways, then all is read", "python3")(lambda r: full(r, OURS))
row(GROUP, "ends: full windows both ways, a tenth of all packets lost", "python3, --faults loss=10%", limit=60)(
    lambda r: full(r, (*OURS, "--faults", "loss=10%", "--seed", "7")))


@row(GROUP, "ends: 1,000 connections at once, each with its bytes", "python3", limit=120)
def thousand(r):
    more = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))\n"
    place, s, c = peers(r, more + """
import selectors
l = socket.create_server(("127.0.0.1", 9000), backlog=1024); l.setblocking(False); print("listening", flush=True)
sel, done = selectors.DefaultSelector(), 0; sel.register(l, selectors.EVENT_READ)
while done < 1000:
    for key, _ in sel.select(60):
        if key.fileobj is l:
            try: c = l.accept()[0]
            except BlockingIOError: continue
            c.setblocking(False); sel.register(c, selectors.EVENT_READ)
        elif data := key.fileobj.recv(100): key.fileobj.sendall(data[::-1])
        else: sel.unregister(key.fileobj); key.fileobj.close(); done += 1
""", more + """
all = [ask() for _ in range(1000)]
for n, s in enumerate(all): s.sendall(b"%04d" % n)
for n, s in enumerate(all): assert s.recv(100) == (b"%04d" % n)[::-1]
print("all", len(all), flush=True)
""")
    r.check(c.wait(90) == 0 and c.out.lines == ["all 1000"] and s.wait(30) == 0, f"exit {c.rc}, {s.rc}", c, s)
    place.carried(os.path.join(r.work, "counters"), c, s)
