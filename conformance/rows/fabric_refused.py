"""What the process of a fabric refuses: programs of other users."""
import os

from .fabric import FABRIC, Fabric
from .harness import LeftOut, need, row

NOBODY = 65534
# Sends what begins as a request does and means nothing: the answer says so. A connection that is closed gives no byte.
ASKS = """\
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.settimeout(30)
    s.connect(sys.argv[1])
    try:
        s.send(b"VbFb" + bytes(40))
        print("answered" if s.recv(4096) else "closed")
    except (BrokenPipeError, ConnectionResetError):
        print("closed")
"""


@row(FABRIC, "another user's programs are refused, where files let them come", "setpriv --reuid=65534; verbena fabric status", limit=60)
def other_user(r):
    if os.geteuid() != 0:
        raise LeftOut("root alone becomes another user")
    need("setpriv")
    f = Fabric(r, "--fat-tree", "2,4")
    place = next(line.split("=", 1)[1] for line in f.says("host1", "env") if line.startswith("VERBENA_FABRIC="))
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

    def asks(*before):
        p = r.plain(*before, "python3", "-c", ASKS, place)
        p.wait()
        return p
    refused = asks(*other)
    r.check(refused.rc != 0 and "PermissionError" in "\n".join(refused.err.lines), "the directory lets others in", refused)
    modes, at = {}, place
    while os.stat(at).st_mode & 0o007 == 0 or at == place:
        modes[at] = os.stat(at).st_mode & 0o777
        os.chmod(at, 0o777)
        at = os.path.dirname(at)
    r.check(asks().out.lines == ["answered"], "the own user is not answered", *r.programs)
    r.check(asks(*other).out.lines == ["closed"], "another user is answered", *r.programs)
    status = r.plain(*other, r.harness.verbena, "fabric", "status", env={"VERBENA_FABRIC": place})
    r.check(status.wait() != 0 and not status.out.lines, "another user is told of the fabric", status)
    for at, mode in modes.items():
        os.chmod(at, mode)
    r.check(f.status()["hosts"] == 8, "the own user is not answered any more")
