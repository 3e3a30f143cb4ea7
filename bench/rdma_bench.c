/*
 * rdma_bench server|client lat SIZE | bw SIZE | conn COUNT
 *
 * An ordinary RDMA program on 127.0.0.1. The server prints "listening"; the client prints one number: microseconds of half a round
 * trip (lat), GB/s (bw) or connections a second (conn). The data is verified at its target.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
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
#define DEPTH 64
#define ROUNDS 9
#define PINGS 20000
#define STREAM_BYTES (1ULL << 30)
#define IN_FLIGHT (2U << 20)    /* bytes of outstanding WRITEs */

#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

struct target { uint64_t addr; uint32_t rkey; } __attribute__((packed));

static struct rdma_event_channel *channel;
static char *buffer;
static struct ibv_mr *mr;
static size_t size;

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
	struct rdma_cm_event *e;
	struct rdma_cm_id *id;

	MUST(!rdma_get_cm_event(channel, &e));
	if (e->event != wanted) {
		fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(wanted));
		exit(1);
	}
	if (remote && e->param.conn.private_data)
		memcpy(remote, e->param.conn.private_data, sizeof(*remote));
	id = e->id;
	rdma_ack_cm_event(e);
	return id;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC,
				      .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };

	MUST(a.send_cq = a.recv_cq = ibv_create_cq(id->verbs, 4 * DEPTH, NULL, NULL, 0));
	MUST(!rdma_create_qp(id, NULL, &a));
}

static void drop_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->send_cq ? id->send_cq : id->qp->send_cq;

	rdma_destroy_qp(id);
	ibv_destroy_cq(cq);
}

