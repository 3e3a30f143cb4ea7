"""Exporters of metrics on hosts of `verbena fabric`, unmodified: what they say is what the fabric counts, and faults by command are seen."""
import re

from .fabric import Fabric
from .fabric_data import THERE, Ends, until
from .harness import need, row

EXPORTERS = "InfiniBand exporters"
ADDRESS = "127.0.0.1:9100"


def metrics(e):
    """What node_exporter says of the port: numbers by name."""
    fetch = f"import urllib.request; print(urllib.request.urlopen('http://{ADDRESS}/metrics', timeout=20).read().decode())"
    p = e.r.plain("python3", "-c", fetch, ns=e.ns)
    e.r.check(p.wait() == 0, "node_exporter does not answer", p)
    port = re.compile(r'^node_infiniband_(\w+)\{device="mlx5_0",port="1"\} (\S+)$', re.M)
    return {name: float(n) for name, n in port.findall("\n".join(p.out.lines))}


@row(EXPORTERS, "node_exporter: what a port has sent and received, its errors, its state and rate", "prometheus-node-exporter, ib_write_bw; verbena fabric set, down", limit=150, parallel=True)
def node_exporter(r):
    need("prometheus-node-exporter")
    e = Ends(r)
    p = e.on(THERE, "prometheus-node-exporter", "--collector.disable-defaults", "--collector.infiniband", f"--web.listen-address={ADDRESS}")
    r.tcp_listening(p, 9100)
    last = e.there[-1]

    def settled(what, good):
        # The files of counters are written once a second.
        until(r, what, lambda: good(metrics(e)), 40)

    def counted(name):
        return e.at(THERE, "1", name)
    before = metrics(e)
    r.check((before["state_id"], before["physical_state_id"], before["rate_bytes_per_second"]) == (4, 5, 12.5e9), f"the port is {before}", p)
    e.pair(["ib_write_bw", "-F", "-d", "mlx5_0", "-n", "100", "-s", "65536"])
    e.f.ask("set", THERE, "1", "SymbolErrorCounter", "20")
    e.f.ask("set", THERE, "1", "PortXmitDiscards", "7")
    settled("the metrics are not what is counted", lambda m: (
        m["port_packets_received_total"] == counted("PortRcvPkts") >= before["port_packets_received_total"] + 100 * 16
        and m["port_data_received_bytes_total"] == 4 * counted("PortRcvData") >= 100 * 65536
        and m["port_packets_transmitted_total"] == counted("PortXmitPkts")
        and (m["symbol_error_total"], m["port_discards_transmitted_total"]) == (20, 7)))
    downed = counted("LinkDownedCounter")
    e.f.ask("down", *last)
    settled("the port is not down", lambda m: (m["state_id"], m["link_downed_total"]) == (1, downed + 1))


@row(EXPORTERS, "OpenSM's performance manager logs the errors that come while it runs", "opensm --perfmgr; verbena fabric set", limit=60, parallel=True)
def performance_manager(r):
    need("opensm")
    f = Fabric(r, "--fat-tree", "2,4")
    sm = f.opensm("host0", "--perfmgr", "--perfmgr_sweep_time_s", "1")
    # It tells of differences: one sweep is to have seen the counters as they were.
    leaf, words = f.lid("leaf2"), lambda: f.status()["answered"]
    before = words()
    until(r, "the performance manager asks nothing", lambda: words() > before + 40, 20)
    f.ask("set", "leaf2", "3", "SymbolErrorCounter", "20")
    sm.until("SymbolErrorCounter")
    line = next(line for line in sm.lines() if "SymbolErrorCounter" in line)
    r.check("leaf2" in line and "20" in line, f"it logs {line}, of LID {leaf}", sm.process)
