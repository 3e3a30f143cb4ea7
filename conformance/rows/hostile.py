"""Malformed packets at UDP port 4791 while a program runs."""
import os
import sys

from .harness import HERE, row
from .programs import judge_client, judge_server

COUNT, RATE = 10_000, 20_000
FLOOD = os.path.join(HERE, "programs", "flood.py")
# Resident memory may move by what a few caches hold, not with the number of packets.
SLACK_KIB = 4096


def flooded(row, *flags):
    ns = row.namespace()
    count, size = 20_000, 1024
    args = ["-p", "7999", "-C", str(count), "-S", str(size)]
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-v", *args, ns=ns)
    row.listening(server, 7999)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-V", "-v", *args, ns=ns)
    client.until("ping data: rdma-ping-1000:", 30)
    before = server.rss_kib()
    flood = row.plain(sys.executable, FLOOD, "127.0.0.1", str(COUNT), str(RATE), *flags, ns=ns)
    row.check(flood.wait() == 0, "the flood failed", flood)
    row.check(client.running() or client.rc in (0, 255), "the client has ended", client)
    grown = server.rss_kib() - before if server.running() else 0
    row.check(grown <= SLACK_KIB, "memory grows", server)
    judge_client(row, client, count, size)
    judge_server(row, server, count, size)


@row("hostile packets", "10,000 malformed packets at 20,000/s, ICRC right", "rping", limit=90)
def sealed(row):
    flooded(row, "--sealed")


@row("hostile packets", "10,000 malformed packets at 20,000/s, ICRC as it comes", "rping", limit=90)
def unsealed(row):
    flooded(row)
