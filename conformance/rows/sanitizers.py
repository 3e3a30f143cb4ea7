"""Programs built with a sanitizer (programs/ends.c), which has places of its own for memory and its own functions for the C library's; and
programs under valgrind's memcheck, which follows each byte that was not written, up to the system calls."""
import re
import signal
import time

from .harness import need, row
from .killed import gone

# What the object does with its own memory has locks that ThreadSanitizer does not see.
OPTIONS = {"thread": {"TSAN_OPTIONS": "report_bugs=0"}, "address": {}, "undefined": {}}

for sanitizer, options in OPTIONS.items():
    def run(r, sanitizer=sanitizer, options=options):
        ns, ends = r.namespace(), r.compiled("ends", sanitizer=sanitizer)
        server = r.run(ends, "server", "established", "127.0.0.1", ns=ns, env=options)
        r.listening(server, 7300)
        client = r.run(ends, "client", "established", "127.0.0.1", ns=ns, env=options)
        for end in (client, server):
            end.until("RDMA_CM_EVENT_ESTABLISHED")
        at = time.monotonic()
        client.signal(signal.SIGKILL)
        gone(r, server, at, 2)
    row("programs with a sanitizer", f"both ends built with -fsanitize={sanitizer}, the client is killed", f"programs/ends.c, -fsanitize={sanitizer}")(run)

MEMCHECK = ("valgrind", "-q", "--error-exitcode=99")
# What valgrind says of a system call that it does not know yet, which then fails with ENOSYS.
UNKNOWN_CALL = re.compile(r"WARNING: unhandled \S+ syscall|write your own handler|README_MISSING_SYSCALL|Nevertheless we consider|valgrind.org/support")


def clean(r, *ends):
    """Both ends under valgrind have worked, and it found nothing."""
    for end in reversed(ends):
        r.check(end.wait(60) == 0, f"exit {end.rc}", *ends)
    for end in ends:
        said = [line for line in end.err.lines if re.match(r"(==|--)\d+", line) and not UNKNOWN_CALL.search(line)]
        r.check(not said, f"valgrind says: {said[:3]}", *ends)


# Neither -v nor -V: with them rping prints and compares bytes of its own that it has not written.
@row("programs under valgrind", "rping", "valgrind -q --error-exitcode=99 rping -C 10", limit=120)
def rping(r):
    need("valgrind")
    ns = r.namespace()
    server = r.run(*MEMCHECK, "rping", "-s", "-C", "10", "-a", "127.0.0.1", ns=ns)
    r.listening(server, 7174, 40)
    clean(r, server, r.run(*MEMCHECK, "rping", "-c", "-C", "10", "-a", "127.0.0.1", ns=ns))


@row("programs under valgrind", "ibv_rc_pingpong", "valgrind -q --error-exitcode=99 ibv_rc_pingpong -g 1 -n 100", limit=120)
def pingpong(r):
    need("valgrind")
    ns, argv = r.namespace(), (*MEMCHECK, "ibv_rc_pingpong", "-g", "1", "-n", "100")
    server = r.run(*argv, ns=ns)
    r.tcp_listening(server, seconds=40)
    clean(r, server, r.run(*argv, "127.0.0.1", ns=ns))
