"""Faults by `verbena run --faults`: what unmodified programs make of them."""
import os, re, subprocess, time

from .harness import need, row

BROKEN = "faults"
PINGPONG = ["ibv_rc_pingpong", "-d", "rxe_lo", "-g", "1"]


def pingpong(row, ns, count, *options):
    """Two ends of ibv_rc_pingpong, the client with options of `verbena run`; they are judged by the caller."""
    server = row.run(*PINGPONG, "-n", str(count), ns=ns)
    row.tcp_listening(server)
    return server, row.run(*PINGPONG, "-n", str(count), "127.0.0.1", ns=ns, options=options)


@row(BROKEN, "losses, duplicates and damage are mended", "rping -S 5000 -C 40 -V", parallel=True, limit=120)
def mended(row):
    ns = row.namespace()
    faults = ("--faults", "loss=2%; duplicate=2%; corrupt=1%", "--seed", "1")
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "40", "-S", "5000", "-V", ns=ns, options=faults)
    row.listening(server, 7174)
    counters = os.path.join(row.work, "counters")
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "40", "-S", "5000", "-V", ns=ns, options=(*faults, "--counters", counters))
    row.check(client.wait(90) in (0, 255), f"client exit {client.rc}", client, server)
    row.check("verbena: --faults 'loss=2%; duplicate=2%; corrupt=1%' --seed 1" in client.err.lines, "the seed is not said", client)
    with open(counters) as f:
        damaged = int(re.search(r"^node\.icrc (\d+)$", f.read(), re.M).group(1))
    row.check(damaged > 0, "no packet was damaged", client)


@row(BROKEN, "the same seed makes the same decisions, three times", "ibv_rc_pingpong -n 300", parallel=True, limit=120)
def seeds(row):
    need("tshark")
    ns = row.namespace()

    def befell(name, rules, seed, what, count):
        """Which of the client's packets met a fault, of its first so many (for `error` of its SENDs)."""
        file = os.path.join(row.work, f"{name}.pcapng")
        server, client = pingpong(row, ns, 300, "--capture", file, "--faults", rules, "--seed", str(seed))
        row.check(client.wait(60) == (1 if what == "error" else 0), f"exit {client.rc}", client, server)
        # Where the client's last ACK is lost, the server repeats its last SEND to a queue pair that is gone.
        gone = "Failed status transport retry counter exceeded (12)"
        row.check(what == "error" or server.wait(60) == 0 or any(gone in line for line in server.err.lines), f"server exit {server.rc}", client, server)
        server.end()
        # Opcode 0 is the first packet of a SEND.
        leaving = "frame.packet_flags_direction == 2" + (" && infiniband.bth.opcode == 0" if what == "error" else "")
        argv = ["tshark", "-n", "-r", file, "-Y", leaving, "-T", "fields", "-e", "infiniband.bth.psn", "-e", "frame.comment"]
        said = [line.partition("\t") for line in subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()][:count]
        row.check(what == "error" or len(said) == count, f"{len(said)} packets", client)
        found = [n for n, (_, _, comment) in enumerate(said) if comment == f"fault: {what}"]
        # A request may come again before, and after: how many there were before the first that failed.
        return [len({psn for psn, _, _ in said[: found[0]]})] if what == "error" and found else found

    for rules, what, least, most in (("loss=3%,dir=out", "loss", 5, 30), ("error=rem-access,probability=2%,op=send", "error", 1, 1)):
        first = befell(f"{what}-a", rules, 17, what, 500)
        row.check(least <= len(first) <= most, f"{rules}: {len(first)} packets")
        row.check(all(befell(f"{what}-{n}", rules, 17, what, 500) == first for n in "bc"), f"{rules}: other packets with the same seed")
        row.check(befell(f"{what}-d", rules, 18, what, 500) != first, f"{rules}: another seed decides the same")


