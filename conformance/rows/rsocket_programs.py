"""Programs of sockets that `verbena run --rsockets` takes to RDMA, under load and to their ends."""
import filecmp, os, re, shutil, signal

from .harness import LeftOut, need, need_root, row, sh
from .rsockets import GROUP, Preloaded, by_rdma, start_nginx


@row(GROUP, "preloaded: socat, a file one way, its checksum back after the half close, by RDMA", "socat, EXEC:sha256sum", limit=60)
def half_close(r):
    need("socat")
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    counts = os.path.join(r.work, "counters")
    server = place.run("socat", "TCP-LISTEN:9000,bind=127.0.0.1", "EXEC:sha256sum,pipes")
    r.listening(server, 9000)
    client = place.run("sh", "-c", f"exec socat -t 20 - TCP:127.0.0.1:9000 < {source}", counters=counts)
    r.check(client.wait(30) == 0 and server.wait(10) == 0, f"exit {client.rc}, {server.rc}", client, server)
    r.check(client.out.lines == [f"{digest}  -"], "another answer", client, server)
    place.carried(counts, client, server)


@row(GROUP, "preloaded: nginx under wrk, every request counted, by RDMA", "nginx, wrk -t1 -c8", limit=60)
def load(r):
    need("wrk")
    place = Preloaded(r)
    with open(os.path.join(r.work, "page"), "wb") as f:
        f.write(os.urandom(4096))
    counts, log = (os.path.join(r.work, name) for name in ("counters", "log"))
    short = f"log_format short '$status $body_bytes_sent'; access_log {log} short; keepalive_requests 1000000"
    server = start_nginx(place, http=short)
    client = place.run("wrk", "-t1", "-c8", "-d3s", "http://127.0.0.1:9000/page", counters=counts)
    r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    text = "\n".join(client.out.lines)
    done = re.search(r"(\d+) requests in", text)
    r.check(done and int(done[1]) >= 500, f"{done and done[1]} requests", client, server)
    # wrk's table takes descriptors up to 10 and three a connection. Verbena's own are among them, so some connections are not made.
    failed = [int(n) for n in re.findall(r"(?:read|write|timeout) (\d+)", text)]
    r.check(not any(failed) and "Non-2xx" not in text, "errors", client, server)
    server.end()
    with open(log) as f:
        served = [line.split() for line in f]
    # wrk leaves while its last requests are on their way.
    r.check(set(map(tuple, served)) == {("200", "4096")}, f"other answers: {sorted(set(map(tuple, served)))}", client, server)
    r.check(0 <= len(served) - int(done[1]) <= 8, f"{len(served)} answers to {done[1]} requests", client, server)
    place.carried(counts, client, server)


# AES-128 in counter mode over zeros, with a key and a counter of 0: the first GiB.
STREAM = f"openssl enc -aes-128-ctr -K {'0' * 32} -iv {'0' * 32} -in /dev/zero 2> /dev/null | head -c {1 << 30}"
STREAM_SHA256 = "a110c53382d90198328a45c24dfc98a504911e2abf65c16d6c879ae958528cbd"


@row(GROUP, "preloaded: nc, a stream of 1 GiB, its checksum, by RDMA", "nc, sha256sum", limit=90)
def gibibyte(r):
    need("nc", "openssl")
    place = Preloaded(r)
    counts = os.path.join(r.work, "counters.%p")
    server = place.run("sh", "-c", "nc -l 127.0.0.1 9000 | sha256sum")
    r.listening(server, 9000)
    client = place.run("sh", "-c", f"{STREAM} | nc -N 127.0.0.1 9000", counters=counts)
    r.check(client.wait(80) == 0 and server.wait(20) == 0, f"exit {client.rc}, {server.rc}", client, server)
    r.check(server.out.lines == [f"{STREAM_SHA256}  -"], "other bytes have come", client, server)
    files = [os.path.join(r.work, name) for name in os.listdir(r.work) if name.startswith("counters.")]
    r.check(any(by_rdma(file) for file in files), "its bytes did not go by RDMA", client, server)


