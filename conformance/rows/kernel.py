"""The Linux kernel's rdma_rxe in a guest as the other side, each direction.

`ours` runs a program on Verbena on the host's end of the bridge; with --reference it is a second guest, so that the harness can
be tried without Verbena."""
from .harness import Guest, row
from .programs import judge_client, judge_golden, judge_pingpong, judge_server

IN, OUT = "kernel as server", "kernel as client"


class Side:
    """Our end of the bridge: its addresses, its device, and how programs start there."""

    def __init__(self, row, guest):
        self.row, self.guest = row, guest
        self.other = Guest.get("B") if row.harness.reference else None
        self.ip, self.ip6 = (self.other.ip, self.other.ip6) if self.other else ("10.77.0.1", "fd77::1")
        self.device = "rxe0" if self.other else "rxe_br0"

    def start(self, *argv, lines=False):
        return self.row.guest(self.other, *argv) if self.other else self.row.run(*argv, ns=self.guest.ns, lines=lines)

    def listening(self, server, port):
        if self.other:
            guest_listening(self.other)
        else:
            self.row.listening(server, port)

    def tcp_listening(self, server):
        if self.other:
            guest_tcp(self.other)
        else:
            self.row.tcp_listening(server)


def guest_listening(guest):
    guest.until("rdma resource show cm_id | grep -q LISTEN", "the guest's server does not listen")


def guest_tcp(guest):
    guest.until("netstat -ltn | grep -q ':18515 '", "the guest's server does not listen")


def kernel_serves(row, server, client, port=None):
    """Server in the guest, client on our side. `server` and `client` are argv, or functions of the addresses."""
    g = Guest.get("A")
    us = Side(row, g)
    s = row.guest(g, *server(g, us))
    guest_listening(g) if port else guest_tcp(g)
    return s, us.start(*client(g, us))


def kernel_asks(row, server, client, port=None):
    """Server on our side, client in the guest."""
    g = Guest.get("A")
    us = Side(row, g)
    s = us.start(*server(g, us))
    us.listening(s, port) if port else us.tcp_listening(s)
    return s, row.guest(g, *client(g, us))


def rping(row, direction, count, size, flags, v6=False):
    args = ["-C", str(count), "-S", str(size), *flags]
    where = lambda g, us: {(False, False): us.ip, (False, True): us.ip6, (True, False): g.ip, (True, True): g.ip6}[direction is kernel_serves, v6]
    s, c = direction(row, lambda g, us: ["rping", "-s", "-a", where(g, us), *args], lambda g, us: ["rping", "-c", "-a", where(g, us), *args], 7174)
    judge_client(row, c, count, size, "-v" in flags)
    judge_server(row, s, count, size, "-v" in flags)


def pingpong(row, direction, service, size, *more):
    argv = lambda device: [f"ibv_{service}_pingpong", "-d", device, "-g", "1", "-s", str(size), *more]
    if direction is kernel_serves:
        s, c = kernel_serves(row, lambda g, us: argv("rxe0"), lambda g, us: [*argv(us.device), g.ip])
    else:
        s, c = kernel_asks(row, lambda g, us: argv(us.device), lambda g, us: [*argv("rxe0"), us.ip])
    judge_pingpong(row, service, s, c, size=size)


def ucmatose(row, direction):
    args = ["-c", "10", "-C", "100"]
    s, c = direction(row, lambda g, us: ["ucmatose", *args], lambda g, us: ["ucmatose", "-s", g.ip if direction is kernel_serves else us.ip, *args], 7471)
    judge_golden(row, "rxe-ucmatose.txt", s, c)


def rdma_client(row, direction):
    where = lambda g, us: g.ip if direction is kernel_serves else us.ip
    s, c = direction(row, lambda g, us: ["rdma_server", "-s", where(g, us)], lambda g, us: ["rdma_client", "-s", where(g, us)], 7471)
    judge_golden(row, "rxe-rdma_client.txt", s, c)


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    def add(what, program, run, *args):
        row(group, what, program, limit=120, kernel=True)(lambda r, run=run, direction=direction, args=args: run(r, direction, *args))
    add("small pings", "rping -C 100 -S 64 -v", rping, 100, 64, ["-v"])
    add("large pings, verified", "rping -S 65535 -C 20 -V", rping, 20, 65535, ["-V"])
    add("large pings, every byte printed by both sides", "rping -S 65535 -C 10 -v -V", rping, 10, 65535, ["-v", "-V"])
    add("IPv6", "rping -C 100 -S 64 -v", rping, 100, 64, ["-v"], True)
    add("ten connections", "ucmatose -c 10 -C 100", ucmatose)
    add("endpoints and synchronous calls", "rdma_server, rdma_client", rdma_client)
    add("queue pairs without a connection manager, polling", "ibv_rc_pingpong -g 1", pingpong, "rc", 4096)
    add("queue pairs without a connection manager, events", "ibv_rc_pingpong -g 1 -e", pingpong, "rc", 4096, "-e")
    add("unreliable connections", "ibv_uc_pingpong -g 1 -s 16384", pingpong, "uc", 16384)
    add("datagrams", "ibv_ud_pingpong -g 1 -s 1024", pingpong, "ud", 1024)
