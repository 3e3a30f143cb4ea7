"""Streams of iWARP devices, seen and broken: port counters, `verbena run --capture` and `verbena run --faults`."""
import os, subprocess
from collections import Counter

from .counters import Tree, settled
from .harness import need, row
from .iwarp import OPTIONS

STREAMS = "iWARP, seen and broken"
# What perftest and rping send is no RPC, which tshark takes some of it for.
NO_GUESS = ("--disable-protocol", "rpcordma")


def tshark(file, *args):
    r = subprocess.run(["tshark", "-n", "-r", file, *NO_GUESS, *args], capture_output=True, text=True)
    return r.stdout.splitlines()


def pair(r, ns, count, size, at_client=(), at_server=(), address="127.0.0.1"):
    """Two ends of rping, each with options of its own; they are judged by the caller."""
    argv = ["-C", str(count), "-S", str(size), "-a", address, "-v"]
    server = r.run("rping", "-s", *argv, ns=ns, options=(*OPTIONS, *at_server))
    r.listening(server, 7174)
    return server, r.run("rping", "-c", *argv, ns=ns, options=(*OPTIONS, *at_client))


def pings(program):
    return sum("ping data:" in line for line in program.out.lines)


def good(r, server, client, count):
    """All pings came back. What `verbena run` says is beside them, so the judges of rows that say nothing do not do."""
    r.check(client.wait() == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
    r.check((pings(client), pings(server)) == (count, count), f"{pings(client)} and {pings(server)} pings", client, server)


def ends(r, server, client, seconds, what):
    """Both were told, before all was done: rping leaves with 0 then."""
    r.check(client.ends_within(seconds) and server.ends_within(5), f"{what}: it goes on", client, server)
    for program in (client, server):
        program.wait(1)
        told = sum("DISCONNECT EVENT" in line for line in program.out.lines + program.err.lines)
        r.check(told == 1, f"{what}: told {told} times", client, server)


def operations(file):
    """How many segments of each RDMAP opcode tshark finds."""
    found = (x for line in tshark(file, "-Y", "iwarp_ddp_rdmap", "-T", "fields", "-e", "iwarp_rdma.opcode") for x in line.split(","))
    return Counter(int(x, 0) for x in found if x)


@row(STREAMS, "tshark decodes MPA, DDP and RDMAP of a capture, with each operation, and finds nothing malformed", "rping -C 50 -S 5000, --capture", limit=120, parallel=True)
def captured(r):
    need("tshark")
    ns = r.namespace()
    for address, count, size in (("127.0.0.1", 50, 5000), ("::1", 5, 64), ("127.0.0.1", 3, 60000)):
        files = [os.path.join(r.work, f"{end}{size}.pcapng") for end in ("server", "client")]
        server, client = pair(r, ns, count, size, at_client=("--capture", files[1]), at_server=("--capture", files[0]), address=address)
        good(r, server, client, count)
        for file in files:
            wrong = tshark(file, "-Y", "_ws.malformed || _ws.expert.severity == error || tcp.analysis.lost_segment || tcp.analysis.retransmission")
            r.check(not wrong, f"{file}: {wrong[:2]}", client, server)
            frames = [len(tshark(file, "-Y", f"iwarp_mpa.{kind}")) for kind in ("req", "rep")]
            r.check(frames == [1, 1], f"{frames} MPA frames", client)
            # A ping is a SEND of each side twice, a READ and its response, and a WRITE. The last SEND says that it is over.
            seen = operations(file)
            sends = seen[3] + seen[5]
            # A WRITE of no bytes may remind the peer of the first message.
            r.check((seen[1], seen[2]) == (count, count) and count <= seen[0] <= count + 1, f"{file}: {seen}", client)
            r.check(4 * count <= sends <= 4 * count + 2, f"{file}: {sends} SENDs", client)
            bounds = tshark(file, "-Y", "tcp.flags.syn == 1 || tcp.flags.fin == 1")
            r.check(3 <= len(bounds) <= 4, f"{file}: {bounds}", client)


@row(STREAMS, "port counters and the numbers of a queue pair move as bytes of the stream do", "rping, verbena show --json", limit=60, parallel=True)
def counted(r):
    tree = Tree(r, r.namespace(), OPTIONS, "siw_lo")
    before = tree.counters("counters")
    tree.background("rping -s -a 127.0.0.1 -C 100 -S 10000")
    r.listening(tree.program, 7174)
    tree.do("rping -c -a 127.0.0.1 -C 100 -S 10000; wait")
    more = settled(lambda: {k: v - before[k] for k, v in tree.counters("counters").items()}, lambda m: m["port_rcv_packets"] >= 700, "packets that came", r)
    # 100 pings: four SENDs, a READ with its response, and a WRITE. What one end sends the other receives, in the same files.
    for name in ("port_xmit_data", "port_rcv_data"):
        r.check(100 * 2 * 10000 <= 4 * more[name] <= 100 * 2 * 10000 * 1.1, f"{name}: {more}", tree.program)
    r.check(700 <= more["port_xmit_packets"] <= 720 and more["port_rcv_packets"] == more["port_xmit_packets"], f"{more}", tree.program)
    tree.end()


@row(STREAMS, "bytes that are late, slow, lost or held up arrive all the same", "rping -C 20 -S 3000, --faults", limit=120, parallel=True)
def mended(r):
    ns = r.namespace()
    for rules in ("delay=5ms,jitter=2ms", "loss=2%", "rate=10mbit", "partition,from=1s,until=2s", "port-down,from=500ms,until=1s", "chaos"):
        server, client = pair(r, ns, 20, 3000, at_client=("--faults", rules, "--seed", "7"))
        good(r, server, client, 20)


@row(STREAMS, "a stream that is cut, damaged or cut off ends at both ends", "rping -C 1000000, --faults", limit=120, parallel=True)
def ended(r):
    ns = r.namespace()
    for rules, seconds in (("reset,nth=100,dir=out", 5), ("corrupt,nth=100", 5), ("partition,from=1s", 15)):
        server, client = pair(r, ns, 1000000, 100, at_client=("--faults", rules, "--seed", "7"))
        ends(r, server, client, seconds, rules)


@row(STREAMS, "a damaged FPDU is answered by a TERMINATE", "rping, --faults corrupt, --capture", limit=60, parallel=True)
def terminated(r):
    need("tshark")
    file = os.path.join(r.work, "corrupt.pcapng")
    server, client = pair(r, r.namespace(), 1000, 100, at_client=("--faults", "corrupt,op=read,nth=10", "--seed", "7", "--capture", file))
    ends(r, server, client, 10, "corrupt")
    r.check(operations(file)[7] == 1, f"{operations(file)}", client)
    r.check(len(tshark(file, "-Y", 'frame.comment == "fault: corrupt"')) == 1, "the capture does not say what befell it", client)


@row(STREAMS, "connection requests are rejected or not answered", "rping, --faults", limit=60, parallel=True)
def refused(r):
    ns = r.namespace()
    for rules, where, seconds in (("reject", "client", 5), ("reject", "server", 5), ("unanswered,dir=out", "client", 14)):
        options = {f"at_{where}": ("--faults", rules)}
        server, client = pair(r, ns, 5, 100, **options)
        r.check(client.wait(seconds) != 0, f"{rules} at the {where}: exit {client.rc}", client, server)
        r.check(any("cma event" in line or "connect error" in line for line in client.err.lines + client.out.lines), "no event says so", client)
        server.end()


@row(STREAMS, "rules that do nothing to streams are said before the program starts", "verbena run --iwarp --faults", parallel=True)
def noted(r):
    program = r.run("true", ns=r.namespace(), options=(*OPTIONS, "--faults", "duplicate=1%; rnr; loss=1%,qp=3; loss=1%"))
    r.check(program.wait(10) == 0, f"exit {program.rc}", program)
    notes = [line for line in program.err.lines if "does nothing" in line]
    r.check(len(notes) == 3, f"{notes}", program)
