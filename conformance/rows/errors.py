"""Small C programs: bad calls and the errno of the manual pages (programs/errors.c), memory, adapters of vendors."""
import os

from .harness import LeftOut, row

GROUPS = ("device", "memory", "queues", "states", "addresses", "connect", "refusal", "endpoints", "events", "limits")

for group in GROUPS:
    def run(r, group=group):
        p = r.run(r.compiled("errors"), group, ns=r.namespace())
        rc = p.wait(25)
        bad = [line for line in p.out.lines if line.startswith("not ok")]
        r.check(not bad, "; ".join(line.removeprefix("not ok ") for line in bad))
        r.check(rc == 0 and any(line.startswith("ok") for line in p.out.lines), f"exit {rc}")
    row("bad calls", f"errno: {group}", f"programs/errors.c {group}")(run)


@row("memory", "an idle RC queue pair takes at most 16 KiB, its 128 receives posted or not", "programs/memory.c", limit=60)
def memory(r):
    ns = r.namespace()
    for count, receives in ((10000, 0), (1000, 128)):
        p = r.run(r.compiled("memory"), str(count), str(receives), ns=ns)
        r.check(p.wait(40) == 0 and p.out.lines, f"exit {p.rc}", p)
        taken = int(p.out.lines[0])
        r.check(taken <= 16384, f"{taken} bytes with {receives} receives", p)


@row("vendors", "libmlx5 and libefa load beside Verbena, and a program that links them takes the plain verbs", "programs/vendors.c")
def vendors(r):
    if not all(os.path.exists(f"/usr/include/infiniband/{header}.h") for header in ("mlx5dv", "efadv")):
        raise LeftOut("libibverbs-dev has no mlx5dv.h and efadv.h")
    p = r.run(r.compiled("vendors", "mlx5", "efa"), ns=r.namespace())
    rc = p.wait(20)
    bad = [line for line in p.out.lines if line.startswith("not ok")]
    r.check(not bad, "; ".join(line.removeprefix("not ok ") for line in bad))
    r.check(rc == 0 and "ok plain verbs: a message" in p.out.lines, f"exit {rc}", p)
