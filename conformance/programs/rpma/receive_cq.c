/* A receive queue with a completion queue of its own, with a channel each: one thread takes what was received, another what was sent. */
#include "scenario.h"

#include <pthread.h>

#define ROUNDS 64

struct both {
	struct end e;
	struct rpma_cq *rcq;
	int received;
};

static struct rpma_conn_cfg *configuration(void)
{
	struct rpma_conn_cfg *cfg;
	uint32_t size = 0;

	must(rpma_conn_cfg_new(&cfg));
	must(rpma_conn_cfg_set_rcq_size(cfg, ROUNDS));
	must(rpma_conn_cfg_get_rcq_size(cfg, &size));
	check(size == ROUNDS, "the size of the receive queue's completion queue");
	must(rpma_conn_cfg_set_rq_size(cfg, ROUNDS));
	must(rpma_conn_cfg_set_sq_size(cfg, ROUNDS));
	must(rpma_conn_cfg_set_cq_size(cfg, ROUNDS));
	return cfg;
}

static void *receive(void *arg)
{
	struct both *b = arg;

	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc = next(b->rcq);
		uint32_t seen;

		memcpy(&seen, (void *)wc.wr_id, 4);
		b->received += wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 4 && seen == round;
	}
	return NULL;
}

/* Both sides send all at once. */
static void talk(struct both *b)
{
	struct end *e = &b->e;
	pthread_t thread;
	int sent = 0, fd = -1, other = -1;

	must(rpma_conn_get_rcq(e->conn, &b->rcq));
	must(!b->rcq);
	must(rpma_cq_get_fd(e->cq, &fd));
	must(rpma_cq_get_fd(b->rcq, &other));
	check(b->rcq != e->cq && fd >= 0 && other >= 0 && fd != other, "two queues with a descriptor each");
	must(pthread_create(&thread, NULL, receive, b));
	for (uint32_t round = 0; round < ROUNDS; round++) {
		memcpy(e->memory + 4 * round, &round, 4);
		must(rpma_send(e->conn, e->mr, 4 * round, 4, ALWAYS, e));
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_wc wc = next(e->cq);

		sent += good(&wc, IBV_WC_SEND, e);
	}
	pthread_join(thread, NULL);
	check(sent == ROUNDS, "all was sent, and nothing else is in the main queue");
	check(b->received == ROUNDS, "all was received, in the other queue");
}

static void serve(const char *address, const char *port)
{
	struct both b = { 0 };
	struct rpma_conn_cfg *cfg = configuration();

	prepare(&b.e, address, LOCAL, EVERYTHING);
	accept_one(&b.e, address, port, cfg, ROUNDS);
	must(rpma_conn_cfg_delete(&cfg));
	talk(&b);
	server_ends(&b.e);
}

static void ask(const char *address, const char *port)
{
	struct both b = { 0 };
	struct rpma_conn_cfg *cfg = configuration();

	prepare(&b.e, address, REMOTE, EVERYTHING);
	connect_one(&b.e, address, port, cfg, ROUNDS);
	must(rpma_conn_cfg_delete(&cfg));
	talk(&b);
	client_ends(&b.e);
}