@row(BROKEN, "a rule acts on the packets that it names", "ibv_rc_pingpong, rping", parallel=True, limit=120)
def rules(row):
    ns = row.namespace()
    # All ACKs are lost: the request is repeated until the last try is used up.
    server, client = pingpong(row, ns, 10, "--faults", "loss=100%,op=ack,dir=in")
    row.check(client.wait(60) == 1, f"exit {client.rc}", client, server)
    row.check(any("Failed status transport retry counter exceeded (12)" in line for line in client.err.lines), "no IBV_WC_RETRY_EXC_ERR", client)
    server.end()
    # Rules that name no packet of the program's change nothing.
    for rule in ("type=ud,op=send", "peer=127.0.0.9", "interface=eth7", "op=flush", "qp=0x123"):
        server, client = pingpong(row, ns, 10, "--faults", f"loss=100%,{rule}")
        row.check(client.wait(20) == 0 and server.wait(20) == 0, f"{rule}: exit {client.rc}, {server.rc}", client, server)
    # A partition of half a second is survived.
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "100", ns=ns)
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "100", "-v", ns=ns, options=("--faults", "loss=100%,from=0ms,until=500ms"))
    row.check(client.wait() in (0, 255) and len(client.out.lines) == 100, "the partition is not survived", client, server)


@row(BROKEN, "a mistake in a rule is a message that points at it", "verbena run --faults", parallel=True)
def mistakes(row):
    ns = row.namespace()
    for rules, said in (
        ("loss=1%,op=sned", ["verbena: --faults: an operation is send, write, read, read-response, ack, atomic, flush, atomic-write", "  loss=1%,op=sned", "             ^^^^"]),
        ("loss=120%", ["verbena: --faults: a probability is 0% to 100%", "  loss=120%", "       ^^^^"]),
        ("delay=2ms; rate=1gb", ["verbena: --faults: a rate is 1gbit, 100mbit, 64kbit or 300bit", "  delay=2ms; rate=1gb", "                  ^^^"]),
        ("enomem,peer=10.0.0.2", ["verbena: --faults: enomem has the conditions object, device, nth, probability, from, until", "  enomem,peer=10.0.0.2", "         ^^^^^^^^^^^^^"]),
    ):
        tried = row.run("true", ns=ns, options=("--faults", rules))
        row.check(tried.wait() == 1 and tried.err.lines == said, f"{rules} is not refused well", tried)


def iteration(row, ns, count, rules, *options):
    """Microseconds of one iteration of ibv_rc_pingpong, whose client has these rules."""
    server = row.run(*PINGPONG, "-e", *options, "-n", str(count), ns=ns)
    row.tcp_listening(server)
    client = row.run(*PINGPONG, "-e", *options, "-n", str(count), "127.0.0.1", ns=ns, options=("--faults", rules, "--seed", "3"))
    row.check(client.wait(60) == 0 and server.wait(60) == 0, f"{rules}: exit {client.rc}, {server.rc}", client, server)
    found = [re.search(r"= ([\d.]+) usec/iter", line) for line in client.out.lines]
    return next(float(match.group(1)) for match in found if match)


@row(BROKEN, "packets are late, overtake each other and wait for their turn", "ibv_rc_pingpong", parallel=True, limit=180)
def late(row):
    ns = row.namespace()
    # Messages of one packet, which cannot overtake each other. The delay is that of both directions.
    for rules, least in (("delay=20ms", 40_000), ("delay=20ms,jitter=4ms", 34_000), ("delay=20ms,dir=in", 20_000)):
        took = iteration(row, ns, 20, rules, "-s", "64")
        row.check(least <= took < least + 40_000, f"{rules}: {took} us each time")
    # 65,536 bytes take 5.4 ms each way at 100 Mbit/s.
    took = iteration(row, ns, 20, "rate=100mbit", "-s", "65536")
    row.check(10_800 <= took < 60_000, f"rate: {took} us each time")
    # What overtakes is mended: messages of four packets.
    iteration(row, ns, 20, "delay=2ms,reorder=10%")
    iteration(row, ns, 20, "reorder=5%")
    iteration(row, ns, 20, "chaos")


