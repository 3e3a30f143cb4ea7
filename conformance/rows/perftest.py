"""perftest: latency and bandwidth of every operation over every transport, with the options that change what a program asks of
verbs. Each row runs one program in several ways, one after the other, and judges every table that they print.

Latencies and speeds are checked for sense, not for size: this is no benchmark. perftest 6.06 has no writes with immediate data."""
import re

from .harness import Fail, row
from .kernel import IN, OUT, kernel_asks, kernel_serves

GROUP = "perftest"
# The sizes of -a: powers of two from 2 bytes, to 8 MiB or for datagrams to the MTU.
ALL, DATAGRAMS = [2 << n for n in range(23)], [2 << n for n in range(12)]
PORT = 18515
# No latency is a second, no speed a hundred GiB a second.
MOST_USEC, MOST_MIB = 1e6, 1e5


def numbers(lines):
    """The lines of the table that is printed last, each as numbers."""
    heads = [i for i, line in enumerate(lines) if line.lstrip().startswith("#bytes")]
    table = lines[heads[-1] + 1:] if heads else []
    # The deviation of numbers that are far apart is the root of a negative one.
    return [[float(w) for w in line.split()] for line in table if re.fullmatch(r"([\d.]|-?nan|\s)+", line) and line.split()]


def sane_latency(n):
    """bytes, iterations, then in microseconds least, most, typical, mean, deviation, two percentiles."""
    _, _, least, most, typical, mean, _, percentile, percentile_more = n
    return 0 < least <= min(typical, mean) and max(typical, mean, percentile, percentile_more) <= most < MOST_USEC


def sane_bandwidth(n):
    """bytes, iterations, peak and mean in MiB/s, millions of messages a second: the mean is the rate times the size."""
    size, _, peak, mean, rate = n
    # Each is rounded: the mean to 0.01, the rate to 0.000001, half of which is half a message a second.
    rounding = 0.02 + 0.51 * size / (1 << 20)
    return 0 <= mean < MOST_MIB and 0 < rate and peak >= 0 and abs(mean - rate * 1e6 * size / (1 << 20)) <= rounding + 0.01 * mean


def spoilt(client, server):
    """perftest's own faults on a busy machine. It measures the processor's clock rate first, and where it could not says so and
    prints nonsense. With -R its client connects once to exchange what it knows and once to measure, for which its server begins to
    listen anew; where it is too early, it destroys what it has destroyed as it tries again (mended in 2025, perftest 3d9d8d0): that
    is an error, or crashes it."""
    early = client.rc in (1, -11, 139) and any(re.search("REJECTED; error: 8|UNREACHABLE; error: 1", line) for line in client.err.lines)
    if early:
        server.end()
    return early or any("Correlation coefficient" in line for line in client.err.lines)


def judge(row, how, program, sizes, iterations, client, server, patience=60):
    """Both ended well, and the client printed a sane line for each size; false where its numbers mean nothing."""
    for side, p in (("client", client), ("server", server)):
        try:
            rc = p.wait(patience)
            if p is client and spoilt(client, server):
                server.running() and server.wait(10)
                return False
        except Fail as e:
            raise Fail(f"{how}: {e}", "\n".join(q.tail() for q in (client, server))) from None
        row.check(rc == 0, f"{how}: {side} exit {rc}", client, server)
    table = numbers(client.out.lines)
    sane = sane_latency if program.endswith("_lat") else sane_bandwidth
    row.check([n[0] for n in table] == sizes, f"{how}: not every size", client)
    row.check(all(n[1] == iterations for n in table), f"{how}: not all iterations", client)
    row.check(all(sane(n) for n in table), f"{how}: numbers without sense", client)
    return True


def measured(row, once):
    """Until perftest's own faults leave something to judge."""
    if not any(once() for _ in range(20)):
        raise Fail("perftest fails by itself", "\n".join(p.tail(4) for p in row.programs))


def options(program, transport, how, iterations):
    """The arguments, the sizes and the iterations that the table will have."""
    args = how.split()
    asked = dict(zip(args, args[1:]))
    sizes = DATAGRAMS if "UD" == transport else ALL
    default = 8 if "atomic" in program else 2 if program.endswith("_lat") else 65536 if transport != "UD" else 4096
    sizes = sizes if "-a" in args else [int(asked.get("-s", default))]
    # Summed over the queue pairs, of one direction.
    total = iterations * int(asked.get("-q", 1))
    return [program, "-F", "-c", transport, "-n", str(iterations), *args], sizes, total


def local(row, program, transport, ways, iterations):
    ns = row.namespace()

    def once(how):
        argv, sizes, total = options(program, transport, how, iterations)
        server = row.run(*argv, ns=ns)
        row.listening(server, PORT) if "-R" in argv else row.tcp_listening(server)
        client = row.run(*argv, "127.0.0.1", ns=ns)
        if transport in ("RC", "XRC"):
            return judge(row, how, program, sizes, total, client, server)
        try:
            return judge(row, how, program, sizes, total, client, server, patience=25)
        except Fail:
            # Nobody sends again what is lost over UC and UD, and perftest waits for it for ever.
            lost = client.running() or server.running()
            client.end()
            server.end()
            if lost:
                return False
            raise

    for how in ways:
        measured(row, lambda: once(how))


