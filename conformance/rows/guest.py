"""The kernel guest, and programs that run in it."""
import os, shutil, subprocess, sys, threading

from .base import KERNEL_PEER, PREFIX, Fail, LeftOut, need_root


class Worker(threading.local):
    """The number of the thread that runs a row: what it names after the number is its own."""

    number = 0


worker = Worker()


class Job:
    """A program in the guest, with the face of Program."""

    def __init__(self, row, guest, argv):
        self.row, self.guest, self.argv, self.name = row, guest, argv, argv[0]
        self.rc = None
        # Its outputs, once it has ended.
        self._ended = {}
        self.job = guest.k("exec", "-d", guest.name, "--", *argv).strip()
        row.programs.append(self)

    def running(self):
        return self.rc is None

    def wait(self, seconds=30):
        if not self.ends_within(seconds):
            raise Fail(f"{self.name} in the guest did not end", self.tail())
        return self.rc

    def ends_within(self, seconds):
        """Whether it does, waiting for it."""
        if self.rc is None:
            self._ask(min(seconds, max(1, self.row.left())))
        return self.rc is not None

    def _ask(self, seconds):
        r = subprocess.run([KERNEL_PEER, "wait", self.guest.name, self.job, str(seconds)], env=self.guest.env, capture_output=True)
        if r.returncode != 124:
            self.rc = r.returncode

    def end(self):
        if self.rc is None:
            self.guest.k("kill", self.guest.name, self.job, check=False)

    @property
    def out(self):
        return self._text("out")

    @property
    def err(self):
        return self._text("err")

    def _text(self, stream):
        if stream in self._ended:
            return self._ended[stream]
        text = Text(self.guest.k(stream, self.guest.name, self.job, check=False))
        if self.rc is not None:
            self._ended[stream] = text
        return text

    def tail(self, lines=15):
        if self.rc is None:
            # The other side may have failed because this one has ended.
            self._ask(3)
        text = [f"$ guest: {' '.join(self.argv)}   (exit {self.rc})"]
        # A signal ended it. (255 is what rping says, too, or that the guest did not answer.)
        if self.rc is not None and 128 < self.rc < 255:
            said = self.guest.k("exec", "-t", "20", self.guest.name, "--", "dmesg | tail -n 16; free", check=False)
            text += [f"  kernel: {line[:200]}" for line in said.splitlines()]
        for what, s in (("out", self.out), ("err", self.err)):
            text += [f"  {what}: {line[:200]}" for line in s.lines[-lines:]]
        return "\n".join(text)


class Text:
    def __init__(self, text):
        self.lines = text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")


class Guest:
    """A kernel guest, booted when the first row of a worker wants it and taken down at exit."""

    # By worker and name. Each worker's guests are on a bridge in a network namespace of their own.
    up = {}
    unavailable = None

    def __init__(self, name, ip, ip6):
        self.name, self.ip, self.ip6 = name, ip, ip6
        # Files of this machine that are in it.
        self.given = set()
        self.ns = f"{PREFIX}-kp{worker.number}"
        self.env = {**os.environ, "KERNEL_PEER_NETNS": self.ns}

    @classmethod
    def get(cls, name="A"):
        need_root()
        if cls.unavailable:
            raise LeftOut(cls.unavailable)
        key = (worker.number, name)
        if key not in cls.up:
            n = {"A": 2, "B": 3, "S": 4}[name]
            # The device of S is siw, of the others rdma_rxe.
            device = ["--dev", "siw", "--accel", "uml"] if name == "S" else []
            g = cls(name, f"10.77.0.{n}", f"fd77::{n}")
            if not os.path.exists("/dev/net/tun") or not shutil.which("apt-get"):
                cls.unavailable = "the kernel guest needs /dev/net/tun and apt"
                raise LeftOut(cls.unavailable)
            cls.up[key] = g
            r = subprocess.run([KERNEL_PEER, "up", "--name", name, "--ip", g.ip, *device], env=g.env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if r.returncode != 0:
                cls.unavailable = "the kernel guest did not boot"
                print(r.stderr[-2000:], file=sys.stderr)
                raise LeftOut(cls.unavailable)
        return cls.up[key]

    @classmethod
    def down(cls):
        for g in {g.ns: g for g in list(cls.up.values())}.values():
            subprocess.run([KERNEL_PEER, "down"], env=g.env, stdin=subprocess.DEVNULL, capture_output=True)
        cls.up.clear()

    @classmethod
    def ended(cls):
        """What those guests of the worker said last that have ended; the next row that wants one boots it anew."""
        said = ""
        for (number, name), g in list(cls.up.items()):
            if number == worker.number and not g.answers():
                said += f"guest {name}: {g.k('console', name, check=False)[-2000:]}\n"
                g.k("down", name, check=False)
                del cls.up[number, name]
        return said

    def answers(self):
        r = subprocess.run([KERNEL_PEER, "exec", "-t", "20", self.name, "--", "true"], env=self.env, stdin=subprocess.DEVNULL, capture_output=True)
        return r.returncode == 0

    def k(self, *argv, check=True):
        r = subprocess.run([KERNEL_PEER, *argv], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        if check and r.returncode != 0:
            raise Fail("the guest did not answer", f"{' '.join(argv)}: {r.stderr[-500:]}")
        return r.stdout

    def until(self, script, why, seconds=60):
        """Until the shell script succeeds in the guest."""
        r = subprocess.run([KERNEL_PEER, "exec", "-t", str(seconds), self.name, "--", f"until {script}; do usleep 50000; done"],
                           env=self.env, stdin=subprocess.DEVNULL, capture_output=True)
        if r.returncode != 0:
            raise Fail(why)
