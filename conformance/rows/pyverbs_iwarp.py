"""rdma-core's own Python tests on an iWARP device, beside the kernel's siw."""
import os

from .harness import HERE, row
from .pyverbs import HugePages, WRITING, counts, one, said, suite

TABLE = os.path.join(HERE, "PYVERBS-IWARP.md")
# By the same tests and draws in a user mode kernel, Linux 7.2; siw has one GID, whose second half is zero, so what needs a port with a
# GID is skipped.
KERNEL = os.path.join(HERE, "golden", "siw-rdma-core-44-tests.txt")
HEAD = """# rdma-core's Python tests on an iWARP device

The vendor-neutral modules of Debian's python3-pyverbs (rdma-core 44), unmodified: on the kernel's siw (7.2), and through
`verbena run --iwarp` on a device of a veth. Both report one GID, the hardware address, which the tests take for none: they skip
what moves data. Written by `conformance/run --only 'an iWARP device on a veth'`.

"""


def kernel():
    with open(KERNEL) as f:
        return dict(line.strip().split(" | ", 1) for line in f)


def write(theirs, ours):
    text = HEAD + "| device | ok | skipped | failed | errors |\n|---|---|---|---|---|\n"
    for name, results in (("the kernel's siw", theirs), ("Verbena's", ours)):
        text += f"| {name} | " + " | ".join(str(n) for n in counts(results.values()).values()) + " |\n"
    text += "\n| test | the kernel's siw | Verbena's |\n|---|---|---|\n"
    text += "".join(f"| {t} | {theirs.get(t, 'never run')} | {r} |\n" for t, r in ours.items())
    with open(TABLE + ".new", "w") as f:
        f.write(text)
    os.replace(TABLE + ".new", TABLE)


@row("rdma-core's Python tests", "an iWARP device on a veth", "pyverbs: run_tests.py --dev siw_veth0", limit=900, parallel=True)
def on_iwarp(r):
    with WRITING:
        runner = suite(r.harness.work)
    ns, theirs = r.veth()[0], kernel()
    with HugePages():
        ours = {test: one(r, runner, "siw_veth0", "tests." + test, ns, ("--iwarp",)) for test in theirs}
    if r.harness.writes:
        write(theirs, ours)
    r.note = said(counts(ours.values()))
    worse = [f"{t}: {ours[t]}" for t, result in theirs.items() if result == "ok" and ours[t] != "ok"]
    r.check(not worse, f"they pass on siw: {worse[:5]}")
    bad = [f"{t}: {result}" for t, result in ours.items() if result.startswith(("failed", "error"))]
    r.check(not bad, f"tests fail: {bad[:5]}")
