"""FLUSH, ATOMIC WRITE and SEND with invalidate (programs/flush.c): among ourselves, and with the kernel's rdma_rxe. Debian 12's
rdma-core 44 has no FLUSH to ask the kernel for, so as a client the kernel does the others only."""
import tempfile

from .harness import Guest, row
from .kernel import IN, OUT, Side, guest_tcp

VERBS = ["write", "flush of a range", "flush of the region", "atomic write", "write to the window", "send with invalidate",
         "no write to the window that was invalidated"]
SERVES = ["window bound", "receive", "the window is invalidated", "what was written is there", "what was written at once is there"]


def judge(r, server, client, verbs=VERBS, also=()):
    for p in (client, server):
        p.wait(30)
    bad = [line for p in (client, server) for line in p.out.lines if line.startswith("not ok")]
    r.check(not bad, "; ".join(line.removeprefix("not ok ") for line in bad))
    r.check(client.rc == 0 and server.rc == 0, f"exit {client.rc}, {server.rc}")
    r.check([line for line in client.out.lines if line.startswith("ok ")] == [f"ok {v}" for v in verbs], "verbs are missing")
    r.check([line for line in server.out.lines if line.startswith("ok ")] == [f"ok {v}" for v in SERVES], "the server's checks are missing")
    r.check(all(line in client.out.lines for line in also), f"not said: {'; '.join(also)}")


@row("one machine", "FLUSH, ATOMIC WRITE, SEND with invalidate", "programs/flush.c", parallel=True)
def local(r):
    ns, program = r.namespace(), r.compiled("flush")
    server = r.run(program, "-d", "rxe_lo", ns=ns)
    r.tcp_listening(server)
    judge(r, server, r.run(program, "-d", "rxe_lo", "127.0.0.1", ns=ns))


@row("one machine", "FLUSH to persistence, of a file", "programs/flush.c -p -f FILE", parallel=True)
def persistent(r):
    ns, program = r.namespace(), r.compiled("flush")
    with tempfile.NamedTemporaryFile(dir=r.work) as file:
        server = r.run(program, "-d", "rxe_lo", "-f", file.name, ns=ns)
        r.tcp_listening(server)
        judge(r, server, r.run(program, "-d", "rxe_lo", "-p", "127.0.0.1", ns=ns), also=["flush to persistence: success"])


def in_guest(r, g, *argv):
    path = r.compiled("flush")
    g.k("put", g.name, path, "/tmp/flush")
    return r.guest(g, "/tmp/flush", "-d", "rxe0", *argv)


@row(IN, "FLUSH, ATOMIC WRITE, SEND with invalidate", "programs/flush.c", limit=120, kernel=True, parallel=True)
def kernel_serves(r):
    g = Guest.get("A")
    us = Side(r, g)
    server = in_guest(r, g)
    guest_tcp(g)
    judge(r, server, us.start(r.compiled("flush"), "-d", us.device, g.ip))


@row(OUT, "ATOMIC WRITE, SEND with invalidate", "programs/flush.c", limit=120, kernel=True, parallel=True)
def kernel_asks(r):
    g = Guest.get("A")
    us = Side(r, g)
    server = us.start(r.compiled("flush"), "-d", us.device)
    us.tcp_listening(server)
    verbs = [v for v in VERBS if not v.startswith("flush")]
    judge(r, server, in_guest(r, g, us.ip), verbs, also=["the library has no flush"])
