"""connect(2) that does not wait, of programs that are preloaded for rsockets."""
import os, signal, time

from .harness import need, row
from .rsockets import GROUP, OURS, PEER, Preloaded

# One way to wait after the other: what each says of a connection that comes about, and of one that is refused.
EACH_WAY = PEER + """
import errno, select, selectors
def epoll(s):
    e = select.epoll(); e.register(s, select.EPOLLOUT); return e.poll(5)
def epoll_before(s, e): return e.poll(5)
def poll(s):
    p = select.poll(); p.register(s, select.POLLOUT); return p.poll(5000)
def choose(s): return select.select([], [s], [], 5)[1]
for port, count in ((9000, 4), (9001, 4)):
    for way in (epoll, epoll_before, poll, choose):
        s = socket.socket(); s.setblocking(False)
        if way == epoll_before: e = select.epoll(); e.register(s, select.EPOLLOUT)
        begun = time.monotonic(); said = s.connect_ex(("127.0.0.1", port))
        assert said in (errno.EINPROGRESS, errno.ECONNREFUSED), said
        assert time.monotonic() - begun < 0.5
        if said == errno.EINPROGRESS:
            assert (way(s, e) if way == epoll_before else way(s)), way
            said = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if said == 0:
            assert s.getpeername() == ("127.0.0.1", 9000)
            s.setblocking(True); s.sendall(b"hello"); assert s.recv(5) == b"hello"
        print(way.__name__, errno.errorcode.get(said, 0), flush=True)
        s.close()
"""


@row(GROUP, "connect: without waiting, then each way to wait; by RDMA, and refused", "python3, select, poll, epoll", limit=60)
def each_way(r):
    place, counts = Preloaded(r), os.path.join(r.work, "counters")
    server = place.run("python3", "-c", PEER + "serve(lambda c: (c.sendall(c.recv(5)), c.recv(1)), 4)")
    server.until("listening")
    client = place.run("python3", "-c", EACH_WAY, counters=counts)
    ways = ("epoll", "epoll_before", "poll", "choose")
    wanted = [f"{way} {said}" for said in ("0", "ECONNREFUSED") for way in ways]
    r.check(client.wait(40) == 0 and client.out.lines == wanted, f"exit {client.rc}", client, server)
    place.carried(counts, client, server)
    r.check(server.wait(10) == 0, f"exit {server.rc}", server)


@row(GROUP, "accept: two threads at one listener, a connection by TCP and one by RDMA: each thread has one", "python3, threading", limit=60)
def threads(r):
    place, counts = Preloaded(r), os.path.join(r.work, "counters")
    server = place.run("python3", "-c", PEER + """
s = socket.create_server(("127.0.0.1", 9000)); both = threading.Barrier(3)
def one():
    c = s.accept()[0]; both.wait(20)
    for _ in range(10): c.sendall(c.recv(5))
for _ in range(2): threading.Thread(target=one).start()
time.sleep(0.3); print("listening", flush=True); both.wait(20)
""")
    server.until("listening")
    talk = PEER + "s = ask(); print(*{(s.sendall(b'hello'), s.recv(5).decode())[1] for _ in range(10)}, flush=True)"
    plain = place.plain("python3", "-c", talk)
    # Both threads have been woken by then.
    time.sleep(0.3)
    client = place.run("python3", "-c", talk, counters=counts)
    r.check(client.wait(30) == 0 and client.out.lines == ["hello"], f"exit {client.rc}", client, server)
    place.carried(counts, client, server)
    r.check(plain.wait(10) == 0 and plain.out.lines == ["hello"] and server.wait(10) == 0, "by TCP", plain, server)


@row(GROUP, "connect: without waiting, a host that does not answer by RDMA: the event loop goes on, then TCP", "python3, asyncio", limit=60)
def silent(r):
    """The host's port of RDMA belongs to a process that is stopped, and its server has no rsockets."""
    need("rstream")
    a, b = r.veth()
    stopped = r.run("rstream", ns=b)
    r.listening(stopped, 7471)
    stopped.signal(signal.SIGSTOP)
    server = r.plain("python3", "-c", PEER.replace("127.0.0.1", "") + "serve(lambda c: (c.sendall(c.recv(5)), c.recv(1)))", ns=b)
    server.until("listening")
    client = r.run("python3", "-c", """
import asyncio
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True: await asyncio.sleep(0.01); ticks += 1
    task = asyncio.create_task(tick())
    reader, writer = await asyncio.open_connection("10.90.0.2", 9000)
    writer.write(b"hello"); print((await reader.readexactly(5)).decode(), "in time" if ticks > 100 else ticks, flush=True)
    writer.close()
asyncio.run(main())
""", ns=a, options=OURS)
    r.check(client.wait(30) == 0 and client.out.lines == ["hello in time"], f"exit {client.rc}", client, server)
    stopped.signal(signal.SIGCONT)
    stopped.end()
