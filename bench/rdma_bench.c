/*
 * rdma_bench server|client lat SIZE 1 | sleep SIZE 1 | watch SIZE 1 | bw SIZE QPS | rate SIZE LIST | post SIZE CLIENTS
 *
 * An ordinary RDMA program on 127.0.0.1. The server prints "listening"; the client prints one number: microseconds of half a round
 * trip (lat: both sides poll; sleep: both block in ibv_get_cq_event; watch: of WRITEs to memory of ibv_alloc_buf, which its side watches), GB/s of WRITEs (bw), or SENDs a second, LIST of them posted at once (rate).
 * With post it says "ready" and then, for each line that it reads, two numbers: microseconds of the processor for a SEND and its completion, those of the
 * thread that posts and polls, and those of all threads. 64 are posted, then it sleeps, so that nobody spins. One server is for CLIENTS of them.
 * What is written is verified at its target.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PORT 7555
#define DEPTH 128
#define RECEIVES 512            /* more than are outstanding: what has been acknowledged may not have been polled yet */
#define MAX_QPS 64
#define ROUNDS 9
#define PINGS 20000
#define STREAM_BYTES (1ULL << 30)
#define MOST_WRITES (1ULL << 18)
#define MOST_SENDS (1ULL << 20)
#define SLICES 50
#define SLICE_ROUNDS 8
#define POSTS 64                /* a round */
#define IN_FLIGHT (2U << 20)    /* bytes of outstanding WRITEs, two at least */

#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

struct target { uint64_t addr; uint32_t rkey; } __attribute__((packed));

static struct rdma_event_channel *channel;
static char *buffer;
static struct ibv_mr *mr;
static size_t size;
static unsigned many;           /* QPS, LIST or CLIENTS */
static int sleeps;              /* while nothing is there; else it polls */
static int watches;             /* its memory for what the other side writes */
static struct ibv_comp_channel *events; /* of one that sleeps */
static unsigned shared = 1;     /* queue pairs whose receives complete to one queue */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof(set), &set);        /* a machine with one core: not pinned */
}

static struct rdma_cm_id *next(enum rdma_cm_event_type wanted, struct target *remote)
{
	static struct rdma_cm_id *early[MAX_QPS];       /* the next client may ask before the last one's connection is known to stand */
	static unsigned first, behind;
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;

	if (wanted == RDMA_CM_EVENT_CONNECT_REQUEST && first != behind)
		return early[first++ % MAX_QPS];
	for (;;) {
		MUST(!rdma_get_cm_event(channel, &e));
		if (e->event == wanted)
			break;
		if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST || behind - first == MAX_QPS) {
			fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(wanted));
			exit(1);
		}
		early[behind++ % MAX_QPS] = e->id;
		rdma_ack_cm_event(e);
	}
	if (remote && e->param.conn.private_data)
		memcpy(remote, e->param.conn.private_data, sizeof(*remote));
	id = e->id;
	rdma_ack_cm_event(e);
	return id;
}

/* With a completion queue of its own, or that of another. */
static void make_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC,
				      .cap = { .max_send_wr = DEPTH, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (sleeps && !events)
		MUST(events = ibv_create_comp_channel(id->verbs));
	MUST(a.send_cq = a.recv_cq = cq ? cq : ibv_create_cq(id->verbs, DEPTH + shared * RECEIVES, NULL, events, 0));
	MUST(!events || !ibv_req_notify_cq(a.send_cq, 0));
	MUST(!rdma_create_qp(id, NULL, &a));
}

static void drop_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->send_cq ? id->send_cq : id->qp->send_cq;

	rdma_destroy_qp(id);
	ibv_destroy_cq(cq);
}

/* Blocks until there may be completions. */
static void sleep_for(struct ibv_cq *cq)
{
	struct ibv_cq *rang;
	void *context;

	MUST(!ibv_get_cq_event(events, &rang, &context));
	ibv_ack_cq_events(rang, 1);
	MUST(!ibv_req_notify_cq(cq, 0));
}

/* Of ibv_alloc_buf(3), which is newer than most installed headers. */
static char *library_memory(struct ibv_pd *pd, size_t bytes)
{
	void *(*alloc)(struct ibv_pd *, size_t, void **) = (void *(*)(struct ibv_pd *, size_t, void **))dlsym(RTLD_DEFAULT, "ibv_alloc_buf");
	void *buf;

	MUST(alloc);
	return alloc(pd, bytes, &buf);
}

