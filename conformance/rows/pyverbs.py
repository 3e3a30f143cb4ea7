"""rdma-core's own Python tests (Debian's python3-pyverbs), all modules that are no vendor's, each test in a process of its own: one
that crashes or hangs takes no other with it. What came of each stands in PYVERBS.md. PYVERBS_SEED chooses other random draws than the
usual ones."""
import glob, gzip, os, re, shutil, signal, subprocess, threading

from .harness import HERE, Fail, LeftOut, row, session, sh

SUITE = "/usr/share/doc/rdma-core/tests"
# Debian's interpreter: the package's modules are built for it.
PYTHON = "/usr/bin/python3"
VENDORS = ("test_mlx5", "test_efa", "test_cuda")
TABLE = os.path.join(HERE, "PYVERBS.md")
HUGE_PAGES = "/proc/sys/vm/nr_hugepages"
# The tests draw sizes, flags and masks at random; with the same draw every time two runs can be compared.
SEEDED = """import os, random, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
random.seed(os.environ.get('PYVERBS_SEED', '1'))
runpy.run_path(sys.argv[0], run_name='__main__')
"""
# 2 MiB each; the tests map a few at a time.
RESERVED = 64
# Longer than the suite's own patience (its barriers wait 15 s, its polls 10 s).
PATIENCE = 60
GOAL = 145
COLUMNS = ("lo", "veth")
# One row at a time unpacks the tests or writes its column.
WRITING = threading.Lock()
HEAD = """# rdma-core's Python tests on Verbena

The vendor-neutral modules of Debian's python3-pyverbs (rdma-core 44), unmodified, through `verbena run`, as root in a network
namespace with devices on lo and on a veth. The kernel's rdma_rxe (6.12) has 86 ok, 83 skipped, 1 failed. Written by
`conformance/run --only pyverbs`; "died" is a process that a signal ended.

"""


def suite(work):
    """The tests, unpacked, in a directory that holds nothing else."""
    if not os.path.exists(os.path.join(SUITE, "run_tests.py")):
        raise LeftOut("python3-pyverbs is not installed")
    if subprocess.run([PYTHON, "-c", "import pyverbs"], capture_output=True).returncode != 0:
        raise LeftOut("python3-pyverbs is not installed")
    to = os.path.join(work, "tests")
    if not os.path.exists(to):
        os.mkdir(to + ".new")
        for path in glob.glob(os.path.join(SUITE, "*")):
            name = os.path.basename(path).removesuffix(".gz")
            if name.startswith(VENDORS):
                continue
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f, open(os.path.join(to + ".new", name), "wb") as out:
                shutil.copyfileobj(f, out)
        os.rename(to + ".new", to)
    return os.path.join(to, "run_tests.py")


class HugePages:
    """Huge pages in reserve while the suite runs, for each row that runs it; without the right to reserve them, the tests that want
    them skip."""

    lock, rows, before = threading.Lock(), 0, None

    def __enter__(self):
        with HugePages.lock:
            HugePages.rows += 1
            wanted = HugePages.rows * RESERVED
            try:
                with open(HUGE_PAGES) as f:
                    there = int(f.read())
                if there < wanted:
                    self._set(wanted)
                    HugePages.before = there if HugePages.before is None else HugePages.before
            except OSError:
                pass

    def __exit__(self, *_):
        with HugePages.lock:
            HugePages.rows -= 1
            if HugePages.rows == 0 and HugePages.before is not None:
                self._set(HugePages.before)
                HugePages.before = None

    @staticmethod
    def _set(pages):
        with open(HUGE_PAGES, "w") as f:
            f.write(str(pages))


def verdict(program, ended):
    """One of: ok; skipped: why; failed: why; error: why."""
    text = "\n".join(program.err.lines)
    if not ended:
        return f"error: did not end within {PATIENCE} s"
    summary = [line for line in program.err.lines if re.match(r"(OK|FAILED)( \(.*\))?$", line)]
    if not summary:
        return f"error: died of {signal.Signals(-program.rc).name}" if program.rc < 0 else f"error: exit {program.rc}"
    if summary[-1] == "OK":
        return "ok"
    if summary[-1].startswith("OK"):
        why = re.findall(r"skipped (['\"])(.*)\1$", text, re.M)
        return f"skipped: {why[-1][1] if why else 'no reason is given'}"
    # The innermost cause: what a child said before the parent gave up, or else the exception.
    said = [line.split(" got: ", 1)[1] for line in program.out.lines + program.err.lines if " got: " in line]
    at = [i for i, line in enumerate(program.err.lines) if line.startswith("Ran ")]
    raised = [line for line in program.err.lines[: at[-1]] if re.match(r"[\w.]+(Error|Exception|Fault|SkipTest)?: \S|[\w.]*(Error|Exception)$", line)]
    kind = "failed" if "failures=" in summary[-1] else "error"
    return f"{kind}: {(said or raised or ['no reason is given'])[-1]}"