# Statuses, with the numbers of enum ibv_wc_status.
STATUSES = {
    "retry-exc": 12, "rem-access": 10, "rem-inv-req": 9, "rem-op": 11, "rnr-retry-exc": 13, "rem-abort": 16, "loc-len": 1,
    "loc-qp-op": 2, "loc-prot": 4, "loc-access": 8, "bad-resp": 7, "fatal": 19, "resp-timeout": 20, "general": 21,
}


@row(BROKEN, "a work request fails with the status that a rule names", "ibv_rc_pingpong, rping", parallel=True, limit=180)
def statuses(row):
    ns = row.namespace()
    for status, number in STATUSES.items():
        server, client = pingpong(row, ns, 1000, "--faults", f"error={status},nth=100")
        row.check(client.wait(30) == 1, f"{status}: exit {client.rc}", client, server)
        # The wr_id of a send is 2.
        said = [line for line in client.err.lines if re.fullmatch(rf"Failed status .* \({number}\) for wr_id 2", line)]
        row.check(len(said) == 1, f"{status}: not said", client)
        server.end()
    # The other end refuses the READ of rping, and both see it.
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "5", ns=ns, options=("--faults", "error=rem-access,op=read,nth=3"))
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "5", "-v", ns=ns)
    client.wait()
    row.check(server.wait() != 0, "the READ did not fail", client, server)
    row.check("cq completion failed status 10" in server.err.lines, "the status is not said", server)


@row(BROKEN, "a send of an unreliable service fails with the status that a rule names", "ibv_uc_pingpong, ibv_ud_pingpong", parallel=True, limit=60)
def unreliable(row):
    ns = row.namespace()
    for kind, word, said in (("uc", "loc-prot", "local protection error (4)"), ("ud", "general", "general error (21)"), ("ud", "loc-qp-op", "local QP operation error (2)")):
        program = [f"ibv_{kind}_pingpong", "-d", "rxe_lo", "-g", "1", "-n", "50"]
        need(program[0])
        server = row.run(*program, ns=ns, options=("--wire",))
        row.tcp_listening(server)
        # A status that only a peer tells concerns no such send.
        rules = f"error=rem-access,nth=1; error={word},type={kind},nth=2"
        client = row.run(*program, "127.0.0.1", ns=ns, options=("--faults", rules))
        told = f"Failed status {said} for wr_id 2"
        row.check(client.wait(20) == 1 and client.err.lines[-1:] == [told], f"{kind} {word}: exit {client.rc}", client, server)
        server.end()


@row(BROKEN, "a receive fails with the status that a rule names", "ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong", parallel=True, limit=120)
def receives(row):
    ns = row.namespace()
    for kind, word, said in (
        ("rc", "loc-prot", "local protection error (4)"), ("rc", "loc-len", "local length error (1)"),
        ("uc", "loc-prot", "local protection error (4)"), ("ud", "general", "general error (21)"),
    ):
        # The second datagram: the system gives the answer to the first one to either process.
        nth = 2 if kind == "ud" else 10
        program = [f"ibv_{kind}_pingpong", "-d", "rxe_lo", "-g", "1", "-n", "50"]
        need(program[0])
        server = row.run(*program, ns=ns, options=("--faults", f"error={word},dir=in,type={kind},nth={nth}"))
        row.tcp_listening(server)
        client = row.run(*program, "127.0.0.1", ns=ns, options=("--wire",))
        row.check(server.wait(20) == 1 and any(f"Failed status {said}" in line for line in server.err.lines), f"{kind} {word}: exit {server.rc}", server, client)
        if kind == "rc":
            told = "remote invalid request error (9)" if word == "loc-len" else "remote operation error (11)"
            row.check(client.wait(20) == 1 and any(f"Failed status {told}" in line for line in client.err.lines), f"{kind} {word}: exit {client.rc}", client, server)
        client.end()


