"""`verbena fabric`: OpenSM and infiniband-diags, unmodified, on a subnet of this machine. Each row judges what the programs print by
what the fabric knows (`verbena fabric show`, `trace`, `status`) or by exact numbers, never by an exit code alone."""
import itertools, os, re, signal, subprocess, time

from .harness import Fail, LeftOut, Program, need, row

FABRIC = "InfiniBand fabric"
# What makes OpenSM's times short: its defaults wait for seconds.
OPTIONS = "sminfo_polling_timeout 1000\npolling_retry_number 2\ntransaction_timeout 200\n"
EXAMPLES = "/usr/share/doc/ibsim-utils/net-examples"
number = itertools.count()


class Fabric:
    """A fabric of this row, with its process."""

    def __init__(self, r, *what):
        self.r, self.name = r, f"row-{os.getpid()}-{next(number)}"
        self.process = Program(r, [r.harness.verbena, "fabric", "run", *what, "--name", self.name], name="fabric")
        self.process.until("Programs: verbena run --on HOST")

    def ask(self, *argv, fails=False):
        done = subprocess.run([self.r.harness.verbena, "fabric", *argv, "--fabric", self.name], capture_output=True, text=True, timeout=self.r.left())
        if (done.returncode != 0) != fails:
            raise Fail(f"fabric {argv[0]}: exit {done.returncode}", done.stdout + done.stderr)
        return (done.stderr if fails else done.stdout).splitlines()

    def status(self):
        return {name.strip(): int(value) for name, value in (line.rsplit(None, 1) for line in self.ask("status"))}

    def lid(self, node):
        """The LID of a node's first port that has one."""
        return int(next(m.group(1) for m in (re.search(r" lid (\d+)", line) for line in self.ask("show", node)) if m))

    def way(self, a, b):
        """The way of packets, as (node, port out) from the first node on."""
        return [tuple(re.match(r"(.+) (\d+) -> ", line).groups()) for line in self.ask("trace", a, b) if " -> " in line]

    def on(self, host, *argv, **more):
        return self.r.run(*argv, options=("--on", host, "--fabric", self.name), **more)

    def says(self, host, *argv, rc=0, seconds=30):
        """The lines that a program prints on a host."""
        p = self.on(host, *argv)
        code = p.wait(seconds)
        self.r.check(rc is None or code == rc, f"{argv[0]}: exit {code}", p)
        return p.out.lines

    def opensm(self, host, *argv, more=""):
        """OpenSM, with more lines of its configuration, once the subnet is up."""
        sm = self.manager(host, *argv, more=more)
        sm.until("SUBNET UP")
        return sm

    def manager(self, host, *argv, more=""):
        with open(os.path.join(self.r.work, "opensm.conf"), "w") as f:
            f.write(OPTIONS + more)
        return Manager(self, host, argv)


class Manager:
    """An OpenSM and its log."""

    def __init__(self, fabric, host, argv):
        self.r, self.log = fabric.r, os.path.join(fabric.r.work, f"{fabric.name}-{host}.log")
        conf = os.path.join(self.r.work, "opensm.conf")
        self.process = fabric.on(host, "opensm", "-F", conf, "-s", "0", "-d2", "-f", self.log, *argv)

    def lines(self):
        try:
            with open(self.log, errors="replace") as f:
                return f.read().splitlines()
        except FileNotFoundError:
            return []

    def count(self, text):
        return sum(text in line for line in self.lines())

    def until(self, text, times=1, seconds=20):
        end = time.monotonic() + min(seconds, self.r.left())
        while self.count(text) < times:
            if time.monotonic() > end or not self.process.running():
                raise Fail(f"OpenSM did not log {text}", "\n".join(self.lines()[-20:]) + "\n" + self.process.tail())
            time.sleep(0.02)

    def errors(self):
        return [line for line in self.lines() if " ERR " in line]

    def without_errors(self):
        self.r.check(not self.errors(), "OpenSM logged an error: " + "; ".join(self.errors()[:3]), self.process)


