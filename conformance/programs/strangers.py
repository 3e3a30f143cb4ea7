#!/usr/bin/env python3
"""strangers.py ADDRESS SECONDS RATE: packets from another address that are legal and concern nobody, so many a second: requests
for services that nobody has, DREQ and REP for connections that nobody knows, SENDs to queue pairs of no process. Each with its
ICRC, and numbers drawn anew in 12,000 packets that go round. The last line is the rate that was reached.
"""
import random, socket, struct, sys, time

from flood import IP_MTU_DISCOVER, IP_PMTUDISC_DO, PORT, icrc

SOURCE = "127.0.0.2"
# Packets between two looks at the clock.
RUN = 32


def bth(opcode, qpn, psn):
    return struct.pack(">BBHII", opcode, 0x40, 0xFFFF, qpn, psn)


def mad(rng, attribute, body):
    """A message of the CM class to QP1: BTH, DETH, the common header of 24 bytes and the body, 256 in all."""
    head = struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, rng.getrandbits(64), attribute, 0, 0)
    return bth(0x64, 1, 0) + struct.pack(">II", 0x80010000, 1) + (head + body).ljust(256, b"\0")


def request(rng, address):
    """A REQ for a port of RDMA_PS_TCP (IBA 12.6.5), with the RDMA IP CM header before its private data (annex A11)."""
    gid = [bytes(10) + b"\xff\xff" + socket.inet_aton(a) for a in (SOURCE, address)]
    body = struct.pack(">IIQQI", rng.getrandbits(32) | 1, 0, 0x01060000 | rng.randrange(50000, 60000), rng.getrandbits(64), 0)
    body += struct.pack(">IIIIIHBB", 0, rng.getrandbits(24) << 8 | 1, 1, 20 << 3, rng.getrandbits(24) << 8 | 20 << 3 | 7, 0xFFFF, 0x37, 0xF0)
    body += struct.pack(">HH", 0xFFFF, 0xFFFF) + gid[0] + gid[1] + struct.pack(">IBBBB", 0, 0, 64, 0, 17 << 3) + bytes(44)
    body += struct.pack(">BBH", 0, 0x40, 4000) + bytes(12) + socket.inet_aton(SOURCE) + bytes(12) + socket.inet_aton(address)
    return mad(rng, 0x10, body)


def packet(rng, address, n):
    ids = struct.pack(">II", rng.getrandbits(32), rng.getrandbits(32))
    if n % 4 == 0:
        return request(rng, address)
    if n % 4 == 1:
        return mad(rng, 0x15, ids + struct.pack(">I", rng.getrandbits(24) << 8))       # DREQ
    if n % 4 == 2:
        return mad(rng, 0x13, ids)                                                     # REP
    return bth(0x04, rng.randrange(0x1000, 0xFFF000), rng.getrandbits(24)) + rng.randbytes(64)


def main(address, seconds, rate):
    rng, seconds, rate = random.Random(5), float(seconds), float(rate)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    s.bind((SOURCE, 0))
    port = s.getsockname()[1]
    packets = [packet(rng, address, n) for n in range(12_000)]
    packets = [p + icrc(SOURCE, port, address, p) for p in packets]
    print("begins", flush=True)
    begin, sent = time.monotonic(), 0
    while time.monotonic() < begin + seconds:
        for _ in range(RUN):
            s.sendto(packets[sent % len(packets)], (address, PORT))
            sent += 1
        early = begin + sent / rate - time.monotonic()
        if early > 0:
            time.sleep(early)
    print(f"{sent} packets, {sent / (time.monotonic() - begin):.0f}/s")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
