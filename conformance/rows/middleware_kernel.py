"""UCX, libfabric and librpma with a kernel guest, where its rdma_rxe can play: over RC. UCX's and libfabric's datagrams can not: the kernel
reports no kind of network header with a datagram, which UCX 1.13 wants, and libfabric 1.17 finds no address handle there; UCX's own
choice of transports wants datagrams to connect. libfabric's ofi_rxm asks rdma_rxe for more than it has."""
import os
import re
import subprocess
import tarfile

from . import rpma
from .harness import FABRIC_PORT, Guest, LeftOut, row
from .kernel import IN, OUT, kernel_asks, kernel_serves
from .middleware import UCX_PORT

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
MODULES = f"{LIBRARIES}/ucx"
# The guest's own, which hold together with its C library.
NOT_GIVEN = ("libc.so", "ld-linux", "libm.so", "libpthread.so", "libdl.so", "librt.so")
OURS = "10.77.0.1"


def give(row, guest, *programs):
    """Programs of this machine and the libraries they need, into the guest's /bin and /usr/lib."""
    missing = [p for p in programs if not os.path.exists(p)]
    if missing:
        raise LeftOut(f"{os.path.basename(missing[0])} is not installed")
    modules = [f"{MODULES}/libuct_{m}.so.0" for m in ("ib", "rdmacm") if os.path.exists(f"{MODULES}/libuct_{m}.so.0")]
    files = [*programs, *modules]
    needed = {w[2] for f in files for w in map(str.split, subprocess.run(["ldd", f], capture_output=True, text=True).stdout.splitlines())
              if len(w) > 2 and w[1] == "=>" and not os.path.basename(w[0]).startswith(NOT_GIVEN)}
    archive = os.path.join(row.work, "guest.tar")
    wanted = [f for f in (*files, *sorted(needed)) if f not in guest.given]
    if not wanted:
        return
    with tarfile.open(archive, "w", dereference=True) as tar:
        for f in wanted:
            tar.add(f, f"bin/{os.path.basename(f)}" if f in programs else f"usr/lib/x86_64-linux-gnu/{'ucx/' if f in modules else ''}{os.path.basename(f)}")
    guest.k("put", guest.name, archive, "/given.tar")
    guest.k("exec", guest.name, "--", "tar -xf /given.tar -C / && rm /given.tar")
    guest.given.update(wanted)


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
        row.tcp_listening(s, ready) if ready else row.listening(s, rpma.PORT)
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
    # libinfinipath, which libfabric loads, would take the signals that end a program, and the kernel's log would not say where.
    env = {"IPATH_NO_BACKTRACE": "1"}
    for size in (64, 16384, 1 << 20):
        argv = ["fi_pingpong", "-p", "verbs", "-e", "msg", "-I", "20", "-S", str(size), "-c"]
        s, c = pair(row, direction, lambda _: argv, lambda to: [*argv, to], FABRIC_PORT, env)
        row.check(s.wait(10) == 0, f"server exit {s.rc}", s, c)
        row.check(any("20" in line.split() and "=20" in line.split() for line in c.out.lines), "not all came back", c, s)


def rpma_scenarios(row, direction, servers, clients):
    """librpma's scenarios on these libraries: here over Verbena, in the guest over rdma-core and the kernel."""
    g, programs = Guest.get("A"), {name: rpma.program(row, name) for name, _ in rpma.SCENARIOS}
    give(row, g, *programs.values())
    give_our_librpma(row, g)
    serves = direction is kernel_serves
    there, here = (servers, clients) if serves else (clients, servers)
    for name, binary in programs.items():
        row.programs.clear()
        both = pair(row, direction, lambda at: [path(binary, serves), "server", at, str(rpma.PORT)],
                    lambda at: [path(binary, not serves), "client", at, str(rpma.PORT)], None,
                    env={"LD_LIBRARY_PATH": there.in_guest}, options=here.options)
        row.check(both[0].wait(20) == 0, f"{name}: server exit {both[0].rc}", *both)
        far, near = both if serves else reversed(both)
        rpma.loaded(row, near, here)
        row.check(far.out.lines[:1] == [f"library {there.in_guest}/librpma.so.0"], "another library was loaded", *both)
        for p in both:
            row.check(len(p.out.lines) >= 4 and all(line.startswith("ok ") for line in p.out.lines[1:]), f"{name}: a check failed", *both)


def give_our_librpma(row, guest):
    """Into the guest's folder /ours."""
    command = os.path.dirname(os.path.realpath(row.harness.verbena))
    places = [os.path.join(command, place, "libverbena_rpma.so") for place in ("", "deps", "../lib/verbena")]
    built = [place for place in places if os.path.exists(place)]
    if not built:
        raise LeftOut("there is no libverbena_rpma.so beside the command")
    newest = max(built, key=os.path.getmtime)
    if newest in guest.given:
        return
    archive = os.path.join(row.work, "librpma.tar")
    with tarfile.open(archive, "w", dereference=True) as tar:
        tar.add(newest, "ours/librpma.so.0")
    guest.k("put", guest.name, archive, "/librpma.tar")
    guest.k("exec", guest.name, "--", "tar -xf /librpma.tar -C / && rm /librpma.tar")
    guest.given.add(newest)


def path(program, in_guest):
    return f"/bin/{os.path.basename(program)}" if in_guest else program


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    for what, program, run in (("UCX's transport layer: messages, put, get, atomics", "ucx_perftest -x rc_verbs", ucx),
                               ("libfabric: connections, data checked", "fi_pingpong -p verbs -e msg -c", libfabric)):
        row(group, what, program, limit=300, kernel=True, parallel=True)(lambda r, run=run, direction=direction: run(r, direction))
    for servers in rpma.LIBRARIES:
        for clients in rpma.LIBRARIES:
            row(group, f"librpma: all scenarios; {servers.name} serves {clients.name}", "programs/rpma/*", limit=300, kernel=True, parallel=True)(
                lambda r, direction=direction, servers=servers, clients=clients: rpma_scenarios(r, direction, servers, clients))
