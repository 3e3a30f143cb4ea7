/* The client writes and flushes to visibility, many times; the server sees each when it is asked, without any word of the network. */
#include "scenario.h"

#define ROUNDS 50

static void serve(const char *address, const char *port)
{
	struct end e;
	int right = 0;

	prepare(&e, address, LOCAL, EVERYTHING);
	accept_one(&e, address, port, NULL, 1);
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		struct ibv_wc wc = next(e.cq);
		uint32_t seen;

		if (!good(&wc, IBV_WC_RECV, e.memory + IN))
			break;
		memcpy(&seen, e.memory + PAGE - 4, 4);
		right += seen == round && filled(e.memory, round, PAGE - 4);
		must(rpma_recv(e.conn, e.mr, IN, 64, e.memory + IN));
		must(rpma_send(e.conn, NULL, 0, 0, RPMA_F_COMPLETION_ON_ERROR, NULL));
	}
	check(right == ROUNDS, "each round was visible");
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	int types = 0, right = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	connect_one(&e, address, port, NULL, 1);
	must(rpma_mr_remote_get_flush_type(e.remote, &types));
	check(types == RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, "the server's memory may be flushed to visibility");
	check(rpma_flush(e.conn, e.remote, 0, PAGE, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL) == RPMA_E_NOSUPP, "not to persistence");
	for (uint32_t round = 1; round <= ROUNDS; round++) {
		struct ibv_wc wc;

		fill(e.memory, round, PAGE - 4);
		memcpy(e.memory + PAGE - 4, &round, 4);
		must(rpma_write(e.conn, e.remote, 0, e.mr, 0, PAGE, RPMA_F_COMPLETION_ON_ERROR, NULL));
		must(rpma_flush(e.conn, e.remote, 0, PAGE, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, &round));
		wc = next(e.cq);
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uintptr_t)&round)
			break;
		must(rpma_send(e.conn, NULL, 0, 0, ALWAYS, NULL));
		if (!sent_and_received(e.cq, NULL, e.memory + IN))
			break;
		must(rpma_recv(e.conn, e.mr, IN, 64, e.memory + IN));
		right++;
	}
	check(right == ROUNDS, "each round was flushed and answered");
	client_ends(&e);
}
