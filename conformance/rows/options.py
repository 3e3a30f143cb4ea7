"""Every documented option of librdmacm's programs (rdmacm-utils, release 44): a table a program, run on one machine, over a veth and with
the kernel on either side. One row runs a whole table and names the options that fail."""
from .harness import Fail, Guest, Job, golden, row
from .kernel import IN, OUT, Side, guest_listening
from .loopback import HERE
from .programs import RPING_NOISE, pings
from .wires import WIRE


class Place:
    """Two ends on Verbena, and the addresses that the tables' options name."""

    kernel = False

    def __init__(self, row, names, client_ns, server_ns):
        self.row, self.names, self._client, self._server = row, names, client_ns, server_ns

    def serve(self, argv):
        return self.row.run(*argv, ns=self._server, lines=True)

    def ask(self, argv):
        return self.row.run(*argv, ns=self._client, lines=True)

    def ready(self, server, port):
        self.row.listening(server, port)

    def joined(self, member, group):
        member.until("mckey: joined dgid")

    def stop(self, server):
        server.end()


class WithKernel(Place):
    """The guest is one of the ends."""

    kernel = True

    def __init__(self, row, serves):
        self.row, self.serves = row, serves
        self.guest = Guest.get("A")
        self.us = Side(row, self.guest)
        guest, ours = (self.guest.ip, self.guest.ip6), (self.us.ip, self.us.ip6)
        (to, to6), (frm, frm6) = (guest, ours) if serves else (ours, guest)
        self.names = {"to": to, "to6": to6, "frm": frm, "frm6": frm6}

    def serve(self, argv):
        return self.row.guest(self.guest, *argv) if self.serves else self.us.start(*argv, lines=True)

    def ask(self, argv):
        return self.us.start(*argv, lines=True) if self.serves else self.row.guest(self.guest, *argv)

    def ready(self, server, port):
        guest_listening(self.guest) if self.serves else self.us.listening(server, port)

    def joined(self, member, group):
        if self.serves:
            # The address as the table of IGMP has it: in the host's byte order.
            number = "".join(f"{int(part):02X}" for part in reversed(group.split(".")))
            self.guest.until(f"grep -qi {number} /proc/net/igmp", "the guest does not join")
        else:
            member.until("mckey: joined dgid")

    def stop(self, server):
        server.end()
        if self.serves:
            self.guest.until("! rdma resource show cm_id | grep -q LISTEN", "the guest's server does not end")


def here(row):
    ns = row.namespace()
    return Place(row, {"to": "127.0.0.1", "to6": "::1", "frm": "127.0.0.1", "frm6": "::1"}, ns, ns)


def wire(row):
    a, b = row.veth()
    return Place(row, {"to": "10.90.0.2", "to6": "fd90::2", "frm": "10.90.0.1", "frm6": "fd90::1"}, a, b)


class Options:
    """A line of a table: the options of server and client ({to}, {frm}: their addresses; 6: IPv6), and how the programs are judged."""

    # With `local` another line, or row, says the same of the kernel, where each takes seconds.
    def __init__(self, server, client, judge, port=None, clients=1, stays=False, local=False):
        self.server, self.client, self.judge, self.port = server, client, judge, port
        self.clients, self.stays, self.local = clients, stays, local

    def run(self, place, name, port):
        program = lambda side, options: [name[side], *options.format(**place.names).split()]
        server = place.serve(program(0, self.server))
        place.ready(server, self.port or port)
        clients = []
        for _ in range(self.clients):
            clients.append(place.ask(program(1, self.client)))
            if place.kernel:
                # rping -P hands its requests on through one variable: of two that come at once the kernel's loses one.
                clients[-1].wait()
        for client in clients:
            client.wait()
        if self.stays:
            place.stop(server)
        else:
            server.wait(10)
        for client in clients:
            self.judge(server, client)

    def shown(self):
        return f"[{self.server or '-'}] [{self.client or '-'}]"


def check(good, why, *programs):
    if not good:
        raise Fail(why, "\n".join(p.tail() for p in programs))


def lines(stream):
    return [line for line in stream.lines if line]


def exits(server, client, fine=(0,), stays=False):
    check(client.rc in fine, f"client exit {client.rc}", server, client)
    check(stays or server.rc in fine, f"server exit {server.rc}", server, client)


# -- rping ------------------------------------------------------------------------------------------------------------------

def rping_judge(count, size, client_v=True, server_v=True, clients=1, stays=False):
    """Data as both sides print them; other lines are those of -d. rping's exit code may be 255 after a clean run, on kernels too."""
    def judge(server, client):
        exits(server, client, (0, 255), stays)
        data = lambda p, label: [line.removeprefix(label) for line in lines(p.out) if line.startswith(label)]
        want = pings(count, size)
        check(data(client, "ping data: ") == (want if client_v else []), "client data differs", server, client)
        # What a guest's program that was ended wrote last is lost.
        if server_v and not (stays and isinstance(server, Job)):
            check(sorted(data(server, "server ping data: ")) == sorted(want * clients), "server data differs", server, client)
        noise = [line for line in lines(client.err) if not RPING_NOISE.match(line)]
        check(not noise, "client complained", server, client)
    return judge


