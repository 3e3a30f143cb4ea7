"""rsockets under programs that fork, or pass descriptors on: the process that has the connection carries the bytes."""
import os

from .harness import need, row
from .rsockets import GROUP, PEER, Preloaded, start_nginx

# A child answers with what it has read, so that each byte went through it both ways; its parent goes on.
FORKING = PEER + """
import socketserver
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        assert self.request.getpeername() == self.client_address, (self.request.getpeername(), self.client_address)
        assert self.request.getsockname() == ("127.0.0.1", 9000)
        while data := self.request.recv(1 << 16): self.request.sendall(data)
        self.request.sendall(b"from %d" % os.getpid())
class Server(socketserver.ForkingTCPServer): allow_reuse_address = True
with Server(("127.0.0.1", 9000), Handler) as s: print("listening", flush=True); s.serve_forever()
"""
# Each connection's bytes come back, then the number of the process that sent them.
ASK = PEER + """
data, pids = os.urandom(1 << 20), set()
def run():
    s = ask(); t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR))); t.start()
    got = b""
    while chunk := s.recv(1 << 16): got += chunk
    t.join(); assert got[:len(data)] == data, (len(got), got[:40]); pids.add(got[len(data):])
all = [threading.Thread(target=run) for _ in range(8)]
for t in all: t.start()
for t in all: t.join()
print(len(pids), flush=True)
"""


def python(place, script, **more):
    return place.run("python3", "-c", script, **more)


@row(GROUP, "forks: ForkingTCPServer, eight clients at once, by RDMA", "python3, socketserver.ForkingTCPServer", limit=60)
def forking(r):
    place, counts = Preloaded(r), os.path.join(r.work, "counters")
    server = python(place, FORKING)
    server.until("listening")
    client = python(place, ASK, counters=counts)
    r.check(client.wait(40) == 0 and client.out.lines == ["8"], f"exit {client.rc}", client, server)
    r.check(not any("can not be used" in line for line in server.err.lines), "a child lost its connection", server)
    place.carried(counts, client, server)
    server.end()


@row(GROUP, "forks: a child is killed in the midst: its client hears of it, and its parent serves on", "python3", limit=60)
def killed(r):
    place = Preloaded(r)
    server = python(place, FORKING.replace('self.request.sendall(data)', 'self.request.sendall(data) if data != b"die" else os.kill(os.getpid(), signal.SIGKILL)'))
    server.until("listening")
    client = python(place, PEER + """
for _ in range(2):
    s = ask(); s.sendall(b"lives"); print(s.recv(5).decode(), flush=True)
    s.sendall(b"die"); print(read_all(s)[0], flush=True)
""")
    r.check(client.wait(30) == 0 and client.out.lines == ["lives", "0"] * 2, f"exit {client.rc}", client, server)
    server.end()


@row(GROUP, "forks: nginx with two workers, and curl, by RDMA", "nginx, curl", limit=60)
def nginx(r):
    place = Preloaded(r)
    source, digest = place.file("source", 4 << 20)
    target, counts = os.path.join(r.work, "target"), os.path.join(r.work, "counters")
    server = start_nginx(place, processes="worker_processes 2")
    for ask in [place.run] * 3 + [place.plain] * 3:
        more = {"counters": counts} if ask == place.run else {}
        client = ask("curl", "-sS", "-o", target, "http://127.0.0.1:9000/source", **more)
        r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
        place.same(target, digest, client, server)
        os.remove(target)
    place.carried(counts, client, server)
    server.end()


@row(GROUP, "forks: socat with fork, and a program that it executes on the connection", "socat TCP-LISTEN:9000,fork EXEC:sha256sum,nofork", limit=60)
def socat(r):
    need("socat")
    place = Preloaded(r)
    source, digest = place.file("source", 4 << 20)
    counts = os.path.join(r.work, "counters")
    for how in ("EXEC:sha256sum", "EXEC:sha256sum,nofork"):
        server = place.run("socat", "TCP-LISTEN:9000,bind=127.0.0.1,reuseaddr,fork", how)
        r.listening(server, 9000)
        for _ in range(2):
            client = place.run("sh", "-c", f"exec socat -t 20 - TCP:127.0.0.1:9000 < {source}", counters=counts)
            r.check(client.wait(30) == 0, f"{how}: exit {client.rc}", client, server)
            r.check(client.out.lines == [f"{digest}  -"], f"{how}: other bytes", client, server)
            place.carried(counts, client, server)
        server.end()
        r.programs.clear()


