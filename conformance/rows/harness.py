"""What every row of the conformance table needs: programs that are started, waited for and ended by pid, network namespaces of
its own, the kernel guest, and a verdict in a few stable words."""
import atexit, glob, os, re, shutil, signal, subprocess, sys, tempfile, threading, time, traceback

from .base import DETECTION, FABRIC_PORT, GOLDEN, HERE, KEPT_LINES, PREFIX, ROOT, Fail, LeftOut, need, need_root, sh
from .guest import Guest, Job, worker


# What comes at once may take so long where others have the processors; what must come in time is judged by its time.
PATIENCE = 30
FINDING = re.compile(r"verbena: process \d+: check: ")


class Stream:
    """One output of a program: its lines, each with the monotonic time at which it came."""

    def __init__(self, pipe, keep=None, without_findings=False):
        self.lines, self.times, self.dropped = [], [], 0
        self._keep, self._without_findings = keep, without_findings
        self._thread = threading.Thread(target=self._pump, args=(pipe,), daemon=True)
        self._thread.start()

    def _pump(self, pipe):
        in_finding = False
        for raw in pipe:
            line = raw.decode(errors="replace").rstrip("\n")
            # A finding is a line and those behind it that are indented.
            in_finding = self._without_findings and (bool(FINDING.match(line)) or in_finding and line.startswith("  "))
            if in_finding:
                continue
            if len(self.lines) < KEPT_LINES and (self._keep is None or self._keep(line)):
                self.times.append(time.monotonic())
                self.lines.append(line)
            else:
                self.dropped += 1
        pipe.close()

    def join(self, seconds=5):
        self._thread.join(seconds)


class Program:
    """A program under test in a session of its own: it and what it starts are ended together, by its pid."""

    def __init__(self, row, argv, ns=None, name=None, keep=None, env=None):
        if row.harness.closed:
            raise Fail("the run ends")
        self.row, self.ns = row, ns
        self.name = name or os.path.basename(argv[0])
        inside = ["ip", "netns", "exec", ns] if ns else []
        self.argv = inside + argv
        self.began = time.monotonic()
        # In the row's own directory: fio leaves files where it runs.
        self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      cwd=row.work, start_new_session=True, env={**os.environ, **(env or {})})
        # Under conformance/under findings are for its page, and no complaint of the program's.
        findings_apart = "VERBENA_CHECK_JSON" in os.environ and not any(a.startswith("--check") for a in argv)
        self.out, self.err = Stream(self.popen.stdout, keep), Stream(self.popen.stderr, keep, findings_apart)
        row.programs.append(self)

    @property
    def pid(self):
        return self.popen.pid

    @property
    def rc(self):
        return self.popen.returncode

    def running(self):
        return self.popen.poll() is None

    def signal(self, number):
        """To the whole session, which this harness made: the program may have a launcher above it."""
        if self.running():
            os.killpg(self.pid, number)

    def ends_within(self, seconds):
        """Whether it does, waiting for it."""
        try:
            self.popen.wait(max(0.1, min(seconds, self.row.left())))
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait(self, seconds=30):
        """The exit code; a program that takes longer fails the row."""
        if not self.ends_within(seconds):
            raise Fail(f"{self.name} did not end", self.tail())
        self.out.join(), self.err.join()
        return self.rc

    def end(self):
        for number, patience in ((signal.SIGCONT, 0), (signal.SIGTERM, 2), (signal.SIGKILL, 5)):
            self.signal(number)
            if patience:
                try:
                    self.popen.wait(patience)
                except subprocess.TimeoutExpired:
                    pass
        self.out.join(2), self.err.join(2)

    def until(self, wanted, seconds=PATIENCE, stream="both"):
        """The time at which a line with `wanted` (a regular expression) came, waiting for it."""
        end = time.monotonic() + min(seconds, self.row.left())
        streams = {"out": [self.out], "err": [self.err], "both": [self.out, self.err]}[stream]
        seen = [0] * len(streams)
        while True:
            ended = not self.running()
            if ended:
                # Its last words may not have been read yet.
                for s in streams:
                    s.join(1)
            for i, s in enumerate(streams):
                while seen[i] < len(s.times):
                    if re.search(wanted, s.lines[seen[i]]):
                        return s.times[seen[i]]
                    seen[i] += 1
            if ended or time.monotonic() > end:
                raise Fail(f"{self.name} did not say {wanted}", self.tail())
            time.sleep(0.01)

    def rss_kib(self):
        """Resident memory of the program and of what it started, in KiB."""
        total = 0
        for pid in session(self.pid):
            try:
                with open(f"/proc/{pid}/status") as f:
                    total += sum(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))
            except OSError:
                pass
        return total

    def tail(self, lines=15):
        state = "running" if self.running() else f"exit {self.rc}"
        text = [f"$ {' '.join(self.argv)}   ({state})"]
        for what, s in (("out", self.out), ("err", self.err)):
            text += [f"  {what}: {line[:200]}" for line in s.lines[-lines:]]
        return "\n".join(text)


