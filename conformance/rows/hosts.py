"""Far ends that do not answer as hoped: the events and statuses of the kernel's stack, in time."""
import signal
import time

from .harness import row
from .programs import both, events, recorded_events

HOSTS = "error paths"


def trace(row, client, name, since, wanted, at_least, at_most):
    """The client ends with the recorded events in the recorded order; `wanted` comes so many seconds after `since`."""
    client.wait(20)
    row.check(events(both(client)) == recorded_events(name), "other events than the kernel's", *row.programs)
    took = client.until(wanted) - (client.until(since) if isinstance(since, str) else since)
    # Two threads stamp the lines of the two outputs: one may be a little late.
    row.check(at_least - 0.1 <= took <= at_most, "too late" if took > at_most else "too early", *row.programs)


@row(HOSTS, "no listener on the port: REJECTED 8 within 1 s", "rping -p 9999")
def no_listener(row):
    a, _ = row.veth()
    server = row.run("rping", "-s", "-P", "-a", "10.90.0.2", ns=row.namespaces[1])
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "10.90.0.2", "-p", "9999", "-C", "1", "-d", ns=a, lines=True)
    trace(row, client, "rxe-a-no-listener-rping", "ROUTE_RESOLVED", "RDMA_CM_EVENT_REJECTED, error 8", 0, 1)
    row.check(client.rc == 255, f"client exit {client.rc}")


@row(HOSTS, "no listener on this machine: REJECTED 8 within 1 s", "rping -p 9999")
def no_listener_here(row):
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-p", "9999", "-C", "1", "-d", ns=row.namespace(), lines=True)
    trace(row, client, "rxe-a-no-listener-rping", "ROUTE_RESOLVED", "RDMA_CM_EVENT_REJECTED, error 8", 0, 1)


@row(HOSTS, "no listener, several connections", "ucmatose -p 9999")
def no_listener_ucmatose(row):
    client = row.run("ucmatose", "-s", "127.0.0.1", "-p", "9999", ns=row.namespace())
    row.check(client.wait() == 8, f"exit {client.rc}")
    row.check("cmatose: event: RDMA_CM_EVENT_REJECTED, error: 8" in client.out.lines, "not rejected with 8")


@row(HOSTS, "no listener, synchronous: ECONNREFUSED", "rdma_client -p 9999")
def no_listener_synchronous(row):
    client = row.run("rdma_client", "-s", "127.0.0.1", "-p", "9999", ns=row.namespace())
    row.check(client.wait() == 255, f"exit {client.rc}")
    row.check(any("Connection refused" in line for line in client.err.lines), "no ECONNREFUSED")


@row(HOSTS, "a host without RDMA: UNREACHABLE -110 within 1 s", "rping")
def without_rdma(row):
    a, _ = row.veth()
    client = row.run("rping", "-c", "-a", "10.90.0.2", "-C", "1", "-d", ns=a, lines=True)
    trace(row, client, "rxe-b-host-without-rdma-rping", "ROUTE_RESOLVED", "RDMA_CM_EVENT_UNREACHABLE, error -110", 0, 1)
    row.check(client.rc == 255, f"client exit {client.rc}")


@row(HOSTS, "an address nobody has: ADDR_ERROR -110 at the program's 2 s", "rping")
def no_such_host(row):
    a, _ = row.veth()
    client = row.run("rping", "-c", "-a", "10.90.0.99", "-C", "1", "-d", ns=a, lines=True)
    trace(row, client, "rxe-b-no-such-host-rping", client.began, "RDMA_CM_EVENT_ADDR_ERROR, error -110", 1.9, 3)


@row(HOSTS, "no route: rdma_resolve_addr fails with ENETUNREACH", "rping")
def no_route(row):
    a, _ = row.veth()
    client = row.run("rping", "-c", "-a", "198.51.100.1", "-C", "1", "-d", ns=a, lines=True)
    row.check(client.wait(10) == 255, f"exit {client.rc}")
    row.check(any("Network is unreachable" in line for line in client.err.lines), "no ENETUNREACH")


def killed(row, victim):
    ns = row.namespace()
    # Two sides that ping for ever print a lot: only the lines about the connection are kept.
    keep = lambda line: "cma" in line or "DISCONNECT" in line or "ESTABLISHED" in line
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-d", ns=ns, lines=True, keep=keep)
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-d", ns=ns, lines=True, keep=keep)
    client.until("ESTABLISHED"), server.until("ESTABLISHED")
    time.sleep(0.5)
    dead, other = (server, client) if victim == "server" else (client, server)
    at = time.monotonic()
    dead.signal(signal.SIGKILL)
    took = other.until("RDMA_CM_EVENT_DISCONNECTED") - at
    row.check(took <= 1, "too late")
    other.wait(10)
    row.check(events(both(other)) == recorded_events(f"rxe-c-{victim}-killed-rping", "client" if victim == "server" else "server"),
              "other events than the kernel's")


@row(HOSTS, "server killed: DISCONNECTED 0 within 1 s", "rping, SIGKILL")
def server_killed(row):
    killed(row, "server")


@row(HOSTS, "client killed: DISCONNECTED 0 within 1 s", "rping, SIGKILL")
def client_killed(row):
    killed(row, "client")
