"""rdma_cm for datagrams: services (udaddy) and multicast groups (mckey), on one machine, over a veth and with the kernel."""
from .harness import Guest, golden, row
from .hosts import HOSTS
from .kernel import IN, OUT, Side, kernel_asks, kernel_serves
from .loopback import HERE
from .programs import judge_golden
from .wires import WIRE

GROUP, GROUP6, LOCAL = "239.1.2.3", "ff15::1234", "ff01::1234"


def here(row):
    ns = row.namespace()
    return ns, ns, "127.0.0.1", "127.0.0.1"


def here6(row):
    return *here(row)[:2], "::1", "::1"


def wire(row):
    return *row.veth(), "10.90.0.1", "10.90.0.2"


def wire6(row):
    return *row.veth(), "fd90::1", "fd90::2"


def udaddy(row, place, *more):
    a, b, _, to = place(row)
    server = row.run("udaddy", *(["-b", to] if ":" in to else []), *more, ns=b)
    row.listening(server, 7174)
    judge_golden(row, "rxe-udaddy.txt", server, row.run("udaddy", "-s", to, *more, ns=a))


def member(row, ns, group, address, *more):
    p = row.run("mckey", "-m", group, "-b", address, *more, ns=ns, lines=True)
    p.until("mckey: joined dgid")
    return p


def judge_mckey(row, group, server, client):
    """The recorded lines, with the row's group."""
    want = golden("rxe-mckey.txt")
    for side, p in (("client", client), ("server", server)):
        row.check(p.wait(20) == 0, f"{side} exit {p.rc}", *row.programs)
        lines = [line.replace(group, f"::ffff:{GROUP}") if ":" in group else line for line in p.out.lines if line]
        row.check(lines == want[f"{side} stdout"], f"{side} output differs", *row.programs)
        row.check([line for line in p.err.lines if line] == want[f"{side} stderr"], f"{side} complained", *row.programs)


def mckey(row, place, group, *more, send_only=False):
    a, b, ours, theirs = place(row)
    server = member(row, b, group, theirs, *more)
    judge_mckey(row, group, server, member(row, a, group, ours, "-s", *(["-o"] if send_only else []), *more))


for where, v4, v6 in ((HERE, here, here6), (WIRE, wire, wire6)):
    def add(what, program, run, *args, **more):
        row(where, what, program, parallel=True)(lambda r, run=run, args=args, more=more: run(r, *args, **more))
    add("a datagram service", "udaddy -C 3 -S 64", udaddy, v4, "-C", "3", "-S", "64")
    add("ten peers of a datagram service, type of service set", "udaddy -c 10 -C 10 -S 1024 -t 32", udaddy, v4, "-c", "10", "-C", "10", "-S", "1024", "-t", "32")
    add("a datagram service over IPv6", "udaddy -C 3 -S 64", udaddy, v6, "-C", "3", "-S", "64")
    add("a multicast group", "mckey -m 239.1.2.3 -C 1 -S 64", mckey, v4, GROUP, "-C", "1", "-S", "64")
    add("a multicast group, a hundred messages", "mckey -m 239.1.2.3 -C 100 -S 1024", mckey, v4, GROUP, "-C", "100", "-S", "1024")
    # Linux has no route for IPv6 multicast on lo.
    if where == WIRE:
        add("a multicast group over IPv6", f"mckey -m {GROUP6} -C 10 -S 64", mckey, v6, GROUP6, "-C", "10", "-S", "64")
    add("a sender that is no receiver of its group", "mckey -m 239.1.2.3 -s -o", mckey, v4, GROUP, "-C", "10", "-S", "64", send_only=True)


@row(WIRE, "an interface-local group stays on its host", f"mckey -m {LOCAL} -C 10 -S 64", parallel=True)
def local_group(row):
    a, b = row.veth()
    away = member(row, b, LOCAL, "fd90::2", "-C", "10", "-S", "64")
    mckey(row, lambda row: (a, a, "fd90::1", "fd90::1"), LOCAL, "-C", "10", "-S", "64")
    row.check(not away.ends_within(1), "a member on the other host heard it", away)
    away.end()


@row(HOSTS, "no listener for datagrams: UNREACHABLE 1", "udaddy -s")
def no_listener(row):
    client = row.run("udaddy", "-s", "127.0.0.1", ns=row.namespace())
    row.check(client.wait() == 1, f"exit {client.rc}", client)
    row.check("udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 1" in client.out.lines, "not unreachable with 1", client)


@row(HOSTS, "a group without a route and without an address: ENETUNREACH", "mckey -m 239.1.2.3")
def no_route(row):
    client = row.run("mckey", "-m", GROUP, ns=row.namespace())
    client.wait()
    row.check(any("resolve addr failure: Network is unreachable" in line for line in client.err.lines), "no ENETUNREACH", client)


def kernel_udaddy(row, direction):
    args = ["-C", "3", "-S", "64"]
    s, c = direction(row, lambda g, us: ["udaddy", *args], lambda g, us: ["udaddy", "-s", g.ip if direction is kernel_serves else us.ip, *args], 7174)
    judge_golden(row, "rxe-udaddy.txt", s, c)


def kernel_mckey(row, kernel_hears):
    g = Guest.get("A")
    us = Side(row, g)
    # The kernel's sender destroys its queue pair before more than the first message has left, and at times before that has: then it is
    # to send once more.
    size = ["-C", "10" if kernel_hears else "1", "-S", "64"]
    argv = lambda address, *more: ["mckey", "-m", GROUP, "-b", address, *more, *size]
    if kernel_hears:
        server = row.guest(g, *argv(g.ip))
        g.until("grep -qi 030201EF /proc/net/igmp", "the guest does not join")
        client = us.start(*argv(us.ip, "-s"))
    else:
        server = member(row, g.ns, GROUP, us.ip, *size)
        for _ in range(5):
            client = row.guest(g, *argv(g.ip, "-s"))
            if client.wait() != 0 or server.ends_within(2):
                break
    judge_mckey(row, GROUP, server, client)


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    hears = direction is kernel_serves
    row(group, "a multicast group", f"mckey -m 239.1.2.3 -C {10 if hears else 1} -S 64", limit=120, kernel=True, parallel=True)(
        lambda r, hears=hears: kernel_mckey(r, hears))
    row(group, "a datagram service", "udaddy -C 3 -S 64", limit=120, kernel=True, parallel=True)(lambda r, direction=direction: kernel_udaddy(r, direction))
