/*
 * rpma_bench server|client persist|visible|read|gpspm ADDRESS FILE | local FILE
 *
 * An ordinary librpma program. The server maps FILE and prints "listening"; the client prints one number: microseconds, the median of
 * a WRITE of 4 KiB with a flush to persistence (persist) or to visibility (visible), a READ of 4 KiB (read), or a WRITE of 4 KiB with a message that asks for
 * msync(2) of it and the server's answer (gpspm; the server polls for it, else it sleeps). local: pwrite(2) of 4 KiB and fdatasync(2), by nobody else.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <librpma.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 16		/* of the file; each operation takes the next one */
#define MESSAGE (BLOCKS * BLOCK)
#define REGION (MESSAGE + BLOCK)
#define PORT "7433"
#define MOST 20000		/* operations */
#define SECONDS 1.0		/* and no longer than that */

#define must(good) must_((good), #good)
static void must_(int good, const char *what)
{
	if (!good) {
		fprintf(stderr, "rpma_bench: %s\n", what);
		exit(1);
	}
}

static struct rpma_conn *conn;
static struct rpma_mr_local *mr;
static struct rpma_mr_remote *remote;
static struct rpma_cq *cq;
static char *memory;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void pin(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	sched_setaffinity(0, sizeof(set), &set);	/* a machine with one core: not pinned */
}

static int by_time(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(void (*operation)(size_t block))
{
	static double took[MOST];
	double begin = now(), before = begin;
	int n = 0;

	for (int i = 0; i < MOST + 20 && before - begin < SECONDS * 1e6; i++) {
		double after;

		operation((size_t)i % BLOCKS * BLOCK);
		after = now();
		if (i >= 20)	/* the first ones warm up */
			took[n++] = after - before;
		before = after;
	}
	must(n > 0);
	qsort(took, n, sizeof(*took), by_time);
	printf("%.3f\n", took[n / 2]);
}

static void completion(enum ibv_wc_opcode wanted)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		;
	must(!ret);
	must(wc.status == IBV_WC_SUCCESS);
	if (wanted == IBV_WC_RECV && wc.opcode != IBV_WC_RECV)
		completion(wanted);	/* of the message that asked */
}

