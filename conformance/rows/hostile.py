"""Malformed packets, and packets that concern nobody, at UDP port 4791 while programs run."""
import glob
import os
import re
import statistics
import sys
import time

from .harness import HERE, row, session
from .perftest import numbers, spoilt
from .programs import judge_client, judge_server

COUNT, RATE = 10_000, 20_000
FLOOD = os.path.join(HERE, "programs", "flood.py")
# Resident memory may move by what a few caches hold, not with the number of packets.
SLACK_KIB = 4096
# The reasons for which a packet is dropped: of the node, and of each device.
NODE = ("icrc", "malformed", "unknown_opcode", "unknown_device", "unknown_owner", "bad_mad", "unsolicited")
DEVICE = ("unknown_qp", "wrong_peer", "wrong_state")
# What may still be on its way to a program that has ended: the last acknowledgements and disconnects.
LAST = 20


def counted(path):
    """The sums of what the processes have counted, by the last word of the name: devices have names of their own."""
    sums = {}
    for file in glob.glob(f"{path}.*"):
        with open(file) as f:
            for name, value in (line.split() for line in f):
                name = name.rpartition(".")[2] if not name.startswith("host.") else name
                sums[name] = sums.get(name, 0) + int(value)
    return sums


def account(row, path):
    """Whatever was sent to the host, the flood's packets and the programs' own, was counted once."""
    n = counted(path)
    row.check(n, "no counters were written")
    dropped = sum(n[k] for k in NODE + DEVICE)
    # Full queues, and datagrams of no bytes at all.
    lost = n["host.overflow_drops"] + n["host.forward_drops"] + n["host.management_drops"] + n["host.receive_errors"]
    own = n["host.packets_sent"] + n["host.ring_packets_sent"] + n["host.ring_messages_sent"] + n["host.ring_fragments_sent"] + n["host.messages_handed_over"]
    sent, seen = COUNT + own, dropped + n["mads"] + n["received"] + lost
    row.check(sent - LAST <= seen <= sent, f"{sent} packets were sent, {seen} are accounted for: {n}")
    # Some of the flood are legal: disconnects and rejects of connections that there are not, which are answered.
    row.check(dropped > COUNT * 0.9, f"of {COUNT} malformed packets {dropped} were dropped: {n}")


def flooded(row, *flags):
    ns = row.namespace()
    counters = os.path.join(row.work, f"counters{''.join(flags)}")
    env = {"VERBENA_COUNTERS": f"{counters}.%p"}
    count, size = 10_000, 1024
    args = ["-p", "7999", "-C", str(count), "-S", str(size)]
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-v", *args, ns=ns, env=env)
    row.listening(server, 7999)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-V", "-v", *args, ns=ns, env=env)
    client.until("ping data: rdma-ping-1000:", 30)
    before = server.rss_kib()
    flood = row.plain(sys.executable, FLOOD, "127.0.0.1", str(COUNT), str(RATE), *flags, ns=ns)
    row.check(flood.wait() == 0, "the flood failed", flood)
    both = client.running() and server.running()
    row.check(both or client.rc in (0, 255), "the client has ended", client)
    grown = server.rss_kib() - before if server.running() else 0
    row.check(grown <= SLACK_KIB, "memory grows", server)
    judge_client(row, client, count, size)
    judge_server(row, server, count, size)
    if both:
        account(row, counters)


@row("hostile packets", "10,000 malformed packets at 20,000/s, ICRC right", "rping", limit=90)
def sealed(row):
    flooded(row, "--sealed")


@row("hostile packets", "10,000 malformed packets at 20,000/s, ICRC as it comes", "rping", limit=90)
def unsealed(row):
    flooded(row)


STRANGERS = os.path.join(HERE, "programs", "strangers.py")
FLOOD_SECONDS = 24
# What the flood leaves of a rate measured before it, and how far the flood itself may fall short of its own. Five programs share the processors: a rate
# differs by a factor of two with who shares which, so the median of three stands beside the best of three.
LEAVES, REACHES = 0.5, 0.9
TIMES = 3
# Descriptors that may come: source ports for answers, and for what is repeated.
MORE_SOCKETS = 16


def descriptors(program):
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in session(program.pid))


def rate(row, ns, seconds):
    """What ib_send_bw reaches in so many seconds, in MiB/s (none where it could not tell the time), and what its processes grew by between its beginning
    and its end."""
    argv = ["ib_send_bw", "-F", "-s", "65536", "-D", str(seconds)]
    server = row.run(*argv, ns=ns)
    row.tcp_listening(server)
    client = row.run(*argv, "127.0.0.1", ns=ns)
    both = (server, client)
    time.sleep(2)
    before = [(descriptors(p), p.rss_kib()) for p in both]
    time.sleep(seconds - 3)
    after = [(descriptors(p), p.rss_kib()) for p in both]
    grown = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after)]
    row.check(all(p.wait(30) == 0 for p in both), "ib_send_bw failed", *both)
    if spoilt(client, server):
        return [], grown
    table = numbers(client.out.lines)
    row.check(table and table[-1][3] > 0, "ib_send_bw printed no rate", client)
    return [table[-1][3]], grown


def rates(row, ns, seconds):
    """The same several times, one after the other."""
    runs = [rate(row, ns, seconds) for _ in range(TIMES)]
    found = [one for some, _ in runs for one in some]
    row.check(found, "ib_send_bw never could tell the time")
    return found, [g for _, both in runs for g in both]


@row("hostile packets", "packets for nobody at 20,000/s for 24 s beside rping and ib_send_bw", "rping, ib_send_bw", limit=120)
def strangers(row):
    ns = row.namespace()
    args = ["-a", "127.0.0.1", "-p", "7998", "-S", "1024"]
    server = row.run("rping", "-s", *args, ns=ns)
    row.listening(server, 7998)
    client = row.run("rping", "-c", *args, ns=ns)
    alone = statistics.median(rates(row, ns, 4)[0])
    pair = (server, client)
    before = [(descriptors(p), p.rss_kib()) for p in pair]
    flood = row.plain(sys.executable, STRANGERS, "127.0.0.1", str(FLOOD_SECONDS), str(RATE), ns=ns)
    flood.until("begins", 20)
    found, grown = rates(row, ns, (FLOOD_SECONDS - 9) // TIMES)
    beside = max(found)
    row.check(flood.running(), "the flood ended early", flood)
    grown += [(descriptors(p) - b[0], p.rss_kib() - b[1]) for p, b in zip(pair, before) if p.running()]
    row.check(flood.wait() == 0, "the flood failed", flood)
    sent = float(re.search(r"(\d+)/s", flood.out.lines[-1]).group(1))
    row.check(sent >= REACHES * RATE, f"the flood came to {sent:.0f}/s only", flood)
    row.check(all(p.running() for p in pair), "a connection has ended", *pair)
    row.check(all(fds <= MORE_SOCKETS for fds, _ in grown), f"sockets come: {grown}")
    row.check(all(kib <= SLACK_KIB for _, kib in grown), f"memory grows: {grown}")
    if beside < LEAVES * alone:
        # The machine may have become slower meanwhile, as a virtual one does: it is asked again, without the flood.
        alone = min(alone, statistics.median(rates(row, ns, 4)[0]))
    row.check(beside >= LEAVES * alone, f"ib_send_bw: {alone:.0f} MiB/s alone, {beside:.0f} beside the flood")
