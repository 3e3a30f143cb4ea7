"""UCX, libfabric and librpma with a kernel guest, where its rdma_rxe can play: over RC. UCX's and libfabric's datagrams can not: the kernel
reports no kind of network header with a datagram, which UCX 1.13 wants, and libfabric 1.17 finds no address handle there; UCX's own
choice of transports wants datagrams to connect. libfabric's ofi_rxm asks rdma_rxe for more than it has."""
import os
import re
import subprocess
import tarfile

from .harness import Guest, LeftOut, row
from .kernel import IN, OUT, kernel_asks, kernel_serves
from .middleware import FABRIC_PORT, RPMA_PORT, UCX_PORT

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MODULES = f"{LIBRARIES}/ucx"
# The guest's own, which hold together with its C library.
NOT_GIVEN = ("libc.so", "ld-linux", "libm.so", "libpthread.so", "libdl.so", "librt.so")
OURS = "10.77.0.1"
given = set()


def give(row, guest, *programs):
    """Programs of this machine and the libraries they need, into the guest's /bin and /usr/lib."""
    missing = [p for p in programs if not os.path.exists(p)]
    if missing:
        raise LeftOut(f"{os.path.basename(missing[0])} is not installed")
    modules = [f"{MODULES}/libuct_{m}.so.0" for m in ("ib", "rdmacm") if os.path.exists(f"{MODULES}/libuct_{m}.so.0")]
    files = [*programs, *modules]
    needed = {w[2] for f in files for w in map(str.split, subprocess.run(["ldd", f], capture_output=True, text=True).stdout.splitlines())
              if len(w) > 2 and w[1] == "=>" and not os.path.basename(w[0]).startswith(NOT_GIVEN)}
    archive = os.path.join(row.harness.work, "guest.tar")
    wanted = [f for f in (*files, *sorted(needed)) if f not in given]
    if not wanted:
        return
    with tarfile.open(archive, "w", dereference=True) as tar:
        for f in wanted:
            tar.add(f, f"bin/{os.path.basename(f)}" if f in programs else f"usr/lib/x86_64-linux-gnu/{'ucx/' if f in modules else ''}{os.path.basename(f)}")
    guest.k("put", guest.name, archive, "/given.tar")
    guest.k("exec", guest.name, "--", "tar -xf /given.tar -C / && rm /given.tar")
    given.update(wanted)


def pair(row, direction, server, client, ready, env=None, patience=60, options=()):
    """Server and client, one of them in the guest; the client must end well. `server` and `client` make argv of the server's
    address; `ready` is the TCP port at which the server waits for its client, or None for a listener of rdma_cm."""
    g = Guest.get("A")
    env = env or {}

    def in_guest(argv):
        return row.guest(g, "env", *(f"{name}={value}" for name, value in env.items()), *argv)

    def here(argv):
        # UCX's programs look for a device of the same name at both ends.
        return row.run(*argv, ns=g.ns, env={"VERBENA_DEVICES": "rxe0=roce:br0", **env}, options=options)

    if direction is kernel_serves:
        s = in_guest(server(g.ip))
        g.until(f"netstat -ltn | grep -q ':{ready} '" if ready else "rdma resource show cm_id | grep -q LISTEN",
                "the guest's server does not listen")
        c = here(client(g.ip))
    else:
        s = here(server(OURS))
        row.tcp_listening(s, ready) if ready else row.listening(s, RPMA_PORT)
        c = in_guest(client(OURS))
    row.check(c.wait(patience) == 0, f"client exit {c.rc}", c, s)
    return s, c


# What the engine of reliable connections does for UCX: messages, writes, reads and atomics; name, layout, bytes.
UCT = (("am_lat", "short", 8), ("am_bw", "bcopy", 4096), ("put_lat", "short", 8), ("put_bw", "zcopy", 65536), ("get", "zcopy", 4096), ("add_mr", "short", 8))


def ucx(row, direction):
    give(row, Guest.get("A"), "/usr/bin/ucx_perftest")
    for test, layout, size in UCT:
        argv = ["ucx_perftest", "-p", str(UCX_PORT), "-x", "rc_verbs", "-d", "rxe0:1"]
        s, c = pair(row, direction, lambda _: argv,
                    lambda to: [*argv, to, "-t", test, "-D", layout, "-s", str(size), "-n", "200", "-w", "10"], UCX_PORT)
        row.check(any(re.match("Final: +200 ", line) for line in c.out.lines), f"{test}: no result", c, s)
        row.check(s.wait(10) == 0, f"{test}: server exit {s.rc}", s, c)


