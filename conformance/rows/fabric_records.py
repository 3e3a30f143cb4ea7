"""What the built-in subnet manager gives beside single LIDs and one partition, and every record of a large subnet by OpenSM."""
import os, re

from .fabric import FABRIC, Fabric, numbers_of
from .fabric_sm import Managed, records
from .harness import need, row

PARTITIONED = """Switch 4 "leaf"
[1] "a"[1]
[2] "b"[1]
[3] "c"[1]
[4] "d"[1]

Ca 1 "a" # "a mlx5_0"
[1] "leaf"[1]
#verbena pkeys=0x8001,0x0002
Ca 1 "b" # "b mlx5_0"
[1] "leaf"[2]
#verbena pkeys=0x8001
Ca 1 "c" # "c mlx5_0"
[1] "leaf"[3]
#verbena pkeys=0x8003
Ca 1 "d" # "d mlx5_0"
"""


def paths(f, asker, a, b):
    """The path records between two hosts, as saquery prints them."""
    lines = f.says(asker, "saquery", "PR", "--slid", str(f.lid(a)), "--dlid", str(f.lid(b)), rc=None)
    return [dict(re.findall(r"^\t\t(\w+)\.+(\S+)", part, re.M)) for part in "\n".join(lines).split("PathRecord dump:")[1:]]


@row(FABRIC, "the built-in subnet manager: partitions of the net file", "saquery PKTR, PR; smpquery pkeys; ib_send_lat", limit=60, parallel=True)
def partitions(r):
    file = os.path.join(r.work, "partitioned.net")
    with open(file, "w") as f:
        f.write(PARTITIONED)
    f = Managed(r, file)
    tables = records(f, "d", "PKTR")
    r.check(sum("PKeyTableRecord dump" in line for line in tables) == 5, f"saquery PKTR: {tables[:5]}")
    said = " ".join(f.says("d", "smpquery", "pkeys", str(f.lid("a")), "1"))
    r.check(re.search(r"0: 0x8001 0x0002 0x7fff 0x0000", said), f"smpquery pkeys: {said}")
    keys = {pair: [path["pkey"] for path in paths(f, "d", *pair)] for pair in (("a", "b"), ("a", "c"), ("c", "d"), ("b", "d"))}
    r.check(keys == {("a", "b"): ["0x8001"], ("a", "c"): [], ("c", "d"): ["0x7FFF"], ("b", "d"): ["0x7FFF"]}, f"paths are in partitions {keys}")

    def refused():
        return sum(int(line.split()[1]) for port in "123" for line in f.ask("counters", "leaf", port) if "ConstraintErrors" in line)
    ns, argv = r.namespace(), ["ib_send_lat", "-F", "-d", "mlx5_0", "-n", "200", "-u", "10"]
    for client, good in (("b", True), ("c", False)):
        before = refused()
        s = f.on("a", *argv, ns=ns)
        r.tcp_listening(s)
        c = f.on(client, *argv, "127.0.0.1", ns=ns)
        r.check(c.ends_within(30) and (c.rc == 0) == good, f"from {client}: exit {c.rc}", c, s)
        s.end()
        r.check((refused() == before) == good, f"from {client}: the switch has refused {refused() - before} packets", c)


@row(FABRIC, "the built-in subnet manager: four LIDs of each port, with ways of their own", "--lmc 2; smpquery portinfo; ibtracert; saquery PR", limit=60, parallel=True)
def lmc(r):
    f = Managed(r, "--fat-tree", "2,4", "--lmc", "2")
    first = f.lid("host7")
    info = numbers_of(f.says("host0", "smpquery", "portinfo", str(first), "1"))
    r.check((int(info["Lid"]) % 4, info["LMC"]) == (0, "2"), f"portinfo: {info}")
    spines = []
    for lid in range(first, first + 4):
        printed = [re.match(r"\[(\d+)\] -> ", line).group(1) for line in f.says("host3", "ibtracert", str(f.lid("host0")), str(lid)) if line.startswith("[")]
        r.check(len(printed) == 4, f"the way to LID {lid} is {printed}")
        spines.append(printed[1])
    r.check(sorted(spines) == ["3", "3", "4", "4"], f"the ways leave the leaf by ports {spines}")
    found = f.says("host3", "saquery", "PR", "--slid", str(f.lid("host0") + 1), "--dlid", str(first + 3))
    path = dict(re.findall(r"^\t\t(\w+)\.+(\S+)", "\n".join(found), re.M))
    r.check((path["slid"], path["dlid"]) == (str(f.lid("host0") + 1), str(first + 3)), f"the path is {path}")


# As many as OpenSM has of a fat tree of 648 hosts and 54 switches of 36 ports.
KINDS = (
    ("NR", "NodeRecord dump", 702), ("PIR", "PortInfoRecord dump", 2646), ("LR", "LinkRecord dump", 2592), ("SWIR", "SwitchInfoRecord dump", 54),
    ("GIR", "GUIDInfo Record dump", 702), ("LFTR", "LFT Record dump", 594), ("SMIR", "SMInfoRecord dump", 1), ("MCMR", "MCMember Record dump", 1),
)


@row(FABRIC, "every kind of record of 648 hosts by OpenSM, with one in a hundred packets lost", "opensm; saquery NR, PIR, LR, SWIR, GIR, LFTR, SMIR, MCMR; verbena fabric drop 1%", limit=120)
def kinds(r):
    need("opensm")
    f = Fabric(r, "--fat-tree", "2,36")
    f.opensm("host0")
    # Answers alone lose packets.
    leaf, port = f.way("host0", "host647")[-1]
    f.ask("drop", leaf, port, "1%")
    before = f.status()
    for kind, dump, count in KINDS:
        seen = sum(dump in line for line in f.says("host647", "saquery", "-t", "30000", kind, seconds=60))
        r.check(seen == count, f"saquery {kind}: {seen} of {count} records")
    lost = f.status()["lost"] - before["lost"]
    r.check(lost > 0, "no packet was lost")
    r.note = f"{lost} lost"