def all_active(r, f, ports):
    status = f.status()
    r.check(status["linked ports"] == status["active ports"] == ports, f"{status['active ports']} of {status['linked ports']} ports are active")
    r.check(status["malformed"] == status["unexpected"] == status["overflowed"] == 0, f"MADs were lost: {status}")


def numbers_of(lines):
    """`Name:....value` lines, as infiniband-diags print them."""
    found = (re.match(r"(\w+):\.+(\S+)", line.strip()) for line in lines)
    return {m.group(1): m.group(2) for m in found if m}


@row(FABRIC, "a subnet of 8 hosts comes up, and IsSM is set as long as OpenSM runs", "opensm; ibstat", limit=60, parallel=True)
def small(r):
    f = Fabric(r, "--fat-tree", "2,4")
    sm = f.opensm("host0")
    all_active(r, f, 32)
    sm.without_errors()

    def capabilities(host):
        return int(next(line.split()[-1] for line in f.says(host, "ibstat") if "Capability mask" in line), 16)
    r.check(capabilities("host0") & 2 == 2 and capabilities("host1") & 2 == 0, "IsSM is not that of the one host", sm.process)
    sm.process.signal(signal.SIGKILL)
    sm.process.wait()
    end = time.monotonic() + 5
    while capabilities("host0") & 2:
        r.check(time.monotonic() < end, "IsSM stays when OpenSM is killed")


@row(FABRIC, "a subnet of 648 hosts comes up; 702 records of one answer", "opensm; saquery -N", limit=120)
def large(r):
    f = Fabric(r, "--fat-tree", "2,36")
    began = time.monotonic()
    sm = f.opensm("host0")
    r.note = f"{time.monotonic() - began:.1f} s"
    all_active(r, f, 2592)
    sm.without_errors()
    records = sum("NodeRecord dump" in line for line in f.says("host7", "saquery", "-N"))
    r.check(records == 702, f"{records} records")


@row(FABRIC, "every routing engine of OpenSM", "opensm -R minhop, updn, dnup, ftree, lash, dfsssp", limit=120, parallel=True)
def engines(r):
    for engine in ("minhop", "updn", "dnup", "ftree", "lash", "dfsssp"):
        f = Fabric(r, "--fat-tree", "2,8")
        sm = f.opensm("host0", "-R", engine)
        sm.without_errors()
        all_active(r, f, 2 * 64)
        for other in (1, 17, 31):
            r.check(len(f.way("host0", f"host{other}")) in (2, 4), f"{engine}: no way to host{other}")
        f.ask("stop")
        r.check(f.process.wait() == 0, "the fabric did not stop", f.process)
        sm.process.end()


@row(FABRIC, "what the tools list is what there is", "ibnetdiscover, iblinkinfo, ibhosts, ibswitches, ibaddr, sminfo, ibstat, ibstatus", limit=90, parallel=True)
def lists(r):
    f = Fabric(r, "--fat-tree", "2,8")
    f.opensm("host0")
    # The file that it was read from, with the LIDs of now: equal, line by line, but for the order of nodes.
    found = [line for line in f.says("host5", "ibnetdiscover") if line and not line.startswith("#")]
    f.ask("write", os.path.join(r.work, "written.net"))
    with open(os.path.join(r.work, "written.net")) as file:
        written = [line for line in file.read().splitlines() if line]
    r.check(sorted(found) == sorted(written), "ibnetdiscover prints another fabric", *r.programs)
    again = Fabric(r, os.path.join(r.work, "written.net"))
    bare = [re.sub(r" lid \d+", " lid 0", line) for line in written]
    r.check([line for line in again.ask("write", "-") if line] == bare, "what was written is read as another fabric")
    r.check(sum("LinkUp" in line for line in f.says("host5", "iblinkinfo")) == 128, "iblinkinfo does not show 128 ports")
    r.check(len(f.says("host5", "ibhosts")) == 32 and len(f.says("host5", "ibswitches")) == 12, "hosts or switches are missing")
    lid, manager = f.lid("host5"), f.lid("host0")
    r.check(f"LID start 0x{lid:x} end 0x{lid:x}" in f.says("host5", "ibaddr")[0], "ibaddr tells another LID")
    r.check(f"sm lid {manager} " in f.says("host5", "sminfo")[0], "sminfo tells another subnet manager")
    stat = [line.strip() for line in f.says("host5", "ibstat")]
    r.check({"State: Active", f"Base lid: {lid}", f"SM lid: {manager}", "Rate: 100", "Link layer: InfiniBand"} <= set(stat), "ibstat tells something else")
    status = "\n".join(f.says("host5", "ibstatus"))
    r.check(f"base lid:\t 0x{lid:x}" in status and "4: ACTIVE" in status and "100 Gb/sec (4X EDR)" in status, "ibstatus tells something else")


