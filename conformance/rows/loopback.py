"""Two processes on one machine, over the loopback interface."""
import re

from .harness import Fail, row
from .programs import judge_client, judge_golden, judge_pingpong, judge_server, judge_xsrq_pingpong

HERE = "one machine"


def rping_pair(row, count, size, server_args, client_args, ns, server_ns=None, verbose=True, address=None, listen=None):
    """One server and one client, both judged: `listen` is what the server binds, `address` what the client asks for."""
    server = row.run("rping", "-s", *server_args, "-C", str(count), "-S", str(size), *(["-a", listen] if listen else []), ns=server_ns or ns)
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", address, *client_args, "-C", str(count), "-S", str(size), ns=ns)
    judge_client(row, client, count, size, verbose)
    judge_server(row, server, count, size, "-v" in server_args)


@row(HERE, "small pings", "rping -C 1000 -S 64 -v")
def small(row):
    rping_pair(row, 1000, 64, ["-v"], ["-v"], row.namespace(), address="127.0.0.1", listen="127.0.0.1")


@row(HERE, "large pings, verified", "rping -S 65535 -C 100 -V")
def large(row):
    rping_pair(row, 100, 65535, ["-V"], ["-V"], row.namespace(), verbose=False, address="127.0.0.1", listen="127.0.0.1")


@row(HERE, "large pings, every byte printed by both sides", "rping -S 65535 -C 100 -v -V")
def large_printed(row):
    rping_pair(row, 100, 65535, ["-v", "-V"], ["-v", "-V"], row.namespace(), address="127.0.0.1", listen="127.0.0.1")


@row(HERE, "IPv6", "rping -a ::1 -C 1000 -S 64 -v")
def ipv6(row):
    rping_pair(row, 1000, 64, ["-v"], ["-v"], row.namespace(), address="::1", listen="::1")


@row(HERE, "server on 0.0.0.0", "rping -s -a 0.0.0.0")
def any_address(row):
    rping_pair(row, 100, 64, ["-v"], ["-v"], row.namespace(), address="127.0.0.1", listen="0.0.0.0")


@row(HERE, "server without an address", "rping -s")
def no_address(row):
    rping_pair(row, 100, 64, ["-v"], ["-v"], row.namespace(), address="127.0.0.1")


@row(HERE, "endpoints and synchronous calls", "rdma_server, rdma_client")
def rdma_client(row):
    ns = row.namespace()
    server = row.run("rdma_server", "-s", "127.0.0.1", ns=ns)
    row.listening(server, 7471)
    judge_golden(row, "rxe-rdma_client.txt", server, row.run("rdma_client", "-s", "127.0.0.1", ns=ns))


@row(HERE, "ten connections", "ucmatose -c 10 -C 100")
def ucmatose(row):
    ns = row.namespace()
    server = row.run("ucmatose", "-c", "10", "-C", "100", ns=ns)
    row.listening(server, 7471)
    judge_golden(row, "rxe-ucmatose.txt", server, row.run("ucmatose", "-s", "127.0.0.1", "-c", "10", "-C", "100", ns=ns))


@row(HERE, "a connection refused by the server", "ucmatose -c 1, -c 2")
def refused(row):
    """The server refuses what comes before its one connection stands. Then it reads no more events: where the client was late with its
    second request nobody refuses it, and there is nothing to judge."""
    ns = row.namespace()

    def once():
        server = row.run("ucmatose", "-c", "1", "-C", "1", ns=ns)
        row.listening(server, 7471)
        client = row.run("ucmatose", "-s", "127.0.0.1", "-c", "2", "-C", "1", ns=ns)
        try:
            client.wait(5)
        except Fail:
            client.end()
            server.end()
            return False
        row.check(client.wait() == 28, f"client exit {client.rc}", client, server)
        row.check("cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28" in client.out.lines, "not rejected with 28", client, server)
        return True

    row.check(any(once() for _ in range(4)), "the second request came too late four times", *row.programs)


def pingpong(row, device, address, ns, server_ns, *more, service="rc", size=4096, patience=30):
    argv = [f"ibv_{service}_pingpong", "-s", str(size), *(["-d", device] if device else []), "-g", "1", *more]
    server = row.run(*argv, ns=server_ns)
    row.tcp_listening(server)
    judge_pingpong(row, service, server, row.run(*argv, address, ns=ns), size=size, patience=patience)