@row(GROUP, "a connection's descriptor goes to a program that is executed, and to another process (SCM_RIGHTS)", "python3", limit=60)
def passed(r):
    place = Preloaded(r)
    server = python(place, PEER + """
import subprocess
a, b = socket.socketpair()
if not os.fork():
    s = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0]); s.sendall(s.recv(5)); os._exit(0)
def execute(c): subprocess.run(["cat"], stdin=c, stdout=c); print("executed", flush=True)
def send(c): socket.send_fds(a, [b"!"], [c.fileno()]); c.close(); os.wait()
l = socket.create_server(("127.0.0.1", 9000)); print("listening", flush=True)
# The client comes a third time when it has all: a connection ends with the process that carries it.
for handle in (execute, send, socket.socket.close): handle(l.accept()[0])
""")
    server.until("listening")
    counts = os.path.join(r.work, "counters")
    client = python(place, PEER + """
for word in (b"first", b"other"):
    s = ask(); s.sendall(word); s.shutdown(socket.SHUT_WR); print(s.recv(5), read_all(s), flush=True)
ask()
""", counters=counts)
    r.check(client.wait(30) == 0 and client.out.lines == [f"b'{word}' (0, 'end')" for word in ("first", "other")], f"exit {client.rc}", client, server)
    place.carried(counts, client, server)
    r.check(server.wait(10) == 0, f"exit {server.rc}", server)


# Calls of the C library that an object before it does not see inside, and those that close many descriptors.
HANDED = """
import ctypes, subprocess
c = ctypes.CDLL(None, use_errno=True)
c.fdopen.restype = ctypes.c_void_p; c.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]; c.fflush.argtypes = [ctypes.c_void_p]
def by_fdopen(s): f = c.fdopen(s.fileno(), b"w"); c.fputs(b"fdopen", f); c.fflush(f)
def by_splice(s): r, w = os.pipe(); os.write(w, b"splice"); assert os.splice(r, s.fileno(), 100) == 6
def by_spawn(s): os.waitpid(os.posix_spawn("/bin/echo", ["echo", "-n", "spawn"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, s.fileno(), 1)]), 0)
def by_vfork(s): subprocess.run(["echo", "-n", "vfork"], stdout=s); subprocess.run(["true"], close_fds=True); s.sendall(b" after")
def by_pwritev2(s): assert os.pwritev(s.fileno(), [b"pwrite", b"v2"], -1, os.RWF_HIPRI) == 8
def by_close_range(s): s.sendall(b"close"); fd = s.detach(); c.close_range(fd, fd, 0)
"""


@row(GROUP, "fdopen, splice, posix_spawn, vfork, pwritev2 and close_range of a connection", "python3", limit=60)
def handed(r):
    place, counts = Preloaded(r), os.path.join(r.work, "counters")
    server = python(place, PEER + HANDED + """
l = socket.create_server(("127.0.0.1", 9000)); print("listening", flush=True)
for handle in (by_fdopen, by_splice, by_spawn, by_vfork, by_pwritev2, by_close_range):
    s = l.accept()[0]; handle(s)
    if s.fileno() >= 0: s.shutdown(socket.SHUT_WR); s.recv(1)
""")
    server.until("listening")
    client = python(place, PEER + """
for _ in range(6):
    s = ask(); got = b""
    while chunk := s.recv(100): got += chunk
    print(got.decode(), flush=True); s.close()
""", counters=counts)
    wanted = ["fdopen", "splice", "spawn", "vfork after", "pwritev2", "close"]
    r.check(client.wait(30) == 0 and client.out.lines == wanted, f"exit {client.rc}", client, server)
    r.check(server.wait(10) == 0, f"exit {server.rc}", server)
    place.carried(counts, client, server)