def libfabric(row, direction):
    give(row, Guest.get("A"), "/usr/bin/fi_pingpong")
    for size in (64, 16384, 1 << 20):
        argv = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "20", "-S", str(size), "-c"]
        s, c = pair(row, direction, lambda _: argv, lambda to: [*argv, to], FABRIC_PORT)
        row.check(s.wait(10) == 0, f"server exit {s.rc}", s, c)
        row.check(any("20" in line.split() and "=20" in line.split() for line in c.out.lines), "not all came back", c, s)


def rpma(row, direction, options=("--system-librpma",)):
    if not os.path.exists("/usr/include/librpma.h"):
        raise LeftOut("librpma-dev is not installed")
    program = row.compiled("rpma", "rpma")
    give(row, Guest.get("A"), program)
    s, c = pair(row, direction, lambda at: [path(program, direction is kernel_serves), "s", at, str(RPMA_PORT)],
                lambda at: [path(program, direction is not kernel_serves), "c", at, str(RPMA_PORT)], None,
                options=options)
    row.check(s.wait(10) == 0, f"server exit {s.rc}", s, c)
    for p, lines in ((c, 10), (s, 7)):
        row.check(len(p.out.lines) == lines and all(line.startswith("ok ") for line in p.out.lines), "a check failed", s, c)


def our_rpma(row, direction):
    rpma(row, direction, ())


# Scenarios of programs/rpma, which say what library they run on.
OVER_RDMA_CORE = ("connection", "descriptors", "read", "write", "flush_visibility", "atomic_write", "pingpong", "imm")


def over_rdma_core(row, direction):
    """Verbena's librpma at both ends: here on Verbena, in the guest on rdma-core and the kernel."""
    if not os.path.exists("/usr/include/librpma.h"):
        raise LeftOut("librpma-dev is not installed")
    command = os.path.dirname(os.path.realpath(row.harness.verbena))
    places = [os.path.join(command, place, "libverbena_rpma.so") for place in ("", "deps", "../lib/verbena")]
    built = [place for place in places if os.path.exists(place)]
    if not built:
        raise LeftOut("there is no libverbena_rpma.so beside the command")
    g = Guest.get("A")
    archive = os.path.join(row.harness.work, "librpma.tar")
    with tarfile.open(archive, "w", dereference=True) as tar:
        tar.add(max(built, key=os.path.getmtime), "ours/librpma.so.0")
    g.k("put", g.name, archive, "/librpma.tar")
    g.k("exec", g.name, "--", "tar -xf /librpma.tar -C / && rm /librpma.tar")
    for name in OVER_RDMA_CORE:
        program = row.compiled(f"rpma/{name}", "rpma")
        give(row, g, program)
        s, c = pair(row, direction, lambda at: [path(program, direction is kernel_serves), "server", at, str(RPMA_PORT)],
                    lambda at: [path(program, direction is not kernel_serves), "client", at, str(RPMA_PORT)], None,
                    env={"LD_LIBRARY_PATH": "/ours"})
        row.check(s.wait(10) == 0, f"{name}: server exit {s.rc}", s, c)
        there = s if direction is kernel_serves else c
        row.check(there.out.lines[:1] == ["library /ours/librpma.so.0"], "another library was loaded", there)
        for p in (s, c):
            row.check(all(line.startswith("ok ") for line in p.out.lines[1:]), f"{name}: a check failed", s, c)


def path(program, in_guest):
    return f"/bin/{os.path.basename(program)}" if in_guest else program


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    for what, program, run in (("UCX's transport layer: messages, put, get, atomics", "ucx_perftest -x rc_verbs", ucx),
                               ("libfabric: connections, data checked", "fi_pingpong -p verbs -e msg -c", libfabric),
                               ("librpma: connection, write, flush, read, atomic write, messages", "a program of ours over Debian's librpma", rpma),
                               ("librpma: the same; Verbena's here, Debian's in the guest", "a program of ours over librpma", our_rpma),
                               ("librpma: Verbena's at both ends, in the guest over rdma-core", "programs/rpma/*", over_rdma_core)):
        row(group, what, program, limit=180, kernel=True)(lambda r, run=run, direction=direction: run(r, direction))
