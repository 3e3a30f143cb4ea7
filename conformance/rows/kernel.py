"""The Linux kernel's rdma_rxe in a guest as the other side, each direction.

`ours` runs a program on Verbena on the host's end of the bridge; with --reference it is a second guest, so that the harness can
be tried without Verbena."""
from .harness import Fail, Guest, LeftOut, golden, row, sh
from .programs import judge_client, judge_golden, judge_pingpong, judge_server

IN, OUT = "kernel as server", "kernel as client"


class Side:
    """Our end of the bridge: its addresses, its device, and how programs start there."""

    def __init__(self, row, guest):
        self.row, self.guest = row, guest
        self.other = Guest.get("B") if row.harness.reference else None
        self.ip, self.ip6 = (self.other.ip, self.other.ip6) if self.other else ("10.77.0.1", "fd77::1")
        self.device = "rxe0" if self.other else "rxe_br0"
        # Host part of its addresses, and the interface that bears them.
        self.number, self.interface = (3, "eth0") if self.other else (1, "br0")

    def start(self, *argv, lines=False):
        return self.row.guest(self.other, *argv) if self.other else self.row.run(*argv, ns=self.guest.ns, lines=lines)

    def shell(self, script, check=True):
        if self.other:
            self.other.k("exec", self.other.name, "--", script, check=check)
        else:
            sh("ip", "netns", "exec", self.guest.ns, "sh", "-c", script, check=check)

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


def rejected(row, direction):
    """A server that can not make a queue pair for so many messages refuses. (One that has enough connections ends at once, and its
    first connection with it: its client may hear of that first.)"""
    recorded = golden("rxe-ucmatose-rejected.txt")
    where = lambda g, us: g.ip if direction is kernel_serves else us.ip
    s, c = direction(row, lambda g, us: ["ucmatose", "-C", "1000000"], lambda g, us: ["ucmatose", "-s", where(g, us), "-C", "1"], 7471)
    row.check(c.wait() == 28, f"client exit {c.rc}", s, c)
    refusal = "cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28"
    row.check(refusal in recorded["client stdout"] and refusal in c.out.lines, "not rejected with 28", s, c)


def disconnected(row, direction):
    """ucmatose's server disconnects, rping's client does; the other side hears of it and ends."""
    where = lambda g, us: g.ip if direction is kernel_serves else us.ip
    s, c = direction(row, lambda g, us: ["ucmatose", "-C", "1"], lambda g, us: ["ucmatose", "-s", where(g, us), "-C", "1"], 7471)
    judge_golden(row, "rxe-ucmatose.txt", s, c)
    rping(row, direction, 1, 64, ["-v"])


# Set-up, clean-up and the network of what {dev} gets beside its first address.
SECOND = ("ip addr add 10.78.0.{n}/24 dev {dev}", "ip addr del 10.78.0.{n}/24 dev {dev}", "10.78.0")
VLAN = ("ip link add link {dev} name {dev}.7 type vlan id 7 && ip addr add 10.79.0.{n}/24 dev {dev}.7 && ip link set {dev}.7 up",
        "ip link del {dev}.7", "10.79.0")


def elsewhere(row, direction, up, down, net):
    """Connections between addresses that are not the interfaces' first."""
    g = Guest.get("A")
    us = Side(row, g)
    ends = ((us.shell, {"dev": us.interface, "n": us.number}),
            (lambda script, check=True: g.k("exec", g.name, "--", script, check=check), {"dev": "eth0", "n": 2}))
    to, frm = f"{net}.2", f"{net}.{us.number}"
    if direction is kernel_asks:
        to, frm = frm, to
    try:
        for shell, names in ends:
            shell(up.format(**names))
        s, c = direction(row, lambda g, us: ["rping", "-s", "-a", to, "-C", "3", "-v"],
                         lambda g, us: ["rping", "-c", "-a", to, "-I", frm, "-C", "3", "-v"], 7174)
        judge_client(row, c, 3, 64)
        judge_server(row, s, 3, 64)
        s, c = direction(row, lambda g, us: ["ucmatose", "-b", to, "-C", "3"], lambda g, us: ["ucmatose", "-s", to, "-C", "3"], 7471)
        judge_golden(row, "rxe-ucmatose.txt", s, c)
    except Fail as e:
        if "Unknown device type" in e.detail:
            raise LeftOut("this machine's kernel has no VLANs") from None
        raise
    finally:
        for p in row.programs:
            p.end()
        for shell, names in ends:
            shell(down.format(**names), check=False)


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    def add(what, program, run, *args):
        # A queue pair of UC or UD loses what comes while the processors are busy elsewhere, and nobody sends it again; ends that poll
        # take a processor each.
        waits = run is not pingpong
        row(group, what, program, limit=120, kernel=True, parallel=waits)(lambda r, run=run, direction=direction, args=args: run(r, direction, *args))
    add("small pings", "rping -C 100 -S 64 -v", rping, 100, 64, ["-v"])
    add("large pings, verified", "rping -S 65535 -C 20 -V", rping, 20, 65535, ["-V"])
    add("large pings, every byte printed by both sides", "rping -S 65535 -C 10 -v -V", rping, 10, 65535, ["-v", "-V"])
    add("IPv6", "rping -C 100 -S 64 -v", rping, 100, 64, ["-v"], True)
    add("ten connections", "ucmatose -c 10 -C 100", ucmatose)
    add("endpoints and synchronous calls", "rdma_server, rdma_client", rdma_client)
    add("a connection refused by the server", "ucmatose -C 1000000, -C 1", rejected)
    add("disconnect from either side", "ucmatose, rping", disconnected)
    add("a second address of the interfaces", "rping -I, ucmatose -b", elsewhere, *SECOND)
    add("a VLAN", "rping -I, ucmatose -b", elsewhere, *VLAN)
    add("queue pairs without a connection manager, polling", "ibv_rc_pingpong -g 1", pingpong, "rc", 4096)
    add("queue pairs without a connection manager, events", "ibv_rc_pingpong -g 1 -e", pingpong, "rc", 4096, "-e")
    add("unreliable connections", "ibv_uc_pingpong -g 1 -s 16384", pingpong, "uc", 16384)
    add("sixteen queue pairs and a shared receive queue", "ibv_srq_pingpong -g 1 -s 1024", pingpong, "srq", 1024)
    add("datagrams", "ibv_ud_pingpong -g 1 -s 1024", pingpong, "ud", 1024)
