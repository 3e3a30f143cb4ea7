"""Two network namespaces joined by a veth of MTU 1500, and what tshark makes of the packets on it."""
import glob, os, re, subprocess

from .harness import HERE as DIR
from .harness import Fail, LeftOut, need, row, sh
from .loopback import attributes, pingpong, rping_pair
from .programs import judge_golden

WIRE = "veth, MTU 1500"
CAPTURES = os.path.join(DIR, "..", "crates", "wire", "tests", "golden")


def pair(row, count, size, flags, server_address="10.90.0.2", verbose=True, mtu=1500, listen=None):
    a, b = row.veth(mtu)
    rping_pair(row, count, size, flags, flags, a, server_ns=b, verbose=verbose, address=server_address, listen=listen or server_address)


@row(WIRE, "small pings", "rping -C 1000 -S 64 -v", parallel=True)
def small(row):
    pair(row, 1000, 64, ["-v"])


@row(WIRE, "large pings, verified", "rping -S 65535 -C 100 -V", parallel=True)
def large(row):
    pair(row, 100, 65535, ["-V"], verbose=False)


@row(WIRE, "large pings, every byte printed by both sides", "rping -S 65535 -C 100 -v -V", parallel=True)
def large_printed(row):
    pair(row, 100, 65535, ["-v", "-V"])


@row(WIRE, "IPv6", "rping -a fd90::2 -C 1000 -S 64 -v", parallel=True)
def ipv6(row):
    pair(row, 1000, 64, ["-v"], "fd90::2")


@row(WIRE, "server on 0.0.0.0", "rping -s -a 0.0.0.0", parallel=True)
def any_address(row):
    pair(row, 100, 64, ["-v"], listen="0.0.0.0")


@row(WIRE, "large pings on jumbo frames", "rping -S 65535 -C 100 -v -V", parallel=True)
def jumbo(row):
    pair(row, 100, 65535, ["-v", "-V"], mtu=9000)


@row(WIRE, "endpoints and synchronous calls", "rdma_server, rdma_client", parallel=True)
def rdma_client(row):
    a, b = row.veth()
    server = row.run("rdma_server", "-s", "10.90.0.2", ns=b)
    row.listening(server, 7471)
    judge_golden(row, "rxe-rdma_client.txt", server, row.run("rdma_client", "-s", "10.90.0.2", ns=a))


@row(WIRE, "ten connections", "ucmatose -c 10 -C 100", parallel=True)
def ucmatose(row):
    a, b = row.veth()
    server = row.run("ucmatose", "-c", "10", "-C", "100", ns=b)
    row.listening(server, 7471)
    judge_golden(row, "rxe-ucmatose.txt", server, row.run("ucmatose", "-s", "10.90.0.2", "-c", "10", "-C", "100", ns=a))


@row(WIRE, "queue pairs without a connection manager, polling", "ibv_rc_pingpong -g 1", parallel=True)
def pingpong_polling(row):
    a, b = row.veth()
    pingpong(row, "rxe_veth0", "10.90.0.2", a, b)


@row(WIRE, "queue pairs without a connection manager, events", "ibv_rc_pingpong -g 1 -e", parallel=True)
def pingpong_events(row):
    a, b = row.veth()
    pingpong(row, "rxe_veth0", "10.90.0.2", a, b, "-e")


@row(WIRE, "the MTU of the link decides", "ibv_devinfo -v", parallel=True)
def devinfo(row):
    a, _ = row.veth()
    fields, gids = attributes(row, a, "rxe_veth0")
    row.check(fields.get("active_mtu") == "1024 (3)", "active_mtu is not 1024")
    row.check("10.90.0.1" in gids[1] if len(gids) > 1 else False, "GID 1 is not the IPv4 address")
    row.check(any("fd90::1" in g or "fd90:0000:0000:0000:0000:0000:0000:0001" in g for g in gids), "no GID for fd90::1")


# What tshark says of each packet that it takes for RoCEv2, or finds wrong.
WRONG = "_ws.malformed or _ws.expert.severity >= 0x600000"
SAID = ("frame.protocols", "infiniband.bth.opcode", "_ws.malformed", "_ws.expert.severity", "_ws.expert.message")