def rping_options(server, client, port=None, count=3, size=64, clients=1, stays=False, verbose=(True, True), local=False):
    judge = rping_judge(count, size, *reversed(verbose), clients, stays)
    both = f"-C {count} -S {size}"
    v = lambda side: "-v" if verbose[side] else ""
    return Options(f"-s {v(0)} {both} {server}", f"-c {v(1)} {both} {client}", judge, port, clients, stays, local)


RPING = [
    rping_options("-a {to}", "-a {to}", local=True),
    rping_options("", "-a {to} -I {frm}"),
    rping_options("-a ::0", "-a {to6}"),
    rping_options("-a {to6}", "-a {to6} -I {frm6}"),
    rping_options("-p 7199", "-a {to} -p 7199", port=7199),
    rping_options("-V", "-V -a {to}", size=65535, local=True),
    rping_options("-V", "-V -a {to}", verbose=(False, False)),
    rping_options("-d", "-d -a {to}"),
    rping_options("-q", "-a {to} -q"),
    rping_options("", "-a {to} -q", local=True),
    rping_options("-P", "-a {to}", clients=3, stays=True),
    rping_options("-P -q", "-a {to} -q", clients=2, stays=True),
]


def refused(ours, kernels):
    """What RoCE has not: the client fails, a little earlier or later than on the kernel (guide/src/deviations.md), and the server waits on."""
    def judge(server, client):
        text = kernels if isinstance(client, Job) else ours
        check(client.rc != 0, f"client exit {client.rc}", server, client)
        check(any(text in line for line in lines(client.err) + lines(client.out)), f"client did not say {text}", server, client)
    return judge


# -- ucmatose, udaddy -------------------------------------------------------------------------------------------------------

def recorded(record, extra=None, data=True):
    """The recorded lines: with `extra` the one that -m adds before `before`, without `data` those of transfers left out."""
    want = golden(record)

    def judge(server, client):
        exits(server, client)
        for side, p in (("client", client), ("server", server)):
            expected = list(want[f"{side} stdout"])
            if not data:
                expected = [line for line in expected if "data transfers" not in line and line not in ("sending replies", "completing sends")]
            if extra:
                expected.insert(expected.index("data transfers complete") + 1, extra)
            check(lines(p.out) == expected, f"{side} output differs", server, client)
            check(not lines(p.err), f"{side} complained", server, client)
    return judge


def ucmatose_options(server, client, port=None, judge=None, local=False):
    return Options(f"-C 3 {server}", f"-C 3 -s {client}", judge or recorded("rxe-ucmatose.txt"), port, local=local)


UCMATOSE = [
    ucmatose_options("", "{to}", local=True),
    ucmatose_options("-b {to}", "{to} -b {frm}"),
    ucmatose_options("-b ::0", "{to6}", local=True),
    ucmatose_options("-b {to6} -f ipv6", "{to6} -b {frm6} -f ipv6"),
    ucmatose_options("-b {to} -f ip", "{to} -f ip"),
    ucmatose_options("-f name", "{to} -f name"),
    ucmatose_options("-P tcp", "{to} -P tcp", local=True),
    ucmatose_options("-P ib", "{to} -P ib"),
    ucmatose_options("-p 7222", "{to} -p 7222", 7222),
    ucmatose_options("-c 3 -S 4096", "{to} -c 3 -S 4096"),
    ucmatose_options("", "{to} -t 32"),
    ucmatose_options("-a 14", "{to} -a 14"),
    ucmatose_options("-c 2 -m", "{to} -c 2 -m", judge=recorded("rxe-ucmatose.txt", extra="migrating to new event channel")),
    Options("-C 0", "-C 0 -s {to}", recorded("rxe-ucmatose.txt", data=False)),
    Options("", "-f gid -s {to6}", refused("failure getting addr: No such device", "resolve route failed: No such device"), stays=True),
]


def udaddy_options(server, client, local=False):
    return Options(f"-C 3 {server}", f"-C 3 -s {client}", recorded("rxe-udaddy.txt"), local=local)


