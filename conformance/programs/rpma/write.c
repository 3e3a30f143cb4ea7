/* The client writes to the server's memory, with completions for all, for the last, and with nothing to write; the server looks. */
#include "scenario.h"

static void serve(const char *address, const char *port)
{
	struct end e;

	prepare(&e, address, LOCAL, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_RECV);
	accept_one(&e, address, port, NULL, 1);
	completed(e.cq, IBV_WC_RECV, e.memory + IN, "the client has written");
	check(filled(e.memory, 0, 10 * PAGE), "what the client wrote");
	check(filled(e.memory + 10 * PAGE + 3, 1000, 8) && e.memory[10 * PAGE + 2] == 0 && e.memory[10 * PAGE + 11] == 0, "eight bytes at an odd place");
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	struct ibv_wc wc;
	int here;

	prepare(&e, address, REMOTE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND);
	fill(e.memory, 0, REGION);
	connect_one(&e, address, port, NULL, 0);
	must(rpma_write(e.conn, e.remote, 0, e.mr, 0, 8 * PAGE, ALWAYS, &e));
	completed(e.cq, IBV_WC_RDMA_WRITE, &e, "write");
	/* Without a completion, four of them, then one with. */
	for (int i = 0; i < 4; i++)
		must(rpma_write(e.conn, e.remote, 8 * PAGE + i * 1024, e.mr, 8 * PAGE + i * 1024, 1024, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(rpma_write(e.conn, e.remote, 9 * PAGE, e.mr, 9 * PAGE, PAGE, ALWAYS, &here));
	completed(e.cq, IBV_WC_RDMA_WRITE, &here, "the first completion is that of the fifth write");
	must(rpma_write(e.conn, e.remote, 10 * PAGE + 3, e.mr, 1000, 8, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(rpma_write(e.conn, NULL, 0, NULL, 0, 0, ALWAYS, &here));
	completed(e.cq, IBV_WC_RDMA_WRITE, &here, "nothing");
	check(rpma_cq_get_wc(e.cq, 1, &wc, NULL) == RPMA_E_NO_COMPLETION, "no completion more");
	must(rpma_send(e.conn, NULL, 0, 0, ALWAYS, NULL));
	completed(e.cq, IBV_WC_SEND, NULL, "an empty message");
	client_ends(&e);
}
