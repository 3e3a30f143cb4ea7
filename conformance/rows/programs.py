"""What the programs print and how it is judged: rping, ucmatose, rdma_client, ibv_*_pingpong."""
import re

from .harness import Fail, golden

# rping's own noise: its event thread may find its channel closed after a clean run and exit with 255, on kernels too.
RPING_NOISE = re.compile(r"(client|server) DISCONNECT EVENT\.\.\.$|wait for RDMA_(READ|WRITE)_ADV state 10$|rdma_get_cm_event: ")


def ping_text(n, size):
    """The text of rping's n-th ping of that size: a label, then letters that shift by one with every ping."""
    label = f"rdma-ping-{n}: "
    start = n % 58
    body = "".join(chr(65 + (start + i) % 58) for i in range(max(0, size - len(label))))
    return (label + body)[: size - 1]


def pings(count, size):
    return [ping_text(n, size) for n in range(count)]


def judge_client(row, client, count, size, verbose=True):
    rc = client.wait()
    row.check(rc in (0, 255), f"client exit {rc}", *row.programs)
    noise = [line for line in client.err.lines if line and not RPING_NOISE.match(line)]
    row.check(not noise, "client complained", *row.programs)
    if verbose:
        row.check(client.out.lines == [f"ping data: {t}" for t in pings(count, size)], "client data differs", *row.programs)


def judge_server(row, server, count, size, verbose=True):
    """A server that ended by itself after its client: the kernel's recorded lines, and all the data if it was asked to print them."""
    rc = server.wait(10)
    row.check(rc in (0, 255), f"server exit {rc}", *row.programs)
    want = golden("rxe-rping-small.txt")["server stderr"]
    noise = [line for line in server.err.lines if line and line not in want and not RPING_NOISE.match(line)]
    row.check(not noise, "server complained", *row.programs)
    row.check(want[0] in server.err.lines, "server saw no disconnect", *row.programs)
    if verbose:
        row.check(server.out.lines == [f"server ping data: {t}" for t in pings(count, size)], "server data differs", *row.programs)


def judge_golden(row, name, server, client):
    """Outputs of both sides equal the recorded ones."""
    want = golden(name)
    row.check(client.wait() == 0, f"client exit {client.rc}", *row.programs)
    row.check(server.wait(10) == 0, f"server exit {server.rc}", *row.programs)
    for side, p in (("client", client), ("server", server)):
        row.check([line for line in p.out.lines if line] == want[f"{side} stdout"], f"{side} output differs", *row.programs)
        row.check([line for line in p.err.lines if line] == want[f"{side} stderr"], f"{side} complained", *row.programs)


def judge_pingpong(row, service, server, client, iters=1000, size=4096, patience=30):
    """ibv_rc_pingpong, _uc_, _ud_, _srq_ (service): the recorded lines with numbers, addresses and speeds left out; both sides know the same queue pairs."""
    def shape(lines):
        return [re.sub(r"GID \S+", "GID", re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"\d[\d.]*", "N", line))) for line in lines if line]

    want = golden(f"rxe-ibv_{service}_pingpong.txt")
    row.check(client.wait(patience) == 0, f"client exit {client.rc}", *row.programs)
    row.check(server.wait(10) == 0, f"server exit {server.rc}", *row.programs)
    ends = {}
    for side, p in (("client", client), ("server", server)):
        lines = [line for line in p.out.lines if line]
        strip = lambda ls: [re.sub(r"GID.*|LID \S+|QPN \S+|PSN \S+", "", line) if "address" in line else line for line in ls]
        row.check(shape(strip(lines)) == shape(strip(want[f"{side} stdout"])), f"{side} output differs", *row.programs)
        row.check(lines[-2].startswith(f"{2 * iters * size} bytes") and lines[-1].startswith(f"{iters} iters"), f"{side} count differs", *row.programs)
        # ud writes ": GID" in its own line and ", GID" in the other's.
        found = [re.search(r"(QPN .*)", line).group(1).replace(": GID", ", GID") for line in lines[:-2]]
        ends[side] = (found[:len(found) // 2], found[len(found) // 2:])
    row.check(ends["client"] == ends["server"][::-1], "the two sides differ on addresses", *row.programs)


def judge_xsrq_pingpong(row, server, client):
    """ibv_xsrq_pingpong: each side says who it is and whom it speaks to, which the other confirms, then "success"."""
    row.check(client.wait() == 0, f"client exit {client.rc}", *row.programs)
    row.check(server.wait(10) == 0, f"server exit {server.rc}", *row.programs)
    ends = {}
    for side, p in (("client", client), ("server", server)):
        lines = [line.strip() for line in p.out.lines if line]
        row.check(lines[-1:] == ["success"], f"{side} does not say success", *row.programs)
        ends[side] = dict(line.split(":", 1) for line in lines[:-1])
        row.check(set(ends[side]) == {"local", "remote"}, f"{side} output differs", *row.programs)
    swapped = {"local": ends["server"]["remote"], "remote": ends["server"]["local"]}
    row.check(ends["client"] == swapped, "the two sides differ on addresses", *row.programs)


EVENT = re.compile(r"cma_event type (RDMA_CM_EVENT_\w+)|cma event (RDMA_CM_EVENT_\w+), error (-?\d+)")


def events(lines):
    """rping -d's connection manager events in order, with the status where it prints one."""
    found = []
    for line in lines:
        if m := EVENT.search(line):
            found.append(m.group(1) or f"{m.group(2)} {m.group(3)}")
    # The two kinds of line come through two pipes, so only the order within each is known.
    return sorted(found, key=lambda event: " " in event)


def recorded_events(name, side="client"):
    return events(golden(f"behaviour/{name}.txt")[side])


def both(program):
    """Lines of both outputs in the order in which they came."""
    stamped = list(zip(program.out.times, program.out.lines)) + list(zip(program.err.times, program.err.lines))
    return [line for _, line in sorted(stamped, key=lambda x: x[0])]


def self_check():
    """ping_text against the recorded lines: the judge must agree with the kernel before it judges anyone."""
    want = golden("rxe-rping-small.txt")["client stdout"]
    if [f"ping data: {t}" for t in pings(3, 64)] != want:
        raise Fail("the judge differs from the recorded run")
