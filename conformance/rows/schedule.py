"""Which rows run when: first those that may (`parallel`), side by side, then the others, one after the other, those with a
kernel guest first."""
import threading, time, traceback

from .base import ROOT
from .guest import Guest, worker

WORKERS = 4
# Workers that run rows with a kernel guest, each with guests of its own: an emulated machine takes a processor while it works.
WITH_GUESTS = 2


def timed(harness, spec):
    """(spec, verdict, reason, detail, seconds)"""
    begin = time.monotonic()
    return spec, *harness.run(spec), time.monotonic() - begin


def verdicts(harness, specs, workers):
    """What came of each row: of those that run side by side in the table's order, then of the others."""
    # Without root no row has a namespace of its own.
    workers = workers if ROOT else 1
    beside = [spec for spec in specs if spec.parallel and workers > 1]
    yield from SideBySide(harness, beside, workers).verdicts()
    alone = [spec for spec in specs if spec not in beside]
    yield from (timed(harness, spec) for spec in alone if spec.kernel)
    # A guest takes a part of a processor while it waits, too.
    Guest.down()
    yield from (timed(harness, spec) for spec in alone if not spec.kernel)


class SideBySide:
    """Rows that several workers run."""

    def __init__(self, harness, specs, workers):
        self.harness, self.specs = harness, specs
        self.waiting, self.done, self.change = list(specs), {}, threading.Condition()
        # Workers that end with this process: it is not to wait for them where a signal ends it.
        for number in range(min(workers, len(specs))):
            threading.Thread(target=self.work, args=(number,), daemon=True).start()

    def next(self, number):
        """The next row for the worker: those with guests first, where it has guests."""
        guests = [spec for spec in self.waiting if spec.kernel] if number < WITH_GUESTS else []
        others = (spec for spec in self.waiting if not spec.kernel)
        spec = guests[0] if guests else next(others, None)
        if spec:
            self.waiting.remove(spec)
        return spec

    def work(self, number):
        worker.number = number
        while not self.harness.closed:
            with self.change:
                spec = self.next(number)
            if not spec:
                return
            try:
                came = timed(self.harness, spec)
            except Exception as e:  # noqa: BLE001; the row is not judged, and the next ones are
                came = spec, "fail", type(e).__name__, traceback.format_exc(), 0.0
            with self.change:
                self.done[spec] = came
                self.change.notify()

    def verdicts(self):
        for spec in self.specs:
            with self.change:
                self.change.wait_for(lambda spec=spec: spec in self.done)
            yield self.done[spec]