def findings(capture):
    """What tshark finds wrong in a capture: malformed packets (by the packet that carries them), and warnings and errors of its
    experts, without numbers that differ from run to run. One run of tshark says all: it takes longer to start than to read."""
    argv = ["tshark", "-n", "-r", capture, "-Y", f"infiniband or {WRONG}", "-T", "fields", "-E", "separator=\t", "-E", "occurrence=a"]
    r = subprocess.run(argv + [x for n in SAID for x in ("-e", n)], capture_output=True, text=True)
    packets = [line.split("\t") for line in r.stdout.splitlines()]
    # A capture without one packet that tshark takes for RoCEv2 would have no findings either.
    if not any("infiniband" in protocols.split(":") for protocols, *_ in packets):
        return None
    found = set()
    for _, op, malformed, severities, text in packets:
        if malformed:
            found.add(f"malformed, opcode {op}")
        if any(int(severity, 0) >= 0x600000 for severity in severities.split(",") if severity):
            found.add(f"opcode {op}: {re.sub(r'[0-9]+', 'N', text)}")
    return found


@row(WIRE, "nothing malformed on the wire that the kernel's captures have not", "tshark", limit=120, parallel=True)
def tshark(row):
    need("tshark", "tcpdump")
    allowed = set()
    for capture in glob.glob(os.path.join(CAPTURES, "rxe-*.pcap")):
        allowed |= findings(capture) or set()
    if not allowed:
        raise LeftOut("the recorded captures are not there")
    a, b = row.veth()
    capture = os.path.join(row.work, "wire.pcap")
    dump = row.plain("tcpdump", "-Z", "root", "--immediate-mode", "-n", "-U", "-i", "veth0", "-s", "0", "-w", capture, "udp port 4791", ns=b)
    dump.until("listening on", stream="err")

    def run_pair(server, client, ready):
        s = row.run(*server, ns=b)
        ready(s)
        c = row.run(*client, ns=a)
        row.check(c.wait() in (0, 255), f"{client[0]} exit {c.rc}", c, s)
        s.wait(10)

    S = "10.90.0.2"
    for size in ("64", "8192"):
        run_pair(["rping", "-s", "-a", S, "-C", "3", "-S", size], ["rping", "-c", "-a", S, "-C", "3", "-S", size], lambda s: row.listening(s, 7174))
    run_pair(["rping", "-s", "-a", "fd90::2", "-C", "3"], ["rping", "-c", "-a", "fd90::2", "-C", "3"], lambda s: row.listening(s, 7174))
    run_pair(["rdma_server", "-s", S], ["rdma_client", "-s", S], lambda s: row.listening(s, 7471))
    run_pair(["ucmatose", "-c", "2", "-C", "3", "-S", "64"], ["ucmatose", "-s", S, "-c", "2", "-C", "3", "-S", "64"], lambda s: row.listening(s, 7471))
    pp = ["ibv_rc_pingpong", "-d", "rxe_veth0", "-g", "1", "-n", "5", "-s", "1024"]
    run_pair(pp, pp + [S], row.tcp_listening)
    refused = row.run("rping", "-c", "-a", S, "-p", "9999", "-C", "1", ns=a)
    refused.wait()
    dump.end()
    ours = findings(capture)
    row.check(ours is not None, "tshark sees no RoCEv2 packet", dump)
    new = ours - allowed
    if new:
        raise Fail("tshark finds what it does not find in the kernel's packets", "\n".join(sorted(new)))


@row(WIRE, "an interface that goes down and up and gets an address", "ibv_asyncwatch", parallel=True)
def port_events(row):
    a, _ = row.veth()
    watch = row.run("ibv_asyncwatch", "-d", "rxe_veth0", ns=a, lines=True)
    watch.until("async event FD", 10)
    for change, event in [
        (["link", "set", "veth0", "down"], "IBV_EVENT_PORT_ERR"),
        (["link", "set", "veth0", "up"], "IBV_EVENT_PORT_ACTIVE"),
        (["addr", "add", "10.91.0.1/24", "dev", "veth0"], "IBV_EVENT_GID_CHANGE"),
    ]:
        sh("ip", "-n", a, *change)
        watch.until(event, 10)