@row(FABRIC, "tables and ways are those of the fabric", "ibtracert, ibroute, smpquery, ibportstate, saquery, dump_fts, ibidsverify", limit=90, parallel=True)
def tables(r):
    f = Fabric(r, "--fat-tree", "2,8")
    f.opensm("host0")
    a, b = f.lid("host3"), f.lid("host30")
    printed = [re.match(r"\[(\d+)\] -> ", line).group(1) for line in f.says("host1", "ibtracert", str(a), str(b)) if line.startswith("[")]
    way = f.way("host3", "host30")
    r.check(printed == [port for _, port in way], f"ibtracert {printed}, the fabric {way}")
    routes = dict(re.findall(r"^0x([0-9a-f]{4}) (\d+) ", "\n".join(f.says("host1", "ibroute", str(f.lid("leaf0")))), re.M))
    r.check(int(routes[f"{b:04x}"]) == int(way[1][1]), "ibroute leads another way")
    info = numbers_of(f.says("host1", "smpquery", "portinfo", str(b), "1"))
    r.check((info["Lid"], info["LinkState"], info["SMLid"]) == (str(b), "Active", str(f.lid("host0"))), f"smpquery: {info}")
    node = numbers_of(f.says("host1", "smpquery", "nodeinfo", str(f.lid("leaf0"))))
    r.check((node["NodeType"], node["NumPorts"]) == ("Switch", "8"), f"smpquery: {node}")
    for query, records in (("-N", 44), ("-g", 1)):
        lines = f.says("host1", "saquery", query)
        dumps = sum("dump:" in line for line in lines)
        r.check(dumps >= records, f"saquery {query}: {dumps} records")
    paths = sum("PathRecord dump" in line for line in f.says("host1", "saquery", "-p"))
    r.check(paths >= 44, f"{paths} path records")
    leaf = str(f.lid("leaf0"))
    for argv in ((leaf, "1", "query"), ("-D", "0,1", "1", "query")):
        state = numbers_of(f.says("host0", "ibportstate", *argv))
        r.check((state["LinkState"], state["PhysLinkState"]) == ("Active", "LinkUp"), f"ibportstate: {state}")
    f.says("host1", "ibidsverify")
    dumped = sum("Unicast lids" in line for line in f.says("host1", "dump_fts"))
    r.check(dumped == 12, f"dump_fts of {dumped} switches")