def srq_pingpong(row, *more):
    ns = row.namespace()
    argv = ["ibv_srq_pingpong", "-g", "1", *more]
    server = row.run(*argv, ns=ns)
    row.tcp_listening(server)
    judge_pingpong(row, "srq", server, row.run(*argv, "127.0.0.1", ns=ns))


@row(HERE, "sixteen queue pairs and a shared receive queue, polling", "ibv_srq_pingpong -g 1")
def srq_pingpong_polling(row):
    srq_pingpong(row)


@row(HERE, "sixteen queue pairs and a shared receive queue, events", "ibv_srq_pingpong -g 1 -e")
def srq_pingpong_events(row):
    srq_pingpong(row, "-e")


def xsrq_pingpong(row, *more):
    ns = row.namespace()
    argv = ["ibv_xsrq_pingpong", "-g", "1", *more]
    server = row.run(*argv, ns=ns)
    row.tcp_listening(server)
    judge_xsrq_pingpong(row, server, row.run(*argv, "127.0.0.1", ns=ns))


@row(HERE, "XRC and a shared receive queue by number, polling", "ibv_xsrq_pingpong -g 1")
def xsrq_pingpong_polling(row):
    xsrq_pingpong(row)


@row(HERE, "XRC and a shared receive queue by number, events", "ibv_xsrq_pingpong -g 1 -e")
def xsrq_pingpong_events(row):
    xsrq_pingpong(row, "-e")


@row(HERE, "XRC, messages of 64 KiB", "ibv_xsrq_pingpong -g 1 -s 65536 -n 1000")
def xsrq_pingpong_large(row):
    xsrq_pingpong(row, "-s", "65536", "-n", "1000")


@row(HERE, "queue pairs without a connection manager, polling", "ibv_rc_pingpong -g 1")
def pingpong_polling(row):
    ns = row.namespace()
    pingpong(row, None, "127.0.0.1", ns, ns)


@row(HERE, "queue pairs without a connection manager, events", "ibv_rc_pingpong -g 1 -e")
def pingpong_events(row):
    ns = row.namespace()
    pingpong(row, None, "127.0.0.1", ns, ns, "-e")


def machine_pingpong(row, service, size, *more):
    """Between processes of one address a message of UC or UD may be lost around the promotion of its flow, on a busy machine; nobody
    sends it again, and the program waits for ever. Such a run is repeated, four times at most."""
    ns = row.namespace()
    for last in (False, False, False, False, True):
        begun = len(row.programs)
        try:
            pingpong(row, None, "127.0.0.1", ns, ns, *more, service=service, size=size, patience=30 if service == "rc" else 16)
            return
        except Fail:
            ends = row.programs[begun:]
            lost = service != "rc" and any(p.running() for p in ends)
            for p in ends:
                p.end()
            if last or not lost:
                raise
        # The rows' judge looks at what is there.
        del row.programs[begun:]


for service, what, sizes in (("uc", "unreliable connections", (64, 65536)), ("ud", "datagrams", (64, 4096))):
    for size in sizes:
        for how, more in (("polling", []), ("events", ["-e"])):
            row(HERE, f"{what} of {size} bytes, {how}", " ".join([f"ibv_{service}_pingpong -g 1 -s {size}", *more]), limit=90)(
                lambda r, service=service, size=size, more=more: machine_pingpong(r, service, size, *more))
for how, more in (("polling", []), ("events", ["-e"])):
    row(HERE, f"queue pairs without a connection manager, 1 MiB, {how}", " ".join(["ibv_rc_pingpong -g 1 -s 1048576", *more]))(
        lambda r, more=more: machine_pingpong(r, "rc", 1 << 20, *more))
for mtu in (256, 512, 1024, 2048, 4096):
    row(HERE, f"queue pairs without a connection manager, MTU {mtu}", f"ibv_rc_pingpong -g 1 -s 65536 -m {mtu}")(
        lambda r, mtu=mtu: machine_pingpong(r, "rc", 65536, "-m", str(mtu)))
    row(HERE, f"unreliable connections, MTU {mtu}", f"ibv_uc_pingpong -g 1 -s 65536 -m {mtu}", limit=90)(
        lambda r, mtu=mtu: machine_pingpong(r, "uc", 65536, "-m", str(mtu)))


@row(HERE, "datagrams over IPv6", "ibv_ud_pingpong -g 2")
def datagrams_v6(row):
    # Only the queue pairs speak IPv6: the program exchanges their numbers over IPv4.
    ns = row.namespace()
    argv = ["ibv_ud_pingpong", "-g", "2", "-s", "1024"]
    server = row.run(*argv, ns=ns)
    row.tcp_listening(server)
    judge_pingpong(row, "ud", server, row.run(*argv, "127.0.0.1", ns=ns), size=1024)


