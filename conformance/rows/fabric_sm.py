"""`verbena fabric run --sm builtin`: the fabric's own subnet manager, judged by Debian's tools and by what the fabric knows."""
import os, re, signal, time

from .fabric import FABRIC, Fabric, all_active, numbers_of
from .harness import row


class Managed(Fabric):
    """A fabric with a subnet manager of its own, once the subnet is up."""

    def __init__(self, r, *what):
        super().__init__(r, *what, "--sm", "builtin")
        self.up()

    def up(self, times=1, seconds=30):
        """Waits until the subnet has come up so often; how long it took, in seconds."""
        end = time.monotonic() + seconds
        while len(lines := [line for line in self.process.out.lines if ": subnet up: " in line]) < times:
            self.r.check(time.monotonic() < end, "the subnet does not come up", self.process)
            time.sleep(0.02)
        return float(lines[-1].split()[-2])


def records(f, host, kind):
    return [line.strip() for line in f.says(host, "saquery", kind)]


@row(FABRIC, "the built-in subnet manager: 8 hosts, seen by Debian's tools", "sminfo, ibnetdiscover, iblinkinfo, ibhosts, saquery, ibtracert, ibping", limit=60, parallel=True)
def small(r):
    f = Managed(r, "--fat-tree", "2,4")
    all_active(r, f, 32)
    said = f.says("host3", "sminfo")[0]
    r.check(f"sm lid {f.lid('spine0')} " in said and "SMINFO_MASTER" in said, said)
    found = [line for line in f.says("host5", "ibnetdiscover") if line and not line.startswith("#")]
    written = [line for line in f.ask("write", "-") if line]
    r.check(sorted(found) == sorted(written), "ibnetdiscover prints another fabric", *r.programs)
    r.check(sum("LinkUp" in line for line in f.says("host5", "iblinkinfo")) == 32, "iblinkinfo does not show 32 ports")
    for kind, dump, count in (("NR", "NodeRecord dump", 14), ("PIR", "PortInfoRecord dump", 38), ("LR", "LinkRecord dump", 32), ("PR", "PathRecord dump", 196), ("MCMR", "MCMember Record dump", 1)):
        seen = sum(dump in line for line in records(f, "host3", kind))
        r.check(seen == count, f"saquery {kind}: {seen} of {count} records")
    path = dict(re.findall(r"^\t\t(\w+)\.+(\S+)", "\n".join(f.says("host3", "saquery", "--src-to-dst", f"{f.lid('host0')}:{f.lid('host7')}")), re.M))
    r.check((path["dlid"], path["slid"], path["mtu"], path["rate"]) == (str(f.lid("host7")), str(f.lid("host0")), "0x85", "0x90"), f"the path is {path}")
    refused = f.on("host3", "saquery", "VLAR")
    r.check(refused.wait() != 0 and "not supported" in "\n".join(refused.out.lines + refused.err.lines), "tables of VL arbitration are answered", refused)
    printed = [re.match(r"\[(\d+)\] -> ", line).group(1) for line in f.says("host1", "ibtracert", str(f.lid("host0")), str(f.lid("host7"))) if line.startswith("[")]
    r.check(printed == [port for _, port in f.way("host0", "host7")], f"ibtracert {printed}")
    server, lid, end = f.on("host5", "ibping", "-S"), str(f.lid("host5")), time.monotonic() + 10
    while f.on("host6", "ibping", "-c", "1", "-t", "100", lid).wait() != 0:
        r.check(time.monotonic() < end, "ibping -S does not answer", server)
    f.says("host1", "ibping", "-f", "-c", "1000", lid)
    counts = f.status()
    r.check((counts["sweeps"], counts["sm failed"], counts["lost"]) == (1, 0, 0), f"{counts}")


@row(FABRIC, "the built-in subnet manager: 648 hosts, a cut cable, every way the shortest", "ibtracert; saquery -N", limit=90)
def large(r):
    f = Managed(r, "--fat-tree", "2,36")
    all_active(r, f, 2592)
    r.note = f"up in {f.up():.2f} s"
    r.check(sum("NodeRecord dump" in line for line in f.says("host7", "saquery", "-N")) == 702, "not 702 records")
    spines = [f.way("host0", f"host{n}")[1] for n in range(18, 36)]
    r.check(len(set(spines)) == 18, f"ways to the 18 hosts of a leaf take {len(set(spines))} of 18 spines")
    node, port = spines[0]
    f.ask("down", node, port)
    end = time.monotonic() + 10
    while len(way := f.way("host0", "host18")) != 4 or way[1] == (node, port):
        r.check(time.monotonic() < end, f"the way is still {way}")
    f.ask("up", node, port)
    while f.status()["active ports"] != 2592:
        r.check(time.monotonic() < end, "the mended cable is not used")
        time.sleep(0.05)


@row(FABRIC, "the built-in subnet manager: an OpenSM of higher priority takes over, and when it is killed the built-in one does", "opensm -p 5; kill -9; sminfo", limit=90, parallel=True)
def takeover(r):
    f = Managed(r, "--fat-tree", "2,4")
    sm = f.opensm("host2", "-p", "5")
    sm.without_errors()
    f.process.until("another subnet manager has the subnet")
    r.check(f"sm lid {f.lid('host2')} " in f.says("host4", "sminfo")[0], "the subnet manager is not OpenSM")
    r.check((f.status()["masters"], f.status()["active ports"]) == (0, 32), f"{f.status()}")
    sm.process.signal(signal.SIGKILL)
    sm.process.wait()
    f.up(2)
    r.check(f"sm lid {f.lid('spine0')} " in f.says("host4", "sminfo")[0], "the subnet manager is not the built-in one")
    r.check(f.status()["active ports"] == 32, f"{f.status()}")
    f.says("host4", "saquery", "-N")