def session(pid):
    """The pids of the session that `pid` leads."""
    found = []
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(stat) as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid:
            found.append(int(stat.split("/")[2]))
    return found


def unix_names(pid="self"):
    """The abstract names of Verbena in that process's network namespace."""
    with open(f"/proc/{pid}/net/unix") as f:
        return [w[7] for w in (line.split() for line in f) if len(w) > 7 and w[7].startswith("@verbena/")]


def sockets(pid, table):
    """(local port, state) of each socket in /proc/PID/net/TABLE."""
    try:
        with open(f"/proc/{pid}/net/{table}") as f:
            return [(int(w[1].rpartition(":")[2], 16), w[3]) for w in (line.split() for line in f) if ":" in w[1]]
    except OSError:
        return []


class Row:
    """One line of the table while it runs."""

    def __init__(self, harness, spec):
        self.harness, self.spec = harness, spec
        self.programs, self.namespaces = [], []
        # Said beside the verdict of a row that passes.
        self.note = ""
        self.end_at = time.monotonic() + spec.limit
        # A directory for its files.
        self.work = tempfile.mkdtemp(prefix="row.", dir=harness.work)

    def left(self):
        left = self.end_at - time.monotonic()
        if left <= 0:
            raise Fail("time limit", "\n".join(p.tail() for p in self.programs))
        return left

    # -- places -------------------------------------------------------------------------------------------------------------

    def namespace(self, name="a"):
        """A network namespace of this row with lo up; None without root, which is the namespace we are in."""
        if not ROOT:
            return None
        need("ip")
        ns = f"{PREFIX}-{worker.number}-{name}"
        sh("ip", "netns", "add", ns)
        self.namespaces.append(ns)
        sh("ip", "-n", ns, "link", "set", "lo", "up")
        # Each address of its links is given once: duplicate address detection would be two seconds of waiting.
        sh("ip", "netns", "exec", ns, "sh", "-c", f"""echo {FABRIC_PORT} > /proc/sys/net/ipv4/ip_local_reserved_ports
            [ ! -e {DETECTION} ] || echo 0 > {DETECTION}""")
        return ns

    def veth(self, mtu=1500):
        """Two namespaces, 10.90.0.1 = fd90::1 and 10.90.0.2 = fd90::2, joined by a veth named veth0 in each."""
        need_root()
        a, b = self.namespace("a"), self.namespace("b")
        sh("ip", "link", "add", "veth0", "netns", a, "mtu", str(mtu), "type", "veth", "peer", "name", "veth0", "netns", b, "mtu", str(mtu))
        for n, ns in ((1, a), (2, b)):
            sh("ip", "-n", ns, "addr", "add", f"10.90.0.{n}/24", "dev", "veth0")
            sh("ip", "-n", ns, "addr", "add", f"fd90::{n}/64", "dev", "veth0", "nodad")
            sh("ip", "-n", ns, "link", "set", "veth0", "up")
        # The link-local addresses are GIDs too: wait until they stand, so that the GID table is still.
        for ns in (a, b):
            end = time.monotonic() + 5
            while "tentative" in sh("ip", "-n", ns, "-6", "addr", "show", "dev", "veth0") and time.monotonic() < end:
                time.sleep(0.05)
        return a, b

    # -- programs -----------------------------------------------------------------------------------------------------------

    def run(self, *argv, ns=None, lines=False, keep=None, env=None, options=()):
        """Start a program on Verbena, with options of `verbena run`. With `lines` its output is line buffered, so that the times of lines are real."""
        need(argv[0])
        command = [self.harness.verbena, "run", *options, "--"] + (["stdbuf", "-oL"] if lines else []) + list(argv)
        return Program(self, command, ns, os.path.basename(argv[0]), keep, env)

    def plain(self, *argv, ns=None, **more):
        need(argv[0])
        return Program(self, list(argv), ns, **more)

    def guest(self, g, *argv):
        return Job(self, g, list(argv))

    def compiled(self, name, *libraries, sanitizer=None):
        return self.harness.compiled(name, *libraries, sanitizer=sanitizer)

    def example(self, name, package="verbena-rdma"):
        return self.harness.example(name, package)

    def listening(self, server, port, seconds=PATIENCE):
        """Wait until an rdma_cm listener of `server`'s namespace has the port: its abstract name is there. Over iWARP that is there from
        rdma_bind_addr on, and connections are refused until the TCP socket listens."""
        self._until(server, seconds, lambda: any("/port/" in n and n.endswith(f"/{port}") for n in unix_names(server.pid)))
        if "--iwarp" in server.argv:
            self.tcp_listening(server, port, seconds)

    def tcp_listening(self, server, port=18515, seconds=PATIENCE):
        self._until(server, seconds, lambda: any((port, "0A") in sockets(server.pid, t) for t in ("tcp", "tcp6")))

    def _until(self, server, seconds, ready):
        end = time.monotonic() + min(seconds, self.left())
        while True:
            if not server.running():
                raise Fail(f"{server.name} ended before it listened", server.tail())
            try:
                if ready():
                    return
            except OSError:
                pass
            if time.monotonic() > end:
                raise Fail(f"{server.name} does not listen", server.tail())
            time.sleep(0.01)

    # -- judgement ----------------------------------------------------------------------------------------------------------

    def check(self, good, why, *programs):
        if not good:
            raise Fail(why, "\n".join(p.tail() for p in programs or self.programs))

    def nothing_left(self, ns, seconds=2):
        """No name of Verbena and no UDP port may outlive the programs."""
        if ns is None:
            return
        end = time.monotonic() + seconds
        while True:
            names = re.findall(r"@verbena/\S+", sh("ip", "netns", "exec", ns, "cat", "/proc/net/unix"))
            udp = [line for t in ("udp", "udp6") for line in sh("ip", "netns", "exec", ns, "cat", f"/proc/net/{t}", check=False).splitlines()[1:]]
            if not names and not udp:
                return
            if time.monotonic() > end:
                raise Fail("a name is left behind" if names else "a UDP port is left behind", "\n".join(names + udp))
            time.sleep(0.05)

    def finish(self):
        for p in self.programs:
            p.end()
        try:
            for ns in self.namespaces:
                self.nothing_left(ns)
        finally:
            self.clean()

    def clean(self):
        for p in self.programs:
            p.end()
        for ns in self.namespaces:
            sh("ip", "netns", "del", ns, check=False)
        self.namespaces = []
        shutil.rmtree(self.work, ignore_errors=True)