/* Bytes of the pages that so many need. */
static size_t pages(size_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

static void make_buffer(struct rdma_cm_id *id, size_t bytes)
{
	MUST(buffer = watches ? library_memory(id->pd, bytes) : aligned_alloc(4096, pages(bytes)));
	memset(buffer, 0, bytes);
	MUST(mr = ibv_reg_mr(id->pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
}

static void post_recv(struct rdma_cm_id *id, unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)buffer + (1 + slot) * size, size, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST(!ibv_post_recv(id->qp, &wr, &bad));
}

/* Waits for one receive, dropping send completions; its slot, which is free then. */
static unsigned take(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	for (;;) {
		int n = ibv_poll_cq(id->qp->recv_cq, 1, &wc);

		MUST(n >= 0);
		if (!n) {
			if (events)
				sleep_for(id->qp->recv_cq);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.opcode == IBV_WC_RECV)
			return wc.wr_id;
	}
}

static void ping(struct rdma_cm_id *id, unsigned n)
{
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = n % (DEPTH / 4) ? 0 : IBV_SEND_SIGNALED },
			   *bad;

	MUST(!ibv_post_send(id->qp, &wr, &bad));
}

/* The first round warms up; the median of the others. */
static void print_median(double rounds[ROUNDS + 1])
{
	for (int i = 1; i <= ROUNDS; i++)
		for (int k = i + 1; k <= ROUNDS; k++)
			if (rounds[k] < rounds[i]) {
				double t = rounds[i];

				rounds[i] = rounds[k];
				rounds[k] = t;
			}
	printf("%.4f\n", rounds[(ROUNDS + 1) / 2]);
}

/* A receive is posted again behind the next message, for which the far side waits; so does UCX's program. */
static void ping_pong(struct rdma_cm_id *id, int client)
{
	double rounds[ROUNDS + 1];
	unsigned n = 0;
	int slot = -1;

	for (int r = 0; r <= ROUNDS; r++) {
		double begin = now();

		for (int i = 0; i < PINGS; i++) {
			if (client)
				ping(id, n++);
			if (slot >= 0)
				post_recv(id, slot);
			slot = take(id);
			if (!client)
				ping(id, n++);
		}
		rounds[r] = (now() - begin) * 1e6 / PINGS / 2;
	}
	if (client)
		print_median(rounds);
}

/* How many completions came; all must be good. */
static int completions(struct ibv_cq *cq)
{
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(cq, 16, wc);

	MUST(n >= 0);
	for (int i = 0; i < n; i++)
		MUST(wc[i].status == IBV_WC_SUCCESS);
	return n;
}

/* WRITEs there and back. Each side watches its memory for the number of the round, which the last word of it brings. */
static void watch(struct rdma_cm_id *id, struct target remote, int client)
{
	volatile uint64_t *said = (volatile uint64_t *)(buffer + size) - 1;
	uint64_t *says = (uint64_t *)(buffer + pages(size) + size) - 1, n = 0;
	struct ibv_sge sge = { (uintptr_t)buffer + pages(size), size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { remote.addr, remote.rkey } },
			   *bad;
	double rounds[ROUNDS + 1];

	for (int r = 0; r <= ROUNDS; r++) {
		double begin = now();

		for (int i = 0; i < PINGS; i++) {
			n++;
			while (!client && *said != n)
				;
			*says = n;
			MUST(!ibv_post_send(id->qp, &wr, &bad));
			while (!completions(id->qp->send_cq))
				;
			while (client && *said != n)
				;
		}
		rounds[r] = (now() - begin) * 1e6 / PINGS / 2;
	}
	if (client)
		print_median(rounds);
}

/* WRITEs over all connections in turn. */
static void stream(struct rdma_cm_id **ids, struct target remote)
{
	unsigned window = IN_FLIGHT / size > DEPTH ? DEPTH : IN_FLIGHT / size > 2 ? IN_FLIGHT / size : 2;
	uint64_t count = STREAM_BYTES / size > MOST_WRITES ? MOST_WRITES : STREAM_BYTES / size, posted = 0, done = 0;
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { remote.addr, remote.rkey } },
			   *bad;
	double begin;

	for (size_t i = 0; i < size; i++)
		buffer[i] = (char)(i * 31 + 7);
	for (begin = now(); done < count;) {
		while (posted < count && posted - done < window)
			MUST(!ibv_post_send(ids[posted++ % many]->qp, &wr, &bad));
		done += completions(ids[0]->qp->send_cq);
	}
	printf("%.4f\n", count * size / (now() - begin) / 1e9);
}

