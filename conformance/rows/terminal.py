"""A terminal with a program on it: what stands on its screen, the keys, and its attributes."""
import fcntl, os, re, select, struct, termios, threading, time

# Cursor moves, other control sequences (ECMA-48 §5.4), and single characters.
PARTS = re.compile(r"\x1b\[(?P<moves>[0-9;]*)H|\x1b\[(?P<clears>2?)J|(?P<other>\x1b\[[0-?]*[ -/]*[@-~]|\x1b.)|(?P<text>.)", re.S)


class Terminal:
    """A pseudo-terminal, and a program that is the leader of its session."""

    def __init__(self, r, *argv, ns=None, columns=100, lines=24):
        self.r = r
        self._ours, self._theirs = os.openpty()
        self.resize(columns, lines)
        self.attributes = termios.tcgetattr(self._theirs)
        self.written, self._lock, self._is_closed = "", threading.Lock(), False
        threading.Thread(target=self._read, daemon=True).start()
        # The leader of a session that opens a terminal gets it as its own.
        on_it = ["sh", "-c", 'exec "$@" < "$0" > "$0" 2>&1', os.ttyname(self._theirs)]
        self.program = r.plain(*on_it, *argv, ns=ns)

    def resize(self, columns, lines):
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def _read(self):
        while not self._is_closed:
            if not select.select([self._ours], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                # No process has the other end any more.
                break
            with self._lock:
                self.written += data.decode(errors="replace")
        os.close(self._ours)

    def close(self):
        """Takes the terminal away from the program."""
        self._is_closed = True
        os.close(self._theirs)

    def screen(self):
        """The lines on the screen, made from all that was written: that is little."""
        with self._lock:
            written = self.written
        cells, line, column = {}, 1, 1
        for part in PARTS.finditer(written):
            if (moves := part["moves"]) is not None:
                line, column = (int(n or 1) for n in (moves.split(";") + ["", ""])[:2])
            elif part["clears"] is not None:
                cells.clear()
            elif part["text"] == "\r":
                column = 1
            elif part["text"] == "\n":
                line += 1
            elif part["text"]:
                cells[line, column] = part["text"]
                column += 1
        last = max((at[0] for at in cells), default=0)
        ends = [max((c for l, c in cells if l == n), default=0) for n in range(1, last + 1)]
        return ["".join(cells.get((n, c), " ") for c in range(1, end + 1)).rstrip() for n, end in enumerate(ends, 1)]

    def until(self, wanted, why, seconds=10):
        """The match of an expression on the screen, once it is there, and the seconds that took."""
        began = time.monotonic()
        while True:
            if found := re.search(wanted, "\n".join(self.screen()), re.M):
                return found, time.monotonic() - began
            if time.monotonic() - began > min(seconds, self.r.left()):
                self.r.check(False, f"{why}; the screen is\n" + "\n".join(self.screen()), self.program)
            time.sleep(0.02)

    def type(self, keys):
        os.write(self._ours, keys.encode())

    def used_by_another(self, text):
        """The program is stopped: another one leaves the alternate screen, sets the attributes back, and writes."""
        time.sleep(0.3)
        with self._lock:
            self.written = ""
        termios.tcsetattr(self._theirs, termios.TCSANOW, self.attributes)
        os.write(self._theirs, b"\x1b[?1049l\x1b[2J\x1b[1;1H" + text.encode())

    def ended(self, code):
        """The program ends with this code, and leaves the terminal as it was."""
        rc = self.program.wait(5)
        self.r.check(rc == code, f"exit {rc}, not {code}", self.program)
        self.r.check(termios.tcgetattr(self._theirs) == self.attributes, "the attributes of the terminal are changed", self.program)
        # It has written all by then; the thread that reads may be behind.
        for off, on, why in (("\x1b[?1049l", "\x1b[?1049h", "the alternate screen stays"), ("\x1b[?25h", "\x1b[?25l", "the cursor stays hidden")):
            end = time.monotonic() + min(5, self.r.left())
            while self.written.rfind(off) <= self.written.rfind(on):
                self.r.check(time.monotonic() < end, why, self.program)
                time.sleep(0.02)
        self.close()