static void flushed(size_t block, enum rpma_flush_type type)
{
	must(!rpma_write(conn, remote, block, mr, block, BLOCK, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(!rpma_flush(conn, remote, block, BLOCK, type, RPMA_F_COMPLETION_ALWAYS, NULL));
	completion(IBV_WC_RDMA_READ);
}

static void persist(size_t block) { flushed(block, RPMA_FLUSH_TYPE_PERSISTENT); }
static void visible(size_t block) { flushed(block, RPMA_FLUSH_TYPE_VISIBILITY); }

static void read_block(size_t block)
{
	must(!rpma_read(conn, mr, block, remote, block, BLOCK, RPMA_F_COMPLETION_ALWAYS, NULL));
	completion(IBV_WC_RDMA_READ);
}

static void gpspm(size_t block)
{
	must(!rpma_recv(conn, mr, MESSAGE, 64, NULL));
	must(!rpma_write(conn, remote, block, mr, block, BLOCK, RPMA_F_COMPLETION_ON_ERROR, NULL));
	memcpy(memory + MESSAGE + 64, &block, sizeof(block));
	must(!rpma_send(conn, mr, MESSAGE + 64, sizeof(block), RPMA_F_COMPLETION_ALWAYS, NULL));
	completion(IBV_WC_RECV);
}

static int file;
static void local(size_t block)
{
	must(pwrite(file, memory, BLOCK, block) == BLOCK && !fdatasync(file));
}

static void map(const char *path)
{
	file = open(path, O_RDWR | O_CREAT, 0600);
	must(file >= 0 && !ftruncate(file, REGION));
	memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	must(memory != MAP_FAILED);
}

static void reg(const char *address, enum rpma_util_ibv_context_type type, int usage)
{
	struct ibv_context *context;
	struct rpma_peer *peer;

	must(!rpma_utils_get_ibv_context(address, type, &context));
	must(!rpma_peer_new(context, &peer));
	must(!rpma_mr_reg(peer, memory, REGION, usage | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &mr));
	if (type == RPMA_UTIL_IBV_CONTEXT_LOCAL) {
		char described[64];
		struct rpma_conn_private_data data = { .ptr = described };
		enum rpma_conn_event event;
		struct rpma_conn_req *request;
		struct rpma_peer_cfg *cfg;
		size_t of_mr, of_cfg;
		struct rpma_ep *ep;

		must(!rpma_peer_cfg_new(&cfg));
		must(!rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
		must(!rpma_mr_get_descriptor_size(mr, &of_mr) && !rpma_mr_get_descriptor(mr, described));
		must(!rpma_peer_cfg_get_descriptor_size(cfg, &of_cfg) && !rpma_peer_cfg_get_descriptor(cfg, described + of_mr));
		data.len = (uint8_t)(of_mr + of_cfg);
		must(!rpma_ep_listen(peer, address, PORT, &ep));
		printf("listening\n");
		fflush(stdout);
		must(!rpma_ep_next_conn_req(ep, NULL, &request));
		must(!rpma_conn_req_recv(request, mr, MESSAGE, 64, NULL));
		must(!rpma_conn_req_connect(&request, &data, &conn));
		must(!rpma_conn_next_event(conn, &event) && event == RPMA_CONN_ESTABLISHED);
	} else {
		struct rpma_conn_private_data data;
		enum rpma_conn_event event;
		struct rpma_conn_req *request;
		struct rpma_peer_cfg *cfg;
		size_t of_mr;

		must(!rpma_conn_req_new(peer, address, PORT, NULL, &request));
		must(!rpma_conn_req_connect(&request, NULL, &conn));
		must(!rpma_conn_next_event(conn, &event) && event == RPMA_CONN_ESTABLISHED);
		must(!rpma_conn_get_private_data(conn, &data) && !rpma_mr_get_descriptor_size(mr, &of_mr));
		must(!rpma_mr_remote_from_descriptor(data.ptr, of_mr, &remote));
		/* One byte of upstream's, or two; what comes behind private data is zeros. */
		must(!rpma_peer_cfg_from_descriptor((char *)data.ptr + of_mr, 2, &cfg));
		must(!rpma_conn_apply_remote_peer_cfg(conn, cfg));
	}
	must(!rpma_conn_get_cq(conn, &cq));
}

static void serve_gpspm(void)
{
	struct pollfd events = { .events = POLLIN };
	unsigned int empty = 0;
	struct ibv_wc wc;
	size_t block;
	int ret;

	must(!rpma_conn_get_event_fd(conn, &events.fd));
	for (;;) {
		while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
			if (++empty % 4096 == 0 && poll(&events, 1, 0) > 0)
				return;	/* it disconnects, and nothing is under way that would fail */
		must(!ret);
		if (wc.status != IBV_WC_SUCCESS)
			return;		/* the client is gone */
		if (wc.opcode != IBV_WC_RECV)
			continue;
		memcpy(&block, memory + MESSAGE, sizeof(block));
		must(block < MESSAGE && !msync(memory + block, BLOCK, MS_SYNC));
		must(!rpma_recv(conn, mr, MESSAGE, 64, NULL));
		must(!rpma_send(conn, mr, MESSAGE + 64, 8, RPMA_F_COMPLETION_ALWAYS, NULL));
	}
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*operation)(size_t); } all[] = {
		{ "persist", persist }, { "visible", visible }, { "read", read_block }, { "gpspm", gpspm },
	};

	if (argc == 3 && !strcmp(argv[1], "local")) {
		map(argv[2]);
		measure(local);
		return 0;
	}
	must(argc == 5);
	if (!strcmp(argv[1], "server")) {
		enum rpma_conn_event event;

		pin(1);
		map(argv[4]);
		reg(argv[3], RPMA_UTIL_IBV_CONTEXT_LOCAL, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
		    RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT);
		if (!strcmp(argv[2], "gpspm"))
			serve_gpspm();
		else
			must(!rpma_conn_next_event(conn, &event) && event == RPMA_CONN_CLOSED);
		return 0;
	}
	pin(0);
	memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	reg(argv[3], RPMA_UTIL_IBV_CONTEXT_REMOTE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(argv[2], all[i].name))
			measure(all[i].operation);
	must(!rpma_conn_disconnect(conn));
	return 0;
}
