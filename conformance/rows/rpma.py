"""librpma's documented scenarios, each a program of ours compiled against Debian's librpma.h (programs/rpma/), on the libraries below: every
server with every client. On one address, where two processes share it, and over a veth; with a kernel guest in middleware_kernel.py. Then
what its calls answer to wrong arguments and in wrong states, and its binary interface, held against what Debian's library was recorded
to say (golden/rpma-*.txt).

A pair of libraries has one row for all scenarios, each on a port of its own."""
import ast, collections, os, signal

from .harness import GOLDEN, LeftOut, need, row, sh
from .middleware import ADDRESSES, HERE, carried, counters, shared

PORT = 7204

# A library to run on: the options of `verbena run` that make it the one, what its path must have in it, the folder that has it in a kernel
# guest, and which lines of golden/rpma-errors.txt it answers otherwise, and how.
Library = collections.namedtuple("Library", "name options place in_guest otherwise")
SYSTEM = Library("Debian's", ("--system-librpma",), "/usr/lib/", "/lib/x86_64-linux-gnu", {})
OURS = Library("Verbena's", (), "/libverbena_rpma.so", "/ours", {
    # A NULL context is no success: this is the device that a connection to the address goes through.
    "rpma_utils_get_ibv_context: 127.0.0.1, local: ": "0, out parameter set",
    # No crash.
    "rpma_mr_advise: mr is NULL: ": "RPMA_E_INVAL",
})
LIBRARIES = (SYSTEM, OURS)

# Name, packets that must have come to the client through Verbena at least (well under what it takes).
SCENARIOS = (
    ("connection", 2),  # a connection with private data
    ("descriptors", 2),  # the bytes of descriptors and of private data
    ("read", 4),  # read
    ("write", 4),  # write
    ("flush_visibility", 50),  # flush to visibility
    ("flush_persistent", 4),  # flush to persistence of a file mapping
    ("several", 8),  # several connections, one thread
    ("several_shared", 8),  # several connections with a shared completion channel
    ("atomic_write", 500),  # atomic write
    ("pingpong", 100),  # messages, ping-pong
    ("pingpong_srq", 100),  # messages, ping-pong with a shared receive queue
    ("imm", 4),  # send and write with immediate data
    ("receive_cq", 10),  # a receive completion queue of its own
    ("gpspm", 20),  # persistence by request and answer (GPSPM)
    ("log", 2),  # log with thresholds and a function of the user
    ("threads", 500),  # eight threads at once
)


def program(row, name):
    if not os.path.exists("/usr/include/librpma.h"):
        raise LeftOut("librpma-dev is not installed")
    return row.compiled(f"rpma/{name}", "rpma")


def loaded(row, p, library):
    """The path of the library that the program says it runs on: the one that was meant."""
    first = (p.out.lines or [""])[0]
    path = os.path.realpath(first.removeprefix("library "))
    row.check(first.startswith("library ") and library.place in path, "another library was loaded", p)
    return path


def judged(row, p, library):
    """Every line a good check, on the library that was meant."""
    row.check(p.wait(30) == 0, f"{p.name.split('-')[-1]} exit {p.rc}", *row.programs)
    lines = p.out.lines[1:]
    loaded(row, p, library)
    row.check(len(lines) >= 3 and all(line.startswith("ok ") for line in lines), "a check failed", *row.programs)


def scenario(row, place, name, least, servers, clients, port=PORT):
    binary = program(row, name)
    s = row.run(binary, "server", place.address, str(port), ns=place.server, options=servers.options)
    row.listening(s, port)
    c = row.run(binary, "client", place.address, str(port), ns=place.client, env={"VERBENA_COUNTERS": counters(row)},
                options=clients.options)
    judged(row, c, clients)
    judged(row, s, servers)
    carried(row, least)


def scenarios(row, where, servers, clients):
    place = where(row)
    for at, (name, least) in enumerate(SCENARIOS):
        row.programs.clear()
        scenario(row, place, name, least, servers, clients, PORT + at)


for group, where in ADDRESSES:
    for servers in LIBRARIES:
        for clients in LIBRARIES:
            row(group, f"librpma: all scenarios; {servers.name} serves {clients.name}", "programs/rpma/*", limit=240, parallel=True)(
                lambda r, where=where, servers=servers, clients=clients: scenarios(r, where, servers, clients))


