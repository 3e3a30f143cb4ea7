"""Hosts with two adapters, each at switches of its own (rails), and an adapter of two ports."""
import os, re, time

from .fabric import FABRIC, all_active
from .fabric_data import DATA
from .fabric_sm import Managed
from .harness import row

# Adapters of a number are at one leaf; both leaves are at one spine.
RAILS = """\
Switch 4 "leaf0"
[1] "a0"[1]
[2] "b0"[1]
[3] "spine"[1]
Switch 4 "leaf1"
[1] "a1"[1]
[2] "b1"[1]
[3] "spine"[2]
Switch 4 "spine"
Ca 1 "a0" # "left mlx5_0"
Ca 1 "a1" # "left mlx5_1"
Ca 1 "b0" # "right mlx5_0"
Ca 1 "b1" # "right mlx5_1"
"""
# One adapter with a port at each leaf.
TWIN = """\
Switch 4 "leaf0"
[1] "twin"[1]
[2] "other"[1]
[3] "leaf1"[3]
Switch 4 "leaf1"
[1] "twin"[2]
Ca 2 "twin" # "twin mlx4_0"
Ca 1 "other" # "other mlx5_0"
"""


def file_of(r, text):
    path = os.path.join(r.work, "rails.net")
    with open(path, "w") as f:
        f.write(text)
    return path


class Rails:
    """Two hosts with two adapters each."""

    def __init__(self, r):
        self.r, self.ns, self.f = r, r.namespace(), Managed(r, file_of(r, RAILS))

    def pair(self, argv, *client, port=18515, env=None):
        s = self.f.on("right", *argv, ns=self.ns, env=env)
        self.r.tcp_listening(s, port)
        c = self.f.on("left", *argv, "127.0.0.1", *client, ns=self.ns, env=env)
        for p in (c, s):
            self.r.check(p.wait(60) == 0, f"{argv[0]}: exit {p.rc}", c, s)
        return c

    def words(self):
        """What the left host has sent by each adapter so far."""
        return [self.sent(node, "1") for node in ("a0", "a1")]

    def crossed(self):
        """What has gone from one rail to the other."""
        return self.sent("leaf0", "3") + self.sent("leaf1", "3")

    def sent(self, node, port):
        return next(int(line.split()[1]) for line in self.f.ask("counters", node, port) if line.startswith("PortXmitData "))


@row(DATA, "a host's second adapter has a rail of its own; UCX sends large messages by both", "ib_write_bw -d mlx5_1; ucx_perftest, UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1", limit=180, parallel=True)
def rails(r):
    e = Rails(r)
    found = sorted(re.search(r'"(.+)"', line).group(1) for line in e.f.says("left", "ibhosts"))
    r.check(found == ["left mlx5_0", "left mlx5_1", "right mlx5_0", "right mlx5_1"], f"ibhosts: {found}")
    for device, (own, other) in (("mlx5_1", (1, 0)), ("mlx5_0", (0, 1))):
        before, crossed = e.words(), e.crossed()
        e.pair(["ib_write_bw", "-F", "-d", device, "-n", "200", "-s", "65536"])
        more = [now - was for now, was in zip(e.words(), before)]
        r.check(more[own] >= 200 * 65536 // 4 and more[other] == 0 and e.crossed() == crossed, f"by {device}: {more} words, {e.crossed() - crossed} crossed", *r.programs)
    before = e.words()
    env = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "UCX_MAX_RNDV_RAILS": "2"}
    e.pair(["ucx_perftest", "-p", "13338"], "-t", "tag_bw", "-s", "4000000", "-n", "10", "-w", "1", port=13338, env=env)
    more = [now - was for now, was in zip(e.words(), before)]
    all_words = 10 * 4_000_000 // 4
    r.check(sum(more) >= all_words and min(more) >= all_words // 4, f"by the two: {more} words of {all_words}", *r.programs)


@row(FABRIC, "an adapter of two ports: both come up and are managed, verbs have the first", "ibstat; ibaddr -P 2; ibping -P 2; ibv_devinfo", limit=60, parallel=True)
def twin(r):
    f = Managed(r, file_of(r, TWIN))
    all_active(r, f, 8)
    lids = [int(lid, 16) if lid.startswith("0x") else int(lid) for lid in re.findall(r"Base lid: (\S+)", "\n".join(f.says("twin", "ibstat")))]
    states = [line.split()[1] for line in f.says("twin", "ibstat") if line.strip().startswith("State:")]
    r.check(states == ["Active", "Active"] and len(set(lids)) == 2 and 0 not in lids, f"ibstat: {states}, LIDs {lids}")
    for port, lid in ((1, lids[0]), (2, lids[1])):
        said = f.says("twin", "ibaddr", "-P", str(port))[0]
        r.check(f"LID start 0x{lid:x} end 0x{lid:x}" in said, f"ibaddr -P {port}: {said}")
    # A server at the second port answers there.
    server, end = f.on("twin", "ibping", "-S", "-P", "2"), time.monotonic() + 15
    while f.on("other", "ibping", "-c", "1", "-t", "100", str(lids[1])).wait() != 0:
        r.check(time.monotonic() < end, "the second port does not answer", server)
    info = "\n".join(f.says("twin", "ibv_devinfo"))
    r.check(re.search(r"phys_port_cnt:\s+1\b", info) and re.search(rf"port_lid:\s+{lids[0]}\b", info), f"ibv_devinfo: {info}")
