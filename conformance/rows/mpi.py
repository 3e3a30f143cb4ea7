"""MPI over UCX and libfabric over Verbena: ranks of one address, which share it as processes do, and without any setting. Each row runs
programs/mpi.c: a ring, reductions, and one-sided operations, small and large."""
import os

from .harness import need, row, sh
from .loopback import HERE
from .middleware import VERBS_ONLY, carried, counters

OPEN_MPI = ["mpirun.openmpi", "--oversubscribe"]
# Open MPI does not start as root unless told to.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
CHECKS = 8


def compiled(row, compiler):
    """programs/mpi.c, by the compiler of one implementation."""
    need(compiler)
    binary = os.path.join(row.harness.work, f"mpi-{compiler}")
    if not os.path.exists(binary):
        source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "programs", "mpi.c")
        sh(compiler, "-O1", "-Wall", "-Wextra", "-o", binary, source)
    return binary


def ranks(row, launcher, compiler, number, env, verbs):
    """All ranks end, and all that was checked was right. `verbs`: the packets of the ranks went through Verbena."""
    program = compiled(row, compiler)
    env = {**AS_ROOT, **env, "VERBENA_COUNTERS": counters(row)}
    # One address, which is not a loopback address: libfabric binds to it.
    p = row.run(*launcher, "-n", str(number), program, ns=row.veth()[0], env=env)
    code = p.wait(120)
    row.check(code == 0, f"exit {code}", p)
    said = [line for line in p.out.lines if line.startswith(("ok ", "not ok "))]
    row.check(len(said) == CHECKS and all(line.startswith("ok ") and line.endswith(f", {number} ranks") for line in said), "a check failed", p)
    carried(row, 1000 if verbs else 0)


UCX = {"UCX_TLS": VERBS_ONLY}
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"]
for number in (2, 4):
    for what, program, launcher, compiler, env, verbs in (
            ("Open MPI over UCX", "mpirun --mca pml ucx --mca osc ucx, UCX_TLS=" + VERBS_ONLY,
             [*OPEN_MPI, "--mca", "pml", "ucx", "--mca", "osc", "ucx"], "mpicc.openmpi", UCX, True),
            ("Open MPI over libfabric", "mpirun --mca mtl ofi", [*OPEN_MPI, *OFI], "mpicc.openmpi", {}, True),
            ("Open MPI without a setting", "mpirun", OPEN_MPI, "mpicc.openmpi", {}, False),
            ("MPICH over UCX", "mpiexec, UCX_TLS=" + VERBS_ONLY, ["mpiexec.hydra"], "mpicc.mpich", UCX, True),
            ("MPICH without a setting", "mpiexec", ["mpiexec.hydra"], "mpicc.mpich", {}, False)):
        row(HERE, f"{what}, {number} ranks: ring, allreduce, one-sided", program, limit=150)(
            lambda r, launcher=launcher, compiler=compiler, number=number, env=env, verbs=verbs: ranks(r, launcher, compiler, number, env, verbs))
