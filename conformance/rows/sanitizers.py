"""Programs built with a sanitizer (programs/ends.c), which has places of its own for memory and its own functions for the C library's."""
import signal
import time

from .harness import row
from .killed import gone

# What the object does with its own memory has locks that ThreadSanitizer does not see.
OPTIONS = {"thread": {"TSAN_OPTIONS": "report_bugs=0"}, "address": {}, "undefined": {}}

for sanitizer, options in OPTIONS.items():
    def run(r, sanitizer=sanitizer, options=options):
        ns, ends = r.namespace(), r.compiled("ends", sanitizer=sanitizer)
        server = r.run(ends, "server", "established", "127.0.0.1", ns=ns, env=options)
        r.listening(server, 7300)
        client = r.run(ends, "client", "established", "127.0.0.1", ns=ns, env=options)
        for end in (client, server):
            end.until("RDMA_CM_EVENT_ESTABLISHED")
        at = time.monotonic()
        client.signal(signal.SIGKILL)
        gone(r, server, at, 2)
    row("programs with a sanitizer", f"both ends built with -fsanitize={sanitizer}, the client is killed", f"programs/ends.c, -fsanitize={sanitizer}")(run)
