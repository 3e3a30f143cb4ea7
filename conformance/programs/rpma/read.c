/* The client reads the server's memory: all of it, a part of it into another place, and nothing. */
#include "scenario.h"

static void serve(const char *address, const char *port)
{
	struct end e;

	prepare(&e, address, LOCAL, RPMA_MR_USAGE_READ_SRC);
	fill(e.memory, 0, REGION);
	accept_one(&e, address, port, NULL, 0);
	greet(&e);
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	size_t size;
	int types = -1;

	prepare(&e, address, REMOTE, RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_RECV);
	connect_one(&e, address, port, NULL, 1);
	greeted(&e);
	must(rpma_mr_remote_get_size(e.remote, &size));
	check(size == REGION, "the size of the server's memory");
	must(rpma_mr_remote_get_flush_type(e.remote, &types));
	check(types == 0, "the server's memory is not to be flushed");

	must(rpma_read(e.conn, e.mr, 0, e.remote, 0, REGION, ALWAYS, &e));
	completed(e.cq, IBV_WC_RDMA_READ, &e, "read");
	check(filled(e.memory, 0, REGION), "all that was read");

	memset(e.memory, 0, REGION);
	must(rpma_read(e.conn, e.mr, 100, e.remote, 5000, 3001, ALWAYS, "part"));
	must(rpma_read(e.conn, NULL, 0, NULL, 0, 0, ALWAYS, "nothing"));
	{
		struct ibv_wc part = next(e.cq), nothing = next(e.cq);

		check(part.status == IBV_WC_SUCCESS && part.opcode == IBV_WC_RDMA_READ && !strcmp((char *)part.wr_id, "part"), "a part");
		check(nothing.status == IBV_WC_SUCCESS && nothing.opcode == IBV_WC_RDMA_READ && !strcmp((char *)nothing.wr_id, "nothing"), "nothing");
	}
	check(filled(e.memory + 100, 5000, 3001) && e.memory[99] == 0 && e.memory[3101] == 0, "the part that was read, and nothing around it");

	/* Memory for reading takes no writes: the operation fails, and with it the connection. */
	must(rpma_write(e.conn, e.remote, 0, e.mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR, &size));
	{
		struct ibv_wc wc = next(e.cq);

		check(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == (uintptr_t)&size, "a write is refused, and completes without being asked to");
	}
	client_ends(&e);
}