def stable(text):
    """Without what differs from run to run, and fit for a table."""
    return re.sub(r"0x[0-9a-f]+|\b\d{4,}\b", "N", text).replace("|", "/").replace("\n", " ")[:160]


def one(row, runner, device, test, ns, options=()):
    program = row.run(PYTHON, "-c", SEEDED, runner, "--dev", device, "-v", test, ns=ns, options=options, env={"PYTHONDONTWRITEBYTECODE": "1"})
    try:
        program.wait(PATIENCE)
        ended = True
    except Fail:
        ended = False
    # Children that the test has forked and forgotten.
    for pid in session(program.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    program.end()
    row.programs.remove(program)
    return stable(verdict(program, ended))


def parse(text):
    """{test: {column: result}}"""
    found = {}
    for line in text.splitlines():
        if m := re.match(r"\| (test_\S+) \| (.*) \| (.*) \|$", line):
            found[m.group(1)] = dict(zip(COLUMNS, m.groups()[1:]))
    return found


def committed():
    r = subprocess.run(["git", "-C", HERE, "show", "HEAD:./PYVERBS.md"], capture_output=True, text=True)
    return parse(r.stdout) if r.returncode == 0 else {}


def counts(results):
    kinds = [r.partition(":")[0] for r in results if r != "never run"]
    return {kind: kinds.count(kind) for kind in ("ok", "skipped", "failed", "error")}


def said(n):
    return f"{n['ok']} ok, {n['skipped']} skipped, {n['failed']} failed, {n['error']} errors"


def write(column, results):
    with WRITING:
        write_column(column, results)


def write_column(column, results):
    try:
        with open(TABLE) as f:
            table = parse(f.read())
    except FileNotFoundError:
        table = {}
    table = {t: {**{c: table.get(t, {}).get(c, "never run") for c in COLUMNS}, column: r} for t, r in results.items()}
    text = HEAD + "| device on | ok | skipped | failed | errors |\n|---|---|---|---|---|\n"
    for c in COLUMNS:
        text += f"| {c} | " + " | ".join(str(n) for n in counts(r[c] for r in table.values()).values()) + " |\n"
    text += "\n| test | lo | veth |\n|---|---|---|\n"
    text += "".join(f"| {t} | " + " | ".join(r[c] for c in COLUMNS) + " |\n" for t, r in table.items())
    with open(TABLE + ".new", "w") as f:
        f.write(text)
    os.replace(TABLE + ".new", TABLE)


def run_suite(row, column, device, ns):
    with WRITING:
        runner = suite(row.harness.work)
    listing = row.run(PYTHON, runner, "--list-tests", ns=ns)
    row.check(listing.wait(60) == 0, "the tests cannot be listed", listing)
    tests = [line for line in listing.out.lines if line.startswith("tests.test_")]
    row.check(len(tests) >= 170, "tests are missing", listing)
    results = {}
    with HugePages():
        for test in tests:
            results[test.removeprefix("tests.")] = one(row, runner, device, test, ns)
    before = {t: r.get(column) for t, r in committed().items()}
    if row.harness.writes:
        write(column, results)
    now = counts(results.values())
    row.note = said(now)
    # A machine whose memory has no huge pages left says nothing about us.
    lacking = re.compile("skipped: There are no huge pages")
    worse = [t for t, r in results.items() if r != "ok" and before.get(t) == "ok" and not lacking.match(r)]
    if worse:
        raise Fail(f"{len(worse)} tests passed before: {said(now)}", "\n".join(f"{t}: {results[t]}" for t in worse))
    was = counts(r for r in before.values() if r)
    # Once the goal is reached a test that fails is no longer something to come.
    if was["ok"] >= GOAL and was["failed"] + was["error"] == 0:
        bad = [f"{t}: {r}" for t, r in results.items() if r.startswith(("failed", "error"))]
        row.check(not bad, f"tests fail: {said(now)}")


@row("rdma-core's Python tests", "a device on lo", "pyverbs: run_tests.py --dev rxe_lo", limit=1800, parallel=True)
def on_lo(row):
    ns = row.namespace()
    if ns:
        # An identifier bound to 127.0.0.1 has no device, as with the kernel (cma_any_addr), and pyverbs looks at its device.
        sh("ip", "-n", ns, "addr", "add", "10.90.0.1/32", "dev", "lo")
        sh("ip", "-n", ns, "addr", "del", "127.0.0.1/8", "dev", "lo")
    run_suite(row, "lo", "rxe_lo", ns)


@row("rdma-core's Python tests", "a device on a veth", "pyverbs: run_tests.py --dev rxe_veth0", limit=1800, parallel=True)
def on_veth(row):
    run_suite(row, "veth", "rxe_veth0", row.veth()[0])
