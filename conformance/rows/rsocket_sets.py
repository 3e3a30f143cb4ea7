"""Sets of epoll(7) of programs that are preloaded for rsockets: one within another, in poll(2) and select(2), copied, over a fork, and waited in
by several threads."""
import os

from .harness import row
from .rsockets import GROUP, PEER, Preloaded

# What the other end of each connection does: it sends back what comes.
ECHO = PEER + """
def echo(c):
    while data := c.recv(100): c.sendall(data)
serve(echo)
"""
ASK = PEER + """
import queue, select
LONG, IN = 30, select.EPOLLIN
s = ask()
def sees(wait, *fds):
    s.sendall(b"x"); found = wait(); assert found == [(fd, IN) for fd in fds], found; assert s.recv(1) == b"x"
def slept_in():
    e = select.epoll(); e.register(s, IN); assert e.poll(0.01) == []; return e
"""
# One after the other on one connection, which no set may lose on the way.
KINDS = {
    "within another": """
inner, outer = slept_in(), select.epoll(); outer.register(inner, IN); assert outer.poll(0.01) == []
for _ in range(3): sees(lambda: outer.poll(LONG), inner.fileno()); assert inner.poll(0) == []
""",
    "in poll and select": """
e, p = slept_in(), select.poll(); p.register(e, select.POLLIN)
for _ in range(3): sees(lambda: p.poll(LONG * 1000), e.fileno())
sees(lambda: [(f.fileno(), IN) for f in select.select([e], [], [], LONG)[0]], e.fileno())
""",
    "copied": """
first = slept_in(); copy = select.epoll.fromfd(os.dup(first.fileno()))
sees(lambda: copy.poll(LONG), s.fileno()); sees(lambda: first.poll(LONG), s.fileno())
first.close(); sees(lambda: copy.poll(LONG), s.fileno())
""",
    "over a fork": """
e = slept_in(); child = os.fork()
if child == 0: e.close(); os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
sees(lambda: e.poll(LONG), s.fileno())
""",
    "waited in by two threads before it had the connection": """
e, taken = select.epoll(), queue.Queue(); s.setblocking(False)
def take_one():
    while True:
        for _ in e.poll(LONG):
            try: taken.put(s.recv(1))
            except BlockingIOError: continue
            e.poll(0.05); return taken.put(threading.current_thread())
for _ in range(2): threading.Thread(target=take_one).start()
time.sleep(0.3); e.register(s, IN)
for byte in (b"a", b"b"): s.sendall(byte); assert taken.get(timeout=LONG) == byte; taken.get(timeout=LONG).join()
s.setblocking(True)
""",
}


@row(GROUP, "sets: one within another, in poll and select, copied, over a fork, waited in by two threads before", "python3, select.epoll", limit=90)
def sets(r):
    place, counts = Preloaded(r), os.path.join(r.work, "counters")
    server = place.run("python3", "-c", ECHO)
    server.until("listening")
    script = "".join(f"{body}print({kind!r}, flush=True)\n" for kind, body in KINDS.items())
    client = place.run("python3", "-c", ASK + script, counters=counts)
    r.check(client.wait(80) == 0 and client.out.lines == list(KINDS), f"exit {client.rc}", client, server)
    place.carried(counts, client, server)
    r.check(server.wait(10) == 0, f"exit {server.rc}", server)
