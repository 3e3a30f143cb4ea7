"""What `verbena run --capture` writes: tshark reads it, and nothing is missing, added or changed."""
import glob, os, re, subprocess, time
from collections import Counter

from .harness import LeftOut, need, row
from .wires import CAPTURES, findings

WRITTEN = "captured"
SERVER = "10.90.0.2"


def packets(capture):
    """How often each packet is in a capture: addresses, identification, source port and payload."""
    names = ("ip.src", "ip.id", "ipv6.src", "udp.srcport", "udp.payload")
    argv = ["tshark", "-n", "-r", capture, "--disable-protocol", "infiniband", "-Y", "udp.port == 4791", "-T", "fields", "-E", "separator=\t"]
    r = subprocess.run(argv + [x for n in names for x in ("-e", n)], capture_output=True, text=True)
    return Counter(r.stdout.splitlines())


def captured(row, name, *argv, ns):
    """A program that is captured, and its file."""
    file = os.path.join(row.work, name)
    return row.run(*argv, ns=ns, options=("--capture", file)), file


def check_file(row, program, file):
    """The last line says how many packets there are, and that none is missing."""
    said = [line for line in program.err.lines if line.startswith("verbena: ")]
    row.check(bool(said) and re.fullmatch(rf"verbena: (\d+) packets in {re.escape(file)}", said[-1]), "no good last line", program)
    want, found = int(said[-1].split()[1]), sum(packets(file).values())
    row.check(want == found, f"{want} packets were written, {found} are there", program)
    row.check(want > 0, "no packet was captured", program)


@row(WRITTEN, "tshark finds nothing that it does not find in the kernel's packets", "rping, ucmatose, rdma_client, ibv_rc_pingpong, ib_write_bw", limit=120, parallel=True)
def decoded(row):
    need("tshark")
    allowed = set().union(*(findings(file) or set() for file in glob.glob(os.path.join(CAPTURES, "rxe-*.pcap"))))
    if not allowed:
        raise LeftOut("the recorded captures are not there")
    a, b = row.veth()
    for n, (server, client, ready) in enumerate([
        (["rping", "-s", "-a", SERVER, "-C", "3", "-S", "8192"], ["rping", "-c", "-a", SERVER, "-C", "3", "-S", "8192"], 7174),
        (["rping", "-s", "-a", "fd90::2", "-C", "3"], ["rping", "-c", "-a", "fd90::2", "-C", "3"], 7174),
        (["rdma_server", "-s", SERVER], ["rdma_client", "-s", SERVER], 7471),
        (["ucmatose", "-c", "2", "-C", "3"], ["ucmatose", "-s", SERVER, "-c", "2", "-C", "3"], 7471),
        (["ibv_rc_pingpong", "-d", "rxe_veth0", "-g", "1", "-n", "5"], ["ibv_rc_pingpong", "-d", "rxe_veth0", "-g", "1", "-n", "5", SERVER], 0),
        (["ib_write_bw", "-d", "rxe_veth0", "-x", "1", "-n", "20"], ["ib_write_bw", "-d", "rxe_veth0", "-x", "1", "-n", "20", SERVER], 0),
    ]):
        s, at_server = captured(row, f"server{n}.pcapng", *server, ns=b)
        if ready:
            row.listening(s, ready)
        else:
            row.tcp_listening(s)
        c, at_client = captured(row, f"client{n}.pcapng", *client, ns=a)
        row.check(c.wait() in (0, 255), f"{client[0]} exit {c.rc}", c, s)
        row.check(s.wait(10) in (0, 255), f"{server[0]} exit {s.rc}", c, s)
        for program, file in ((c, at_client), (s, at_server)):
            check_file(row, program, file)
            found = findings(file)
            row.check(found is not None, f"{program.name}: tshark sees no RoCEv2 packet", program)
            row.check(found <= allowed, f"{program.name}: tshark finds {sorted(found - allowed)}", program)
        # What one end sends last may come after the other's end.
        both = packets(at_client) & packets(at_server)
        row.check(sum(both.values()) >= 0.9 * sum(packets(at_client).values()), f"{client[0]}: the two ends differ", c, s)


