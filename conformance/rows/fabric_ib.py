"""rdma_cm on hosts of `verbena fabric`: addresses of the family AF_IB, requests that no listener takes, partitions. Each row asserts on the
counters of switches on the way, or on what the programs are told."""
import os, re

from .fabric_cm import CM, address, both, ended, passed
from .fabric_data import HERE, THERE, Ends, until
from .harness import need, row


def gid(e, host):
    """The GID of a host's port, as the verbs say it."""
    said = "\n".join(e.f.says(host, "ibv_devinfo", "-d", "mlx5_0", "-v"))
    return re.search(r"GID\[\s*0\]:\s+(\S+)", said).group(1)


@row(CM, "ucmatose and udaddy by GID, in RDMA_PS_IB and by the services of TCP and UDP; udaddy in RDMA_PS_IPOIB", "ucmatose -f gid -P ib, -P tcp; udaddy -f gid; udaddy -P ipoib", limit=90, parallel=True)
def by_gid(r):
    e = Ends(r)
    to = gid(e, THERE)
    for program, space, count in (("ucmatose", "ib", 20), ("ucmatose", "tcp", 20), ("udaddy", "udp", 20), ("udaddy", "ipoib", 20)):
        before = both(e)
        common = ["-P", space, "-C", str(count)]
        if space == "ipoib":
            to = address(e, THERE)
        else:
            common += ["-f", "gid"]
        # The server listens at its own GID once, and otherwise at all.
        where = ["-b", to] if space == "ib" else []
        s = e.on(THERE, program, *common, *where)
        r.listening(s, 7471 if program == "ucmatose" else 7174)
        c = e.on(HERE, program, *common, "-s", to)
        ended(r, c, s)
        passed(r, e, before, count, c, s)


@row(CM, "a port without a listener refuses at once, and not as one that is away", "ucmatose, udaddy without a server; ucmatose -f gid", limit=60, parallel=True)
def refused(r):
    e = Ends(r)
    to = address(e, THERE)
    for argv, event in (
        (["ucmatose", "-s", to, "-c", "1"], "RDMA_CM_EVENT_REJECTED, error: 8"),
        (["ucmatose", "-f", "gid", "-P", "ib", "-s", gid(e, THERE), "-c", "1"], "RDMA_CM_EVENT_REJECTED, error: 8"),
        (["udaddy", "-s", to, "-c", "1"], "RDMA_CM_EVENT_UNREACHABLE, error: 1"),
    ):
        before = both(e)
        c = e.on(HERE, *argv)
        c.wait(10)
        r.check(event in "\n".join(c.out.lines + c.err.lines), f"{argv[0]} is not told {event}", c)
        # The request went there, and its answer came back.
        passed(r, e, before, 1, c)


@row(CM, "partitions: no path leads from one to another", "partitions.conf; ucmatose", limit=60, parallel=True)
def partitions(r):
    with open(os.path.join(r.work, "partitions.conf"), "w") as f:
        # Limited members of a partition talk to full ones alone.
        f.write("Default=0x7fff, ipoib: ALL=limited, SELF=full, ALL_SWITCHES=full;\n")
    e = Ends(r, manager=["-P", os.path.join(r.work, "partitions.conf")])
    told = e.on(HERE, "ucmatose", "-s", address(e, THERE), "-c", "1")
    r.check(told.wait(20) != 0, "a connection is made without a path", told)
    text = "\n".join(told.out.lines + told.err.lines)
    # The kernel's ib_sa says EINVAL of any status of the administration.
    r.check("RDMA_CM_EVENT_ROUTE_ERROR, error: -22" in text, "no ROUTE_ERROR with EINVAL", told)
    s = e.on("host1", "ucmatose", "-C", "5")
    r.listening(s, 7471)
    ended(r, e.on(HERE, "ucmatose", "-s", address(e, "host1"), "-C", "5"), s)


@row(CM, "a Rust program's datagrams, to Debian's udaddy and to itself", "examples/udaddy; udaddy -c 1 -C 10", limit=600, parallel=True)
def rust(r):
    e = Ends(r)
    example, here, there = r.example("udaddy"), address(e, HERE), address(e, THERE)
    for server in ([example, there], ["udaddy", "-c", "1", "-C", "10"]):
        before = both(e)
        s = e.on(THERE, *server)
        r.listening(s, 7174)
        c = e.on(HERE, example, here, there)
        ended(r, c, s)
        heard = [line for line in c.out.lines if re.match(r"\d+: 100 bytes from UdAddress", line)]
        r.check(len(heard) == 10, f"{len(heard)} of 10 datagrams came back", c, s)
        passed(r, e, before, 10, c, s)


@row(CM, "ibacm resolves a name and a LID to the path that OpenSM gives", "ibacm; ib_acme -f name, -f lid, -c", limit=60)
def assistant(r):
    need("ibacm")
    e = Ends(r)
    # ib_acme asks the daemon that was started last: the file that says its port is the machine's.
    for port, host in ((6126, THERE), (6125, HERE)):
        log, options, names = (os.path.join(r.work, f"{host}.{what}") for what in ("log", "options", "names"))
        with open(options, "w") as f:
            f.write(f"log_file {log}\nlog_level 1\nlock_file {log}.pid\nserver_port {port}\nserver_mode open\naddr_prot acm\nroute_prot sa\n")
        with open(names, "w") as f:
            f.write(f"{host} mlx5_0 1 default\n")
        e.on(host, "ibacm", "-P", "-O", options, "-A", names)
        until(r, "ibacm has not joined its group", lambda: os.path.exists(log) and "join successful" in open(log, errors="replace").read())
    lids = [str(e.f.lid(host)) for host in (HERE, THERE)]
    for form, (source, dest) in (("name", (HERE, THERE)), ("lid", lids)):
        said = []

        def resolved():
            # -c compares the path with the one of the administration.
            p = e.on(HERE, "ib_acme", "-S", "127.0.0.1", "-f", form, "-s", source, "-d", dest, "-c", "-v")
            p.wait(20)
            said[:] = p.out.lines
            return any("dlid" in line and line.split()[-1] == lids[1] for line in p.out.lines)
        until(r, f"ibacm does not resolve a {form}", resolved)
        r.check("SA verification: success" in said, f"the path of a {form} is not OpenSM's: {said}")
