"""`verbena ps`, `verbena show` and `verbena top`: what they say of programs that run."""
import json, os, re, resource, shutil, signal, statistics, subprocess, time

from .harness import LeftOut, need, need_root, row, session
from .terminal import Terminal

STATE = "state"
SERVER = "10.90.0.2"
# How long the processes of a row may take together.
LIMIT_S = 1.0


def as_user(user):
    return ["setpriv", "--reuid", user, "--regid", "12345", "--clear-groups"]


def ask(r, *argv, ns=None, user=None):
    """The command `verbena ARGV`: its exit code, its lines, and the seconds it took."""
    inside = ["ip", "netns", "exec", ns] if ns else []
    other = as_user(user) if user else []
    began = time.monotonic()
    done = subprocess.run([*inside, *other, r.harness.verbena, *argv], capture_output=True, text=True, timeout=r.left())
    return done.returncode, (done.stdout + done.stderr).splitlines(), time.monotonic() - began


def answered(r, *argv, ns=None):
    """Like `ask`, of processes that live: one whose threads get no processor for 0.6 s does not answer, and is asked again."""
    end = time.monotonic() + 10
    while True:
        asked = ask(r, *argv, ns=ns)
        if not any("does not answer" in line for line in asked[1]) or time.monotonic() > end:
            return asked


def ps(r, ns, how=ask):
    """The lines of `verbena ps`, as words, by process."""
    code, lines, took = how(r, "ps", ns=ns)
    r.check(code == 0 and lines and lines[0].startswith("PID"), f"ps: exit {code}", *r.programs)
    return {int(words[0]): words for words in map(str.split, lines[1:]) if words}, took


def shown(r, ns, pid):
    """What `verbena show --json` says of a process."""
    code, lines, _ = answered(r, "show", "--json", str(pid), ns=ns)
    r.check(code == 0, f"show: exit {code}: {lines}", *r.programs)
    return json.loads("\n".join(lines))


def process_of(r, program, name):
    """The process of a program that has this name: it may have a launcher above it."""
    end = time.monotonic() + 5
    while True:
        for pid in session(program.pid):
            try:
                with open(f"/proc/{pid}/comm") as f:
                    if f.read().strip() == name:
                        return pid
            except OSError:
                # It has ended meanwhile.
                pass
        r.check(time.monotonic() < end, f"no process is {name}", program)
        time.sleep(0.02)


def connected(r, ns, server, client):
    """What is said of both ends, once their queue pairs are connected and have received."""
    end = time.monotonic() + 15
    while True:
        both = [shown(r, ns, pid) for pid in (server, client)]
        qps = [[qp for d in p["devices"] for qp in d["qps"] if qp["state"] == "RTS"] for p in both]
        if all(qps) and all(qp["received"] for p in qps for qp in p):
            return both, [p[0] for p in qps]
        r.check(time.monotonic() < end, "the queue pairs are not connected", *r.programs)
        time.sleep(0.05)


def facing(r, ours, theirs, via):
    r.check(ours["rqpn"] == theirs["lqpn"], "the queue pairs do not name each other")
    r.check((ours["type"], ours["via"]) == ("RC", via), f"a queue pair is {ours['type']} by {ours.get('via')}")
    r.check((ours["src-addr"], ours["dst-addr"]) == (theirs["dst-addr"], theirs["src-addr"]), "addresses do not face each other")


def rping_pair(r, ns, port, options=()):
    """Both ends of an rping that goes on, and their processes."""
    argv = ["-a", "127.0.0.1", "-p", str(port), "-S", "1024", "-C", "1000000"]
    server = r.run("rping", "-s", *argv, ns=ns, options=options)
    r.listening(server, port)
    client = r.run("rping", "-c", *argv, ns=ns, options=options)
    return server, client, [process_of(r, p, "rping") for p in (server, client)]


def completed(r, ns, pid):
    """Requests that the only queue pair of a process has completed."""
    return sum(d["qps"][0]["reliable"]["completed"] for d in shown(r, ns, pid)["devices"] if d["qps"])


