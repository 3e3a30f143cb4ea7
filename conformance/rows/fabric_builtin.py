"""Data of a fabric without OpenSM: programs of verbs on hosts whose ways are those of the built-in subnet manager, also while cables are
cut. Each row asserts on the counters of switches, as those of `fabric_data` do."""
from .fabric_data import DATA, HERE, THERE, Ends, judged, perform, until
from .harness import row


class Managed(Ends):
    """Two hosts of a fabric with the built-in subnet manager."""

    def __init__(self, r):
        super().__init__(r, builtin=True)

    def lost(self, cable):
        """Packets that both ends of a cable have discarded."""
        return sum(self.at(*end, "PortXmitDiscards") for end in cable)

    def far_end(self, node, port):
        """The port at the other end of a cable."""
        line = next(line for line in self.f.ask("trace", HERE, THERE) if line.startswith(f"{node} {port} -> "))
        return tuple(line.split(" -> ")[1].rsplit(" ", 1))


@row(DATA, "without OpenSM: a pingpong, writes and messages, counted at each switch", "ibv_rc_pingpong, ib_write_bw, ib_send_lat; --sm builtin", limit=60, parallel=True)
def counted(r):
    e = Managed(r)
    there, back = e.passed(e.there), e.passed(e.back)
    s, c = e.start(["ibv_rc_pingpong", "-d", "mlx5_0", "-n", "500"])
    judged(r, s, c)
    r.check(e.more(there, e.there)[0] >= 500 and e.more(back, e.back)[0] >= 500, "ibv_rc_pingpong took another way", c)
    perform(r, e, [("ib_write_bw", "RC", 65536, 100), ("ib_send_lat", "RC", 8, 200)])


@row(DATA, "without OpenSM: a cable is cut, packets are lost, and take the other way", "ib_send_lat -u 16; verbena fabric freeze, down; --sm builtin", limit=60, parallel=True)
def reroute(r):
    e = Managed(r)
    s, c = e.start(["ib_send_lat", "-F", "-d", "mlx5_0", "-u", "16", "-D", "3"])
    node, port = e.there[1]
    cable = [(node, port), e.far_end(node, port)]
    began = e.at(node, port)
    until(r, "nothing passes", lambda: e.at(node, port) > began + 50)
    # The manager can not change the way until a packet is lost: it is faster than the next message.
    e.f.ask("freeze", node)
    e.f.ask("down", node, port)
    until(r, "no packet is lost at the cut", lambda: e.lost(cable) > 0)
    e.f.ask("thaw", node)
    # It looks again when a switch tells of a change, and of itself ten seconds later.
    e.f.ask("down", *e.way_in("host5"))
    until(r, "no other way is found", lambda: len(way := e.f.way(HERE, THERE)) == 4 and way[1] != (node, port))
    lost = e.lost(cable)
    e.look()
    other = e.at(*e.there[1])
    for p in (c, s):
        r.check(p.wait(30) == 0, f"ib_send_lat: exit {p.rc}", c, s)
    r.check(e.at(*e.there[1]) > other + 50, "packets do not take the other way", c)
    r.note = f"{lost} lost"
