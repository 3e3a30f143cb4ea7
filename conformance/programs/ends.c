/*
 * ends server|client STAGE ADDRESS [PORT]: one connection that goes as far as STAGE and stays there until the other end is gone.
 *
 * requested: the server does not answer. answered: the server accepts, the client, which has no queue pair of its own, does not say
 * that it is ready. established.
 *
 * Every event is one line; the last are "flushed N" (posted receives that completed once the connection had ended) and "ended",
 * when all has been destroyed. "idle" in place of server and client: a listener that never gets a request.
 */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define RECEIVES 4

static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[RECEIVES * 64];

static void say(const char *what, int number)
{
	printf("%s %d\n", what, number);
	fflush(stdout);
}

static int fail(const char *what)
{
	printf("failed: %s (errno %d)\n", what, errno);
	fflush(stdout);
	return 1;
}

/* A queue pair with all its receives posted. */
static int equip(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
				      .cap = { .max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (!(pd = ibv_alloc_pd(id->verbs)) || !(cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)) ||
	    !(mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE)))
		return -1;
	a.send_cq = a.recv_cq = cq;
	if (rdma_create_qp(id, pd, &a))
		return -1;
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { (uintptr_t)buffer + 64 * i, 64, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad_wr;

		if (ibv_post_recv(id->qp, &wr, &bad_wr))
			return -1;
	}
	return 0;
}

/* The connection has ended: everything completes, and everything can be destroyed. */
static int finish(struct rdma_cm_id *id, struct rdma_cm_id *listener, int removed)
{
	int flushed = 0;

	if (id->qp) {
		struct ibv_wc wc;

		if (!removed)
			rdma_disconnect(id);
		for (int i = 0; i < 1000 && flushed < RECEIVES; i++) {
			int n = ibv_poll_cq(cq, 1, &wc);

			if (n < 0 || (n && wc.status != IBV_WC_WR_FLUSH_ERR))
				return fail("poll");
			flushed += n;
			if (!n)
				usleep(1000);
		}
		rdma_destroy_qp(id);
		if (ibv_dereg_mr(mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
			return fail("destroy");
	}
	say("flushed", flushed);
	if (rdma_destroy_id(id) || (listener && rdma_destroy_id(listener)))
		return fail("destroy id");
	rdma_destroy_event_channel(channel);
	say("ended", 0);
	return 0;
}

int main(int argc, char **argv)
{
	int requested = argc > 2 && !strcmp(argv[2], "requested"), answered = argc > 2 && !strcmp(argv[2], "answered");
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(argc > 4 ? atoi(argv[4]) : 7300) };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id = NULL, *listener = NULL;
	struct rdma_cm_event *event;

	if (argc < 4 || inet_pton(AF_INET, argv[3], &address.sin_addr) != 1)
		return fail("arguments");
	channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return fail("create");
	if (strcmp(argv[1], "client")) {
		listener = id;
		if (rdma_bind_addr(listener, (struct sockaddr *)&address) || rdma_listen(listener, 8))
			return fail("listen");
		say("listening", 0);
	} else if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000)) {
		return fail("resolve");
	}
	while (!rdma_get_cm_event(channel, &event)) {
		enum rdma_cm_event_type kind = event->event;

		say(rdma_event_str(kind), event->status);
		id = event->id;
		rdma_ack_cm_event(event);
		switch (kind) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			if (rdma_resolve_route(id, 2000))
				return fail("route");
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			param.qp_num = 0x123;
			if ((!answered && equip(id)) || rdma_connect(id, &param))
				return fail("connect");
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			if (!requested && (equip(id) || rdma_accept(id, &param)))
				return fail("accept");
			break;
		case RDMA_CM_EVENT_CONNECT_RESPONSE:
		case RDMA_CM_EVENT_ESTABLISHED:
		case RDMA_CM_EVENT_ADDR_CHANGE:
			break;
		default:
			/* The listener is on the device too. */
			if (id == listener)
				break;
			return finish(id, listener, kind == RDMA_CM_EVENT_DEVICE_REMOVAL);
		}
	}
	return fail("event");
}