class Harness:
    def __init__(self, verbena, reference=False, writes=False):
        self.verbena, self.reference, self.writes = verbena, reference, writes
        self.work = tempfile.mkdtemp(prefix="verbena-conformance.")
        # Rows that run, each in a thread of its own; what they build, they build one after the other.
        self.rows, self.closed = set(), False
        self.examples, self.building = {}, threading.RLock()
        atexit.register(self.close)
        for s in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, lambda number, frame: sys.exit(128 + number))

    def close(self):
        self.closed = True
        for row in list(self.rows):
            row.clean()
        Guest.down()
        shutil.rmtree(self.work, ignore_errors=True)

    def compiled(self, name, *libraries, sanitizer=None):
        """A program of programs/, built against the installed headers and linked to -libverbs -lrdmacm as anyone would, other libraries first, perhaps with a sanitizer."""
        binary = os.path.join(self.work, "-".join(filter(None, (name.replace("../", "").replace("/", "-"), sanitizer))))
        with self.building:
            if not os.path.exists(binary):
                need("gcc")
                for header in ("infiniband/verbs.h", "rdma/rdma_cma.h"):
                    if not os.path.exists(f"/usr/include/{header}"):
                        raise LeftOut("libibverbs-dev or librdmacm-dev is not installed")
                sh("gcc", "-O1", "-g", "-Wall", "-Wextra", *([f"-fsanitize={sanitizer}"] if sanitizer else []), "-o", binary, os.path.join(HERE, "programs", f"{name}.c"),
                   *(f"-l{library}" for library in libraries), "-libverbs", "-lrdmacm", "-lpthread")
        return binary

    def example(self, name, package):
        """An example of one of the Rust crates, built beside the command where the tree is; once a run."""
        need("cargo")
        tree = os.path.dirname(HERE)
        with self.building:
            if name not in self.examples:
                sh("cargo", "build", "--quiet", "--locked", "--manifest-path", os.path.join(tree, "Cargo.toml"), "-p", package, "--example", name)
                self.examples[name] = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(tree, "target")), "debug", "examples", name)
            return self.examples[name]

    def run(self, spec):
        """('pass' | 'fail' | 'left out', reason, detail). A guest that has ended meanwhile fails this row and no other."""
        verdict, reason, detail = self.once(spec)
        if verdict == "fail" and (said := Guest.ended()):
            detail += f"\nA guest has ended. What it said last:\n{said}"
        return verdict, reason, detail

    def once(self, spec):
        row = Row(self, spec)
        self.rows.add(row)
        try:
            if not spec.kernel and not os.access(self.verbena, os.X_OK):
                raise LeftOut(f"there is no {os.path.basename(self.verbena)} to test")
            spec.run(row)
            row.finish()
            return "pass", row.note, ""
        except LeftOut as e:
            return "left out", str(e), ""
        except Fail as e:
            return "fail", str(e), e.detail
        except Exception as e:  # noqa: BLE001; what the row did not foresee fails it and no other
            return "fail", type(e).__name__, traceback.format_exc()
        finally:
            row.clean()
            self.rows.discard(row)


class Spec:
    """A row of the table: where it stands, what it shows and how it is run.

    `kernel`: it takes a kernel guest. `parallel`: it may run beside other such rows, because it mostly waits and judges neither
    rates nor memory nor a share of the processors; all that it uses is its own, or its worker's."""

    def __init__(self, group, what, program, run, limit=30, kernel=False, parallel=False):
        self.group, self.what, self.program, self.run = group, what, program, run
        self.limit, self.kernel, self.parallel = limit, kernel, parallel

    @property
    def name(self):
        return f"{self.group}: {self.what}"


SPECS = []


def row(group, what, program, limit=30, kernel=False, parallel=False):
    def add(run):
        SPECS.append(Spec(group, what, program, run, limit, kernel, parallel))
        return run
    return add


def golden(name):
    """A recorded run of the kernel's own stack: {'client stdout': [lines], ...}."""
    parts, at = {}, None
    with open(os.path.join(GOLDEN, name)) as f:
        for line in f.read().split("\n"):
            if line.startswith("--- "):
                at = line[4:]
                parts[at] = []
            elif at:
                parts[at].append(line)
    return {k: [line for line in v if line] for k, v in parts.items()}
