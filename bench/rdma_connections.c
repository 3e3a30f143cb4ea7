/*
 * rdma_connections server COUNT [ADDRESS] | client COUNT [ADDRESS] | hold COUNT [ADDRESS] | echo COUNT [ADDRESS] | busy COUNT [ADDRESS]
 *
 * An ordinary RDMA program on 127.0.0.1, or the server's address. The server accepts until COUNT connections have ended. A client
 * makes COUNT, one after the other, each ended before the next, and prints how many microseconds one took. `hold` makes COUNT, has
 * all of them at once, then ends them; before that both sides print how many bytes each connection takes of their resident memory.
 * `busy` has COUNT at once, too; then by the first of them messages of 64 bytes go and come back, which the server `echo` sends as it
 * polls. It prints how many microseconds half a round trip took. The server prints "listening" first, a client "ready", and begins when it has read a line.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PORT 7556
#define DEPTH 128
#define MESSAGE 64
#define WARM_UP 1000
#define ROUNDS 20000

#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)

static const char *server_address = "127.0.0.1";
static struct rdma_event_channel *channel;
static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static long resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long total, pages;

	MUST(f && fscanf(f, "%ld %ld", &total, &pages) == 2);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}

static struct sockaddr_in address(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(PORT) };

	MUST(inet_pton(AF_INET, server_address, &a.sin_addr) == 1);
	return a;
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC,
				      .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 } };

	MUST(a.send_cq = a.recv_cq = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, NULL, 0));
	MUST(!rdma_create_qp(id, NULL, &a));
}

static void end(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->qp->send_cq;

	rdma_disconnect(id);
	rdma_destroy_qp(id);
	ibv_destroy_cq(cq);
	rdma_destroy_id(id);
}

static enum rdma_cm_event_type next(struct rdma_cm_id **id)
{
	enum rdma_cm_event_type type;
	struct rdma_cm_event *e;

	MUST(!rdma_get_cm_event(channel, &e));
	*id = e->id;
	type = e->event;
	if (e->status) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(type), e->status);
		exit(1);
	}
	rdma_ack_cm_event(e);
	return type;
}

static void expect(enum rdma_cm_event_type wanted)
{
	enum rdma_cm_event_type type;
	struct rdma_cm_id *id;

	type = next(&id);
	if (type != wanted) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(type), rdma_event_str(wanted));
		exit(1);
	}
}

static struct rdma_cm_id *connect_one(void)
{
	struct sockaddr_in a = address();
	struct rdma_cm_id *id;

	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!rdma_resolve_route(id, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_qp(id);
	MUST(!rdma_connect(id, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

static void wait_for_line(void)
{
	printf("ready\n");
	fflush(stdout);
	while (getchar() != '\n')
		;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void client(int count)
{
	double begin;

	wait_for_line();
	begin = now();
	for (int i = 0; i < count; i++) {
		struct rdma_cm_id *id = connect_one();

		MUST(!rdma_disconnect(id));
		expect(RDMA_CM_EVENT_DISCONNECTED);
		end(id);
	}
	printf("%.2f\n", (now() - begin) / count);
}

static void hold(int count)
{
	struct rdma_cm_id **ids = calloc(count, sizeof(*ids));
	long before;

	MUST(ids);
	end(connect_one());     /* what is there once is not counted */
	wait_for_line();
	before = resident();
	for (int i = 0; i < count; i++)
		ids[i] = connect_one();
	printf("%ld\n", (resident() - before) / count);
	fflush(stdout);
	for (int i = 0; i < count; i++)
		end(ids[i]);
}

static char message[MESSAGE];

static void post_receive(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)message, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST(!ibv_post_recv(id->qp, &wr, &bad));
}

static struct ibv_mr *open_messages(struct rdma_cm_id *id)
{
	struct ibv_mr *mr = ibv_reg_mr(id->qp->pd, message, MESSAGE, IBV_ACCESS_LOCAL_WRITE);

	MUST(mr);
	for (int i = 0; i < DEPTH / 2; i++)
		post_receive(id, mr);
	return mr;
}

static void send_message(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)message, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1 }, *bad;

	MUST(!ibv_post_send(id->qp, &wr, &bad));
}

/* Polls until a message has come; 0 where the connection has ended. */
static int take_message(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	struct ibv_wc wc;

	for (;;) {
		while (!ibv_poll_cq(id->qp->recv_cq, 1, &wc))
			;
		if (wc.status)
			return 0;
		if (wc.opcode == IBV_WC_RECV) {
			post_receive(id, mr);
			return 1;
		}
	}
}

static void *echo(void *first)
{
	struct rdma_cm_id *id = first;
	struct ibv_mr *mr = open_messages(id);

	while (take_message(id, mr))
		send_message(id, mr);
	ibv_dereg_mr(mr);
	return NULL;
}

static void busy(int count)
{
	struct rdma_cm_id **ids = calloc(count, sizeof(*ids));
	struct ibv_mr *mr;
	double begin = 0;

	MUST(ids);
	for (int i = 0; i < count; i++)
		ids[i] = connect_one();
	mr = open_messages(ids[0]);
	wait_for_line();
	for (int i = 0; i < WARM_UP + ROUNDS; i++) {
		if (i == WARM_UP)
			begin = now();
		send_message(ids[0], mr);
		MUST(take_message(ids[0], mr));
	}
	printf("%.2f\n", (now() - begin) / ROUNDS / 2);
	fflush(stdout);
	ibv_dereg_mr(mr);
	for (int i = 0; i < count; i++)
		end(ids[i]);
}

static void server(int count, int echoes)
{
	pthread_t thread;
	struct rdma_cm_id *first = NULL;
	int open = 0, most = 0, ended = 0;
	long before = 0, full = 0;
	struct rdma_cm_id *listener, *id;
	struct sockaddr_in a = address();

	MUST(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&a));
	MUST(!rdma_listen(listener, 1024));
	printf("listening\n");
	fflush(stdout);
	while (ended < count)
		switch (next(&id)) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			make_qp(id);
			MUST(!rdma_accept(id, &param));
			if (echoes && !first)
				MUST(!pthread_create(&thread, NULL, echo, first = id));
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (++open > most) {
				most = open;
				full = resident();
				before = most == 1 ? full : before;
			}
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			open--;
			ended++;
			rdma_disconnect(id);
			if (id == first)
				pthread_join(thread, NULL);
			end(id);
			break;
		default:
			break;
		}
	printf("%ld\n", (full - before) / (most > 1 ? most - 1 : 1));
}

int main(int argc, char **argv)
{
	int count = argc == 3 || argc == 4 ? atoi(argv[2]) : 0;

	if (count <= 0) {
		fprintf(stderr, "usage: rdma_connections server | client | hold | echo | busy COUNT [ADDRESS]\n");
		return 2;
	}
	if (argc == 4)
		server_address = argv[3];
	MUST(channel = rdma_create_event_channel());
	if (!strcmp(argv[1], "server") || !strcmp(argv[1], "echo"))
		server(count, argv[1][0] == 'e');
	else if (!strcmp(argv[1], "client"))
		client(count);
	else if (!strcmp(argv[1], "busy"))
		busy(count);
	else
		hold(count);
	return 0;
}