@row(STATE, "ps and show of a running rping, by memory and by the wire", "rping, verbena ps, verbena show", limit=60, parallel=True)
def rping(r):
    ns = r.namespace()
    for port, options, via in ((7174, (), "memory"), (7175, ("--wire",), "wire")):
        server, client, pids = rping_pair(r, ns, port, options)
        (at_server, at_client), (ours, theirs) = connected(r, ns, *pids)
        lines, _ = ps(r, ns, answered)
        for pid, said, cm_ids in zip(pids, (at_server, at_client), (2, 1)):
            words = lines.get(pid)
            r.check(words and words[1] == "rping" and words[3] == "1" and words[6] == str(cm_ids), f"ps says {words}", server, client)
            used = [d for d in said["devices"] if d["qps"]]
            r.check(len(used) == 1 and used[0]["state"] == "ACTIVE", "not one device is used", server, client)
            r.check(used[0]["cqs"] and used[0]["mrs"], "completion queue or regions are missing", server, client)
            states = sorted(i["state"] for i in said["cm-ids"])
            r.check(states == ["CONNECT", "LISTEN"][:cm_ids], f"identifiers are {states}", server, client)
            r.check(not re.search(r"[lr]_?key", json.dumps(said)), "a key is shown", server, client)
            code, text, _ = answered(r, "show", str(pid), ns=ns)
            kinds = {line.split()[0] for line in text}
            r.check(code == 0 and kinds == {"process", "dev", "qp", "cq", "mr", "cm_id", "counter"}, f"show has {sorted(kinds)}", server, client)
        facing(r, ours, theirs, via)
        before, deadline = theirs["reliable"]["completed"], time.monotonic() + 5
        while (now := completed(r, ns, pids[1])) <= before and time.monotonic() < deadline:
            time.sleep(0.05)
        r.check(now > before, "the client does not get on", server, client)
        for p in (client, server):
            p.end()


@row(STATE, "ps and show of a running ib_write_bw, between two hosts", "ib_write_bw, verbena ps, verbena show", limit=60)
def write_bw(r):
    need("ib_write_bw")
    a, b = r.veth()
    argv = ["ib_write_bw", "-d", "rxe_veth0", "-x", "1", "-D", "8", "-F"]
    server = r.run(*argv, ns=b)
    r.tcp_listening(server)
    client = r.run(*argv, SERVER, ns=a)
    pid, end = process_of(r, client, "ib_write_bw"), time.monotonic() + 5
    busiest = 0
    while not busiest and time.monotonic() < end:
        time.sleep(0.1)
        words = ps(r, a)[0].get(pid, [])
        busiest = max(busiest, int(words[9]) if len(words) > 9 else 0)
    r.check(busiest > 0, "ps sees nothing in flight", client, server)
    # For a moment all may have been sent.
    for _ in range(20):
        qp = next(qp for d in shown(r, a, pid)["devices"] for qp in d["qps"])
        if qp["sends"]:
            break
    r.check((qp["via"], qp["dst-addr"], qp["state"]) == ("wire", SERVER, "RTS"), f"the queue pair is {qp}", client, server)
    r.check(0 < qp["sends"] <= qp["max-send-wr"], f"{qp['sends']} of {qp['max-send-wr']} sends", client, server)
    r.check(pid not in ps(r, b)[0], "a process of another network namespace is listed", client, server)
    r.check(client.wait() == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)


