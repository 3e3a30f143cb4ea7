"""iWARP, byte by byte: a whole rping between two Verbenas beside one between two kernels (siw, Linux 6.12)."""
import os, time

from .harness import HERE, need, row
from .iwarp import IWARP, rping

GOLDEN = os.path.join(HERE, "..", "crates", "wire", "tests", "golden")
# Bytes of an MPA request or reply before its private data, and where that says how long it is (RFC 5044, 7.1.1).
MPA, MPA_LENGTH = 20, slice(18, 20)
FPDU_LENGTH, CRC = 2, 4
TAGGED = 0x80
# Where identifiers and addresses of memory stand, by offset: of a tagged header the STag and the offset, of an untagged one the STag
# that is invalidated (RFC 5040, 4.1 and 4.3; RFC 5041, 4.2 and 4.3). The checksum follows from them.
TAGGED_IDS, UNTAGGED_HEADER = range(2, 14), 18
# Of a READ request both STags and offsets (RFC 5040, 4.4).
READ_REQUEST_IDS = (*range(0, 12), *range(16, 28))
READ_REQUEST = 1
# A WRITE of no bytes, which a client sends once, 50 ms behind the connection: siw looks at bytes that were early only when more come.
REMINDER = b"\xc1\x40" + bytes(12)
# What rping sends says where its buffer is: an address and a key, then a length.
RPING_IDS = range(0, 12)


def frames(path):
    """The Ethernet frames of a capture by tcpdump."""
    with open(path, "rb") as f:
        data = f.read()
    order = "little" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else "big"
    at = 24
    while at + 16 <= len(data):
        length = int.from_bytes(data[at + 8 : at + 12], order)
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def streams(path):
    """What each side of the connection sent: the client's bytes, the server's; over IPv4."""
    client, sent, begins = None, {}, {}
    for frame in frames(path):
        ip = frame[14:]
        if frame[12:14] != b"\x08\x00" or ip[9] != 6:
            continue
        tcp = ip[(ip[0] & 15) * 4 : int.from_bytes(ip[2:4], "big")]
        source, seq, flags = int.from_bytes(tcp[:2], "big"), int.from_bytes(tcp[4:8], "big"), tcp[13]
        if flags & 2:
            client = client or source
            begins[source], sent[source] = (seq + 1) % 2**32, bytearray()
            continue
        payload, at = tcp[(tcp[12] >> 4) * 4 :], (seq - begins[source]) % 2**32
        # What was sent again lies where it lay.
        if payload and at <= len(sent[source]):
            sent[source][at : at + len(payload)] = payload
    server = next(port for port in sent if port != client)
    return bytes(sent[client]), bytes(sent[server])


def blank(data, places):
    return bytes(0 if at in places else byte for at, byte in enumerate(data))


def messages(stream):
    """The MPA frame, then each FPDU without its length, padding and checksum; identifiers are blank. A reminder is left out."""
    end = MPA + int.from_bytes(stream[MPA_LENGTH], "big")
    found, at = [stream[:end]], end
    while at < len(stream):
        length = int.from_bytes(stream[at : at + FPDU_LENGTH], "big")
        segment = stream[at + FPDU_LENGTH : at + FPDU_LENGTH + length]
        at += (FPDU_LENGTH + length + 3) // 4 * 4 + CRC
        if segment[0] & TAGGED:
            found.append(blank(segment, TAGGED_IDS))
            continue
        header, payload = segment[:UNTAGGED_HEADER], segment[UNTAGGED_HEADER:]
        ids = READ_REQUEST_IDS if header[1] & 15 == READ_REQUEST else RPING_IDS
        found.append(header + blank(payload, ids))
    # A busy machine is at its pings, still, when it is time for that.
    if REMINDER in found:
        found.remove(REMINDER)
    return found


@row(IWARP, "each byte of a rping is that between two kernels, but for identifiers", "rping -v -C 3 -S 64", parallel=True)
def as_between_kernels(r):
    need("tcpdump")
    a, b = r.veth()
    file = os.path.join(r.work, "rping.pcap")
    dump = r.plain("tcpdump", "-Z", "root", "--immediate-mode", "-n", "-U", "-i", "veth0", "-w", file, "tcp port 7174", ns=a)
    dump.until("listening on", stream="err")
    rping(r, a, b, "10.90.0.2", 3, 64)
    theirs = [messages(stream) for stream in streams(os.path.join(GOLDEN, "siw-rping-small.pcap"))]
    deadline = time.monotonic() + 5
    while (ours := [messages(stream) for stream in streams(file)]) != theirs and time.monotonic() < deadline:
        time.sleep(0.1)
    for side, mine, golden in zip(("client", "server"), ours, theirs):
        r.check(len(mine) == len(golden), f"the {side} sent {len(mine)} messages, siw's {len(golden)}", dump)
        for at, (one, other) in enumerate(zip(mine, golden)):
            r.check(one == other, f"message {at} of the {side} is {one.hex()}, siw's {other.hex()}", dump)