def equal(row, name, lines, otherwise):
    """Line for line what was recorded, less its comments, but for the lines whose beginnings are in `otherwise`."""
    with open(os.path.join(GOLDEN, name)) as f:
        recorded = [line for line in f.read().splitlines() if line and not line.startswith("#")]
    for case, answer in otherwise.items():
        recorded = [case + answer if line.startswith(case) else line for line in recorded]
    differ = [f"  missing: {line}" for line in recorded if line not in lines] + [f"  new: {line}" for line in lines if line not in recorded]
    row.check(lines == recorded, f"{len(differ)} lines differ from golden/{name}", *row.programs, Lines(differ))


class Lines:
    """Lines for the terminal, with the face of a program."""

    def __init__(self, lines):
        self.lines = lines

    def tail(self):
        return "\n".join(self.lines)


def errors(row, library):
    binary, place = program(row, "errors"), shared(row)
    p = row.run(binary, place.address, "7300", ns=place.server, options=library.options)
    row.check(p.wait(100) == 0, f"exit {p.rc}", p)
    equal(row, "rpma-errors.txt", p.out.lines, library.otherwise)


def abi(row, library):
    need("nm")
    p = row.run(program(row, "abi"), ns=row.namespace(), options=library.options)
    row.check(p.wait() == 0, f"exit {p.rc}", p)
    symbols = sorted(line.split()[-1] for line in sh("nm", "-D", "--defined-only", loaded(row, p, library)).splitlines() if " T " in line)
    equal(row, "rpma-abi.txt", [f"symbol {s}" for s in symbols] + p.out.lines[1:], {})


for library in LIBRARIES:
    row(HERE, f"librpma: the errors of every function, {library.name}", "programs/rpma/errors", limit=120, parallel=True)(
        lambda r, library=library: errors(r, library))
    row(HERE, f"librpma: symbols, sizes, values and texts, {library.name}", "programs/rpma/abi, nm -D", parallel=True)(
        lambda r, library=library: abi(r, library))


def side(row, place, library):
    """How to start a side of the key-value log: C on a library, or (None) Rust."""
    ns, address = place.server, place.address
    if library is None:
        example = row.example("kv_log", "verbena-rpma")
        return (lambda path: row.plain(example, "serve", f"{address}:{PORT}", path, ns=ns),
                lambda entries: row.plain(example, "put", address, f"{address}:{PORT}", *entries, ns=ns))
    binary = row.compiled("../../crates/librpma/examples/kv_log", "rpma")
    more = {"ns": ns, "options": library.options}
    return (lambda path: row.run(binary, "serve", address, str(PORT), path, **more),
            lambda entries: row.run(binary, "put", address, str(PORT), *entries, **more))


def key_value_log(row, serve, put):
    """What was put is there when the server was killed and starts again."""
    path = os.path.join(row.work, "kv_log")

    def server():
        p = serve(path)
        row.listening(p, PORT)
        return p

    def killed(p):
        p.signal(signal.SIGKILL)
        row.check(p.wait(5) == -signal.SIGKILL, f"exit {p.rc}", p)

    first = server()
    for entries in (("colour", "blue", "size", "7"), ("size", "11", "weight", "3 kg")):
        client = put(entries)
        row.check(client.wait(20) == 0, f"exit {client.rc}", *row.programs)
    killed(first)
    second = server()
    second.until("^recovered ", stream="out")
    found = ast.literal_eval(second.out.lines[0].removeprefix("recovered "))
    row.check(found == {"colour": "blue", "size": "11", "weight": "3 kg"}, f"recovered {found}", *row.programs)
    killed(second)
    os.remove(path)
    row.programs.clear()


@row(HERE, "librpma: a key-value log in C and in Rust, its server killed", "crates/librpma/examples/kv_log.c, crates/rpma/examples/kv_log.rs", limit=600, parallel=True)
def logs(r):
    if not os.path.exists("/usr/include/librpma.h"):
        raise LeftOut("librpma-dev is not installed")
    place = shared(r)
    # Debian's client flushes only where direct writes are declared, which Rust's server does not: it has FLUSH.
    for servers, clients in ((OURS, OURS), (OURS, None), (None, OURS), (None, None), (SYSTEM, OURS), (OURS, SYSTEM), (SYSTEM, None)):
        key_value_log(r, side(r, place, servers)[0], side(r, place, clients)[1])
