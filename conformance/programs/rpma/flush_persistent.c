/* Persistence over a file: the server maps a file, says in its peer configuration that what is written directly stays, and the client
 * flushes to persistence; then the file has it, read by another descriptor. */
#include "scenario.h"

static void serve(const char *address, const char *port)
{
	struct end e;
	struct rpma_peer_cfg *cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data;
	unsigned char both[256], page[2 * PAGE];
	size_t first, second;
	bool direct = true;
	int fd;

	prepare_file(&e, address, LOCAL, EVERYTHING | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT);
	must(rpma_peer_cfg_new(&cfg));
	must(rpma_peer_cfg_get_direct_write_to_pmem(cfg, &direct));
	check(!direct, "no direct write unless it is said");
	must(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	must(rpma_peer_cfg_get_direct_write_to_pmem(cfg, &direct));
	check(direct, "direct write");
	/* One byte for each length, then the descriptors. */
	must(rpma_mr_get_descriptor_size(e.mr, &first));
	must(rpma_peer_cfg_get_descriptor_size(cfg, &second));
	both[0] = (unsigned char)first, both[1] = (unsigned char)second;
	must(rpma_mr_get_descriptor(e.mr, both + 2));
	must(rpma_peer_cfg_get_descriptor(cfg, both + 2 + first));
	must(rpma_peer_cfg_delete(&cfg));
	check(cfg == NULL, "the configuration is NULL");
	data.ptr = both, data.len = (uint8_t)(2 + first + second);

	must(rpma_ep_listen(e.peer, address, port, &ep));
	must(rpma_ep_next_conn_req(ep, NULL, &request));
	must(rpma_conn_req_recv(request, e.mr, IN, 64, e.memory + IN));
	must(rpma_conn_req_connect(&request, &data, &e.conn));
	event_is(e.conn, RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_cq(e.conn, &e.cq));
	must(rpma_ep_shutdown(&ep));
	completed(e.cq, IBV_WC_RECV, e.memory + IN, "the client has flushed");
	fd = open(e.file, O_RDONLY);
	check(fd >= 0 && pread(fd, page, sizeof(page), 0) == sizeof(page) && filled(page, 0, sizeof(page)), "the file has what was written");
	close(fd);
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data = { 0 };
	struct rpma_peer_cfg *cfg;
	const unsigned char *both;
	bool direct = false;
	int types = 0;

	prepare(&e, address, REMOTE, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_SEND);
	fill(e.memory, 0, REGION);
	must(rpma_conn_req_new(e.peer, address, port, NULL, &request));
	must(rpma_conn_req_connect(&request, NULL, &e.conn));
	event_is(e.conn, RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_cq(e.conn, &e.cq));
	must(rpma_conn_get_private_data(e.conn, &data));
	both = data.ptr;
	must(!both || data.len < 2 || 2 + both[0] + both[1] > data.len);
	must(rpma_mr_remote_from_descriptor(both + 2, both[0], &e.remote));
	must(rpma_mr_remote_get_flush_type(e.remote, &types));
	check(types == (RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT), "both types of flush");
	check(rpma_flush(e.conn, e.remote, 0, PAGE, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL) == RPMA_E_NOSUPP,
	      "not to persistence before the peer's configuration");

	must(rpma_peer_cfg_from_descriptor(both + 2 + both[0], both[1], &cfg));
	must(rpma_peer_cfg_get_direct_write_to_pmem(cfg, &direct));
	check(direct, "the server says direct write");
	must(rpma_conn_apply_remote_peer_cfg(e.conn, cfg));
	must(rpma_peer_cfg_delete(&cfg));

	must(rpma_write(e.conn, e.remote, 0, e.mr, 0, PAGE, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(rpma_flush(e.conn, e.remote, 0, PAGE, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, &types));
	{
		struct ibv_wc wc = next(e.cq);

		check(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)&types, "flushed to persistence");
	}
	must(rpma_write(e.conn, e.remote, PAGE, e.mr, PAGE, PAGE, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(rpma_flush(e.conn, e.remote, PAGE, PAGE, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, &direct));
	{
		struct ibv_wc wc = next(e.cq);

		check(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uintptr_t)&direct, "flushed to visibility");
	}
	must(rpma_send(e.conn, NULL, 0, 0, ALWAYS, NULL));
	completed(e.cq, IBV_WC_SEND, NULL, "told the server");
	client_ends(&e);
}