def device_list(row, ns):
    """{name: GUID} as ibv_devices prints them."""
    p = row.run("ibv_devices", ns=ns)
    row.check(p.wait() == 0, f"exit {p.rc}")
    return dict(m.groups() for line in p.out.lines if (m := re.match(r"\s+(\S+)\s+([0-9a-f]{16})$", line)))


@row(HERE, "a device for the interface", "ibv_devices")
def devices(row):
    found = device_list(row, row.namespace())
    row.check("rxe_lo" in found, "there is no rxe_lo")
    row.check(int(found["rxe_lo"], 16) != 0, "the GUID is zero")
    row.check(len(set(found.values())) == len(found), "two devices have one GUID")


def attributes(row, ns, device):
    """ibv_devinfo -v of one device: its fields, and its GID lines."""
    p = row.run("ibv_devinfo", "-v", "-d", device, ns=ns)
    row.check(p.wait() == 0, f"exit {p.rc}")
    fields = dict(m.groups() for line in p.out.lines if (m := re.match(r"\s*([\w ]+?):\s+(.+?)\s*$", line)))
    return fields, [line.split("\t", 3)[-1].strip() for line in p.out.lines if "GID[" in line]


def number(fields, name):
    return int(fields.get(name, "0").split()[0], 0)


@row(HERE, "attributes of device, port and GIDs", "ibv_devinfo -v")
def devinfo(row):
    ns = row.namespace()
    guid = device_list(row, ns).get("rxe_lo", "")
    fields, gids = attributes(row, ns, "rxe_lo")
    row.check(fields.get("node_guid", "").replace(":", "") == guid, "ibv_devices has another GUID")
    row.check(fields.get("transport", "").startswith("InfiniBand"), "transport is not InfiniBand")
    for name, least in (("phys_port_cnt", 1), ("max_mr_size", 1 << 30), ("max_qp", 8), ("max_qp_wr", 128), ("max_sge", 2), ("max_cq", 8),
                        ("max_cqe", 128), ("max_mr", 8), ("max_pd", 8), ("max_qp_rd_atom", 1), ("max_qp_init_rd_atom", 1), ("max_pkeys", 1)):
        row.check(number(fields, name) >= least, f"{name} is too small")
    for name, value in (("state", "PORT_ACTIVE (4)"), ("max_mtu", "4096 (5)"), ("active_mtu", "4096 (5)"), ("link_layer", "Ethernet")):
        row.check(fields.get(name) == value, f"{name} is not {value}")
    row.check(any("127.0.0.1" in g for g in gids), "no GID for 127.0.0.1")
    row.check(any(re.search(r"(^|\s)::1\b|0000:0001\b", g) for g in gids), "no GID for ::1")
    row.check(all("RoCE v2" in g for g in gids), "a GID is not RoCE v2")


@row(HERE, "ibstat has a value in every line", "ibstat")
def ibstat(row):
    p = row.run("ibstat", ns=row.namespace())
    row.check(p.wait() == 0, f"exit {p.rc}", p)
    # Lines that begin a device or a port have their values below them.
    lines = [line.strip() for line in p.out.lines if line.strip() and not re.match(r"\s*(CA '\S+'|Port \d+:)$", line)]
    empty = [line for line in lines if line.endswith(":")]
    row.check(len(lines) >= 14 and not empty, f"no value: {empty}", p)


@row(HERE, "what this machine offers", "verbena devices")
def verbena_devices(row):
    p = row.plain(row.harness.verbena, "devices", ns=row.namespace())
    row.check(p.wait() == 0, f"exit {p.rc}")
    row.check(any("rxe_lo" in line for line in p.out.lines), "there is no rxe_lo")
    row.check(any(line.startswith("same host ") for line in p.out.lines), "nothing is said of processes of one host")


@row(HERE, "the demonstration", "verbena demo", limit=60)
def verbena_demo(row):
    p = row.plain(row.harness.verbena, "demo", ns=row.namespace())
    row.check(p.wait(60) == 0, f"exit {p.rc}")
    row.check(any("connected: queue pair" in line for line in p.out.lines), "no connection is shown")
    row.check(any(line.endswith("disconnected") for line in p.out.lines), "no end is shown")