@row(GROUP, "preloaded: haproxy between nginx with two workers and curl --parallel, both sides by RDMA", "haproxy, nginx, curl --parallel", limit=60)
def proxy(r):
    need("haproxy")
    place = Preloaded(r)
    files = [place.file(f"source{n}", 4 << 20) for n in range(4)]
    config, counts = (os.path.join(r.work, name) for name in ("haproxy.cfg", "counters"))
    with open(config, "w") as f:
        f.write("global\n maxconn 100\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n"
                "listen proxy\n bind 127.0.0.1:9001\n server nginx 127.0.0.1:9000\n")
    server = start_nginx(place, processes="worker_processes 2")
    # What haproxy has by RDMA where curl has none is nginx's.
    for ask, haproxys, curls in ((place.plain, counts, None), (place.run, None, counts)):
        between = place.run("haproxy", "-db", "-f", config, counters=haproxys)
        r.listening(between, 9001)
        more = {"counters": curls} if curls else {}
        targets = [f"{source}.came" for source, _ in files]
        urls = [word for n, target in enumerate(targets) for word in ("-o", target, f"http://127.0.0.1:9001/source{n}")]
        client = ask("curl", "-sS", "--parallel", "--no-progress-meter", *urls, **more)
        r.check(client.wait(30) == 0, f"exit {client.rc}", client, between, server)
        for target, (_, digest) in zip(targets, files):
            place.same(target, digest, client, between, server)
            os.remove(target)
        # It ends by itself when no connection is left.
        between.signal(signal.SIGUSR1)
        r.check(between.wait(20) == 0, f"haproxy: exit {between.rc}", between)
        place.carried(counts, client, between, server)
        os.remove(counts)
    server.end()


@row(GROUP, "preloaded: rsync to and from its daemon, a tree of 201 files, by RDMA", "rsync --daemon, rsync -a", limit=60)
def synchronized(r):
    need("rsync")
    place = Preloaded(r)
    source, config = os.path.join(r.work, "tree"), os.path.join(r.work, "rsyncd.conf")
    os.mkdir(source)
    for n in range(201):
        with open(os.path.join(source, f"file{n}"), "wb") as f:
            f.write(os.urandom(n * 100 if n < 200 else 16 << 20))
    with open(config, "w") as f:
        f.write(f"use chroot = no\nport = 9000\naddress = 127.0.0.1\nlog file = {r.work}/log\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
                f"[all]\npath = {r.work}\nread only = no\n")
    server = place.run("rsync", "--daemon", "--no-detach", f"--config={config}")
    r.listening(server, 9000)
    for name, ends in (("got", ("rsync://127.0.0.1:9000/all/tree/", f"{r.work}/got/")), ("put", (f"{source}/", "rsync://127.0.0.1:9000/all/put/"))):
        counts, target = os.path.join(r.work, f"counters.{name}"), os.path.join(r.work, name)
        client = place.run("rsync", "-a", *ends, counters=counts)
        r.check(client.wait(30) == 0, f"{name}: exit {client.rc}", client, server)
        names = sorted(os.listdir(source))
        r.check(sorted(os.listdir(target)) == names, f"{name}: other files", client, server)
        _, differ, failed = filecmp.cmpfiles(source, target, names, shallow=False)
        r.check(not differ and not failed, f"{name}: other bytes in {differ + failed}", client, server)
        place.carried(counts, client, server)
    server.end()


@row(GROUP, "preloaded: sshd, scp of 16 MiB to it and back, by RDMA", "sshd, scp", limit=60)
def copied(r):
    need_root()
    need("sshd", "scp", "ssh-keygen")
    with open("/etc/shadow") as f:
        if any(line.startswith("root:!") for line in f):
            raise LeftOut("the account of root is locked, which sshd refuses")
    place = Preloaded(r)
    source, digest = place.file("source", 16 << 20)
    key, host, there, back = (os.path.join(r.work, name) for name in ("key", "host", "there", "back"))
    for name in (key, host):
        sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name)
    # The directory of Debian's unit of sshd.
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    options = ("Port=9000", "ListenAddress=127.0.0.1", f"HostKey={host}", f"AuthorizedKeysFile={key}.pub", "StrictModes=no", "PidFile=none",
               "UsePAM=no", "PermitRootLogin=prohibit-password", "Subsystem=sftp internal-sftp")
    server = place.run(shutil.which("sshd"), "-D", "-e", "-f", "/dev/null", *(word for option in options for word in ("-o", option)))
    r.listening(server, 9000)
    asks = ("-q", "-F", "/dev/null", "-P", "9000", "-i", key, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    for ends in ((source, f"root@127.0.0.1:{there}"), (f"root@127.0.0.1:{there}", back)):
        client = place.run("scp", *asks, *ends, counters=os.path.join(r.work, "counters.%p"))
        r.check(client.wait(30) == 0, f"exit {client.rc}", client, server)
    place.same(back, digest, client, server)
    # scp starts ssh, which has the connection.
    counted = [os.path.join(r.work, name) for name in os.listdir(r.work) if name.startswith("counters.")]
    r.check(sum(map(by_rdma, counted)) == 2, "its bytes did not go by RDMA", client, server)
    server.end()
