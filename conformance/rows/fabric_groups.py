"""Multicast groups of rdma_cm on hosts of `verbena fabric`: joined at the administration of the subnet, by the multicast LID that it
gives. Each row asserts on the tables of switches, or on the counters of their ports."""
import re, signal

from .fabric_cm import CM, address
from .fabric_data import Ends, until
from .fabric_sm import Managed
from .harness import row

GROUP = "239.1.2.3"
# The group's GID in RDMA_PS_UDP, which is rdma_cm's own.
MGID = "ff12:4001:ffff::f01:203"
# The hosts of a fat tree of 8, two at each leaf.
LEAVES = {"host0": ("leaf0", 1), "host2": ("leaf1", 1), "host3": ("leaf1", 2), "host5": ("leaf2", 2), "host7": ("leaf3", 2)}


class Groups:
    """Hosts with mckey, on a fabric with a subnet manager."""

    def __init__(self, r, f, ns):
        self.r, self.f, self.ns = r, f, ns

    def mckey(self, host, *argv):
        return self.f.on(host, "mckey", "-m", GROUP, "-S", "64", *argv, ns=self.ns, lines=True)

    def member(self, host, count):
        p = self.mckey(host, "-C", str(count))
        p.until("joined dgid")
        return p

    def mlid(self, p, mgid=MGID):
        found = next(m for m in (re.search(r"joined dgid: (\S+) mlid (0x[0-9a-f]+)", line) for line in p.out.lines) if m)
        self.r.check(found.group(1) == mgid, f"joined {found.group(1)}", p)
        return int(found.group(2), 16)

    def out(self, leaf, mlid):
        """The ports that a leaf sends packets of the group out of, as ibroute reads its table."""
        lines = self.f.says("host6", "ibroute", "-M", str(self.f.lid(leaf)))
        header = next(line for line in lines if line.strip().startswith("Ports:"))
        entry = next((line for line in lines if line.startswith(f"0x{mlid:04x}")), "")
        columns = [n for n, mark in enumerate(entry) if mark == "x" and n > 6]
        return {int(header[:n + 1].split()[-1]) for n in columns}

    def has(self, host, mlid):
        leaf, port = LEAVES[host]
        return port in self.out(leaf, mlid)

    def sent(self, host):
        leaf, port = LEAVES[host]
        return next(int(line.split()[1]) for line in self.f.ask("counters", leaf, str(port)) if line.startswith("PortXmitPkts"))


    def send(self, host, count):
        s = self.mckey(host, "-s", "-C", str(count))
        self.r.check(s.wait(20) == 0, f"the sender: exit {s.rc}", s)


def five(r, f, ns):
    g = Groups(r, f, ns)
    counts = {host: 20 for host in LEAVES} | {"host2": 10}
    members = {host: g.member(host, count) for host, count in counts.items()}
    mlid = g.mlid(members["host0"])
    r.check(all(g.mlid(p) == mlid for p in members.values()), "members have several LIDs", *members.values())
    for host in LEAVES:
        until(r, f"the tables do not lead to {host}", lambda: g.has(host, mlid))
    before = {host: g.sent(host) for host in LEAVES}
    g.send("host4", 10)
    r.check(members["host2"].wait(20) == 0, "the member has not heard ten messages", members["host2"])
    until(r, "the table still leads to the host that has left", lambda: not g.has("host2", mlid))
    r.check(all(g.has(host, mlid) for host in LEAVES if host != "host2"), "the tables lead to no other member any more")
    left = g.sent("host2")
    r.check(left - before["host2"] >= 10, "the packets did not pass the switch")
    g.send("host4", 10)
    for host, p in members.items():
        r.check(p.wait(20) == 0, f"{host}: exit {p.rc}", p)
        text = "\n".join(p.out.lines)
        r.check("data transfers complete" in text or "test complete" in text, f"{host} has not heard all", p)
    # The port that has left gets what the host asks of the subnet, and no message.
    r.check(g.sent("host2") - left < 10, "messages go to the host that has left")
    until(r, "the group is not gone", lambda: not any(g.has(host, mlid) for host in LEAVES))


@row(CM, "a group on five hosts: one leaves, and the tables of switches shrink", "mckey; ibroute -M", limit=90, parallel=True)
def with_opensm(r):
    e = Ends(r)
    five(r, e.f, e.ns)


@row(CM, "a group on five hosts, by the built-in subnet manager", "mckey; ibroute -M", limit=90, parallel=True)
def with_builtin(r):
    five(r, Managed(r, "--fat-tree", "2,4"), r.namespace())


@row(CM, "a group that is only sent to, one of IPoIB, one by its GID; a killed member; a silent manager", "mckey -o, -p 2, -M; kill -9; verbena fabric freeze", limit=90, parallel=True)
def kinds(r):
    e = Ends(r)
    g = Groups(r, e.f, e.ns)
    member = g.member("host0", 100)
    mlid = g.mlid(member)
    sender = g.mckey("host7", "-s", "-o", "-C", "1000")
    sender.until("joined dgid")
    until(r, "the tables do not lead to the member", lambda: g.has("host0", mlid))
    # OpenSM leads packets to a member that only sends as well; its queue pair is not attached.
    # Neither program leaves: their ports do.
    for p in (member, sender):
        p.signal(signal.SIGKILL)
        p.wait()
    until(r, "a killed member stays in the tables", lambda: not any(g.has(host, mlid) for host in LEAVES))
    of_ipoib = g.mckey("host2", "-p", "2", "-C", "1")
    of_ipoib.until("joined dgid")
    g.mlid(of_ipoib, "ff12:401b:ffff::f01:203")
    by_gid = e.f.on("host3", "mckey", "-M", "ff12:abcd::7", "-b", address(e, "host3"), "-C", "1", ns=e.ns, lines=True)
    by_gid.until("joined dgid")
    g.mlid(by_gid, "ff12:abcd::7")
    e.f.ask("freeze", "host1")
    alone = g.mckey("host5", "-C", "1")
    r.check(alone.wait(20) != 0, "a group is joined without a manager", alone)
    r.check("RDMA_CM_EVENT_MULTICAST_ERROR, error: -110" in "\n".join(alone.out.lines), "no MULTICAST_ERROR with ETIMEDOUT", alone)