UDADDY = [
    udaddy_options("", "{to}", local=True),
    udaddy_options("-b {to}", "{to} -b {frm}"),
    udaddy_options("-b ::0", "{to6}", local=True),
    udaddy_options("-b {to6} -f ipv6", "{to6} -b {frm6} -f ipv6"),
    udaddy_options("-b {to} -f ip", "{to} -f ip"),
    udaddy_options("-c 3 -S 1024", "{to} -c 3 -S 1024"),
    udaddy_options("", "{to} -t 32"),
    udaddy_options("-p 0x0111", "{to} -p 0x0111"),
    udaddy_options("-P udp", "{to} -P udp", local=True),
    Options("-C 0", "-C 0 -s {to}", recorded("rxe-udaddy.txt", data=False)),
    Options("", "-f gid -s {to6}", refused("failure getting addr: No such device", "resolve route failed: No such device"), stays=True),
    Options("", "-p 0x0002 -s {to}", refused("RDMA_CM_EVENT_ADDR_ERROR, error: -22", "RDMA_CM_EVENT_ADDR_ERROR, error: -22"), stays=True),
]


# -- rdma_client, rdma_xclient, cmtime --------------------------------------------------------------------------------------

def start_and_end(server, client):
    exits(server, client)
    for p in (server, client):
        check(lines(p.out) == [f"{p.name}: start", f"{p.name}: end 0"], f"{p.name} output differs", server, client)
        check(not lines(p.err), f"{p.name} complained", server, client)


RDMA_CLIENT = [
    Options("-s {to}", "-s {to}", start_and_end),
    Options("", "-s {to}", start_and_end),
    Options("-p 7555", "-s {to} -p 7555", start_and_end, 7555),
    Options("-s {to6}", "-s {to6}", start_and_end),
]
RDMA_XCLIENT = [
    Options("", "-s {to}", start_and_end),
    Options("-p 7555", "-s {to} -p 7555", start_and_end, 7555),
    Options("-c r", "-s {to} -c r", start_and_end),
]
# rdma_rxe has no XRC.
RDMA_XCLIENT_XRC = [
    Options("-c x", "-s {to} -c x", start_and_end),
    Options("-c x -p 7555", "-s {to} -c x -p 7555", start_and_end, 7555),
]

STEPS = ["create id", "bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"]


def cmtime_judge(bound):
    """A line for each step, and no event of failure. The server does not end by itself."""
    def judge(server, client):
        exits(server, client, stays=True)
        want = [step for step in STEPS if bound or step != "bind addr"]
        found = [line.split(":")[0].strip() for line in lines(client.out) if line.count(".") == 4]
        check(found == want, "client's steps differ", server, client)
        for p in (server, client):
            check(not any("error" in line or "fail" in line for line in lines(p.out)), f"{p.name} failed", server, client)
            bad = [line for line in lines(p.err) if "rdma_get_cm_event" not in line and line != "Killed"]
            check(not bad, f"{p.name} complained", server, client)
    return judge


CMTIME = [
    Options("", "-s {to} -c 10", cmtime_judge(False), stays=True),
    Options("-b {to} -p 7666", "-s {to} -b {frm} -c 10 -p 7666 -r 3 -t 3000", cmtime_judge(True), 7666, stays=True),
    Options("-b {to6}", "-s {to6} -c 3", cmtime_judge(False), stays=True),
]


# -- mckey ------------------------------------------------------------------------------------------------------------------

# (options of the receiver, options of the sender); each pair has a group of its own, and all run at once: mckey waits 3 s.
MCKEY = [
    ("-C 3 -S 64", "-C 3 -S 64"),
    ("-c 3 -C 3", "-c 3 -C 3"),
    ("-C 3 -S 1024", "-C 3 -S 1024 -o"),
    ("-C 3 -p 0x0111", "-C 3 -p 0x0111"),
]
# A group by its GID. The kernel takes the bytes of a GID for an IPv4 address, and joins 0.0.0.0.
MCKEY_GID = [("-C 3 -M ::ffff:{group}", "-C 3 -M ::ffff:{group}"), ("-C 3 -M ::ffff:{group}", "-C 3")]
# Not heard on the sender's own host: see `quiet`. rdma_rxe has no such queue pairs.
MCKEY_QUIET = [("-C 3", "-C 3 -l")]


def mckey_judge(group, connections, side, p):
    """The recorded lines, with the group and one "joined" for each connection."""
    check(p.rc == 0, f"exit {p.rc}", p)
    want = []
    for line in golden("rxe-mckey.txt")[f"{side} stdout"]:
        want += [line.replace("239.1.2.3", group)] * (connections if "joined" in line else 1)
    check(lines(p.out) == want, "output differs", p)
    check(not lines(p.err), "complained", p)


