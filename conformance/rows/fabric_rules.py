"""What a switch does not let pass, by what a subnet manager or a tool has written to its ports: packets of other partitions, and packets larger than
the MTU of a link. And drop rules on the way to a group."""
import os, re

from .fabric_data import DATA, HERE, THERE, Ends, numbers, until
from .harness import row


def fails(r, e, server, client, seconds=20):
    """A client that ends with an error; the server waits for it in vain."""
    s = e.on(THERE, *server)
    r.tcp_listening(s)
    c = e.on(HERE, *client, "127.0.0.1")
    r.check(c.ends_within(seconds) and c.rc != 0, "the client is content", c, s)
    s.end()
    return c


@row(DATA, "a switch lets no packet out to a host that is not of its partition", "opensm -P partitions.conf; ib_send_lat --pkey_index 1", limit=60, parallel=True)
def partitions(r):
    conf = os.path.join(r.work, "partitions.conf")
    # By the GUIDs of a fat tree's ports host0 and host2 are members, host7 is not.
    with open(conf, "w") as file:
        file.write("Default=0x7fff,ipoib:ALL=full;\nstorage=0x12:0x0002c90300100000=full,0x0002c90300100002=full;\n")
    e = Ends(r, manager=("-P", conf))
    last = e.there[-1]
    argv = ["ib_send_lat", "-F", "-d", "mlx5_0", "-n", "500", "-u", "10"]
    s, c = e.pair(argv)
    r.check([int(n[1]) for n in numbers(c.out.lines)] == [500], "no result by the default partition", c, s)
    r.check(e.at(*last, "PortXmitConstraintErrors") == 0, "a packet of the default partition was refused", c)
    sent = e.at(*last)
    c = fails(r, e, argv, [*argv, "--pkey_index", "1"])
    r.check(any("status 12" in line or "ransport retry" in line for line in c.out.lines + c.err.lines), "another error", c)
    refused = e.at(*last, "PortXmitConstraintErrors")
    r.check(refused > 0 and e.at(*last) == sent, f"{refused} refused, {e.at(*last) - sent} let out", c)
    r.note = f"{refused} refused"


@row(DATA, "a link whose MTU is smaller discards larger packets, and no others", "ibportstate mtu 3; ib_write_bw -s 65536; ib_send_lat -s 8", limit=60, parallel=True)
def mtu(r):
    e = Ends(r)
    leaf, port = e.there[-1]
    e.f.says("host1", "ibportstate", str(e.f.lid(leaf)), port, "mtu", "3")
    said = " ".join(e.f.says("host1", "smpquery", "portinfo", str(e.f.lid(leaf)), port))
    r.check(re.search(r"NeighborMTU:\.+1024", said), f"portinfo: {said}")
    s, c = e.pair(["ib_send_lat", "-F", "-d", "mlx5_0", "-n", "500"])
    r.check([int(n[1]) for n in numbers(c.out.lines)] == [500], "no result of small messages", c, s)
    sent, discarded = e.at(leaf, port), e.at(leaf, port, "PortXmitDiscards")
    r.check(discarded == 0, f"{discarded} small packets were discarded", c)
    argv = ["ib_write_bw", "-F", "-d", "mlx5_0", "-n", "100", "-u", "10"]
    fails(r, e, argv, argv)
    discarded = e.at(leaf, port, "PortXmitDiscards")
    r.check(discarded > 0 and e.at(leaf, port) == sent, f"{discarded} discarded, {e.at(leaf, port) - sent} let out")


@row(DATA, "a drop rule loses packets to a group on the way to the hosts behind it", "ib_send_bw -c UD -g; verbena fabric drop 100%", limit=60, parallel=True)
def group(r):
    e = Ends(r)
    last = e.there[-1]
    argv = ["ib_send_bw", "-F", "-d", "mlx5_0", "-c", "UD", "-g", "-n", "10000000", "-s", "64"]
    sent = e.at(*last)
    s, c = e.start(argv)
    until(r, "nothing passes", lambda: e.at(*last) > sent + 1000, 15)
    e.f.ask("drop", *last, "100%")

    def none_goes_on():
        """A thousand packets are discarded, and no other one is let out meanwhile."""
        sent, discarded = e.at(*last), e.at(*last, "PortXmitDiscards")
        until(r, "nothing is discarded", lambda: e.at(*last, "PortXmitDiscards") > discarded + 1000, 15)
        return e.at(*last) == sent
    # Packets that were decided of before are on their way, for as long as their sender waits for a processor.
    until(r, "packets go on", none_goes_on, 15)
    c.end()
    s.end()
