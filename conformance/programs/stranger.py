#!/usr/bin/env python3
"""stranger.py INTERFACE KERNEL OURS: tells OURS in the name of KERNEL that the connection that they make next is stale.

Waits for the REQ of KERNEL and the REP of OURS on the interface, and writes a REQ with the GUID and queue pair of KERNEL. Then counts for nine seconds what the two
say about it, and prints a line a count. Asks KERNEL itself about a connection that there is not. Root, IPv4.
"""
import os, random, socket, struct, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from flood import PORT, icrc  # noqa: E402

REQ, REJ, REP, DREQ, DREP = 0x10, 0x12, 0x13, 0x15, 0x16
NOBODY, STALE = 0xFFFFFF, 10


def mad(attribute, transaction, message):
    return struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, transaction, attribute, 0, 0) + message.ljust(232, b"\0")


def req(comm_id, guid, qpn, source, dest):
    gid = lambda a: bytes(10) + b"\xff\xff" + socket.inet_aton(a)
    head = struct.pack(">IIQQII", comm_id, 0, 0x01060000 | 7174, guid, 0, 0)
    numbers = struct.pack(">IIII", qpn << 8 | 1, 1, 20 << 3, 20 << 3 | 7) + struct.pack(">HBB", 0xFFFF, 3 << 4 | 7, 15 << 4)
    path = struct.pack(">HH", 0xFFFF, 0xFFFF) + gid(source) + gid(dest) + struct.pack(">IBBBB", 0, 0, 64, 0, 17 << 3)
    return head + numbers + path


def send(raw, source, dest, mad):
    """From any address, by a raw socket; to QP1, with the Q_Key of QP1."""
    payload = struct.pack(">BBHII", 0x64, 0, 0xFFFF, 1, 0) + struct.pack(">II", 0x80010000, 1) + mad
    payload += icrc(source, 0xC000, dest, payload)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(dest))
    raw.sendto(ip + struct.pack(">HHHH", 0xC000, PORT, 8 + len(payload), 0) + payload, (dest, 0))


def heard(wire, end):
    """The MADs until `end`: who sent it, its attribute, transaction id and message."""
    while (left := end - time.monotonic()) > 0:
        wire.settimeout(left)
        try:
            frame = wire.recv(4096)
        except TimeoutError:
            return
        if frame[12:14] == b"\x08\x00" and frame[23] == 17 and frame[36:38] == struct.pack(">H", PORT) and frame[42] == 0x64:
            transaction, attribute = struct.unpack_from(">QH", frame, 70)
            yield socket.inet_ntoa(frame[26:30]), attribute, transaction, frame[86:318]


def main(interface, kernel, ours):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    wire.bind((interface, 0))
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    print("listening", flush=True)
    packets = heard(wire, time.monotonic() + 30)
    first = lambda who, attribute: next(message for source, is_a, _, message in packets if (source, is_a) == (who, attribute))
    message = first(kernel, REQ)
    guid, qpn = struct.unpack_from(">Q", message, 16)[0], struct.unpack_from(">I", message, 32)[0] >> 8
    mine, theirs = struct.unpack_from(">II", first(ours, REP))
    # The two go on talking; what is not read meanwhile would leave no room for the answers.
    for _ in heard(wire, time.monotonic() + 1):
        pass
    send(raw, kernel, ours, mad(REQ, random.getrandbits(64), req(random.getrandbits(32) | 1, guid, qpn, kernel, ours)))
    unknown = random.getrandbits(64)
    send(raw, ours, kernel, mad(DREQ, unknown, struct.pack(">III", 5, 6, NOBODY << 8)))
    count = dict.fromkeys(("refused", "asked", "answered", "unknown"), 0)
    for who, attribute, transaction, message in heard(wire, time.monotonic() + 9):
        first, second, third = struct.unpack_from(">III", message)
        count["refused"] += who == ours and attribute == REJ and struct.unpack_from(">H", message, 10)[0] == STALE
        count["asked"] += who == ours and attribute == DREQ and (first, second, third >> 8) == (mine, theirs, NOBODY)
        count["answered"] += who == kernel and attribute == DREP and (first, second) == (theirs, mine)
        count["unknown"] += who == kernel and attribute == DREP and transaction == unknown
    for name, n in count.items():
        print(name, n, flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
