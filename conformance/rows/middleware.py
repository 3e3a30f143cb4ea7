"""What stands between programs and verbs, as Debian packages it: UCX and libfabric, each by its own programs (librpma: rpma.py). On one address,
where two processes share it, and over a veth. That packets went through Verbena, its counters say."""
import glob, os, re

from .harness import FABRIC_PORT, row
from .loopback import HERE
from .wires import WIRE

# A namespace for shared memory and one for processes: without them UCX takes two network namespaces of one machine for one host.
APART = ["unshare", "-i", "-p", "-f", "--kill-child"]
UCX_PORT = 13777
CARRIED = tuple(f"host.{name} " for name in ("packets_received", "forwarded_in", "ring_packets_received", "ring_messages_received", "ring_fragments_received", "direct_writes", "direct_reads"))
VERBS_ONLY = "rc_v,ud_v,self"


class Place:
    def __init__(self, row, client, server, address):
        self.row, self.client, self.server, self.address = row, client, server, address

    def pair(self, server, client, ready, env=None, seconds=60):
        """Both ends, which must end well; the client's counters are kept."""
        s = self.row.run(*server, ns=self.server, env=env)
        ready(s)
        c = self.row.run(*client, ns=self.client, env={**(env or {}), "VERBENA_COUNTERS": counters(self.row)})
        self.row.check(c.wait(seconds) == 0, f"client exit {c.rc}", c, s)
        return s, c


def here(row):
    ns = row.namespace()
    return Place(row, ns, ns, "127.0.0.1")


def wire(row):
    a, b = row.veth()
    return Place(row, a, b, "10.90.0.2")


def shared(row):
    """Both ends on one address that is not a loopback address: what is bound to such a one has no device, with the kernel too."""
    a, _ = row.veth()
    return Place(row, a, a, "10.90.0.1")


PLACES = ((HERE, here), (WIRE, wire))
ADDRESSES = ((HERE, shared), (WIRE, wire))


def counters(row):
    return os.path.join(row.work, "middleware.%p")


def carried(row, least):
    """At least so many packets came through Verbena, to the processes that were told to count, or by way of another to them; or they reached
    memory without any."""
    received = 0
    for name in glob.glob(counters(row).replace("%p", "*")):
        with open(name) as f:
            received += sum(int(line.split()[1]) for line in f if line.startswith(CARRIED))
        os.remove(name)
    row.check(received >= least, "the packets did not go through Verbena")


# -- UCX ----------------------------------------------------------------------------------------------------------------------

