/*
 * checkcm BUG [mended]
 *
 * A server and a client of rdma_cm in one process, at 127.0.0.1. The program makes one mistake with them, which
 * `verbena run --check` is to find, or does the same thing right. It ends with 0 in either case.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "finding.h"

#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)
#define SIZE 4096

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *client, *server;
static struct ibv_mr *mr;
static char *buffer;

static struct rdma_cm_event *await(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	MUST(!rdma_get_cm_event(channel, &event));
	if (event->event != type) {
		fprintf(stderr, "%s, and not %s\n", rdma_event_str(event->event), rdma_event_str(type));
		exit(1);
	}
	return event;
}

static void expect(enum rdma_cm_event_type type)
{
	MUST(!rdma_ack_cm_event(await(type)));
}

static void queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	MUST(!rdma_create_qp(id, NULL, &init));
}

/* A connection, over which the server may have so many READs under way as it says; the client serves one. */
static void connect_both(int initiator_depth)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_conn_param of_client = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_conn_param of_server = { .responder_resources = 1, .initiator_depth = initiator_depth, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	MUST(channel = rdma_create_event_channel());
	MUST(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	MUST(!rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(listener, (struct sockaddr *)&addr));
	MUST(!rdma_listen(listener, 1));
	addr.sin_port = rdma_get_src_port(listener);
	MUST(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&addr, 2000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(!rdma_resolve_route(client, 2000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	queue_pair(client);
	MUST(buffer = calloc(1, SIZE));
	MUST(mr = ibv_reg_mr(client->pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	MUST(!rdma_connect(client, &of_client));
	event = await(RDMA_CM_EVENT_CONNECT_REQUEST);
	server = event->id;
	MUST(event->param.conn.initiator_depth == 1);
	MUST(!rdma_ack_cm_event(event));
	queue_pair(server);
	MUST(!rdma_accept(server, &of_server));
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
}

static void read_twice(void)
{
	struct ibv_wc wc;
	int n = 0;

	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)buffer + 2048 + 64 * i, .length = 64, .lkey = mr->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = i, .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1 };

		wr.wr.rdma.remote_addr = (uintptr_t)buffer;
		wr.wr.rdma.rkey = mr->rkey;
		MUST(!ibv_post_send(server->qp, &wr, &bad));
	}
	while (n < 2) {
		int taken = ibv_poll_cq(server->send_cq, 1, &wc);

		MUST(taken >= 0 && (!taken || wc.status == IBV_WC_SUCCESS));
		n += taken;
	}
}

static void end_connection(void)
{
	MUST(!rdma_disconnect(client));
	expect(RDMA_CM_EVENT_DISCONNECTED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	MUST(!ibv_dereg_mr(mr));
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	MUST(!rdma_destroy_id(client));
	MUST(!rdma_destroy_id(server));
	MUST(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

static void *acknowledge_later(void *event)
{
	await_finding();
	MUST(!rdma_ack_cm_event(event));
	return NULL;
}

int main(int argc, char **argv)
{
	int mended = argc == 3 && !strcmp(argv[2], "mended");
	const char *bug = argc > 1 ? argv[1] : "";
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *id;

	setbuf(stdout, NULL);
	if (!strcmp(bug, "more-reads-than-served")) {
		connect_both(mended ? 1 : 4);
		read_twice();
		end_connection();
		puts("done");
		return 0;
	}
	MUST(channel = rdma_create_event_channel());
	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (!strcmp(bug, "leak")) {
		if (!mended)
			return 0;
		MUST(!rdma_destroy_id(id));
	} else if (!strcmp(bug, "use-after-destroy")) {
		if (mended)
			MUST(!rdma_bind_addr(id, (struct sockaddr *)&addr));
		MUST(!rdma_destroy_id(id));
		if (!mended)
			MUST(rdma_bind_addr(id, (struct sockaddr *)&addr));
	} else if (!strcmp(bug, "unacknowledged-event")) {
		struct rdma_cm_event *event;
		pthread_t thread;

		MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000));
		event = await(RDMA_CM_EVENT_ADDR_RESOLVED);
		if (mended)
			MUST(!rdma_ack_cm_event(event));
		else
			MUST(!pthread_create(&thread, NULL, acknowledge_later, event));
		MUST(!rdma_destroy_id(id));
		if (!mended)
			MUST(!pthread_join(thread, NULL));
	} else if (!strcmp(bug, "refused-call")) {
		struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };

		if (!mended)
			MUST(rdma_connect(id, &param));
		MUST(!rdma_destroy_id(id));
	} else if (!strcmp(bug, "acknowledged-twice")) {
		struct rdma_cm_event *event;

		MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&addr, 2000));
		event = await(RDMA_CM_EVENT_ADDR_RESOLVED);
		MUST(!rdma_ack_cm_event(event));
		if (!mended)
			MUST(rdma_ack_cm_event(event));
		MUST(!rdma_destroy_id(id));
	} else {
		fprintf(stderr, "usage: checkcm BUG [mended]\n");
		return 2;
	}
	rdma_destroy_event_channel(channel);
	puts("done");
	return 0;
}
