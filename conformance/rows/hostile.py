"""Malformed packets at UDP port 4791 while a program runs."""
import glob
import os
import sys

from .harness import HERE, row
from .programs import judge_client, judge_server

COUNT, RATE = 10_000, 20_000
FLOOD = os.path.join(HERE, "programs", "flood.py")
# Resident memory may move by what a few caches hold, not with the number of packets.
SLACK_KIB = 4096
# The reasons for which a packet is dropped: of the node, and of each device.
NODE = ("icrc", "malformed", "unknown_opcode", "unknown_device", "unknown_owner", "bad_mad")
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
    lost = n["host.overflow_drops"] + n["host.forward_drops"] + n["host.receive_errors"]
    sent, seen = COUNT + n["host.packets_sent"], dropped + n["mads"] + n["received"] + lost
    row.check(sent - LAST <= seen <= sent, f"{sent} packets were sent, {seen} are accounted for: {n}")
    # Some of the flood are legal: disconnects and rejects of connections that there are not, which are answered.
    row.check(dropped > COUNT * 0.9, f"of {COUNT} malformed packets {dropped} were dropped: {n}")


def flooded(row, *flags):
    ns = row.namespace()
    counters = os.path.join(row.harness.work, f"counters{''.join(flags)}")
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