def perftest(place, test, size, count, env, apart=False, verbs=True):
    row = place.row
    before = APART if apart else []
    argv = [*before, "ucx_perftest", "-p", str(UCX_PORT)]
    s, c = place.pair(argv, [*argv, place.address, "-t", test, "-s", str(size), "-n", str(count), "-w", "10"],
                      lambda s: row.tcp_listening(s, UCX_PORT), env)
    row.check(any(re.match(rf"Final: +{count} ", line) for line in c.out.lines), "no result", c, s)
    row.check(s.wait(10) == 0, f"server exit {s.rc}", s)
    if verbs:
        carried(row, count // 100)


TESTS = (("tag_lat", 64, 1000), ("tag_bw", 300_000, 20), ("ucp_put_lat", 64, 200), ("ucp_get", 8192, 100), ("ucp_fadd", 8, 100))


def ucx(row, where, transports):
    place = where(row)
    # Tags everywhere; what reaches into memory goes the way of reliable connections, or is made of tags.
    for test, size, count in TESTS if transports == VERBS_ONLY else TESTS[:2]:
        perftest(place, test, size, count, {"UCX_TLS": transports})


for group, where in PLACES:
    for transports, what in (("rc_v,self", "reliable connections"), ("ud_v,self", "datagrams"), (VERBS_ONLY, "both: tags, put, get, atomics")):
        row(group, f"UCX over {what}", f"ucx_perftest, UCX_TLS={transports}", limit=150, parallel=True)(
            lambda r, where=where, transports=transports: ucx(r, where, transports))


@row(HERE, "UCX finds the devices", "ucx_info -d", limit=60, parallel=True)
def ucx_devices(row):
    p = row.run("ucx_info", "-d", ns=row.namespace())
    row.check(p.wait(30) == 0, f"exit {p.rc}")
    found = set(re.findall(r"Transport: (\w+_verbs)", "\n".join(p.out.lines)))
    row.check(found == {"rc_verbs", "ud_verbs"}, "not both transports", p)


@row(HERE, "UCX without a setting", "ucx_perftest", limit=60, parallel=True)
def ucx_plain(row):
    # Two processes of one host: shared memory is what UCX chooses.
    perftest(here(row), "tag_lat", 64, 1000, {}, verbs=False)


@row(WIRE, "UCX without a setting takes Verbena", "ucx_perftest", limit=90, parallel=True)
def ucx_chooses(row):
    place = wire(row)
    perftest(place, "tag_lat", 64, 1000, {}, apart=True)
    perftest(place, "tag_bw", 4_000_000, 10, {}, apart=True)


@row(WIRE, "UCX without a setting spreads nothing over lo", "ucx_perftest, UCX_MULTI_LANE_MAX_RATIO=100", limit=90, parallel=True)
def ucx_lanes(row):
    perftest(wire(row), "tag_bw", 4_000_000, 10, {"UCX_MULTI_LANE_MAX_RATIO": "100"}, apart=True)


def ucx_rdmacm(row, where):
    """Connections made by rdma_cm. The server goes on waiting for the next client."""
    place = where(row)
    env = {"UCX_TLS": VERBS_ONLY, "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm"}
    server = row.run("io_demo", "-p", "1400", "-q", ns=place.server, env=env)
    row.listening(server, 1400)
    client = row.run("io_demo", "-p", "1400", "-i", "200", "-q", "-o", "read,write", place.address, ns=place.client,
                     env={**env, "VERBENA_COUNTERS": counters(row)})
    row.check(client.wait(60) == 0, f"client exit {client.rc}", client, server)
    row.check(any("Client exit with status 'OK'" in line for line in client.out.lines), "the client is not content", client, server)
    carried(row, 100)


for group, where in PLACES:
    row(group, "UCX connected by rdma_cm, data checked", "io_demo -q, UCX_SOCKADDR_TLS_PRIORITY=rdmacm", limit=90, parallel=True)(
        lambda r, where=where: ucx_rdmacm(r, where))


# -- libfabric ----------------------------------------------------------------------------------------------------------------

def pingpong(row, where, kind):
    place = where(row)
    # A datagram is one packet.
    sizes = (64, 1024) if kind == "dgram" else (64, 16384, 1 << 20)
    for size in sizes:
        argv = ["fi_pingpong", "-p", "verbs", "-e", kind, "-I", "50", "-S", str(size), "-c"]
        s, c = place.pair(argv, [*argv, place.address], lambda s: row.tcp_listening(s, FABRIC_PORT))
        row.check(s.wait(10) == 0, f"server exit {s.rc}", s, c)
        row.check(any("50" in line.split() and "=50" in line.split() for line in c.out.lines), "not all came back", c, s)
    carried(row, 50)


for group, where in ADDRESSES:
    for kind, what in (("msg", "connections"), ("rdm", "reliable datagrams (ofi_rxm)"), ("dgram", "datagrams")):
        row(group, f"libfabric: {what}, data checked", f"fi_pingpong -p verbs -e {kind} -c", limit=90, parallel=kind != "dgram")(
            lambda r, where=where, kind=kind: pingpong(r, where, kind))


@row(WIRE, "libfabric names the device that reaches others first", "fi_info -p verbs", limit=60, parallel=True)
def fabric_info(row):
    p = row.run("fi_info", "-p", "verbs", ns=row.veth()[0])
    row.check(p.wait(30) == 0, f"exit {p.rc}")
    domains = [line.split()[1] for line in p.out.lines if line.strip().startswith("domain:")]
    kinds = {line.split()[1] for line in p.out.lines if line.strip().startswith("type:")}
    row.check(domains and domains[0] == "rxe_veth0", "another device is first", p)
    row.check(kinds == {"FI_EP_MSG", "FI_EP_RDM", "FI_EP_DGRAM"}, "a kind of endpoint is missing", p)
