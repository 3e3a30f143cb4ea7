"""libfabric and MPI on hosts of a fabric: each rank is on a host of its own, and all that it says crosses switches, whose counters are asserted
on. Nothing there is shared memory: UCX is told of verbs alone, and libfabric's provider has no other."""
import os, re

from .base import FABRIC_PORT
from .fabric_data import DATA, HERE, THERE, Ends
from .harness import need, row, sh
from .mpi import AS_ROOT, CHECKS, OPEN_MPI, compiled

VERBS_ONLY = "rc_v,ud_v,self"
# The rank, as one launcher or the other says it, is the host; the program follows.
ON_ITS_HOST = 'n=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; exec "$0" run --on host$((n * STEP)) --fabric "$FABRIC" -- "$@"'


def addresses(e):
    """Addresses of IPoIB carry no IP, and programs that agree on a port by TCP want them on a link: so they stand on one, too."""
    sh("ip", "-n", e.ns, "link", "add", "ib0", "type", "veth", "peer", "name", "ib1")
    found = {}
    for host in (HERE, THERE):
        found[host] = next(m.group(1) for m in (re.search(r" ip (10\.\S+)", line) for line in e.f.ask("show", host)) if m)
        sh("ip", "-n", e.ns, "addr", "add", f"{found[host]}/8", "dev", "ib0", "nodad")
    for link in ("ib0", "ib1"):
        sh("ip", "-n", e.ns, "link", "set", link, "up")
    return found


@row(DATA, "libfabric: connections and reliable datagrams between hosts, data checked", "fi_pingpong -p verbs -e msg, rdm -c", limit=120, parallel=True)
def libfabric(r):
    e = Ends(r)
    there = addresses(e)[THERE]
    for kind in ("msg", "rdm"):
        for size in (64, 1 << 20):
            # A question for a path leaves the host, too, and takes another way than the data.
            way = e.there[1:]
            before = e.passed(way)
            argv = ["fi_pingpong", "-p", "verbs", "-e", kind, "-I", "50", "-S", str(size), "-c"]
            s = e.on(THERE, *argv)
            r.tcp_listening(s, FABRIC_PORT)
            c = e.on(HERE, *argv, there)
            for p in (c, s):
                r.check(p.wait(30) == 0, f"{kind} of {size}: exit {p.rc}", c, s)
            r.check(any("50" in line.split() and "=50" in line.split() for line in c.out.lines), "not all came back", c, s)
            passed, words = e.more(before, way)
            r.check(passed >= 50 and words >= 50 * size // 4, f"{kind} of {size}: {passed} packets, {words} words", c)


def ranks(r, e, launcher, program, number, step, env):
    """Ranks on every `step`th host; the lines of all."""
    command = ["sh", "-c", ON_ITS_HOST.replace("STEP", str(step)), r.harness.verbena, *program]
    env = {**AS_ROOT, "FABRIC": e.f.name, "UCX_NET_DEVICES": "mlx5_0:1", **env}
    p = r.plain(*launcher, "-n", str(number), *command, ns=e.ns, env=env)
    code = p.wait(100)
    r.check(code == 0, f"exit {code}", p)
    return p


def sent(e, host):
    """Packets and words out of the port of a host so far: a subnet manager's and its answers are some hundreds at most."""
    counters = dict(line.split() for line in e.f.ask("counters", host, "1"))
    return int(counters["PortXmitPkts"]), int(counters["PortXmitData"])


UCX = {"UCX_TLS": VERBS_ONLY}
for what, shown, launcher, compiler, env in (
        ("Open MPI over UCX", "mpirun --mca pml ucx --mca osc ucx, UCX_TLS=" + VERBS_ONLY,
         [*OPEN_MPI, "--mca", "pml", "ucx", "--mca", "osc", "ucx"], "mpicc.openmpi", UCX),
        ("MPICH over UCX", "mpiexec, UCX_TLS=" + VERBS_ONLY, ["mpiexec.hydra"], "mpicc.mpich", UCX)):
    def mpi(r, launcher=launcher, compiler=compiler, env=env):
        binary = compiled(r, compiler)
        e = Ends(r)
        hosts = [f"host{2 * n}" for n in range(4)]
        p = ranks(r, e, launcher, [binary], 4, 2, env)
        said = [line for line in p.out.lines if line.startswith(("ok ", "not ok "))]
        r.check(len(said) == CHECKS and all(line.startswith("ok ") and line.endswith(", 4 ranks") for line in said), "a check failed", p)
        for host in hosts:
            packets, words = sent(e, host)
            # Each rank sends some messages of a megabyte.
            r.check(packets > 1000 and words > (1 << 20) // 4, f"{host} has sent {packets} packets", p)
    row(DATA, f"{what}, a rank on each of 4 hosts: ring, allreduce, one-sided", shown, limit=150)(mpi)


@row(DATA, "64 processes on 64 hosts send to all others", "mpiexec -n 64: MPI_Alltoall over UCX", limit=180)
def all_to_all(r):
    need("mpicc.mpich")
    source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs", "mpi_alltoall.c")
    binary = os.path.join(r.work, "alltoall")
    sh("mpicc.mpich", "-O1", "-Wall", "-Wextra", "-o", binary, source)
    e = Ends(r, "--fat-tree", "2,12")
    p = ranks(r, e, ["mpiexec.hydra"], [binary], 64, 1, {"UCX_TLS": VERBS_ONLY})
    r.check("ok 64 ranks" in p.out.lines, "not all is right", p)
    for host in range(64):
        packets, words = sent(e, f"host{host}")
        # To each of the others 4 KiB.
        r.check(packets >= 63 and words >= 63 * 1024, f"host{host} has sent {words} words", p)