static void make_buffer(struct rdma_cm_id *id, size_t bytes)
{
	MUST(buffer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
	memset(buffer, 0, bytes);
	MUST(mr = ibv_reg_mr(id->pd, buffer, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
}

static void post_recv(struct rdma_cm_id *id, unsigned slot)
{
	struct ibv_sge sge = { (uintptr_t)buffer + (1 + slot) * size, size, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST(!ibv_post_recv(id->qp, &wr, &bad));
}

/* Waits for one receive, dropping send completions; its slot, posted again. */
static void take(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	for (;;) {
		int n = ibv_poll_cq(id->qp->recv_cq, 1, &wc);

		MUST(n >= 0);
		if (!n)
			continue;
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "completion: %s\n", ibv_wc_status_str(wc.status));
			exit(1);
		}
		if (wc.opcode == IBV_WC_RECV) {
			post_recv(id, wc.wr_id);
			return;
		}
	}
}

static void ping(struct rdma_cm_id *id, unsigned n)
{
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = n % (DEPTH / 4) ? 0 : IBV_SEND_SIGNALED },
			   *bad;

	MUST(!ibv_post_send(id->qp, &wr, &bad));
}

static void ping_pong(struct rdma_cm_id *id, int client)
{
	double rounds[ROUNDS + 1];
	unsigned n = 0;

	for (int r = 0; r <= ROUNDS; r++) {
		double begin = now();

		for (int i = 0; i < PINGS; i++) {
			if (client)
				ping(id, n++);
			take(id);
			if (!client)
				ping(id, n++);
		}
		rounds[r] = (now() - begin) * 1e6 / PINGS / 2;
	}
	if (!client)
		return;
	/* The first round warms up; the median of the others. */
	for (int i = 1; i <= ROUNDS; i++)
		for (int k = i + 1; k <= ROUNDS; k++)
			if (rounds[k] < rounds[i]) {
				double t = rounds[i];

				rounds[i] = rounds[k];
				rounds[k] = t;
			}
	printf("%.4f\n", rounds[(ROUNDS + 1) / 2]);
}

static void stream(struct rdma_cm_id *id, struct target remote)
{
	unsigned window = IN_FLIGHT / size > DEPTH ? DEPTH : IN_FLIGHT / size ? IN_FLIGHT / size : 1;
	uint64_t count = STREAM_BYTES / size, posted = 0, done = 0;
	struct ibv_sge sge = { (uintptr_t)buffer, size, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { remote.addr, remote.rkey } },
			   *bad;
	struct ibv_wc wc[16];
	double begin;

	for (size_t i = 0; i < size; i++)
		buffer[i] = (char)(i * 31 + 7);
	for (begin = now(); done < count;) {
		int n;

		while (posted < count && posted - done < window) {
			MUST(!ibv_post_send(id->qp, &wr, &bad));
			posted++;
		}
		n = ibv_poll_cq(id->qp->send_cq, 16, wc);
		MUST(n >= 0);
		for (int i = 0; i < n; i++)
			MUST(wc[i].status == IBV_WC_SUCCESS);
		done += n;
	}
	printf("%.4f\n", count * size / (now() - begin) / 1e9);
}

static struct sockaddr_in address(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return a;
}

static struct rdma_cm_id *resolve(void)
{
	struct sockaddr_in a = address();
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 2000));
	next(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
	MUST(!rdma_resolve_route(id, 2000));
	next(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
	make_qp(id);
	return id;
}

static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static void client(const char *what, int count)
{
	struct target remote = { 0 };
	struct rdma_cm_id *id;
	double begin = now();

	if (!strcmp(what, "conn")) {
		for (int i = 0; i < count; i++) {
			id = resolve();
			MUST(!rdma_connect(id, &param));
			next(RDMA_CM_EVENT_ESTABLISHED, NULL);
			MUST(!rdma_disconnect(id));
			next(RDMA_CM_EVENT_DISCONNECTED, NULL);
			drop_qp(id);
			rdma_destroy_id(id);
		}
		printf("%.2f\n", count / (now() - begin));
		return;
	}
	id = resolve();
	make_buffer(id, size * (1 + DEPTH));
	if (!strcmp(what, "lat"))
		for (unsigned i = 0; i < DEPTH; i++)
			post_recv(id, i);
	MUST(!rdma_connect(id, &param));
	next(RDMA_CM_EVENT_ESTABLISHED, &remote);
	if (!strcmp(what, "lat"))
		ping_pong(id, 1);
	else
		stream(id, remote);
	fflush(stdout);
	rdma_disconnect(id);
}

static void verify(void)
{
	for (size_t i = 0; i < size; i++)
		if (buffer[i] != (char)(i * 31 + 7)) {
			fprintf(stderr, "byte %zu of the target is wrong\n", i);
			exit(1);
		}
}

static void server(const char *what, int count)
{
	struct sockaddr_in a = address();
	struct rdma_cm_id *listener, *id;

	MUST(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&a));
	MUST(!rdma_listen(listener, 16));
	printf("listening\n");
	fflush(stdout);
	for (int i = 0; i < (!strcmp(what, "conn") ? count : 1); i++) {
		struct rdma_conn_param p = param;
		struct target t;

		id = next(RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
		make_qp(id);
		if (strcmp(what, "conn")) {
			make_buffer(id, size * (1 + DEPTH));
			t = (struct target){ (uintptr_t)buffer, mr->rkey };
			p.private_data = &t;
			p.private_data_len = sizeof(t);
		}
		if (!strcmp(what, "lat"))
			for (unsigned k = 0; k < DEPTH; k++)
				post_recv(id, k);
		MUST(!rdma_accept(id, &p));
		next(RDMA_CM_EVENT_ESTABLISHED, NULL);
		if (!strcmp(what, "lat"))
			ping_pong(id, 0);
		next(RDMA_CM_EVENT_DISCONNECTED, NULL);
		if (!strcmp(what, "bw"))
			verify();
		rdma_disconnect(id);
		drop_qp(id);
		rdma_destroy_id(id);
	}
}

int main(int argc, char **argv)
{
	int is_client = argc == 4 && !strcmp(argv[1], "client");

	if (argc != 4) {
		fprintf(stderr, "usage: rdma_bench server|client lat SIZE | bw SIZE | conn COUNT\n");
		return 2;
	}
	pin(is_client ? 0 : 1);
	size = strtoul(argv[3], NULL, 10);
	MUST(channel = rdma_create_event_channel());
	if (is_client)
		client(argv[2], (int)size);
	else
		server(argv[2], (int)size);
	return 0;
}
