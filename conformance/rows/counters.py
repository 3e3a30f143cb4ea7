"""The counters of ports below /sys/class/infiniband, and what the `rdma` command says: for all processes that one `verbena run` started."""
import json, os, re, time

from .harness import Fail, need, row

COUNTERS = "counters"
PORT = "/sys/class/infiniband/{}/ports/1"
EXPORTER = "127.0.0.1:9100"
# How old a number may be, and the programs of a row that runs beside others.
STALE_S = 5


class Tree:
    """A shell that `verbena run` starts, to which lines are given."""

    def __init__(self, r, ns, options=(), device="rxe_lo"):
        self.row, self.ns, self.lines, self.port = r, ns, 0, PORT.format(device)
        self.path = os.path.join(r.work, f"shell-{len(os.listdir(r.work))}")
        os.mkfifo(self.path)
        self.program = r.run("sh", self.path, ns=ns, options=options)
        self.pipe = open(self.path, "w")

    def start(self, line):
        """Has the shell do a line; the files with what it printed, and with its exit code."""
        self.lines += 1
        out, code = (f"{self.path}.{self.lines}.{kind}" for kind in ("out", "code"))
        self.pipe.write(f"{{ {line}\n}} > {out} 2>&1; echo $? > {code}.new; mv {code}.new {code}\n")
        self.pipe.flush()
        return out, code

    def do(self, line, seconds=30):
        """What a line prints; it must succeed."""
        out, code = self.start(line)
        end = time.monotonic() + min(seconds, self.row.left())
        while not os.path.exists(code):
            self.row.check(time.monotonic() < end, f"does not end: {line}", self.program)
            time.sleep(0.01)
        with open(out) as said, open(code) as rc:
            text, rc = said.read(), rc.read().strip()
        if rc != "0":
            raise Fail(f"exit {rc}: {line}", text)
        return text

    def background(self, line):
        self.start(f"{line} &\nstarted=\"$started $!\"")

    def counters(self, dir="counters"):
        text = self.do(f"cd {self.port}/{dir} && grep . *")
        return {name: int(n) for name, _, n in (line.partition(":") for line in text.splitlines())}

    def end(self):
        self.start("kill $started")
        self.pipe.close()
        self.program.wait(10)


def settled(ask, good, what, r):
    """What comes of asking, until it is good."""
    end = time.monotonic() + STALE_S
    while not good(said := ask()):
        r.check(time.monotonic() < end, f"{what}: {said}")
        time.sleep(0.1)
    return said


def metrics(tree):
    """What node_exporter says of the port: numbers by name."""
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://{EXPORTER}/metrics', timeout=5).read().decode())"
    text = tree.do(f'python3 -c "{fetch}"')
    port = re.compile(r'^node_infiniband_(\w+)\{device="rxe_lo",port="1"\} (\S+)$', re.M)
    return {name: float(n) for name, n in port.findall(text)}


@row(COUNTERS, "node_exporter's metrics move as the packets of ib_write_bw do, by memory and by the wire", "prometheus-node-exporter, ib_write_bw -s 65536 -n 1000", limit=120)
def exporter(r):
    need("ib_write_bw", "prometheus-node-exporter")
    for name, options in (("a", ()), ("b", ("--wire",))):
        tree = Tree(r, r.namespace(name), options)
        tree.background(f"exec prometheus-node-exporter --collector.disable-defaults --collector.infiniband --web.listen-address={EXPORTER}")
        tree.do("for i in $(seq 100); do python3 -c \"import socket; socket.create_connection(('127.0.0.1', 9100))\" 2>&1 && break; sleep 0.1; done")
        before = metrics(tree)
        r.check(before.get("port_data_transmitted_bytes_total") == 0, f"before the first packet: {before}", tree.program)
        writes = 0
        for _ in range(2):
            # perftest's server ends with its client.
            argv, server = "ib_write_bw -d rxe_lo -x 1 -F -s 65536 -n 1000", os.path.join(r.work, "server.txt")
            listens = "grep -q ':4853 [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6"
            tree.do(f"{argv} > {server} 2>&1 & until {listens}; do kill -0 $! || break; sleep 0.1; done; {argv} 127.0.0.1 && wait $!", 60)
            writes += 1000
            payload, packets = writes * 65536, writes * 16
            # 16 bytes of headers a packet, the RETH, ACKs; and on a busy machine packets that are sent again.
            most = payload * 1.1
            is_good = lambda m: all(payload <= m[f"port_data_{way}_bytes_total"] <= most for way in ("transmitted", "received"))
            now = settled(lambda: metrics(tree), is_good, f"{payload} bytes were written, and the metrics are", r)
            for name in ("port_packets_transmitted_total", "port_packets_received_total", "unicast_packets_received_total"):
                r.check(packets <= now[name] <= packets * 1.6, f"{packets} packets, and {name} is {now[name]}", tree.program)
            r.check(now["port_errors_received_total"] == 0, "there are errors", tree.program)
            # Both programs have ended: nothing moves, and nothing is forgotten.
            time.sleep(1)
            later = metrics(tree)
            r.check(later == now, f"the metrics move without packets: {now}, {later}", tree.program)
        tree.end()


