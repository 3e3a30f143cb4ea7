"""What net files say beside nodes and cables, generators, and RMPP where packets are lost, judged by Debian's tools."""
import os, re, signal

from .fabric import FABRIC, Fabric, all_active, numbers_of
from .fabric_sm import Managed
from .harness import row

# A host whose devices are named by the file, with a slow link; another one in a file of its own.
TOP = """\
Switch 8 "leaf"
[1] "first"[1] # 1xSDR
#verbena supported=4xEDR SymbolErrorCounter=20
[2] "second"[1]
[3] "far"[1]
include "racks/far.net"
Ca 1 "first" # "MT4123 Mellanox Technologies"
#verbena host=node7 device=mlx5_0 mtu=2048
[1] "leaf"[1] # 1xSDR
#verbena ip=10.9.0.7 supported=4xEDR
Ca 1 "second" # "MT4123 Mellanox Technologies"
#verbena host=node7 device=mlx5_1 grh=required
do Unlink "far"[1]
do PerformanceSet "leaf"[2] PortCounters.LinkDownedCounter=3
"""
FAR = 'Ca 1 "far" # "far HCA-1"\n'


@row(FABRIC, "a file with settings, an included file and commands of ibsim", "ibv_devinfo, ibqueryerrors, iblinkinfo, perfquery", limit=60, parallel=True)
def settings(r):
    os.mkdir(os.path.join(r.work, "racks"))
    for name, text in (("top.net", TOP), ("racks/far.net", FAR)):
        with open(os.path.join(r.work, name), "w") as file:
            file.write(text)
    f = Managed(r, os.path.join(r.work, "top.net"))
    status = f.status()
    r.check((status["hosts"], status["linked ports"], status["active ports"]) == (3, 6, 4), f"{status}")
    info = "\n".join(f.says("node7", "ibv_devinfo", "-v"))
    first, second = info.split("hca_id:")[1:3]
    r.check("mlx5_0" in first and re.search(r"max_mtu:\s+2048 ", first) and re.search(r"active_speed:\s+2.5 Gbps", first), "the first device is another one: " + first)
    r.check("mlx5_1" in second and re.search(r"max_mtu:\s+4096 ", second), "the second device is another one: " + second)
    r.check(any("ip 10.9.0.7" in line for line in f.ask("show", "first")), "the port has another address")
    bad = "\n".join(f.says("node7", "ibqueryerrors", rc=None))
    r.check("port 1: [SymbolErrorCounter == 20]" in bad, "ibqueryerrors does not name the counter: " + bad)
    at = numbers_of(f.says("node7", "perfquery", str(f.lid("leaf")), "2"))
    r.check(at["LinkDownedCounter"] == "3", f"perfquery: {at}")
    slow = [line for line in f.says("node7", "iblinkinfo", "-l") if "Could be 4X" in line]
    r.check(len(slow) == 2, f"iblinkinfo: {slow}")
    # What is written is the fabric of now: read again, with its LIDs, it is the same.
    f.ask("up", "far", "1")
    f.ask("drop", "leaf", "2", "1%")
    written = os.path.join(r.work, "written.net")
    f.ask("write", written)
    again = Fabric(r, written, "--keep-lids")
    with open(written) as file:
        r.check(again.ask("write", "-") == file.read().splitlines(), "what was written is read as another fabric")


@row(FABRIC, "LIDs of the file are those that OpenSM gives, and the tools of a host know its devices", "opensm; verbena devices, rdma link show; --keep-lids", limit=60, parallel=True)
def lids(r):
    before = Managed(r, "--fat-tree", "2,4")
    text = "\n".join(before.ask("write", "-"))
    old = before.lid("host5")
    before.ask("stop")
    written = os.path.join(r.work, "moved.net")
    with open(written, "w") as file:
        file.write(re.sub(rf"\blid {old}\b", "lid 77", text) + "\n")
    f = Fabric(r, written, "--keep-lids")
    # What it remembers of other fabrics, whose GUIDs are the same, does not matter.
    sm = f.opensm("host0")
    sm.without_errors()
    all_active(r, f, 32)
    r.check(f.lid("host5") == 77, f"OpenSM gives LID {f.lid('host5')}")
    listed = [line for line in f.says("host5", r.harness.verbena, "devices") if line and line[0] != " "]
    r.check([line.split()[0] for line in listed] == ["mlx5_0", "same"], f"devices: {listed}")
    link = f.says("host5", "sh", "-c", "rdma link show")
    r.check(len(link) == 1 and link[0].startswith("link mlx5_0/1 ") and " lid 77 " in link[0] and " state ACTIVE " in link[0], f"rdma link show: {link}")
    seen = [line.split()[0] for line in f.says("host5", "ibv_devices") if re.search(r"[0-9a-f]{16}$", line)]
    r.check(seen == ["mlx5_0"], f"ibv_devices: {seen}")


@row(FABRIC, "a dragonfly of 72 hosts, with minimal ways", "opensm -R minhop, dfsssp; verbena fabric run --dragonfly 4,2,2", limit=90, parallel=True)
def dragonfly(r):
    for engine in ("minhop", "dfsssp"):
        f = Fabric(r, "--dragonfly", "4,2,2")
        sm = f.opensm("host0", "-R", engine)
        sm.without_errors()
        # 9 groups of 4 switches: 6 links within a group, 36 between groups, a link a host.
        all_active(r, f, 2 * (9 * 6 + 36 + 72))
        for other in range(1, 72, 5):
            way = f.way("host0", f"host{other}")
            # Within the group, to the other group, within that: three links at most, and one at each end.
            r.check(2 <= len(way) <= 5, f"{engine}: the way to host{other} has {len(way)} hops")
        f.ask("stop")
        r.check(f.process.wait() == 0, "the fabric did not stop", f.process)
        sm.process.end()


@row(FABRIC, "segments of answers are lost, and come again; a program that stops keeps none waiting", "saquery NR, PIR, drop 5%; 44 and 140 records", limit=90, parallel=True)
def lossy(r):
    f = Managed(r, "--fat-tree", "2,8")
    # Answers alone lose packets.
    f.ask("drop", "leaf1", "4", "5%")
    before = f.status()
    stopped = f.on("host7", "saquery", "-t", "30000", "NR")
    stopped.signal(signal.SIGSTOP)
    for kind, dump, count in (("NR", "NodeRecord dump", 44), ("PIR", "PortInfoRecord dump", 140), ("PIR", "PortInfoRecord dump", 140)):
        lines = f.says("host7", "saquery", "-t", "30000", kind, seconds=40)
        seen = sum(dump in line for line in lines)
        r.check(seen == count, f"saquery {kind}: {seen} of {count} records")
    stopped.signal(signal.SIGCONT)
    r.check(stopped.wait(40) == 0 and sum("NodeRecord dump" in line for line in stopped.out.lines) == 44, "the program that was stopped has not got its answer", stopped)
    lost = f.status()["lost"] - before["lost"]
    # About 24 segments of the first kind, 75 of the second.
    r.check(0 < lost < 60, f"{lost} packets were lost")
    r.note = f"{lost} lost"
