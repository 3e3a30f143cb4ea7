"""Datagrams of rsockets on devices without UDP beside them: hosts of a fabric, and iWARP, which has none."""
from .fabric_cm import THERE, Ends, address, both, passed
from .fabric_data import HERE
from .harness import row
from .rsocket_datagrams import COUNT, WAYS, argv, bound, result
from .rsockets import GROUP, iwarp


@row(GROUP, "between hosts of a fabric: udpong, each way to wait, datagrams and echoes, counted at each switch", "udpong -T {b,n,a} [-T e]", limit=120)
def on_a_fabric(r):
    e = Ends(r)
    to = address(e, THERE)
    for way in WAYS:
        what, before = "-T " + " -T ".join(way), both(e)
        server = e.on(THERE, *argv(way, "-b", to))
        r.listening(server, 7174)
        client = e.on(HERE, *argv(way, "-s", to))
        result(r, what, client, server, way)
        # The question for the queue pair and its answer, the start, the end, and each echo.
        passed(r, e, before, COUNT if "e" in way else 2, client, server)
        server.end()


@row(GROUP, "datagrams over iWARP: a server waits, a client's rconnect is refused", "udpong --iwarp", limit=60)
def over_iwarp(r):
    a, b, to, options = iwarp(r)
    server = r.run(*argv(("b",), "-b", to), ns=b, options=options)
    bound(r, server)
    client = r.run(*argv(("b",), "-s", to), ns=a, options=options)
    said = client.wait(20), "\n".join(client.err.lines + client.out.lines)
    r.check(said[0] not in (0, None) and "rconnect" in said[1] and "not supported" in said[1], f"exit {said[0]}: {said[1]}", client)
    r.check(server.running(), "the server has ended", server)
