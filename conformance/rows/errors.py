"""Bad calls and the errno of the manual pages (programs/errors.c)."""
from .harness import row

GROUPS = ("device", "memory", "queues", "states", "addresses", "connect", "refusal", "endpoints", "events", "limits")

for group in GROUPS:
    def run(r, group=group):
        p = r.run(r.compiled("errors"), group, ns=r.namespace())
        rc = p.wait(25)
        bad = [line for line in p.out.lines if line.startswith("not ok")]
        r.check(not bad, "; ".join(line.removeprefix("not ok ") for line in bad))
        r.check(rc == 0 and any(line.startswith("ok") for line in p.out.lines), f"exit {rc}")
    row("bad calls", f"errno: {group}", f"programs/errors.c {group}")(run)