@row(BROKEN, "a message finds no receive", "ibv_rc_pingpong, tshark", parallel=True, limit=120)
def no_receive(row):
    need("tshark")
    ns = row.namespace()
    for rules, comments in (("rnr,nth=5", 1), ("rnr,nth=50,dir=in", 1), ("rnr,nth=5,dir=out", 1)):
        file = os.path.join(row.work, f"{comments}{len(rules)}.pcapng")
        server, client = pingpong(row, ns, 100, "--capture", file, "--faults", rules, "--seed", "1")
        row.check(client.wait(60) == 0 and server.wait(60) == 0, f"{rules}: exit {client.rc}, {server.rc}", client, server)
        argv = ["tshark", "-n", "-r", file, "-Y", 'frame.comment == "fault: rnr"']
        said = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
        row.check(len(said) >= comments, f"{rules}: {len(said)} packets found no receive", client)


@row(BROKEN, "objects cannot be made", "ibv_rc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong, rping", parallel=True, limit=120)
def objects(row):
    ns = row.namespace()
    for program, kind, said in (
        ("ibv_rc_pingpong", "pd", "Couldn't allocate PD"),
        ("ibv_rc_pingpong", "mr", "Couldn't register MR"),
        ("ibv_rc_pingpong", "cq", "Couldn't create CQ"),
        ("ibv_rc_pingpong", "qp", "Couldn't create QP"),
        ("ibv_srq_pingpong", "srq", "Couldn't create SRQ"),
    ):
        tried = row.run(program, "-d", "rxe_lo", "-g", "1", ns=ns, options=("--faults", f"enomem,object={kind},nth=1"))
        row.check(tried.wait() == 1 and said in tried.err.lines, f"{kind}: exit {tried.rc}", tried)
    # The eighth queue pair of sixteen.
    tried = row.run("ibv_srq_pingpong", "-d", "rxe_lo", "-g", "1", "-q", "16", ns=ns, options=("--faults", "enomem,object=qp,nth=8"))
    row.check(tried.wait() == 1 and "Couldn't create QP[7]" in tried.err.lines, "not the eighth", tried)
    server = row.run("ibv_ud_pingpong", "-d", "rxe_lo", "-g", "1", ns=ns)
    row.tcp_listening(server)
    client = row.run("ibv_ud_pingpong", "-d", "rxe_lo", "-g", "1", "127.0.0.1", ns=ns, options=("--faults", "enomem,object=ah"))
    row.check(client.wait() == 1 and "Failed to create AH" in client.err.lines, f"ah: exit {client.rc}", client)
    server.end()
    tried = row.run("rping", "-c", "-a", "127.0.0.1", ns=ns, options=("--faults", "enomem,object=cm-id"))
    row.check(tried.wait() != 0 and "rdma_create_id: Cannot allocate memory" in tried.err.lines, f"cm-id: exit {tried.rc}", tried)


@row(BROKEN, "connection requests are rejected or not answered", "rping, ucmatose, udaddy", parallel=True, limit=120)
def connections(row):
    ns = row.namespace()
    soon = {"VERBENA_CM_TIMEOUT": "1"}
    port = 7200
    for rules, of_server, event, error in (
        ("reject", False, "REJECTED", 28),
        ("reject=no-resources,dir=out", False, "REJECTED", 3),
        ("reject=stale-conn,dir=in", True, "REJECTED", 10),
        ("unanswered", False, "UNREACHABLE", -110),
        ("unanswered", True, "UNREACHABLE", -110),
    ):
        port += 1
        options = ("--faults", rules)
        server = row.run("rping", "-s", "-a", "127.0.0.1", "-p", str(port), ns=ns, options=options if of_server else ())
        row.listening(server, port)
        client = row.run("rping", "-c", "-a", "127.0.0.1", "-p", str(port), ns=ns, env=soon, options=() if of_server else options)
        row.check(client.wait(20) != 0, f"{rules}: connected", client, server)
        row.check(f"cma event RDMA_CM_EVENT_{event}, error {error}" in client.err.lines + client.out.lines, f"{rules}: not told", client)
        server.end()
    # The second request of four alone, and of datagram services too.
    for program, port, event in (("ucmatose", 7471, r"cmatose: event: RDMA_CM_EVENT_REJECTED, error: 28"), ("udaddy", 7174, r"udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: 2")):
        server = row.run(program, "-c", "4", ns=ns)
        row.listening(server, port)
        client = row.run(program, "-s", "127.0.0.1", "-c", "4", ns=ns, lines=True, options=("--faults", "reject,dir=out,nth=2"))
        client.until(event, 20)
        client.end(), server.end()