/* SENDs in lists of `many`, the last of each signalled; DEPTH of them outstanding. */
static void send_rate(struct rdma_cm_id *id)
{
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr[DEPTH], *bad;
	uint64_t posted = 0, done = 0;
	double begin;

	for (unsigned i = 0; i < many; i++)
		wr[i] = (struct ibv_send_wr){ .next = i + 1 < many ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					      .send_flags = i + 1 < many ? 0 : IBV_SEND_SIGNALED };
	for (begin = now(); done < MOST_SENDS;) {
		while (posted < MOST_SENDS && posted - done + many <= DEPTH) {
			MUST(!ibv_post_send(id->qp, wr, &bad));
			posted += many;
		}
		done += many * completions(id->qp->send_cq);
	}
	printf("%.0f\n", MOST_SENDS / (now() - begin));
}

static double time_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Each posted by itself and signalled. */
static void post_and_poll(struct rdma_cm_id *id)
{
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct timespec sleep = { 0, 1000000 };
	char line[2];

	printf("ready\n");
	for (int s = 0; s < SLICES; s++) {
		double thread = 0, all, begin;

		fflush(stdout);
		MUST(fgets(line, sizeof(line), stdin));
		all = -time_of(CLOCK_PROCESS_CPUTIME_ID);
		for (int r = 0; r < SLICE_ROUNDS; r++) {
			begin = time_of(CLOCK_THREAD_CPUTIME_ID);
			for (int i = 0; i < POSTS; i++)
				MUST(!ibv_post_send(id->qp, &wr, &bad));
			thread += time_of(CLOCK_THREAD_CPUTIME_ID) - begin;
			nanosleep(&sleep, NULL);
			begin = time_of(CLOCK_THREAD_CPUTIME_ID);
			for (int done = 0; done < POSTS;)
				done += completions(id->qp->send_cq);
			thread += time_of(CLOCK_THREAD_CPUTIME_ID) - begin;
		}
		all += time_of(CLOCK_PROCESS_CPUTIME_ID);
		printf("%.6f %.6f\n", thread * 1e6 / SLICE_ROUNDS / POSTS, all * 1e6 / SLICE_ROUNDS / POSTS);
	}
}

/* From all clients, which have one completion queue. */
static void receive_from(struct rdma_cm_id **ids, uint64_t sends)
{
	struct ibv_wc wc;
	unsigned from;

	while (sends) {
		int n = ibv_poll_cq(ids[0]->qp->recv_cq, 1, &wc);

		MUST(n >= 0);
		if (!n)
			continue;
		MUST(wc.status == IBV_WC_SUCCESS);
		for (from = 0; ids[from]->qp->qp_num != wc.qp_num;)
			from++;
		post_recv(ids[from], wc.wr_id);
		sends--;
	}
}

static void receive_all(struct rdma_cm_id *id, uint64_t sends)
{
	for (uint64_t i = 0; i < sends; i++)
		post_recv(id, take(id));
}

static struct sockaddr_in address(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return a;
}

