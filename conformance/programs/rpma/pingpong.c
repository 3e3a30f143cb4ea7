/* Messages there and back, each with the number of its round; then messages larger than a packet, several at a time, in order. With SRQ
 * the server's receives stand in a shared receive queue, whose completion queue tells what came. */
#include "scenario.h"

#define ROUNDS 200
#define LARGE (3 * PAGE)
#define BATCH 4

#ifdef SRQ
static struct rpma_srq *srq;
#endif

static void receive(struct end *e, size_t offset, size_t length)
{
#ifdef SRQ
	if (srq) {
		must(rpma_srq_recv(srq, e->mr, offset, length, e->memory + offset));
		return;
	}
#endif
	must(rpma_recv(e->conn, e->mr, offset, length, e->memory + offset));
}

/* The next receive; on the way every eighth answer completes, which makes place for more. A message may come before the acknowledgement
 * of what was sent, where both complete in one queue. */
static struct ibv_wc received(struct end *e, struct rpma_cq *cq)
{
	struct ibv_wc wc;

	if (cq != e->cq)
		while (rpma_cq_get_wc(e->cq, 1, &wc, NULL) == 0)
			must(!good(&wc, IBV_WC_SEND, e));
	do
		wc = next(cq);
	while (cq == e->cq && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
	return wc;
}

static void serve(const char *address, const char *port)
{
	struct end e;
	struct rpma_conn_cfg *cfg = NULL;
	struct rpma_cq *cq;
	uint64_t round, right = 0;

	prepare(&e, address, LOCAL, EVERYTHING);
#ifdef SRQ
	struct rpma_srq_cfg *srq_cfg;
	struct rpma_srq *its = NULL;

	must(rpma_srq_cfg_new(&srq_cfg));
	must(rpma_srq_cfg_set_rq_size(srq_cfg, 32));
	must(rpma_srq_cfg_set_rcq_size(srq_cfg, 32));
	must(rpma_srq_new(e.peer, srq_cfg, &srq));
	must(rpma_srq_cfg_delete(&srq_cfg));
	must(rpma_conn_cfg_new(&cfg));
	must(rpma_conn_cfg_set_srq(cfg, srq));
	must(rpma_conn_cfg_get_srq(cfg, &its));
	check(its == srq, "the queue of the configuration");
	must(rpma_srq_recv(srq, e.mr, IN, 64, e.memory + IN));
	accept_one(&e, address, port, cfg, 0);
	must(rpma_srq_get_rcq(srq, &cq));
	check(cq && cq != e.cq, "a completion queue of its own");
#else
	accept_one(&e, address, port, cfg, 1);
	cq = e.cq;
#endif
	for (round = 1; round <= ROUNDS; round++) {
		struct ibv_wc wc = received(&e, cq);

		if (!good(&wc, IBV_WC_RECV, e.memory + IN) || wc.byte_len != 8 || memcmp(e.memory + IN, &round, 8) != 0)
			break;
		memcpy(e.memory + OUT, e.memory + IN, 8);
		/* The receives of what comes after the last round, before it is answered. */
		if (round < ROUNDS)
			receive(&e, IN, 64);
		else
			for (int i = 0; i < BATCH; i++)
				receive(&e, i * LARGE, LARGE);
		must(rpma_send(e.conn, e.mr, OUT, 8, round % 8 ? RPMA_F_COMPLETION_ON_ERROR : ALWAYS, &e));
		right++;
	}
	check(right == ROUNDS, "all rounds");
	right = 0;
	for (int i = 0; i < BATCH; i++) {
		struct ibv_wc wc = received(&e, cq);

		/* librpma promises no order of receives: the length says which it was. */
		right += wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len > LARGE - BATCH && wc.byte_len <= LARGE &&
			 filled((unsigned char *)wc.wr_id, LARGE - wc.byte_len, wc.byte_len);
	}
	check(right == BATCH, "messages larger than a packet");
	if (cfg)
		must(rpma_conn_cfg_delete(&cfg));
	server_leaves(&e);
#ifdef SRQ
	/* After the last connection that uses it, before its peer. */
	must(rpma_srq_delete(&srq));
	check(srq == NULL, "the shared queue is NULL");
#endif
	release(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	uint64_t round, right = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	connect_one(&e, address, port, NULL, 1);
	for (round = 1; round <= ROUNDS; round++) {
		memcpy(e.memory + OUT, &round, 8);
		must(rpma_send(e.conn, e.mr, OUT, 8, ALWAYS, &e));
		if (!sent_and_received(e.cq, &e, e.memory + IN) || memcmp(e.memory + IN, &round, 8) != 0)
			break;
		if (round < ROUNDS)
			must(rpma_recv(e.conn, e.mr, IN, 64, e.memory + IN));
		right++;
	}
	check(right == ROUNDS, "all rounds");
	for (int i = 0; i < BATCH; i++) {
		fill(e.memory + i * LARGE, i, LARGE - i);
		must(rpma_send(e.conn, e.mr, i * LARGE, LARGE - i, ALWAYS, e.memory + i * LARGE));
	}
	for (int i = 0; i < BATCH; i++)
		completed(e.cq, IBV_WC_SEND, e.memory + i * LARGE, "sent, in order");
	client_ends(&e);
}
