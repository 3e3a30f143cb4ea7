"""Programs for which the kernel refuses system calls, as containers do (programs/refuse.c)."""
from .harness import row
from .programs import judge_client, judge_pingpong, judge_server

GROUP = "refused calls"
# What Verbena calls and has another way for, or does without.
CALLS = ("epoll_pwait2", "preadv2", "memfd_create", "socketpair", "process_vm_readv",
         "process_vm_writev", "pidfd_send_signal", "madvise", "madvise-newer", "seal-newer",
         "sched_setaffinity", "statx", "getrandom", "unshare")
COUNT, SIZE = 100, 1024


def pings(r, ns, refusal, options):
    """rping's server and client, both without those calls."""
    argv = ["-v", "-a", "127.0.0.1", "-C", str(COUNT), "-S", str(SIZE)]
    server = r.run(*refusal, "rping", "-s", *argv, ns=ns, options=options)
    r.listening(server, 7174)
    client = r.run(*refusal, "rping", "-c", *argv, ns=ns, options=options)
    judge_client(r, client, COUNT, SIZE)
    judge_server(r, server, COUNT, SIZE)


def pingpong(r, ns, refusal, options):
    argv = [*refusal, "ibv_rc_pingpong", "-g", "1", "-e"]
    server = r.run(*argv, ns=ns, options=options)
    r.tcp_listening(server)
    judge_pingpong(r, "rc", server, r.run(*argv, "127.0.0.1", ns=ns, options=options))


for error in ("EPERM", "ENOSYS"):
    for options in ((), ("--wire",)):
        def newer(r, error=error, options=options):
            ns, refusal = r.namespace(), [r.compiled("refuse"), error, "newer", "--"]
            pings(r, ns, refusal, options)
            pingpong(r, ns, refusal, options)
        way = "by the network" if options else "by memory"
        row(GROUP, f"all that is newer than Linux 4.18 is {error}, {way}",
            "rping, ibv_rc_pingpong -g 1 -e", limit=60)(newer)

    def each(r, error=error):
        ns = r.namespace()
        for call in CALLS:
            for options in ((), ("--wire",)):
                pings(r, ns, [r.compiled("refuse"), error, call, "--"], options)
    row(GROUP, f"each call that can be done without is {error}, one after the other",
        "rping", limit=180)(each)


@row(GROUP, "where every call that waits is EPERM there is no device, and the program is told why",
     "ibv_devinfo")
def waits(r):
    refusal = [r.compiled("refuse"), "EPERM", "epoll_pwait2", "epoll_pwait", "epoll_wait", "--"]
    p = r.run(*refusal, "ibv_devinfo", ns=r.namespace())
    ended = p.wait(10) not in (0, None)
    said = any("Operation not permitted" in line for line in p.out.lines + p.err.lines)
    r.check(ended and said, f"exit {p.rc}", p)