@row(BROKEN, "a port goes down and up", "ibv_asyncwatch, ibv_devinfo, rping", parallel=True, limit=60)
def ports(row):
    ns = row.namespace()
    info = row.run("ibv_devinfo", "-d", "rxe_lo", ns=ns, options=("--faults", "port-down,device=rxe_lo"))
    row.check(info.wait() == 0 and any("PORT_DOWN (1)" in line for line in info.out.lines), "the port is not down", info)
    other = row.run("ibv_devinfo", "-d", "rxe_lo", ns=ns, options=("--faults", "port-down,device=rxe_eth0"))
    row.check(other.wait() == 0 and any("PORT_ACTIVE (4)" in line for line in other.out.lines), "another port is down", other)
    watch = row.run("ibv_asyncwatch", "-d", "rxe_lo", ns=ns, lines=True, options=("--faults", "port-down,from=500ms,until=1s"))
    watch.until(r"event_type IBV_EVENT_PORT_ERR \(10\), port 1", 10)
    watch.until(r"event_type IBV_EVENT_PORT_ACTIVE \(9\), port 1", 10)
    watch.end()
    # A connection outlasts it.
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "2000", ns=ns)
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "2000", "-v", ns=ns, options=("--faults", "port-down,from=50ms,until=350ms"))
    row.check(client.wait() in (0, 255) and len(client.out.lines) == 2000, "the connection did not last", client, server)


@row(BROKEN, "a device is removed", "ibv_asyncwatch, rping", parallel=True, limit=60)
def removal(row):
    ns = row.namespace()
    rules = ("--faults", "device-removal,from=500ms")
    watch = row.run("ibv_asyncwatch", "-d", "rxe_lo", ns=ns, lines=True, options=rules)
    watch.until(r"event_type IBV_EVENT_DEVICE_FATAL \(8\)", 10)
    watch.end()
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "1000000", ns=ns)
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "1000000", ns=ns, options=rules)
    row.check(client.wait(20) != 0, f"exit {client.rc}", client)
    row.check("cma detected device removal!!!!" in client.err.lines, "not told", client)
    server.end()


@row(BROKEN, "a device that was removed comes back, for programs that open it anew", "programs/returns.c, rping", parallel=True, limit=60)
def returns(row):
    ns = row.namespace()
    rules = ("--faults", "device-removal,from=500ms,until=1s")
    program = row.run(row.compiled("returns"), "127.0.0.1", ns=ns, options=rules)
    row.check(program.wait(20) == 0, f"exit {program.rc}", program)
    row.check(program.out.lines == [
        "listed: 1", "before: active", "resolved: RDMA_CM_EVENT_ADDR_RESOLVED", "identifier: RDMA_CM_EVENT_DEVICE_REMOVAL", "listed: 0",
        "removed: errno 5", "opened before: errno 5", "listed: 1", "opened anew: active", "resolved: RDMA_CM_EVENT_ADDR_RESOLVED",
        "the same context: 0", "events more: 0",
    ], "another course", program)
    # A listener of all addresses outlasts the device.
    server = row.run("rping", "-s", "-P", "-p", "7175", ns=ns, options=rules)
    row.listening(server, 7175)
    time.sleep(1.5)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-p", "7175", "-C", "5", "-v", ns=ns)
    row.check(client.wait(20) in (0, 255) and len(client.out.lines) == 5, f"exit {client.rc}", client, server)
    server.end()


