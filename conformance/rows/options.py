"""The connection manager's programs with every option of their manual pages, on one machine and over a veth."""
from .datagrams import here, here6, wire
from .harness import row
from .kernel import IN, OUT, kernel_asks, kernel_serves
from .loopback import HERE
from .wires import WIRE


def pair(row, place, name, port, *more, server_only=(), client_only=()):
    """Both sides run to their end and find nothing wrong."""
    a, b, ours, theirs = place(row)
    server = row.run(name, "-b", theirs, *more, *server_only, ns=b)
    row.listening(server, port)
    client = row.run(name, "-s", theirs, "-b", ours, *more, *client_only, ns=a)
    for side, p in (("client", client), ("server", server)):
        row.check(p.wait(20) == 0, f"{side} exit {p.rc}", *row.programs)
        row.check(not [line for line in p.err.lines if line], f"{side} complained", *row.programs)
    return server, client


def ends_well(row, place, name, port, *more, **which):
    for p in pair(row, place, name, port, *more, **which):
        last = [line for line in p.out.lines if line][-1:]
        row.check(last == [f"{'cmatose' if name == 'ucmatose' else name}: return status 0"] or last == ["return status 0"], "no good end", *row.programs)


def timed(row, place, *more):
    """cmtime: a table of times, every step of it done."""
    a, b, ours, theirs = place(row)
    server = row.run("cmtime", "-b", theirs, *more, ns=b)
    row.listening(server, int(more[more.index("-p") + 1]) if "-p" in more else 7471)
    client = row.run("cmtime", "-s", theirs, "-b", ours, *more, ns=a)
    row.check(client.wait(25) == 0, f"client exit {client.rc}", *row.programs)
    for step in ("create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"):
        row.check(any(line.startswith(step) for line in client.out.lines), f"no time for {step}", *row.programs)


def endpoints(row, place, what, *more):
    """rdma_client and rdma_server, or rdma_xclient and rdma_xserver."""
    a, b, _, theirs = place(row)
    argv = [] if what == "x" else ["-s", theirs]
    server = row.run(f"rdma_{what}server", *argv, *more, ns=b)
    row.listening(server, int(more[more.index("-p") + 1]) if "-p" in more else 7471)
    client = row.run(f"rdma_{what}client", "-s", theirs, *more, ns=a)
    for side, p in ((f"rdma_{what}client", client), (f"rdma_{what}server", server)):
        row.check(p.wait(20) == 0, f"{side} exit {p.rc}", *row.programs)
        row.check(f"{side}: end 0" in p.out.lines, f"{side} has no good end", *row.programs)


def add(where, what, program, run, *args, **more):
    row(where, what, program)(lambda r: run(r, *args, **more))


for where, place in ((HERE, here), (WIRE, wire)):
    add(where, "both ends bound, message count and size", "ucmatose -b -C 3 -S 60000", ends_well, place, "ucmatose", 7471, "-C", "3", "-S", "60000")
    add(where, "the port space of all services", "ucmatose -P ib -c 5", ends_well, place, "ucmatose", 7471, "-P", "ib", "-c", "5")
    add(where, "addresses by format, migration, ACK timeout, type of service", "ucmatose -f ip -m -a 14 -t 32", ends_well, place, "ucmatose", 7471,
        "-f", "ip", "-m", "-a", "14", client_only=("-t", "32"))
    add(where, "a datagram service, both ends bound", "udaddy -b -c 3 -p 0x0111", ends_well, place, "udaddy", 7174, "-c", "3", "-p", "0x0111")
    add(where, "the times of a hundred connections", "cmtime -b -p 7999 -c 100 -r 3 -t 1000", timed, place, "-p", "7999", "-c", "100", "-r", "3", "-t", "1000")
    add(where, "endpoints on another port", "rdma_server, rdma_client -p 7500", endpoints, place, "", "-p", "7500")
    add(where, "endpoints of other programs, on another port", "rdma_xserver, rdma_xclient -p 7500 -c r", endpoints, place, "x", "-p", "7500", "-c", "r")
add(HERE, "IPv6 addresses by format", "ucmatose -b ::1 -f ipv6", ends_well, here6, "ucmatose", 7471, "-f", "ipv6")


@row(HERE, "a server on all of IPv6 hears IPv4 too", "ucmatose -b ::0")
def dual_stack(row):
    ns = row.namespace()
    server = row.run("ucmatose", "-b", "::0", "-c", "1", ns=ns)
    row.listening(server, 7471)
    client = row.run("ucmatose", "-s", "127.0.0.1", "-c", "1", ns=ns)
    for side, p in (("client", client), ("server", server)):
        row.check(p.wait(20) == 0, f"{side} exit {p.rc}", *row.programs)


def kernel_services(row, direction):
    """RDMA_PS_IB by IP addresses, with the kernel at the other end."""
    args = ["-P", "ib", "-c", "3", "-C", "5"]
    server, client = direction(row, lambda g, us: ["ucmatose", *args],
                               lambda g, us: ["ucmatose", "-s", g.ip if direction is kernel_serves else us.ip, *args], 7471)
    for side, p in (("client", client), ("server", server)):
        row.check(p.wait(20) == 0, f"{side} exit {p.rc}", *row.programs)


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    row(group, "the port space of all services", "ucmatose -P ib -c 3", limit=120, kernel=True)(
        lambda r, direction=direction: kernel_services(r, direction))


def refused(row, want, *argv):
    """What the kernel's rdma_rxe says to the same."""
    p = row.run(*argv, ns=row.namespace())
    p.wait(10)
    row.check(any(want in line for line in p.out.lines + p.err.lines), f"not '{want}'", p)


add(HERE, "the port space of IPoIB: ADDR_ERROR -22", "udaddy -p 2 -s", refused, "udaddy: event: RDMA_CM_EVENT_ADDR_ERROR, error: -22", "udaddy", "-p", "2", "-s", "127.0.0.1")
add(HERE, "the port space of IPoIB, bound: EINVAL", "udaddy -p 2 -b", refused, "bind address failed: Invalid argument", "udaddy", "-p", "2", "-b", "127.0.0.1")
add(HERE, "a GID to connect to: ENODEV", "ucmatose -f gid -P ib -s", refused, "No such device", "ucmatose", "-f", "gid", "-P", "ib", "-s", "::ffff:127.0.0.1")
add(HERE, "a GID to listen on: ENODEV", "ucmatose -f gid -P ib -b", refused, "bind address failed: No such device", "ucmatose", "-f", "gid", "-P", "ib", "-b", "::ffff:127.0.0.1")