@row(FABRIC, "packets are counted at every port of their way", "ibping -f -c 20000; perfquery -x", limit=120, parallel=True)
def counted(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    server = f.on("host5", "ibping", "-S")
    lid = f.lid("host5")
    # Its agent is there once a ping is answered.
    end = time.monotonic() + 10
    while f.on("host6", "ibping", "-c", "1", "-t", "100", str(lid)).wait() != 0:
        r.check(time.monotonic() < end, "ibping -S does not answer", server)
    way = f.way("host6", "host5")

    def counters():
        def at(node, port):
            said = numbers_of(f.says("host0", "perfquery", "-x", str(f.lid(node)), port))
            return int(said["PortXmitPkts"]), int(said["PortXmitData"]), int(said["PortRcvPkts"])
        # Not the first and the last switch's ports to hosts that ask: only those of the way between.
        return [at(node, port) for node, port in way if node.startswith(("leaf", "spine"))]
    before = counters()
    flood = f.on("host6", "ibping", "-f", "-c", "20000", str(lid))
    r.check(flood.wait(60) == 0, f"exit {flood.rc}", flood)
    said = "\n".join(flood.out.lines)
    r.check("20000 packets transmitted, 20000 received, 0% packet loss" in said, "pings were lost", flood)
    sent = [(after[0] - at[0], after[1] - at[1]) for at, after in zip(before, counters())]
    # Questions of perfquery itself may pass some of these ports.
    r.check(all(20000 <= packets <= 20100 and words == 72 * packets for packets, words in sent), f"counted {sent}")


@row(FABRIC, "counters that are set, and those of errors, are told and reset", "perfquery, perfquery -a, -R; ibqueryerrors", limit=60, parallel=True)
def errors(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    leaf = str(f.lid("leaf2"))
    f.ask("set", "leaf2", "3", "SymbolErrorCounter", "20")
    f.ask("set", "leaf2", "4", "PortXmitDiscards", "7")
    lines = "\n".join(f.says("host1", "ibqueryerrors", rc=None))
    r.check("port 3: [SymbolErrorCounter == 20]" in lines and "port 4: [PortXmitDiscards == 7]" in lines and " 1 bad nodes found" in lines, "ibqueryerrors does not name them", *r.programs)
    at = numbers_of(f.says("host1", "perfquery", leaf, "3"))
    r.check(at["SymbolErrorCounter"] == "20", f"perfquery: {at}")
    everywhere = numbers_of(f.says("host1", "perfquery", "-a", leaf))
    r.check((everywhere["SymbolErrorCounter"], everywhere["PortXmitDiscards"]) == ("20", "7"), f"perfquery -a: {everywhere}")
    f.says("host1", "perfquery", "-R", leaf, "3")
    r.check(numbers_of(f.says("host1", "perfquery", leaf, "3"))["SymbolErrorCounter"] == "0", "perfquery -R resets nothing")
    r.check("there is no counter" in f.ask("set", "leaf2", "3", "Nothing", "1", fails=True)[0], "a counter that is none is set")


@row(FABRIC, "a share of packets is lost, as many as are counted", "ibping -c 1000, drop 2%", limit=120, parallel=True)
def dropped(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    server = f.on("host1", "ibping", "-S")
    lid = str(f.lid("host1"))
    end = time.monotonic() + 10
    while f.on("host0", "ibping", "-c", "1", "-t", "100", lid).wait() != 0:
        r.check(time.monotonic() < end, "ibping -S does not answer", server)
    f.ask("drop", "leaf0", "2", "2%")
    before = f.status()
    flood = f.on("host0", "ibping", "-f", "-c", "1000", "-t", "50", lid)
    flood.wait(90)
    after = f.status()
    lost = after["lost"] - before["lost"]
    discards = int(numbers_of(f.says("host2", "perfquery", str(f.lid("leaf0")), "2"))["PortXmitDiscards"])
    r.check(8 <= lost <= 40 and discards == lost, f"{lost} lost, {discards} counted", flood)
    # Each was asked again, or told to ibping; so is a question whose answer this machine has kept waiting.
    asked = after["retried"] + after["timed out"] - before["retried"] - before["timed out"]
    r.check(asked >= lost, f"{lost} lost, {asked} waited for", flood)


@row(FABRIC, "a cut cable: trap 128, another way, both ends named", "opensm; ibtracert; ibqueryerrors", limit=90, parallel=True)
def cut(r):
    f = Fabric(r, "--fat-tree", "2,36")
    sm = f.opensm("host0")
    before = f.way("host0", "host647")
    node, port = before[1]
    at = time.monotonic()
    f.ask("down", node, port)
    sm.until("num:128 (Link state change)")
    sm.until("SUBNET UP", 2)
    r.note = f"{time.monotonic() - at:.1f} s"
    after = f.way("host0", "host647")
    r.check(len(after) == 4 and after[1] != before[1], f"the way is {after}, and was {before}")
    printed = [re.match(r"\[(\d+)\] -> ", line).group(1) for line in f.says("host1", "ibtracert", str(f.lid("host0")), str(f.lid("host647"))) if line.startswith("[")]
    r.check(printed == [port for _, port in after], f"ibtracert {printed}, the fabric {after}")
    lines = f.says("host1", "ibqueryerrors", rc=None)
    named = {line.split('"')[1] for line in lines if line.startswith("Errors for")}
    r.check(named == {node, before[2][0]}, f"ibqueryerrors names {named}")
    # The far end's trap finds no way to the manager at first, and comes again.
    sm.until("num:128 (Link state change)", 2)
    f.ask("up", node, port)
    sm.until("SUBNET UP", 3)
    end = time.monotonic() + 10
    while f.status()["active ports"] != 2592:
        r.check(time.monotonic() < end, "the mended cable is not used", sm.process)
        time.sleep(0.1)


@row(FABRIC, "a port is disabled and enabled, and a frozen node is silent", "ibportstate disable, enable; smpquery", limit=60, parallel=True)
def ports(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    leaf = str(f.lid("leaf1"))

    def state():
        return next(line.split()[1] for line in f.ask("show", "leaf1") if line.split()[0] == "1")
    f.says("host0", "ibportstate", leaf, "1", "disable")
    r.check(state() == "disabled", f"the port is {state()}")
    f.says("host0", "ibportstate", leaf, "1", "enable")
    r.check(state() in ("init", "armed", "active"), f"the port is {state()}")
    f.ask("freeze", "spine1")
    silent = f.status()["silent"]
    spine = f.on("host0", "smpquery", "-t", "50", "nodeinfo", str(f.lid("spine1")))
    r.check(spine.wait() != 0 and f.status()["silent"] > silent, "a frozen node answers", spine)
    f.ask("thaw", "spine1")
    f.says("host0", "smpquery", "nodeinfo", str(f.lid("spine1")))


@row(FABRIC, "OpenSM's own tests of its administration", "osmtest -f c; osmtest -f a", limit=90, parallel=True)
def administration(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    for flow, what in (("c", "Create Inventory"), ("a", "All Validations")):
        p = f.on("host3", "osmtest", "-f", flow)
        p.wait(60)
        r.check(any(f'OSMTEST: TEST "{what}" PASS' in line for line in p.out.lines + p.err.lines), f"{what} failed", p)


@row(FABRIC, "programs of two hosts talk by vendors' classes; a class without an agent is refused", "ibsysstat -S, ibsysstat; vendstat -N", limit=60, parallel=True)
def vendors(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    server, lid, end = f.on("host5", "ibsysstat", "-S"), str(f.lid("host5")), time.monotonic() + 10
    while "sysstat ping succeeded" not in (p := f.on("host2", "ibsysstat", "-t", "100", lid), p.wait(), "\n".join(p.out.lines))[2]:
        r.check(time.monotonic() < end, "ibsysstat does not answer", server)
    refused = f.on("host2", "vendstat", "-N", str(f.lid("leaf0")))
    r.check(refused.wait() != 0 and "classportinfo query" in "\n".join(refused.out.lines + refused.err.lines), "vendstat is answered", refused)


@row(FABRIC, "what each function of libibumad returns, its errno, and what waits at a port", "programs/umad.c", limit=60, parallel=True)
def library(r):
    if not os.path.exists("/usr/include/infiniband/umad.h"):
        raise LeftOut("libibumad-dev is not installed")
    program = r.compiled("umad", "ibumad")
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    p = f.on("host3", program, "77")
    code = p.wait()
    r.check(code == 0 and p.out.lines[-1] == "155 checks", "; ".join(p.out.lines[:3]), p)


@row(FABRIC, "LMC, quality of service, partitions", "opensm -l 1, -l 3 -Q; partitions.conf; ibaddr; smpquery pkeys", limit=60, parallel=True)
def options(r):
    conf = os.path.join(r.work, "partitions.conf")
    with open(conf, "w") as file:
        file.write("Default=0x7fff,ipoib:ALL=full;\nstorage=0x12:ALL=full;\n")
    for lmc in (1, 3):
        f, many = Fabric(r, "--fat-tree", "2,4"), 1 << lmc
        sm = f.opensm("host0", "-l", str(lmc), "-Q", "-P", conf)
        sm.without_errors()
        all_active(r, f, 32)
        lid = f.lid("host5")
        r.check(lid % many == 0 and f"LID start 0x{lid:x} end 0x{lid + many - 1:x}" in f.says("host5", "ibaddr")[0], f"the port has not {many} LIDs")
        keys = " ".join(f.says("host5", "smpquery", "pkeys", str(f.lid("host3") + many - 1), "1"))
    r.check("0xffff" in keys and "0x8012" in keys, f"partitions: {keys}")
    files = "\n".join(f.says("host3", "sh", "-c", "cat /sys/class/infiniband/mlx5_0/ports/1/pkeys/*"))
    r.check("0x8012" in files, f"sysfs: {files}")
    vls = " ".join(f.says("host5", "smpquery", "sl2vl", str(f.lid("leaf0"))))
    r.check(vls.count("|") > 16, f"sl2vl: {vls}")


@row(FABRIC, "a second OpenSM takes over from one that is killed", "opensm -p 5; opensm -p 3; kill -9", limit=90, parallel=True)
def takeover(r):
    f = Fabric(r, "--fat-tree", "2,4")
    first = f.opensm("host0", "-p", "5")
    second = f.manager("host7", "-p", "3")
    second.until("Entering STANDBY")
    first.process.signal(signal.SIGKILL)
    first.process.wait()
    second.until("SUBNET UP", seconds=30)
    lid = f.lid("host7")
    end = time.monotonic() + 10
    while f"sm lid {lid} " not in "\n".join(f.says("host4", "sminfo", rc=None)):
        r.check(time.monotonic() < end, "the subnet manager is not the second one")


@row(FABRIC, "a second OpenSM takes over from one that hangs, and gives way when it is back", "opensm -p 5; opensm -p 3; kill -STOP, -CONT", limit=90, parallel=True)
def hangs(r):
    f = Fabric(r, "--fat-tree", "2,4")
    first = f.opensm("host0", "-p", "5")
    second = f.manager("host7", "-p", "3")
    second.until("Entering STANDBY")
    first.process.signal(signal.SIGSTOP)
    second.until("SUBNET UP", seconds=30)
    first.process.signal(signal.SIGCONT)
    # The lower priority hands over to the higher one.
    lid, end = f.lid("host0"), time.monotonic() + 30
    while f"sm lid {lid} " not in "\n".join(f.says("host4", "sminfo", rc=None)) or second.count("Entering STANDBY") < 2:
        r.check(time.monotonic() < end, "the first one is not the subnet manager again", first.process, second.process)
        time.sleep(0.2)


@row(FABRIC, "an M_Key is set by OpenSM, and a request without it gets silence and is told of", "opensm (m_key, level 2); smpquery -y", limit=60, parallel=True)
def keys(r):
    f = Fabric(r, "--fat-tree", "2,4")
    sm = f.opensm("host0", more="m_key 0x1234\nm_key_protection_level 2\nm_key_lease_period 60\n")
    sm.without_errors()
    all_active(r, f, 32)
    lid, silent = str(f.lid("host5")), f.status()["silent"]
    other = f.on("host3", "smpquery", "-t", "50", "portinfo", lid, "1")
    r.check(other.wait() != 0 and f.status()["silent"] > silent, "a request without the key is answered", other)
    sm.until("num:256 (Bad M_Key)")
    info = numbers_of(f.says("host3", "smpquery", "-y", "0x1234", "--show_keys", "portinfo", lid, "1"))
    r.check((info["Mkey"], info["Lid"], info["ProtectBits"]) == ("0x0000000000001234", lid, "2"), f"smpquery: {info}")
    violations = int(info["MkeyViolations"], 0)
    r.check(violations == f.status()["silent"] - silent, f"{violations} violations")


@row(FABRIC, "what else infiniband-diags has", "ibnodes, ibrouters, smpdump, dump_lfts, dump_mfts, check_lft_balance, ibfindnodesusing, ibcacheedit, ibccquery", limit=90, parallel=True)
def others(r):
    f = Fabric(r, "--fat-tree", "2,4")
    f.opensm("host0")
    r.check((len(f.says("host3", "ibnodes")), f.says("host3", "ibrouters")) == (14, []), "ibnodes or ibrouters lists something else")
    dumped = "".join(f.says("host3", "smpdump", str(f.lid("host0")), "0x15", "1")).replace(" ", "")
    r.check(int(dumped[32:36], 16) == f.lid("host0"), f"smpdump: {dumped}")
    for program, line in (("dump_lfts", "Unicast lids"), ("dump_mfts", "Multicast mlids")):
        r.check(sum(line in said for said in f.says("host3", program)) == 6, f"{program} of another number of switches")
    balance = f.says("host3", "sh", "-c", "ibnetdiscover --cache c > /dev/null && dump_lfts > l && check_lft_balance -l l -i c -v")
    r.check(sum("Switch Port Usage" in line for line in balance) == 6, "check_lft_balance finds other switches")
    leaf = "0x0002c90300210000"
    port = next(port for node, port in f.way("host0", "host7") if node == "leaf0")
    using = "\n".join(f.says("host3", "ibfindnodesusing", "-R", leaf, port))
    r.check("host7 mlx5_0" in using and "host0 mlx5_0" in using, f"ibfindnodesusing: {using}")
    edited = f.says("host3", "sh", "-c", f"ibcacheedit c d --switchguid {leaf}:0x0002c90300219999 && ibnetdiscover --load-cache d")
    r.check(sum("0002c90300219999" in line for line in edited) > 0, "ibcacheedit edits nothing")
    refused = f.on("host3", "ibccquery", "CongestionInfo", str(f.lid("leaf0")))
    r.check(refused.wait() != 0 and "congestion info query failed" in "\n".join(refused.out.lines + refused.err.lines), "congestion control is answered", refused)


@row(FABRIC, "several fabrics side by side, and every net file of ibsim", "opensm; ibhosts", limit=90, parallel=True)
def many(r):
    one, two = Fabric(r, "--fat-tree", "2,4"), Fabric(r, "--fat-tree", "2,8")
    one.opensm("host0")
    two.opensm("host0")
    r.check((len(one.says("host1", "ibhosts")), len(two.says("host1", "ibhosts"))) == (8, 32), "the fabrics are not apart")
    taken = Program(r, [r.harness.verbena, "fabric", "run", "--fat-tree", "2,4", "--name", one.name])
    r.check(taken.wait() != 0 and "runs already" in "\n".join(taken.err.lines), "a name is taken twice", taken)
    need("ibsim")
    for name in sorted(os.listdir(EXAMPLES)):
        path = os.path.join(EXAMPLES, name)
        with open(path) as file:
            nodes = sum(line.startswith(("Switch", "Hca")) for line in file)
        if nodes:
            f = Fabric(r, path)
            status = f.status()
            r.check(status["hosts"] + status["switches"] == nodes and status["links"] > 0, f"{name}: {status}")
            f.ask("stop")
            f.process.wait()


@row(FABRIC, "a fabric that ends leaves programs waiting, and no files", "opensm; ibping -S", limit=60, parallel=True)
def ended(r):
    f = Fabric(r, "--fat-tree", "2,4")
    sm = f.opensm("host0")
    server = f.on("host5", "ibping", "-S")
    time.sleep(0.5)
    place = next(line.split("=", 1)[1] for line in f.says("host1", "env") if line.startswith("VERBENA_FABRIC="))
    f.process.signal(signal.SIGKILL)
    f.process.wait()

    def used(pid):
        with open(f"/proc/{pid}/stat") as file:
            return sum(int(n) for n in file.read().rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")
    before = used(sm.process.pid) + used(server.pid)
    time.sleep(3)
    spent = used(sm.process.pid) + used(server.pid) - before
    r.check(sm.process.running() and spent < 0.5, f"{spent:.2f} s of processor in 3 s", sm.process, server)
    for p in (sm.process, server):
        p.signal(signal.SIGTERM)
        r.check(p.ends_within(10), f"{p.name} does not end", p)
    # The next one of the name takes its place, and clears it when it stops.
    again = Program(r, [r.harness.verbena, "fabric", "run", "--fat-tree", "2,4", "--name", f.name], name="fabric")
    again.until("Programs: verbena run --on HOST")
    again.signal(signal.SIGTERM)
    r.check(again.wait() == 0 and not os.path.exists(os.path.dirname(place)), "files are left", again)
