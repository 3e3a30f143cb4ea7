"""Programs written with the Rust crate `verbena` (its examples rping and rdma_client) as either side of Debian's rping, rdma_server and
rdma_client: on one machine, where those run on our libibverbs.so, and across the bridge, where they run on the kernel's rdma_rxe. The examples
bring the stack with them; nothing of rdma-core is loaded."""
from .harness import Guest, LeftOut, row
from .kernel import guest_listening
from .programs import judge_client, judge_server, pings

HERE, KERNEL = "Rust programs", "Rust programs and the kernel"
COUNT = 100


def judge_example(row, example, lines):
    row.check(example.wait(20) == 0, f"the example's exit {example.rc}", *row.programs)
    row.check(not [line for line in example.err.lines if line], "the example complained", *row.programs)
    row.check(example.out.lines == lines, "the example's output differs", *row.programs)


def as_server(row, size):
    return [f"server ping data: {text}" for text in pings(COUNT, size)]


def as_client(row, size):
    return [f"ping data: {text}" for text in pings(COUNT, size)]


def rping_args(side, address, size):
    return [side, "-a", address, "-C", str(COUNT), "-S", str(size), "-v"]


def one_machine(row, address, size):
    ns, example = row.namespace(), row.example("rping")
    server = row.plain(example, *rping_args("-s", address, size), ns=ns)
    row.listening(server, 7174)
    client = row.run("rping", *rping_args("-c", address, size), ns=ns)
    judge_client(row, client, COUNT, size)
    judge_example(row, server, as_server(row, size))
    server = row.run("rping", *rping_args("-s", address, size), ns=ns)
    row.listening(server, 7174)
    client = row.plain(example, *rping_args("-c", address, size), ns=ns)
    judge_example(row, client, as_client(row, size))
    judge_server(row, server, COUNT, size)


@row(HERE, "rping on either side", "rping -C 100 -S 64 -v", limit=600, parallel=True)
def small(r):
    one_machine(r, "127.0.0.1", 64)


@row(HERE, "rping on either side, IPv6 and large pings", "rping -a ::1 -C 100 -S 65535 -v", limit=600, parallel=True)
def large(r):
    one_machine(r, "::1", 65535)


@row(HERE, "rdma_server and rdma_client", "rdma_server, rdma_client", limit=600, parallel=True)
def messages(r):
    ns, example = r.namespace(), r.example("rdma_client")
    server = r.run("rdma_server", "-s", "127.0.0.1", ns=ns)
    r.listening(server, 7471)
    judge_example(r, r.plain(example, "127.0.0.1", ns=ns), ["16 bytes came"])
    r.check(server.wait(10) == 0, f"server exit {server.rc}", *r.programs)
    server = r.plain(example, "-s", "127.0.0.1", ns=ns)
    r.listening(server, 7471)
    client = r.run("rdma_client", "-s", "127.0.0.1", ns=ns)
    r.check(client.wait() == 0, f"client exit {client.rc}", *r.programs)
    judge_example(r, server, ["16 bytes came"])


def guest(r):
    if r.harness.reference:
        raise LeftOut("the examples bring Verbena with them")
    return Guest.get("A")


@row(KERNEL, "rping, the kernel as server", "rping -C 100 -S 64 -v, -S 65535", limit=600, kernel=True, parallel=True)
def kernel_serves(r):
    g, example = guest(r), r.example("rping")
    for size in (64, 65535):
        server = r.guest(g, "rping", *rping_args("-s", g.ip, size))
        guest_listening(g)
        client = r.plain(example, *rping_args("-c", g.ip, size), ns=g.ns)
        judge_example(r, client, as_client(r, size))
        judge_server(r, server, COUNT, size)


@row(KERNEL, "rping, the kernel as client", "rping -C 100 -S 64 -v, -S 65535", limit=600, kernel=True, parallel=True)
def kernel_asks(r):
    g, example = guest(r), r.example("rping")
    for size in (64, 65535):
        server = r.plain(example, *rping_args("-s", "10.77.0.1", size), ns=g.ns)
        r.listening(server, 7174)
        client = r.guest(g, "rping", *rping_args("-c", "10.77.0.1", size))
        judge_client(r, client, COUNT, size)
        judge_example(r, server, as_server(r, size))


@row(KERNEL, "rdma_server and rdma_client in the guest", "rdma_server, rdma_client", limit=600, kernel=True, parallel=True)
def kernel_messages(r):
    g, example = guest(r), r.example("rdma_client")
    server = r.guest(g, "rdma_server", "-s", g.ip)
    guest_listening(g)
    judge_example(r, r.plain(example, g.ip, ns=g.ns), ["16 bytes came"])
    r.check(server.wait(10) == 0, f"server exit {server.rc}", *r.programs)
    server = r.plain(example, "-s", "10.77.0.1", ns=g.ns)
    r.listening(server, 7471)
    client = r.guest(g, "rdma_client", "-s", "10.77.0.1")
    r.check(client.wait() == 0, f"client exit {client.rc}", *r.programs)
    judge_example(r, server, ["16 bytes came"])
