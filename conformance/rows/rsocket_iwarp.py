"""Programs that are preloaded for rsockets on a host with an iWARP device: they stay with TCP, and no server reads a request of MPA."""
import os

from .harness import need, row
from .rsockets import GROUP, OURS, Preloaded


@row(GROUP, "preloaded: with an iWARP device, nc, a file of 4 MiB to nc with and without rsockets, by TCP", "nc, --iwarp", limit=60)
def netcat(r):
    need("nc")
    place = Preloaded(r)
    source, digest = place.file("source", 4 << 20)
    target = os.path.join(r.work, "target")
    iwarp = (*OURS, "--iwarp")
    for serve in (place.plain, lambda *argv: place.run(*argv, options=iwarp)):
        # It takes one connection: one that is not the file's would be the last.
        server = serve("sh", "-c", f"exec nc -l 127.0.0.1 9000 > {target}")
        r.tcp_listening(server, 9000)
        client = place.run("sh", "-c", f"exec nc -N 127.0.0.1 9000 < {source}", options=iwarp)
        r.check(client.wait(30) == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
        place.same(target, digest, client, server)
