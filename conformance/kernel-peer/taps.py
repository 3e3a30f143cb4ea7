#!/usr/bin/env python3
"""taps.py FD TAP CMD...: CMD has the tap interface of this network namespace open as descriptor FD. Called by ./kernel-peer.

Without vnet headers: each packet comes and goes as on a wire, checksums done and nothing merged."""
import fcntl, os, struct, sys

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000

number, name, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
tap = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
if tap != number:
    os.dup2(tap, number)
os.set_inheritable(number, True)
os.execvp(command[0], command)