LATENCY = {"RC": ["-a", "-R", "-I 200 -s 200"], "XRC": ["-s 2", "-s 65536", "-I 200 -s 200"], "UC": ["-s 2", "-s 65536", "-I 200 -s 200"], "UD": ["-a", "-R", "-I 200 -s 200"]}
BANDWIDTH = {"RC": ["-a", "-R", "-e", "-b", "-q 16", "-b -q 16 -R", "-I 64 -s 64", "-l 10"],
             "XRC": ["-s 1048576", "-e", "-b", "-q 16", "-I 64 -s 64"],
             "UC": ["-s 1048576", "-e", "-b", "-q 16", "-I 64 -s 64"],
             "UD": ["-a", "-R", "-e", "-b", "-q 16", "-I 64 -s 64"]}
# What a program lacks of these, and what it has beside them. All sizes take perftest 10 s and more, in which it measures the clock
# rate for each: over one transport they are enough, and latencies over one kind of operation.
ENDS = ["-s 2", "-s 65536"]
LACKS = {"ib_write_bw": ["-e"], "ib_write_lat": ["-a"], "ib_read_lat": ["-a", "-I 200 -s 200"], "ib_atomic_lat": ["-a", "-I 200 -s 200", "-s 2", "-s 65536"],
         "ib_read_bw": ["-I 64 -s 64"], "ib_atomic_bw": ["-a", "-s 1048576", "-I 64 -s 64"]}
MORE = {"ib_send_lat": ["-e", "--use-srq"], "ib_write_lat": ENDS, "ib_read_lat": [*ENDS, "-e"], "ib_atomic_lat": ["-e", "-A CMP_AND_SWAP"],
        "ib_send_bw": ["--use-srq"], "ib_atomic_bw": ["-A CMP_AND_SWAP"]}
VERBS = (("send", "messages", ("RC", "XRC", "UC", "UD")), ("write", "writes", ("RC", "XRC", "UC")), ("read", "reads", ("RC", "XRC")),
         ("atomic", "atomics", ("RC", "XRC")))

for verb, what, transports in VERBS:
    for kind, name, ways in (("lat", "latency", LATENCY), ("bw", "bandwidth", BANDWIDTH)):
        for transport in transports:
            program = f"ib_{verb}_{kind}"
            more = [w for w in MORE.get(program, []) if transport != "XRC" or w not in ("--use-srq", *ENDS)]
            chosen = [w for w in ways[transport] if w not in LACKS.get(program, [])] + more
            # Sixteen queue pairs share as many receives as one needs: over the others, what finds none is lost.
            chosen += ["--use-srq -q 16 -r 1024"] if (program, transport) == ("ib_send_bw", "RC") else []
            row(GROUP, f"{name} of {what} over {transport}", f"{program} -c {transport}: {', '.join(chosen)}", limit=150)(
                lambda r, p=program, t=transport, w=chosen: local(r, p, t, w, 20 if p.endswith("_lat") else 50))


def group_on_one_host(row, program, iterations):
    """perftest's multicast group is interface-local (ff01::/16), whatever GID it chooses: both ends are on one interface.
    ib_send_bw takes an IPv4 GID and that group for different families and gives up, so it is given an IPv6 one, and ib_send_lat none."""
    ns, _ = row.veth()
    gid = [] if program.endswith("_lat") else ["-x", "2"]
    argv = [program, "-F", "-c", "UD", "-g", "-n", str(iterations), "-d", "rxe_veth0", *gid]

    def once():
        server = row.run(*argv, ns=ns)
        row.tcp_listening(server)
        client = row.run(*argv, "127.0.0.1", ns=ns)
        try:
            size = 2 if program.endswith("_lat") else 4096
            return judge(row, "-g", program, [min(size, 1024)], iterations, client, server, patience=25)
        except Fail:
            lost = client.running() or server.running()
            client.end()
            server.end()
            if lost:
                return False
            raise

    measured(row, once)


for program, name in (("ib_send_lat", "latency"), ("ib_send_bw", "bandwidth")):
    row(GROUP, f"{name} of messages to a multicast group", f"{program} -c UD -g", limit=150)(
        lambda r, p=program: group_on_one_host(r, p, 20 if p.endswith("_lat") else 50))


def with_kernel(row, direction, program, ways):
    asks = direction is kernel_asks

    def once(how):
        argv, sizes, total = options(program, "RC", how, 10)
        ours = lambda g, us: [*argv, "-d", us.device]
        guest = lambda g, us: [*argv, "-d", "rxe0"]
        to = lambda g, us: us.ip if asks else g.ip
        server, client = direction(row, ours if asks else guest, lambda g, us: [*(guest if asks else ours)(g, us), to(g, us)],
                                   PORT if "-R" in argv else None)
        return judge(row, how, program, sizes, total, client, server)

    for how in ways:
        measured(row, lambda: once(how))


for group, direction in ((IN, kernel_serves), (OUT, kernel_asks)):
    for verb, what, _ in VERBS:
        for kind, name in (("lat", "latency"), ("bw", "bandwidth")):
            program = f"ib_{verb}_{kind}"
            chosen = ["-s 8"] if verb == "atomic" else ["-s 64", "-s 8192"]
            # An emulated server begins to listen later than a client of ours connects.
            chosen += ["-R"] if direction is kernel_asks else []
            row(group, f"{name} of {what}", f"{program}: {', '.join(chosen)}", limit=120, kernel=True, parallel=True)(
                lambda r, d=direction, p=program, w=chosen: with_kernel(r, d, p, w))