def mckey_round(row, place, table, first):
    """Each pair with a group of its own, from number `first` on. What failed: the pair, whether only a message of a kernel was lost, why."""
    started = []
    for i, pair in enumerate(table):
        receiver, sender = pair
        group = f"239.1.3.{first + i}"
        named = lambda options: options.format(group=group, **place.names).split()
        argv = lambda side, options: ["mckey", *([] if "-M" in options else ["-m", group]), "-b", place.names[side], *named(options)]
        server = place.serve(argv("to", receiver))
        place.joined(server, group)
        started.append((group, pair, server, argv("frm", f"-s {sender}")))
    started = [(*rest, place.ask(argv)) for *rest, argv in started]
    failed = []
    for group, pair, server, client in started:
        connections = 3 if "-c 3" in pair[0] else 1
        try:
            for side, p in (("client", client), ("server", server)):
                p.wait(20)
                mckey_judge(group, connections, side, p)
        except Fail as e:
            lost = isinstance(client, Job) and client.rc == 0 and server.running()
            failed.append((pair, lost, f"[{pair[0]}] [{pair[1]}]: {e}", "\n".join(p.tail() for p in (server, client))))
            server.end()
    return failed


def mckey(row, place, table):
    """A sender on the client's side, receivers on the server's. A kernel's sender destroys its queue pair when its last message is
    posted, which may be before it has left; the receiver then waits for ever. Such a pair is tried again."""
    failed = mckey_round(row, place, table, 1)
    for first in (20, 40, 60, 80):
        if failed and all(lost for _, lost, *_ in failed):
            failed = mckey_round(row, place, [pair for pair, *_ in failed], first)
    if failed:
        raise Fail("; ".join(why for *_, why, _ in failed), "\n".join(detail for *_, detail in failed))


@row(WIRE, "a sender whom the group's members on its own host do not hear", "mckey -l", parallel=True)
def quiet(row):
    place = wire(row)
    argv = lambda side, *more: ["mckey", "-m", "239.1.3.99", "-b", place.names[side], "-C", "3", *more]
    near, far = place.ask(argv("frm")), place.serve(argv("to"))
    for member in (near, far):
        place.joined(member, None)
    client = place.ask(argv("frm", "-s", "-l"))
    for side, p in (("client", client), ("server", far)):
        p.wait(20)
        mckey_judge("239.1.3.99", 1, side, p)
    near.until("receiving data transfers")
    check(near.running(), "a member on the sender's host heard it", near)


# -- the rows ---------------------------------------------------------------------------------------------------------------

def run_table(row, place, name, port, table):
    """Every line of the table, the good ones too after one that failed."""
    failed, details = [], []
    for options in table:
        try:
            options.run(place, name, port)
        except Fail as e:
            failed.append(f"{options.shown()}: {e}")
            details.append(f"{options.shown()}: {e}\n{e.detail}")
        finally:
            for p in row.programs:
                p.end()
            row.programs.clear()
    if failed:
        raise Fail("; ".join(failed), "\n".join(details))


TABLES = [
    ("rping", ("rping", "rping"), 7174, RPING, "-s -c -a -I -p -v -V -d -C -S -P -q"),
    ("ucmatose", ("ucmatose", "ucmatose"), 7471, UCMATOSE, "-s -b -f -P -p -c -C -S -t -a -m"),
    ("udaddy", ("udaddy", "udaddy"), 7174, UDADDY, "-s -b -f -c -C -S -t -p -P"),
    ("rdma_client and rdma_server", ("rdma_server", "rdma_client"), 7471, RDMA_CLIENT, "-s -p"),
    ("rdma_xclient and rdma_xserver", ("rdma_xserver", "rdma_xclient"), 7471, RDMA_XCLIENT, "-s -p -c"),
    ("cmtime", ("cmtime", "cmtime"), 7471, CMTIME, "-s -b -c -p -r -t"),
]
PLACES = [(HERE, here, False), (WIRE, wire, False), (IN, lambda r: WithKernel(r, True), True), (OUT, lambda r: WithKernel(r, False), True)]
for group, place, kernel in PLACES:
    for what, name, port, table, options in TABLES:
        if name[1] == "rdma_xclient" and not kernel:
            table = table + RDMA_XCLIENT_XRC
        if kernel:
            table = [options for options in table if not options.local]
        row(group, f"options of {what}", f"{name[1]} {options}", limit=120, kernel=kernel, parallel=True)(
            lambda r, place=place, name=name, port=port, table=table: run_table(r, place(r), name, port, table))
    # The kernel's sender destroys its queue pair before more than the first message has left.
    leaves = kernel and group == OUT
    pairs = [tuple(o.replace("-C 3", "-C 1") for o in pair) for pair in MCKEY if "-c" not in pair[0].split()] if leaves else MCKEY
    # With -M mckey asks the device of the address it has bound, and a loopback address has none.
    pairs = pairs + (MCKEY_QUIET if group in (WIRE, IN) else []) + (MCKEY_GID if group == WIRE else [])
    row(group, "options of mckey", f"mckey -m{' -M' if group == WIRE else ''} -s -b -c -C -S -o -p{' -l' if group in (WIRE, IN) else ''}", limit=120, kernel=kernel, parallel=True)(
        lambda r, place=place, pairs=pairs: mckey(r, place(r), pairs))