@row(BROKEN, "the engine stands still", "rping, ib_write_bw", parallel=True, limit=60)
def stopped(row):
    ns = row.namespace()
    # For a moment: all goes on.
    server = row.run("rping", "-s", "-a", "127.0.0.1", "-C", "2000", ns=ns, options=("--faults", "stop,from=200ms,until=500ms"))
    row.listening(server, 7174)
    client = row.run("rping", "-c", "-a", "127.0.0.1", "-C", "2000", "-v", ns=ns)
    row.check(client.wait() in (0, 255) and len(client.out.lines) == 2000, "the connection did not last", client, server)
    server.wait(20)
    # For ever: the tries of the other end, which always has requests under way, are used up.
    need("ib_write_bw")
    argv = ["ib_write_bw", "-F", "-s", "64", "-n", "20000000"]
    server = row.run(*argv, ns=ns, options=("--faults", "stop,from=1s"))
    row.tcp_listening(server)
    client = row.run(*argv, "127.0.0.1", ns=ns)
    row.check(client.wait(30) not in (0, None), f"exit {client.rc}", client, server)
    said = client.out.lines + client.err.lines
    row.check(any("Failed status 12" in line for line in said), "no IBV_WC_RETRY_EXC_ERR", client)
    server.end()


@row(BROKEN, "Ethernet frames are lost, damaged, repeated and late", "programs/frames.c, tshark", parallel=True, limit=60)
def frames(row):
    need("tshark")
    ns, program = row.namespace(), row.compiled("frames")
    whole = [(n, "whole") for n in range(6)]
    for rules, expected, least in (
        ("loss=100%,nth=3,dir=out", whole[:2] + whole[3:], 0),
        ("duplicate=100%,nth=1,dir=out", whole[:1] + whole, 0),
        ("corrupt=100%,nth=2,dir=in", [whole[0], (1, "damaged"), *whole[2:]], 0),
        ("delay=300ms,dir=in", whole, 300),
        ("delay=300ms,nth=1,dir=out", whole[1:] + whole[:1], 0),
        # Rules for packets of RoCE.
        ("loss=100%,type=rc; loss=100%,op=send; loss=100%,peer=127.0.0.1; error=general,type=ud", whole, 0),
    ):
        file = os.path.join(row.work, f"{rules[:4]}{least}.pcapng")
        tried = row.run(program, "6", ns=ns, options=("--capture", file, "--faults", rules, "--seed", "3"))
        row.check(tried.wait(20) == 0, f"{rules}: exit {tried.rc}", tried)
        found = [re.fullmatch(r"frame (\d+) (whole|damaged) after (\d+) ms", line) for line in tried.out.lines]
        row.check([(int(m[1]), m[2]) for m in found] == expected, f"{rules}: other frames came", tried)
        row.check(all(int(m[3]) >= least for m in found), f"{rules}: too early", tried)
        argv = ["tshark", "-n", "-r", file, "-Y", f'frame.comment == "fault: {rules.partition("=")[0]}"']
        said = subprocess.run(argv, capture_output=True, text=True).stdout.splitlines()
        # What was repeated or is late has left, as it is.
        row.check(bool(said) == (rules.startswith(("loss=100%,nth", "corrupt")) or "dir=in" in rules), f"{rules}: {len(said)} frames have a comment", tried)


@row(BROKEN, "a send of a raw packet queue pair fails with the status that a rule names", "programs/frames.c", parallel=True, limit=60)
def raw(row):
    ns, program = row.namespace(), row.compiled("frames")
    tried = row.run(program, "6", ns=ns, options=("--faults", "error=rem-access,nth=1; error=general,type=raw,nth=3"))
    row.check(tried.wait(20) == 0, f"exit {tried.rc}", tried)
    sends = [line for line in tried.out.lines if line.startswith("send: ")]
    row.check(sends == ["send: status 21", *["send: status 5"] * 3], f"sends: {sends}", tried)
    came = [line.rsplit(" after ")[0] for line in tried.out.lines if line.startswith("frame ")]
    row.check(came == ["frame 0 whole", "frame 1 whole"], f"{came}", tried)
