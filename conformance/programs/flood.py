#!/usr/bin/env python3
"""flood.py ADDRESS COUNT RATE [--sealed]: malformed RoCEv2 packets to UDP port 4791 of an IPv4 address, so many a second.

Runts, unknown opcodes, headers cut short, wrong pad counts, lengths that do not fit, damaged CM messages to QP1, and recorded
packets of the kernel with a few bytes changed. With --sealed each packet of 16 bytes and more ends in the ICRC that fits it, so
that it reaches the parsers behind the check. The packets are the same on every run.
"""
import glob, os, random, socket, struct, sys, time, zlib

PORT = 4791
CAPTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "crates", "wire", "tests", "golden", "*.pcap")
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2


def recorded():
    """The UDP payloads of the kernel's captures over IPv4, without their ICRC."""
    found = []
    for path in sorted(glob.glob(CAPTURES)):
        with open(path, "rb") as f:
            data = f.read()
        at = 24
        while at + 16 <= len(data):
            size = struct.unpack_from("<I", data, at + 8)[0]
            frame = data[at + 16: at + 16 + size]
            at += 16 + size
            if len(frame) > 42 + 16 and frame[12:14] == b"\x08\x00" and frame[23] == 17 and frame[36:38] == struct.pack(">H", PORT):
                found.append(frame[42:-4])
    return found


def icrc(src, sport, dst, payload):
    """IBA annex A17 §17.9.2: eight bytes of ones, then the packet with all that a router may change masked with ones. The
    IP identification is 0: the kernel sends 0 on an unconnected socket that may not fragment."""
    total = 20 + 8 + len(payload) + 4
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0xFF, total, 0, 0x4000, 0xFF, 17, 0xFFFF, socket.inet_aton(src), socket.inet_aton(dst))
    udp = struct.pack(">HHHH", sport, PORT, total - 20, 0xFFFF)
    masked = payload[:4] + b"\xff" + payload[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


def bth(rng, opcode, qpn, pad=0):
    return struct.pack(">BBHII", opcode, 0x40 | pad << 4 | rng.randrange(16), 0xFFFF, qpn, rng.randrange(1 << 24) | rng.randrange(2) << 31)


def packet(rng, base):
    kind = rng.randrange(7)
    qpn = rng.choice((0, 1, 2, 17, 0xFFFFFF, rng.randrange(1 << 24)))
    if kind == 0:                                       # runts
        return rng.randbytes(rng.randrange(0, 16))
    if kind == 1:                                       # any opcode at all, any bytes behind it
        return bth(rng, rng.randrange(256), qpn, rng.randrange(4)) + rng.randbytes(rng.randrange(64))
    if kind == 2:                                       # pad count larger than what is there
        return bth(rng, rng.choice((0x00, 0x04, 0x0A, 0x10, 0x64)), qpn, 3) + rng.randbytes(rng.randrange(3))
    if kind == 3:                                       # atomics, writes and reads with absurd lengths and addresses
        reth = struct.pack(">QII", rng.choice((0, 1 << 63, (1 << 64) - 1)), rng.randrange(1 << 32), rng.choice((0, 1, 1 << 31, 0xFFFFFFFF)))
        return bth(rng, rng.choice((0x06, 0x0A, 0x0C, 0x13, 0x14, 0x1C, 0x1D)), qpn) + reth + rng.randbytes(rng.randrange(32))
    if kind == 4:                                       # a MAD of the CM class to QP1, any attribute, any bytes
        deth = struct.pack(">II", 0x80010000, 1)
        mad = struct.pack(">BBBBHHQHHI", 1, 7, rng.choice((1, 2)), 3, 0, 0, rng.randrange(1 << 64), rng.randrange(0x0C, 0x20), 0, 0)
        return bth(rng, 0x64, 1) + deth + (mad + rng.randbytes(232))[: rng.choice((256, 256, 255, 24, 0))]
    p = bytearray(rng.choice(base))                     # a packet of the kernel's, damaged or cut
    for _ in range(rng.randrange(1, 5)):
        p[rng.randrange(len(p))] = rng.randrange(256)
    return bytes(p[: rng.randrange(12, len(p))] if kind == 5 else p)


def main(address, count, rate, sealed=""):
    rng = random.Random(4791)
    base = recorded()
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
    # A socket connected to find out its address would send other IP identifications: ask another one.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, PORT))
        source = probe.getsockname()[0]
    s.bind((source, 0))
    port = s.getsockname()[1]
    packets = []
    for _ in range(int(count)):
        p = packet(rng, base)
        if sealed and len(p) >= 12:
            p += icrc(source, port, address, p)
        packets.append(p)
    begin, step = time.monotonic(), 1 / float(rate)
    for n, p in enumerate(packets):
        while time.monotonic() < begin + n * step:
            pass
        try:
            s.sendto(p, (address, PORT))
        except ConnectionRefusedError:      # the ICMP answer to an earlier packet
            pass
    print(f"{len(packets)} packets, {len(packets) / (time.monotonic() - begin):.0f}/s")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    main(*sys.argv[1:])