@row(STATE, "top shows a running rping and its queue pair, live; it gives the terminal back at q and at signals", "rping, verbena top, a pty", limit=60, parallel=True)
def top(r):
    ns = r.namespace()
    rping_pair(r, ns, 7174, ("--wire",))
    server, client, (_, pid) = rping_pair(r, ns, 7175)
    _, (_, qp) = connected(r, ns, *[process_of(r, p, "rping") for p in (server, client)])
    argv = (r.harness.verbena, "top", "--interval", "0.2")
    seen = Terminal(r, *argv, ns=ns)
    seen.until(rf"^ *{pid} rping +\d+s( +\d+){{7}} +[1-9]\d* +[1-9]\d* +0 ", "the list has no line with the client's rates")
    seen.until("^verbena top: 4 processes", "the list is not of 4 processes")
    seen.type(f"/{pid}\r")
    seen.until(rf"filter {pid}$", "no filter is set")
    seen.type("\r")
    seen.until(rf"^process {pid} rping, sorted by LQPN$", "the process does not open")
    seen.until(rf"^ *{qp['lqpn']} RC +RTS +127.0.0.1 +{qp['rqpn']} memory( +\d+){{3}} +[1-9]\d* ", "no line is the queue pair's")
    seen.type("\r")
    seen.until(rf"lqpn {qp['lqpn']}$", "the queue pair does not open")
    first, _ = seen.until(r"^completed +(\d+) \([1-9]\d*/s\)$", "no request completes")
    seen.until(r"^recvs +\[\|* *\d/2\]$", "the receive queue has no gauge")
    seen.resize(20, 5)
    time.sleep(0.5)
    seen.resize(100, 24)
    seen.until(rf"^process {pid} rping: qp .* lqpn {qp['lqpn']}$", "it does not draw anew at another size")
    later, _ = seen.until(r"^completed +(\d+) \([1-9]\d*/s\)$", "a small terminal stops it")
    r.check(int(later[1]) > int(first[1]), "the screen stands still", seen.program)
    # While a stopped process is waited for, keys are answered.
    os.kill(pid, signal.SIGSTOP)
    seen.until("^The process does not answer.$", "the process is not said to be stopped")
    seen.type("\x7f\x7f")
    seen.until(rf"^ *{pid} rping +does not answer$", "the list does not say that it is stopped")
    answered = []
    for wanted in ("s: sort", "^h: help  q: quit$") * 5:
        seen.type("h")
        answered.append(seen.until(wanted, "the keys are not listed")[1])
    typical = statistics.median(answered)
    r.check(typical < 0.3, f"a key is answered after {typical:.2f} s", seen.program)
    os.kill(pid, signal.SIGCONT)
    seen.until(rf"^ *{pid} rping +\d+s ", "it does not answer again")
    # Another program has had the terminal while this one was stopped.
    seen.program.signal(signal.SIGSTOP)
    seen.used_by_another("a prompt")
    seen.program.signal(signal.SIGCONT)
    seen.until("^verbena top: 4 processes", "it does not draw anew once it goes on")
    seen.until(rf"^ *{pid} rping +\d+s ", "it does not draw all lines anew")
    r.check("a prompt" not in "\n".join(seen.screen()), "what another program wrote stays", seen.program)
    seen.type("s")
    seen.until("sorted by COMM", "keys are not read one by one once it goes on")
    seen.type("q")
    seen.ended(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        seen = Terminal(r, *argv, ns=ns)
        seen.until(rf"^ *{pid} rping ", "the client is not listed")
        seen.program.signal(number)
        seen.ended(128 + number)
    seen = Terminal(r, *argv, ns=ns)
    seen.until(rf"^ *{pid} rping ", "the client is not listed")
    seen.type("\x03")
    seen.ended(128 + signal.SIGINT)
    seen = Terminal(r, *argv, ns=ns)
    seen.until(rf"^ *{pid} rping ", "the client is not listed")
    seen.close()
    rc = seen.program.wait(5)
    # Either it hears of that first, or it cannot draw.
    r.check(rc in (1, 128 + signal.SIGHUP), f"without its terminal: exit {rc}", seen.program)
    code, said, _ = ask(r, "top", ns=ns)
    r.check(code == 1 and "not a terminal" in said[-1] and "`verbena show --json`" in said[-1], f"exit {code}: {said}")


@row(STATE, "completion queues without queue pairs, and shared receive queues", "programs/hold.c 1 0, verbena show", parallel=True)
def without_pairs(r):
    ns = r.namespace()
    held = r.run(r.compiled("hold"), "1", "0", ns=ns)
    end = time.monotonic() + 10
    while not (found := [pid for pid, words in ps(r, ns)[0].items() if words[1] == "hold" and words[3:5] == ["0", "1"]]):
        r.check(time.monotonic() < end, "the process is not listed with its completion queue", held)
        time.sleep(0.05)
    (device,) = [device for device in shown(r, ns, found[0])["devices"] if device["cqs"]]
    (cq,), (srq,) = device["cqs"], device["srqs"]
    r.check((cq["cqe"], cq["users"], cq["fill"]) == (64, 0, 0), f"the completion queue is {cq}", held)
    r.check((srq["type"], srq["recvs"], srq["max-recv-wr"]) == ("BASIC", 2, 8), f"the shared receive queue is {srq}", held)
    code, lines, _ = answered(r, "show", str(found[0]), ns=ns)
    r.check(any(line.startswith(f"srq {device['ifname']} srqn {srq['srqn']} type BASIC") for line in lines), f"exit {code}: {lines}", held)


@row(STATE, "why and when a queue pair failed", "programs/hold.c lost, verbena show")
def failed(r):
    ns = r.namespace()
    held = r.run(r.compiled("hold"), "1", "1", "lost", ns=ns)
    held.until("^ready$")
    end = time.monotonic() + 15
    while not (found := [pid for pid, words in ps(r, ns)[0].items() if words[1] == "hold"]):
        r.check(time.monotonic() < end, "the process is not listed", held)
        time.sleep(0.05)
    while True:
        qp = next(qp for d in shown(r, ns, found[0])["devices"] for qp in d["qps"])
        if qp["state"] == "ERR":
            break
        r.check(time.monotonic() < end, "the queue pair does not fail", held)
        time.sleep(0.1)
    reliable = qp["reliable"]
    r.check(reliable["last-error"]["status"] == "RETRY_EXC_ERR", f"the error is {reliable['last-error']}", held)
    r.check(reliable["last-error"]["ms-ago"] < 2000, f"it was {reliable['last-error']['ms-ago']} ms ago", held)
    r.check(reliable["timeouts"] == 8 and reliable["retransmissions"] == 7, f"{reliable}", held)


def in_time(ask_once, is_good):
    """What comes of asking, some times: other programs may have the processors for a moment."""
    for _ in range(5):
        asked = ask_once()
        if is_good(*asked):
            break
    return asked


@row(STATE, "a process that is stopped does not answer, within a second, and the others do", "programs/hold.c, SIGSTOP", parallel=True)
def stopped(r):
    ns = r.namespace()
    held = r.run(r.compiled("hold"), "3", "2", ns=ns)
    held.until("^ready$")
    lines, _ = ps(r, ns)
    pids = sorted(lines)
    r.check(len(pids) == 3, f"{len(pids)} processes", held)
    os.kill(pids[1], signal.SIGSTOP)
    for asked_before in (0, 80):
        # More than may wait for a process that takes none in.
        many = [r.plain(r.harness.verbena, "show", str(pids[1]), ns=ns) for _ in range(asked_before)]
        r.check(all(p.wait() == 1 for p in many), "show does not fail", held, *many[:1])
        answer = lambda lines: all(lines[pid][3:4] == ["2"] for pid in (pids[0], pids[2]))
        lines, took = in_time(lambda: ps(r, ns), lambda lines, took: took < LIMIT_S and answer(lines))
        r.check(" ".join(lines[pids[1]][2:]) == "does not answer", f"ps says {lines[pids[1]]}", held)
        r.check(took < LIMIT_S, f"ps takes {took:.1f} s", held)
        r.check(answer(lines), "the others do not answer", held)
    code, said, took = in_time(lambda: ask(r, "show", str(pids[1]), ns=ns), lambda *asked: asked[2] < LIMIT_S)
    r.check(code == 1 and "does not answer" in said[-1] and took < LIMIT_S, f"show: exit {code}, {took:.1f} s: {said}", held)
    os.kill(pids[1], signal.SIGCONT)
    end = time.monotonic() + 5
    while ps(r, ns)[0][pids[1]][3] != "2":
        r.check(time.monotonic() < end, "it does not answer again", held)


def vm_bytes(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def processor_s(pid):
    """Seconds of a processor that the process has taken."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@row(STATE, "a process without memory or descriptors for an answer lives on, sleeps, and answers later", "programs/hold.c, prlimit(2)", limit=60, parallel=True)
def exhausted(r):
    ns = r.namespace()
    for kinds in ((resource.RLIMIT_AS,), (resource.RLIMIT_NOFILE,), (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)):
        # A new one each time: the C library keeps the stack of a thread for the next.
        held = r.run(r.compiled("hold"), "1", "4", ns=ns)
        held.until("^ready$")
        pid = max(session(held.pid))
        before = {kind: resource.prlimit(pid, kind) for kind in kinds}
        for kind in kinds:
            soft = 3 if kind == resource.RLIMIT_NOFILE else vm_bytes(pid) + 100_000
            resource.prlimit(pid, kind, (soft, before[kind][1]))
        code, said, took = in_time(lambda: ask(r, "show", str(pid), ns=ns), lambda *asked: asked[2] < LIMIT_S)
        r.check(code == 1 and "does not answer" in said[-1] and took < LIMIT_S, f"show: exit {code}, {took:.1f} s: {said}", held)
        used = processor_s(pid)
        time.sleep(1)
        used = processor_s(pid) - used
        r.check(used < 0.2, f"its threads take {used:.2f} of a processor", held)
        for kind in kinds:
            resource.prlimit(pid, kind, before[kind])
        end = time.monotonic() + 5
        while ps(r, ns)[0].get(pid, [""] * 4)[3] != "4":
            r.check(time.monotonic() < end, "it does not answer again", held)
        held.end()


@row(STATE, "another user's process is refused and not listed; root sees it; one that is not on Verbena is said to be none", "programs/hold.c, setpriv", parallel=True)
def users(r):
    need_root()
    need("setpriv")
    if ask(r, "--version", user="nobody")[0] != 0:
        raise LeftOut("nobody may not run the command")
    # Each user has an address, as UDP port 4791 of one belongs to one user.
    ns, _ = r.veth()
    # Where each user reaches it.
    program = shutil.copy(r.compiled("hold"), r.work)
    for place in (r.harness.work, r.work):
        os.chmod(place, 0o711)
    ours = r.run(program, "1", "1", ns=ns, env={"VERBENA_DEVICES": "rxe0=roce:lo"})
    ours.until("^ready$")
    pid = next(iter(ps(r, ns)[0]))
    code, said, _ = ask(r, "show", str(pid), ns=ns, user="nobody")
    r.check(code == 1 and "Operation not permitted" in said[-1], f"show: exit {code}: {said}", ours)
    code, said, _ = ask(r, "ps", ns=ns, user="nobody")
    r.check(code == 0 and len(said) == 1, f"nobody sees {said}", ours)
    # In a user namespace, as `verbena run` makes one for an ordinary user, root has no number.
    for user, options in (("nobody", ["--no-sysfs"]), ("12345", [])):
        theirs = r.plain(*as_user(user), r.harness.verbena, "run", *options, "--", program, "1", "3", ns=ns, env={"VERBENA_DEVICES": "rxe0=roce:veth0"})
        theirs.until("^ready$")
        lines, _ = ps(r, ns)
        mine = [p for p, words in lines.items() if words[3:4] == ["3"]]
        r.check(len(mine) == 1 and len(lines) == 2, f"root sees {lines}", ours, theirs)
        r.check(shown(r, ns, mine[0])["comm"] == "hold", "root is not answered", theirs)
        code, said, _ = ask(r, "ps", ns=ns, user=user)
        r.check(code == 0 and len(said) == 2 and int(said[1].split()[0]) == mine[0], f"user {user} sees {said}", theirs)
        theirs.end()
    code, said, _ = ask(r, "show", "1", ns=ns)
    r.check(code == 1 and "is not on Verbena" in said[-1], f"show: exit {code}: {said}", ours)


@row(STATE, "100 processes with 10,000 queue pairs in less than a second", "programs/hold.c 100 100", limit=120)
def many(r):
    ns = r.namespace()
    held = r.run(r.compiled("hold"), "100", "100", ns=ns)
    held.until("^ready$", seconds=60)
    best = None
    # Another program may have the processors for a moment.
    for _ in range(5):
        lines, took = ps(r, ns)
        answers = [words for words in lines.values() if words[3:4] == ["100"]]
        best = min(took, best or took) if len(answers) == 100 else best
    r.check(best is not None, f"{len(answers)} of 100 processes answer", held)
    r.check(best < LIMIT_S, f"ps takes {best:.1f} s", held)
