"""Other benchmarks than perftest: qperf, whose server takes one test after the other, fio's rdma engine, and `verbena bench`."""
import json, re, time

from .harness import row

HERE = "benchmarks"

QPERF = ("rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_bw rc_rdma_write_poll_lat "
         "rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add")


def qperf(row, tests, *more):
    """Each test by itself: exit 0, and results above zero, which verifications give too."""
    ns = row.namespace()
    server = row.run("qperf", ns=ns)
    row.tcp_listening(server, 19765)
    for test in tests:
        for _ in range(5):
            client = row.run("qperf", "-t", "1", *more, "127.0.0.1", test, ns=ns)
            rc = client.wait(15)
            lines = client.out.lines + client.err.lines
            # Its two ends meet over TCP, then one connects as the other begins to listen: once in a while it comes too early.
            if not any("Event rejected" in line for line in lines):
                break
        row.check(rc == 0, f"{test}: client exit {rc}", client, server)
        values = [float(m.group(1)) for line in lines if (m := re.match(r"\s+\w+\s+=\s+([\d.]+)", line))]
        row.check(values and all(v > 0 for v in values), f"{test}: no numbers", client, server)
    row.check(not server.err.lines, "the server complained", server)


row(HERE, "qperf over RC", "qperf -cm 1 " + QPERF, limit=200)(lambda r: qperf(r, QPERF.split(), "-cm", "1"))


@row(HERE, "qperf over UC and UD is refused as the kernel refuses it", "qperf uc_lat, ud_lat")
def qperf_without_gids(row):
    """For these qperf 0.4.11 has LIDs only, and asks for an address without a GRH, which RoCE does not have: EINVAL
    (drivers/infiniband/core/verbs.c, rdma_check_ah_attr). Both ends are refused, and the first tells the other over TCP, in an
    urgent byte and then the text. A client whose handler of that byte reads before the text has come says only "server: "; then
    the text is in what the server printed."""
    ns = row.namespace()
    server = row.run("qperf", ns=ns)
    row.tcp_listening(server, 19765)
    for test, what in (("uc_lat", "modify QP to RTR"), ("ud_lat", "create address handle")):
        wanted = f"failed to {what}: Invalid argument"
        client = row.run("qperf", "127.0.0.1", test, ns=ns)
        row.check(client.wait() == 1, f"{test}: exit {client.rc}", client, server)
        if any(wanted in line for line in client.err.lines + client.out.lines):
            continue
        row.check(client.err.lines == ["server: "], f"{test}: another error", client, server)
        server.until(wanted)


def fio(row, verb):
    """The side that reads listens. What is sent bears a checksum for each block, which the receiver verifies; with the other verbs
    the far side takes no part, and fio has nothing to verify."""
    ns = row.namespace()
    common = ["--ioengine=rdma", "--port=7771", "--bs=16k", "--size=4m", "--iodepth=8", "--output-format=terse"]
    verified = ["--verify=crc32c"] if verb == "send" else []
    # fio asks for no RNR retries: a message that finds no receive ends the run, so there is one for each.
    receives = ["--iodepth=256"] if verb == "send" else []
    server = row.run("fio", "--name=server", *common, *receives, "--rw=read", *verified, ns=ns)
    row.listening(server, 7771)
    client = row.run("fio", "--name=client", *common, "--rw=write", "--hostname=127.0.0.1", f"--verb={verb}", *verified,
                     *(["--do_verify=0"] if verified else []), ns=ns)
    # fio's terse format 3: the error is field 5, KiB read field 6, KiB written field 47.
    for side, p, field in (("client", client, 46), ("server", server, 5)):
        rc = p.wait(40)
        row.check(rc == 0, f"{side} exit {rc}", client, server)
        fields = next((line for line in p.out.lines if line.startswith("3;fio")), "").split(";")
        row.check(len(fields) > 46 and fields[4] == "0", f"{side} error", client, server)
        if p is client or verb == "send":
            row.check(int(fields[field]) == 4096, f"{side}: not all bytes", client, server)


for verb, what in (("write", "writes"), ("read", "reads"), ("send", "messages, verified")):
    row(HERE, f"fio's rdma engine, {what}", f"fio --ioengine=rdma --verb={verb}", limit=60)(lambda r, v=verb: fio(r, v))


@row(HERE, "verbena bench measures between two hosts, again and again", "verbena bench --listen, --peer", limit=60)
def bench(row):
    ours, theirs = row.veth()
    verbena = row.harness.verbena
    far = row.plain(verbena, "bench", "--listen", ns=theirs)
    row.tcp_listening(far, 18590)
    for _ in range(2):
        near = row.plain(verbena, "bench", "--peer", "10.90.0.2", "--sizes", "8,64k", "--seconds", "0.05", "--json", "-", ns=ours)
        row.check(near.wait(20) == 0, f"exit {near.rc}", near, far)
        points = json.loads("\n".join(near.out.lines))["points"]
        figures = [point[over] for point in points for over in ("verbena", "tcp")]
        row.check(len(points) == 6 and all(f["median_us"] > 0 and f["gb_per_s"] > 0 for f in figures), f"{points}", near, far)
    # A near end that is killed ends its measurement, and no other.
    near = row.plain(verbena, "bench", "--peer", "10.90.0.2", "--seconds", "10", ns=ours)
    far.until("measured from 10.90.0.1")
    # Until it measures: of one that is killed as it connects the far end hears nothing.
    time.sleep(0.7)
    near.end()
    near = row.plain(verbena, "bench", "--peer", "10.90.0.2", "--sizes", "8", "--seconds", "0.01", ns=ours)
    row.check(near.wait(30) == 0, f"exit {near.rc} after one that was killed", near, far)
