"""rdma-core's own Python tests on an InfiniBand device of `verbena fabric`."""
from .fabric import Fabric
from .harness import row
from .pyverbs import HugePages, WRITING, counts, one, said, suite
from .pyverbs_iwarp import kernel


@row("rdma-core's Python tests", "an InfiniBand device of a fabric", "pyverbs: run_tests.py --dev mlx5_0", limit=900, parallel=True)
def on_infiniband(r):
    with WRITING:
        runner = suite(r.harness.work)
    f, ns = Fabric(r, "--fat-tree", "2,4"), r.namespace()
    f.opensm("host1")
    with HugePages():
        ours = {test: one(r, runner, "mlx5_0", "tests." + test, ns, ("--on", "host0", "--fabric", f.name)) for test in kernel()}
    r.note = said(counts(ours.values()))
    bad = [f"{t}: {result}" for t, result in ours.items() if result.startswith(("failed", "error"))]
    r.check(not bad, f"tests fail: {bad[:5]}")