static struct rdma_cm_id *resolve(struct ibv_cq *cq)
{
	struct sockaddr_in a = address();
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	MUST(!rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	make_qp(id, cq);
	return id;
}

static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static int takes_receives(const char *what)
{
	return strcmp(what, "bw") && !watches;
}

static void post_receives(struct rdma_cm_id *id)
{
	for (unsigned i = 0; i < RECEIVES; i++)
		post_recv(id, i);
}

static void make_ready(struct rdma_cm_id *id, const char *what)
{
	make_buffer(id, watches ? 2 * pages(size) : takes_receives(what) ? size * (1 + RECEIVES) : size);
	if (takes_receives(what))
		post_receives(id);
}

static void client(const char *what)
{
	struct target remote = { 0 }, own;
	struct rdma_cm_id *ids[MAX_QPS] = { 0 };
	unsigned connections = strcmp(what, "bw") ? 1 : many;

	for (unsigned i = 0; i < connections; i++) {
		ids[i] = resolve(i ? ids[0]->qp->send_cq : NULL);
		if (!i)
			make_ready(ids[0], what);
		own = (struct target){ (uintptr_t)buffer, mr->rkey };
		param.private_data = &own;
		param.private_data_len = sizeof(own);
		MUST(!rdma_connect(ids[i], &param));
		next(RDMA_CM_EVENT_ESTABLISHED, &remote);
	}
	if (!strcmp(what, "lat") || sleeps)
		ping_pong(ids[0], 1);
	else if (watches)
		watch(ids[0], remote, 1);
	else if (!strcmp(what, "rate"))
		send_rate(ids[0]);
	else if (!strcmp(what, "post"))
		post_and_poll(ids[0]);
	else
		stream(ids, remote);
	fflush(stdout);
	for (unsigned i = 0; i < connections; i++)
		rdma_disconnect(ids[i]);
}

static void verify(void)
{
	for (size_t i = 0; i < size; i++)
		if (buffer[i] != (char)(i * 31 + 7)) {
			fprintf(stderr, "byte %zu of the target is wrong\n", i);
			exit(1);
		}
}

/* With this completion queue, or one of its own. */
static struct rdma_cm_id *accept_one(const char *what, int first, struct ibv_cq *cq, struct target *remote)
{
	struct rdma_cm_id *id = next(RDMA_CM_EVENT_CONNECT_REQUEST, remote);
	struct rdma_conn_param p = param;
	struct ibv_qp_attr rnr = { .min_rnr_timer = 1 };
	struct target t;

	make_qp(id, cq);
	if (first)
		make_ready(id, what);
	else if (takes_receives(what))
		post_receives(id);
	t = (struct target){ (uintptr_t)buffer, mr->rkey };
	p.private_data = &t;
	p.private_data_len = sizeof(t);
	MUST(!rdma_accept(id, &p));
	/* Where this thread does not run for 200 us all receives are taken: whoever sends then waits 10 us, and not the 655 ms that rdma_accept sets. */
	if (takes_receives(what))
		MUST(!ibv_modify_qp(id->qp, &rnr, IBV_QP_MIN_RNR_TIMER));
	return next(RDMA_CM_EVENT_ESTABLISHED, NULL);
}

static void server(const char *what)
{
	int posts = !strcmp(what, "post");
	unsigned connections = posts || !strcmp(what, "bw") ? many : 1;
	struct sockaddr_in a = address();
	struct rdma_cm_id *listener, *id = NULL, *ids[MAX_QPS];
	struct target remote = { 0 };

	if (posts)
		shared = connections;
	MUST(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&a));
	MUST(!rdma_listen(listener, MAX_QPS));
	printf("listening\n");
	fflush(stdout);
	for (unsigned i = 0; i < connections; i++)
		ids[i] = id = accept_one(what, !i, posts && i ? ids[0]->qp->recv_cq : NULL, &remote);
	if (!strcmp(what, "lat") || sleeps)
		ping_pong(id, 0);
	if (watches)
		watch(id, remote, 0);
	if (!strcmp(what, "rate"))
		receive_all(id, MOST_SENDS);
	if (posts)
		receive_from(ids, (uint64_t)connections * SLICES * SLICE_ROUNDS * POSTS);
	for (unsigned i = 0; i < connections; i++) {
		id = next(RDMA_CM_EVENT_DISCONNECTED, NULL);
		if (!i && !strcmp(what, "bw"))
			verify();
		rdma_disconnect(id);
		drop_qp(id);
		rdma_destroy_id(id);
	}
}

int main(int argc, char **argv)
{
	int is_client = argc == 5 && !strcmp(argv[1], "client");

	many = argc == 5 ? strtoul(argv[4], NULL, 10) : 0;
	if (argc != 5 || !many || many > MAX_QPS) {
		fprintf(stderr, "usage: rdma_bench server|client lat SIZE 1 | sleep SIZE 1 | watch SIZE 1 | bw SIZE QPS | rate SIZE LIST | post SIZE CLIENTS\n");
		return 2;
	}
	pin(is_client ? 0 : 1);
	size = strtoul(argv[3], NULL, 10);
	sleeps = !strcmp(argv[2], "sleep");
	watches = !strcmp(argv[2], "watch");
	MUST(channel = rdma_create_event_channel());
	if (is_client)
		client(argv[2]);
	else
		server(argv[2]);
	return 0;
}
