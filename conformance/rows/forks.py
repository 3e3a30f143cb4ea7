"""fork, exit and pthread_cancel in a program that has RDMA open (programs/lifecycle.c)."""
from .harness import row

LIFE = "processes and threads"

SCENES = (
    ("child-exits", "fork with a device open, the child exits"),
    ("child-opens", "fork with a device open, the child opens it anew"),
    ("parent-killed", "fork, the parent is killed, the child takes over its port"),
    ("exit-open", "exit with everything open and threads blocked"),
    ("exit-in-malloc", "exit in a signal handler that interrupted malloc"),
    ("cancel-cm", "pthread_cancel of a thread in rdma_get_cm_event"),
    ("cancel-cq", "pthread_cancel of a thread in ibv_get_cq_event"),
    ("cancel-async", "pthread_cancel of a thread in ibv_get_async_event"),
)

for scene, what in SCENES:
    def run(r, scene=scene):
        p = r.run(r.compiled("lifecycle"), scene, ns=r.namespace())
        rc = p.wait(20)
        r.check(any(line == f"ok {scene}" for line in p.out.lines), next((line for line in p.out.lines if line.startswith("not ok")), f"exit {rc}"))
        r.check(rc == (-9 if scene == "parent-killed" else 0), f"exit {rc}")
    row(LIFE, what, f"programs/lifecycle.c {scene}")(run)
