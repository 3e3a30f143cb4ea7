"""Programs of sockets that `verbena run --rsockets` takes to RDMA, under load and to their ends."""
import os, re

from .harness import need, row
from .rsockets import GROUP, Preloaded, by_rdma, start_nginx


@row(GROUP, "preloaded: socat, a file one way, its checksum back after the half close, by RDMA", "socat, EXEC:sha256sum", limit=60)
def half_close(r):
    need("socat")
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    counts = os.path.join(r.work, "counters")
    server = place.run("socat", "TCP-LISTEN:9000,bind=127.0.0.1", "EXEC:sha256sum,pipes")
    r.listening(server, 9000)
    client = place.run("sh", "-c", f"exec socat -t 20 - TCP:127.0.0.1:9000 < {source}", counters=counts)
    r.check(client.wait(30) == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
    r.check(client.out.lines == [f"{digest}  -"], "another answer", client, server)
    place.carried(counts, client, server)


@row(GROUP, "preloaded: nginx under wrk, every request counted, by RDMA", "nginx, wrk -t1 -c8", limit=60)
def load(r):
    need("wrk")
    place = Preloaded(r)
    with open(os.path.join(r.work, "page"), "wb") as f:
        f.write(os.urandom(4096))
    counts, log = (os.path.join(r.work, name) for name in ("counters", "log"))
    short = f"log_format short '$status $body_bytes_sent'; access_log {log} short; keepalive_requests 1000000"
    server = start_nginx(place, http=short)
    client = place.run("wrk", "-t1", "-c8", "-d3s", "http://127.0.0.1:9000/page", counters=counts)
    r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    text = "\n".join(client.out.lines)
    done = re.search(r"(\d+) requests in", text)
    r.check(done and int(done[1]) >= 500, f"{done and done[1]} requests", client, server)
    # wrk's table takes descriptors up to 10 and three a connection. Verbena's own are among them, so some connections are not made.
    failed = [int(n) for n in re.findall(r"(?:read|write|timeout) (\d+)", text)]
    r.check(not any(failed) and "Non-2xx" not in text, "errors", client, server)
    server.end()
    with open(log) as f:
        served = [line.split() for line in f]
    # wrk leaves while its last requests are on their way.
    r.check(set(map(tuple, served)) == {("200", "4096")}, f"other answers: {sorted(set(map(tuple, served)))}", client, server)
    r.check(0 <= len(served) - int(done[1]) <= 8, f"{len(served)} answers to {done[1]} requests", client, server)
    place.carried(counts, client, server)


# AES-128 in counter mode over zeros, with a key and a counter of 0: the first GiB.
STREAM = f"openssl enc -aes-128-ctr -K {'0' * 32} -iv {'0' * 32} -in /dev/zero 2> /dev/null | head -c {1 << 30}"
STREAM_SHA256 = "a110c53382d90198328a45c24dfc98a504911e2abf65c16d6c879ae958528cbd"


@row(GROUP, "preloaded: nc, a stream of 1 GiB, its checksum, by RDMA", "nc, sha256sum", limit=90)
def gibibyte(r):
    need("nc", "openssl")
    place = Preloaded(r)
    counts = os.path.join(r.work, "counters.%p")
    server = place.run("sh", "-c", "nc -l 127.0.0.1 9000 | sha256sum")
    r.listening(server, 9000)
    client = place.run("sh", "-c", f"{STREAM} | nc -N 127.0.0.1 9000", counters=counts)
    r.check(client.wait(80) == 0 and server.wait(20) == 0, f"exit {client.rc}, {server.rc}", client, server)
    r.check(server.out.lines == [f"{STREAM_SHA256}  -"], "other bytes have come", client, server)
    files = [os.path.join(r.work, name) for name in os.listdir(r.work) if name.startswith("counters.")]
    r.check(any(by_rdma(file) for file in files), "its bytes did not go by RDMA", client, server)
