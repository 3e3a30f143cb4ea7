"""Many programs at once on one address."""
import signal
import time

from .harness import row
from .programs import judge_client

MANY = "many at once"


def persistent(row, ns, port=7174):
    """An rping server that serves one client after the other, for ever."""
    server = row.run("rping", "-s", "-P", "-S", "1024", "-a", "127.0.0.1", "-p", str(port), ns=ns)
    row.listening(server, port)
    return server


def ask(row, ns, port=7174, count=50, size=1024):
    return row.run("rping", "-c", "-a", "127.0.0.1", "-p", str(port), "-C", str(count), "-S", str(size), "-v", ns=ns)


@row(MANY, "eight clients and one server", "rping -s -P", limit=60)
def eight(row):
    ns = row.namespace()
    server = persistent(row, ns)
    for c in [ask(row, ns) for _ in range(8)]:
        judge_client(row, c, 50, 1024)
    row.check(server.running(), "the server has ended")


@row(MANY, "four servers on four ports of one address", "rping -p", limit=60)
def four(row):
    ns = row.namespace()
    ports = range(7180, 7184)
    servers = [persistent(row, ns, p) for p in ports]
    for c in [ask(row, ns, p) for p in ports]:
        judge_client(row, c, 50, 1024)
    row.check(all(s.running() for s in servers), "a server has ended")


@row(MANY, "five servers on one address, one of them stopped", "rping, SIGSTOP", limit=60)
def stopped(row):
    ns = row.namespace()
    ports = range(7190, 7195)
    servers = [persistent(row, ns, p) for p in ports]
    servers[2].signal(signal.SIGSTOP)
    time.sleep(0.1)
    # Several rounds: each client has new ports and so another place in the hash that picks the receiving process.
    for _ in range(5):
        for c in [ask(row, ns, p) for p in ports if p != 7192]:
            judge_client(row, c, 50, 1024)
    servers[2].signal(signal.SIGCONT)
    judge_client(row, ask(row, ns, 7192), 50, 1024)
    row.check(all(s.running() for s in servers), "a server has ended")