@row(COUNTERS, "a copy by memory counts at both ends, each below its own verbena run", "ib_write_bw, ib_read_bw -s 65536 -n 200000", limit=120)
def both_ends(r):
    need("ib_write_bw")
    ns = r.namespace()
    for program, ours, theirs in (("ib_write_bw", "xmit", "rcv"), ("ib_read_bw", "rcv", "xmit")):
        server, client = Tree(r, ns), Tree(r, ns)
        argv = f"{program} -d rxe_lo -x 1 -F -s 65536 -n 200000"
        server.background(argv)
        r.tcp_listening(server.program)
        client.do(f"{argv} 127.0.0.1", 60)
        words = 200000 * 65536 // 4
        # The end that copies counts all. The other one learns of it a few times a second, and may end before the last time.
        counted = []
        for tree, way, other in ((client, ours, theirs), (server, theirs, ours)):
            is_good = lambda c: words // 4 <= c[f"port_{way}_data"] <= words * 1.02
            now = settled(tree.counters, is_good, f"{words} words, and the counters are", r)
            r.check(now[f"port_{other}_data"] < words / 50, f"the other way there are {now[f'port_{other}_data']} words", tree.program)
            counted.append(now[f"port_{way}_data"])
        r.check(max(counted) >= words, f"{words} words, and no end counts all: {counted}", client.program)
        server.end(), client.end()


@row(COUNTERS, "rdma statistic and rdma resource tell of the processes of one verbena run, one inside another included", "rping, rdma", limit=60, parallel=True)
def commands(r):
    ns = r.namespace()
    verbena = r.harness.verbena
    tree, other = Tree(r, ns), Tree(r, ns)
    for t, port in ((tree, 7174), (other, 7175)):
        t.background(f"rping -s -a 127.0.0.1 -p {port} -C 1000000")
        r.listening(t.program, port)
        # One by another `verbena run`, below this one.
        t.background(f"{verbena} run -- rping -c -a 127.0.0.1 -p {port} -C 1000000")
    ask = lambda what: json.loads(tree.do(f"rdma -j {what}"))
    summary = settled(lambda: ask("resource show")[0], lambda s: (s["qp"], s["ctx"], s["cm_id"]) == (2, 2, 2), "rdma resource show", r)
    r.check(summary["ifname"] == "rxe_lo" and summary["mr"] == 7 and summary["cq"] == 2, f"{summary}", tree.program)
    # A process that has no processor for half a second is missing in an answer.
    listed = lambda kind, n: settled(lambda: ask(f"resource show {kind}"), lambda said: len(said) == n, f"rdma resource show {kind}", r)
    qps = listed("qp", 2)
    r.check([qp["comm"] for qp in qps] == ["rping"] * 2 and qps[0]["rqpn"] == qps[1]["lqpn"], f"{qps}", tree.program)
    r.check(all(qp["state"] == "RTS" and os.path.exists(f"/proc/{qp['pid']}") for qp in qps), f"{qps}", tree.program)
    for kind, n in (("cq", 2), ("mr", 7), ("pd", 2), ("cm_id", 2)):
        listed(kind, n)
    text = tree.do("rdma resource show qp link rxe_lo/1").splitlines()
    r.check(len(text) == 2 and re.match(r"link rxe_lo/1 lqpn \d+ rqpn \d+ type RC state RTS rq-psn \d+ sq-psn \d+ path-mig-state MIGRATED pdn \d+ pid \d+ comm rping $", text[0]), f"{text}", tree.program)
    moved = [ask("statistic show")[0]]
    time.sleep(1)
    moved.append(ask("statistic show link rxe_lo/1")[0])
    r.check(all(0 < moved[0][name] < moved[1][name] for name in ("sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs")), f"{moved}", tree.program)
    files, said = tree.counters("hw_counters"), ask("statistic show")[0]
    r.check(files.pop("lifespan") == 300 and set(files) == set(said) - {"ifindex", "ifname", "port"}, f"{files}, {said}", tree.program)
    for t in (tree, other):
        t.end()


@row(COUNTERS, "what is lost and sent again counts in hw_counters", "ibv_rc_pingpong -n 200, verbena run --faults loss=3%", limit=90, parallel=True)
def losses(r):
    tree = Tree(r, r.namespace(), ("--faults", "loss=3%,dir=out", "--seed", "7"))
    argv = "ibv_rc_pingpong -d rxe_lo -g 1 -n 200"
    tree.background(argv)
    # Where the last ACK is lost, the last SEND goes to a queue pair that is gone, and its sender says so.
    r.tcp_listening(tree.program)
    tree.do(f"{argv} 127.0.0.1 || true", 60)
    wanted = ("completer_retry_err", "duplicate_request", "out_of_seq_request", "rdma_sends", "rdma_recvs")
    now = settled(lambda: tree.counters("hw_counters"), lambda c: all(c[name] for name in wanted), "hw_counters", r)
    r.check(now["rdma_sends"] >= 400 and now["retry_exceeded_err"] <= 2, f"{now}", tree.program)
    tree.end()