@row(FABRIC, "two OpenSMs of equal priority: the one whose port has the lower GUID is the master", "opensm -p 5, twice", limit=90, parallel=True)
def equal(r):
    f = Fabric(r, "--fat-tree", "2,4")
    second = f.opensm("host7", "-p", "5")
    first = f.manager("host0", "-p", "5")
    first.until("SUBNET UP", seconds=30)
    second.until("Entering STANDBY", seconds=30)
    end = time.monotonic() + 10
    while f"sm lid {f.lid('host0')} " not in "\n".join(f.says("host4", "sminfo", rc=None)):
        r.check(time.monotonic() < end, "the subnet manager is not that of the lower GUID")


@row(FABRIC, "OpenSM's engine for tori on a torus of 5 x 3 x 3", "opensm -R torus-2QoS -Q", limit=60, parallel=True)
def torus(r):
    f = Fabric(r, "--torus", "5x3x3")
    first, conf = 0x0002C90300230000, os.path.join(r.work, "torus-2QoS.conf")
    with open(conf, "w") as file:
        file.write("torus 5 3 3\n" + "".join(f"{axis}p_link {first:#x} {first + step:#x}\n" for axis, step in (("x", 1), ("y", 5), ("z", 15))))
    sm = f.opensm("host0", "-R", "torus-2QoS", "-Q", "--torus_config", conf)
    r.check(sm.count("torus-2QoS tables configured") > 0 and not sm.errors(), "OpenSM did not route by torus-2QoS: " + "; ".join(sm.errors()[:3]), sm.process)
    all_active(r, f, 2 * (45 + 3 * 45))
    # Along each dimension first, the shorter way around: 2 + 1 + 1 hops between switches at most, and one at each end.
    for host in range(1, 45):
        x, y, z = host % 5, host // 5 % 3, host // 15
        hops = min(x, 5 - x) + min(y, 3 - y) + min(z, 3 - z) + 2
        way = f.way("host0", f"host{host}")
        r.check(len(way) == hops, f"the way to host{host} has {len(way)} hops of {hops}")


@row(FABRIC, "links that fail slowly: flapping, damage, a lower rate, a counter that grows", "ibqueryerrors; iblinkinfo; perfquery; ibping", limit=60, parallel=True)
def slow_failures(r):
    f = Managed(r, "--fat-tree", "2,4")
    f.ask("rate", "leaf0", "3", "1xSDR")
    end = time.monotonic() + 10
    while f.status()["active ports"] != 32:
        r.check(time.monotonic() < end, "the link is not configured anew")
        time.sleep(0.05)
    slow = [line for line in f.says("host5", "iblinkinfo", "-l") if "1X" in line and "2.5 Gbps" in line]
    r.check(len(slow) == 2 and all("Could be 4X" in line for line in slow), f"iblinkinfo: {slow}")
    path = "\n".join(f.says("host3", "saquery", "--src-to-dst", f"{f.lid('leaf0')}:{f.lid('spine0')}"))
    r.check(re.search(r"rate\.+0x82", path), "the path record has another rate")
    f.ask("damage", "host7", "1", "100%")
    lost = f.on("host7", "ibping", "-c", "1", "-t", "50", str(f.lid("host6")))
    lost.wait()
    r.check("100% packet loss" in "\n".join(lost.out.lines), "damaged packets arrive", lost)
    at = numbers_of(f.says("host0", "perfquery", str(f.lid("leaf3")), "2"))
    r.check(int(at["SymbolErrorCounter"]) == int(at["PortRcvErrors"]) >= 1, f"perfquery: {at}")
    f.ask("damage", "host7", "1", "0")
    # Between the two a fault lasts so many seconds at least, and at most: on a busy machine a command takes its time.
    times = []
    for flap, grow in (("400ms", "1000"), ("0", "0")):
        times.append(time.monotonic())
        f.ask("flap", "leaf2", "4", flap)
        f.ask("grow", "leaf1", "1", "PortXmitWait", grow)
        times.append(time.monotonic())
        time.sleep(2.2 if grow != "0" else 0)
    least, most = times[2] - times[1], times[3] - times[0]
    waited = int(numbers_of(f.says("host0", "perfquery", str(f.lid("leaf1")), "1"))["PortXmitWait"])
    downed = int(numbers_of(f.says("host0", "perfquery", str(f.lid("leaf2")), "4"))["LinkDownedCounter"])
    # A step that comes late, when the fabric waits for a processor, moves those after it.
    r.check(waited % 1000 == 0 and int(least) - 1 <= waited / 1000 <= most, f"PortXmitWait {waited} in {least:.1f} to {most:.1f} s")
    # The cable is cut at once, and then each 0.8 s.
    r.check(2 <= downed <= 1 + most / 0.8, f"LinkDownedCounter {downed} in {least:.1f} to {most:.1f} s")
    while f.status()["active ports"] != 32:
        r.check(time.monotonic() < end + 10, "the cable is not used any more")
        time.sleep(0.05)