@row(WRITTEN, "the bytes that tcpdump sees, with the identifications that no socket shows", "rping -C 100 -S 64", limit=120, parallel=True)
def as_on_the_wire(row):
    need("tshark", "tcpdump")
    a, b = row.veth()
    wire = os.path.join(row.work, "wire.pcap")
    # The kernel's buffer has a place of the snap length for each packet: a short one, for many places.
    options = ("-Z", "root", "--immediate-mode", "-n", "-U", "-s", "1024", "-B", "32768")
    dump = row.plain("tcpdump", *options, "-i", "veth0", "-w", wire, "udp port 4791", ns=a)
    dump.until("listening on", stream="err")
    for address in (SERVER, "fd90::2"):
        server = row.run("rping", "-s", "-a", address, "-C", "100", ns=b)
        row.listening(server, 7174)
        client, file = captured(row, f"{len(address)}.pcapng", "rping", "-c", "-a", address, "-C", "100", "-S", "64", ns=a)
        row.check(client.wait() in (0, 255), f"client exit {client.rc}", client, server)
        server.wait(10)
        check_file(row, client, file)
        of_this = lambda counts: Counter({p: n for p, n in counts.items() if (":" in p.split("\t")[2]) == (":" in address)})
        ours = packets(file)
        deadline = time.monotonic() + 5
        while (extra := ours - (theirs := of_this(packets(wire)))) and time.monotonic() < deadline:
            time.sleep(0.1)
        # Packets that left together are one on a veth, where nothing segments them.
        payloads = lambda counts: [p.split("\t")[4] for p in counts.elements()]
        apart, together = payloads(extra), payloads(theirs - ours)
        wrong = [payload for payload in apart if not any(payload in both and payload != both for both in together)]
        row.check(not wrong, f"{len(wrong)} packets are not as on the wire: {wrong[:2]}", client, dump)
        missing = [both for both in together if not any(payload in both for payload in apart)]
        # What came for the client after its end.
        row.check(len(missing) <= 4, f"{len(missing)} packets are missing", client)
    dump.end()
    row.check(any(line.startswith("0 packets dropped by kernel") for line in dump.err.lines), "tcpdump lost packets", dump)


@row(WRITTEN, "a program's children, its signals and its exit code", "sh, rping", parallel=True)
def children(row):
    need("tshark")
    ns = row.namespace()
    listens = "grep -q '@verbena/.*/port/.*/7174$' /proc/net/unix"
    script = f"rping -s -a 127.0.0.1 -C 2 & until {listens}; do sleep 0.05; done; rping -c -a 127.0.0.1 -C 2; wait; exit 7"
    shell, file = captured(row, "both.pcapng", "sh", "-c", script, ns=ns)
    row.check(shell.wait() == 7, f"exit {shell.rc}", shell)
    check_file(row, shell, file)
    names = subprocess.run(["tshark", "-n", "-r", file, "-T", "fields", "-e", "frame.interface_id"], capture_output=True, text=True).stdout.split()
    row.check(len(set(names)) == 2, f"{len(set(names))} processes are in the file", shell)
    killed, file = captured(row, "killed.pcapng", "sh", "-c", "rping -s -a 127.0.0.1 & wait", ns=ns)
    row.listening(killed, 7174)
    killed.popen.terminate()
    row.check(not killed.ends_within(0.3), "what the program started is not waited for", killed)
    killed.until("are captured until they end", 5)
    killed.signal(15)
    row.check(killed.wait(10) == 143, f"exit {killed.rc}", killed)


@row(WRITTEN, "Ethernet frames of a raw packet queue pair lie in an interface of their own", "programs/frames.c, tshark", parallel=True)
def ethernet(row):
    need("tshark")
    ns, program = row.namespace(), row.compiled("frames")
    for terms, count in (((), 10), (("--capture-filter", "peer=127.0.0.1"), 0)):
        file = os.path.join(row.work, f"{count}.pcapng")
        sent = row.run(program, "5", ns=ns, options=("--capture", file, *terms))
        row.check(sent.wait() == 0 and len(sent.out.lines) == 5, f"exit {sent.rc}", sent)
        row.check(f"verbena: {count} packets in {file}" in sent.err.lines, "no good last line", sent)
        fields = ("frame.encap_type", "frame.interface_name", "frame.packet_flags_direction", "eth.dst", "eth.type", "data.data")
        argv = ["tshark", "-n", "-r", file, "-T", "fields", *(x for name in fields for x in ("-e", name))]
        said = [line.split("\t") for line in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()]
        row.check(len(said) == count, f"{len(said)} frames", sent)
        # Encapsulation 1 is Ethernet. Direction 2 is out, 1 is in.
        ours = ["1", "rxe_lo", "03:00:00:00:00:17", "0x88b5"]
        row.check(all([encap, name, dest, kind] == ours for encap, name, _, dest, kind, _ in said), f"other frames: {said[:2]}", sent)
        ways = [(int(way, 0), int(data[:2], 16)) for _, _, way, _, _, data in said]
        row.check(sorted(ways) == [(way, n) for way in (1, 2) for n in range(count // 2)], f"other numbers: {ways}", sent)
