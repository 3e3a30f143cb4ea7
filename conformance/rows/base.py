"""What the harness and its guests both stand on: places, verdicts, and commands that prepare a row."""
import os, shutil, subprocess

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(HERE, "golden")
KERNEL_PEER = os.path.join(HERE, "kernel-peer", "kernel-peer")
ROOT = os.geteuid() == 0
# Namespaces are named after this process, so that two runs do not meet.
PREFIX = f"vbt-{os.getpid()}"
# Where fi_pingpong listens: one of the ports that the kernel gives to whoever connects.
FABRIC_PORT = 47592
# Whether interfaces that come try each IPv6 address before they have it.
DETECTION = "/proc/sys/net/ipv6/conf/default/accept_dad"
KEPT_LINES = 200_000


class Fail(Exception):
    """A row failed; the message is a few words that are the same on every run, the detail is for the terminal."""

    def __init__(self, why, detail=""):
        super().__init__(why)
        self.detail = detail


class LeftOut(Exception):
    """A row cannot run here; the message says what is missing."""


def need(*programs):
    for p in programs:
        if not shutil.which(p):
            raise LeftOut(f"{p} is not installed")


def need_root():
    if not ROOT:
        raise LeftOut("network namespaces need root")


def sh(*argv, check=True):
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if check and r.returncode != 0:
        raise Fail("set-up failed", f"{' '.join(argv)}: {r.stderr.strip()}")
    return r.stdout
