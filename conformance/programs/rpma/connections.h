/* Endpoints, requests, connections and their completion queues: each row of their pages, then wrong states and what is too large. */

static void endpoints(void)
{
	const char *f = "rpma_ep_listen";

	OUT(f, "peer is NULL", e, rpma_ep_listen(NULL, address, port, &e));
	OUT(f, "addr is NULL", e, rpma_ep_listen(peer, NULL, port, &e));
	OUT(f, "port is NULL", e, rpma_ep_listen(peer, address, NULL, &e));
	CASE(f, "ep_ptr is NULL", rpma_ep_listen(peer, address, port, NULL));
	ALONE_OUT(f, "out of memory", starving = 1, e, rpma_ep_listen(peer, address, port, &e));
	ALONE_OUT(f, "rdma_create_event_channel fails, no descriptor", no_descriptors(), e, rpma_ep_listen(peer, address, port, &e));
	OUT(f, "rdma_getaddrinfo fails", e, rpma_ep_listen(peer, "not an address", port, &e));
	OUT(f, "another host's address", e, rpma_ep_listen(peer, "203.0.113.1", port, &e));
	OUT(f, "port is no number", e, rpma_ep_listen(peer, address, "not a port", &e));
	must(rpma_ep_listen(peer, address, port, &ep));
	OUT(f, "the port is taken", e, rpma_ep_listen(peer, address, port, &e));
	CASE("rpma_ep_shutdown", "ep_ptr is NULL", rpma_ep_shutdown(NULL));
	e = NULL;
	CASE("rpma_ep_shutdown", "*ep_ptr is NULL", rpma_ep_shutdown(&e));
	OUT("rpma_ep_get_fd", "ep is NULL", fd, rpma_ep_get_fd(NULL, &fd));
	CASE("rpma_ep_get_fd", "fd is NULL", rpma_ep_get_fd(ep, NULL));
	f = "rpma_ep_next_conn_req";
	OUT(f, "ep is NULL", r, rpma_ep_next_conn_req(NULL, NULL, &r));
	CASE(f, "req_ptr is NULL", rpma_ep_next_conn_req(ep, NULL, NULL));
	must(rpma_ep_get_fd(ep, &fd));
	must(fcntl(fd, F_SETFL, O_NONBLOCK));
	OUT(f, "no request, the descriptor does not block", r, rpma_ep_next_conn_req(ep, NULL, &r));
	must(fcntl(fd, F_SETFL, 0));
}

static struct rpma_conn_req *request(void)
{
	must(rpma_conn_req_new(peer, address, port, cfg, &r));
	return r;
}

/* One connection with both its ends in this process. */
static void join(const struct rpma_conn_cfg *with, struct rpma_conn **client, struct rpma_conn **server)
{
	enum rpma_conn_event event;
	struct rpma_conn_req *theirs;

	must(rpma_conn_req_new(peer, address, port, with, &r));
	must(rpma_conn_req_connect(&r, NULL, client));
	must(rpma_ep_next_conn_req(ep, with, &theirs));
	must(rpma_conn_req_connect(&theirs, NULL, server));
	must(rpma_conn_next_event(*client, &event));
	must(event != RPMA_CONN_ESTABLISHED);
	must(rpma_conn_next_event(*server, &event));
	must(event != RPMA_CONN_ESTABLISHED);
}

static const char *consumed(int bad_conn)
{
	static char all[80];

	snprintf(all, sizeof(all), ", *req_ptr %s%s", r ? "left" : "NULL", bad_conn ? "" : became(&cn, sizeof(cn)));
	return all;
}

/* rpma_conn_req_connect, where a request is consumed whatever comes. */
static void connects(const char *what, const struct rpma_conn_private_data *data, struct rpma_conn **to, int passive)
{
	const char *f = "rpma_conn_req_connect";
	int ret;

	if (!mine(f, what, 1))
		return;
	request();
	if (passive) {
		must(rpma_conn_req_connect(&r, NULL, &conn));
		must(rpma_ep_next_conn_req(ep, NULL, &r));
	}
	memset(&cn, MARK, sizeof(cn));
	starving = !strncmp(what, "out of memory", 13);
	ret = rpma_conn_req_connect(&r, data, to);
	starving = 0;
	say(f, what, ret, consumed(!to));
}

static void requests(void)
{
	const char *f = "rpma_conn_req_new";
	struct rpma_conn_cfg *large;
	enum rpma_conn_event event;

	OUT(f, "peer is NULL", r, rpma_conn_req_new(NULL, address, port, NULL, &r));
	OUT(f, "addr is NULL", r, rpma_conn_req_new(peer, NULL, port, NULL, &r));
	OUT(f, "port is NULL", r, rpma_conn_req_new(peer, address, NULL, NULL, &r));
	CASE(f, "req_ptr is NULL", rpma_conn_req_new(peer, address, port, NULL, NULL));
	ALONE_OUT(f, "out of memory", starving = 1, r, rpma_conn_req_new(peer, address, port, NULL, &r));
	ALONE_OUT(f, "rdma_create_id fails, no descriptor", no_descriptors(), r, rpma_conn_req_new(peer, address, port, NULL, &r));
	OUT(f, "rdma_getaddrinfo fails", r, rpma_conn_req_new(peer, "not an address", port, NULL, &r));
	OUT(f, "rdma_resolve_addr fails, no route", r, rpma_conn_req_new(peer, "203.0.113.1", port, NULL, &r));
	must(rpma_conn_cfg_new(&large));
	must(rpma_conn_cfg_set_cq_size(large, INT32_MAX));
	OUT(f, "ibv_create_cq fails, cq_size is 2147483647", r, rpma_conn_req_new(peer, address, port, large, &r));
	must(rpma_conn_cfg_set_cq_size(large, UINT32_MAX));
	OUT(f, "cq_size is 4294967295", r, rpma_conn_req_new(peer, address, port, large, &r));
	must(rpma_conn_cfg_set_cq_size(large, 0));
	OUT(f, "cq_size is 0", r, rpma_conn_req_new(peer, address, port, large, &r));
	must(rpma_conn_cfg_set_cq_size(large, 10));
	must(rpma_conn_cfg_set_rcq_size(large, INT32_MAX));
	OUT(f, "rcq_size is 2147483647", r, rpma_conn_req_new(peer, address, port, large, &r));
	must(rpma_conn_cfg_set_rcq_size(large, 0));
	must(rpma_conn_cfg_set_sq_size(large, INT32_MAX));
	OUT(f, "rdma_create_qp fails, sq_size is 2147483647", r, rpma_conn_req_new(peer, address, port, large, &r));
	must(rpma_conn_cfg_set_sq_size(large, 10));
	must(rpma_conn_cfg_set_rq_size(large, INT32_MAX));
	OUT(f, "rdma_create_qp fails, rq_size is 2147483647", r, rpma_conn_req_new(peer, address, port, large, &r));
	f = "rpma_conn_req_delete";
	CASE(f, "req_ptr is NULL", rpma_conn_req_delete(NULL));
	r = NULL;
	CASE(f, "*req_ptr is NULL", rpma_conn_req_delete(&r));

	f = "rpma_conn_req_recv";
	CASE(f, "req is NULL", rpma_conn_req_recv(NULL, mr, 0, 64, buffer));
	request();
	CASE(f, "dst is NULL, len is 64", rpma_conn_req_recv(r, NULL, 0, 64, buffer));
	CASE(f, "dst is NULL, offset is 1", rpma_conn_req_recv(r, NULL, 1, 0, buffer));
	CASE(f, "dst is NULL, nothing", rpma_conn_req_recv(r, NULL, 0, 0, buffer));
	CASE(f, "op_context is NULL", rpma_conn_req_recv(r, mr, 0, 64, NULL));
	if (mine(f, "the queue is full", 1)) {
		int ret, n = 0;

		while ((ret = rpma_conn_req_recv(r, mr, 0, 64, buffer)) == 0 && n < 1000000)
			n++;
		say(f, "the queue is full", ret, "");
	}
	f = "rpma_conn_req_get_private_data";
	OUT(f, "req is NULL", pd, rpma_conn_req_get_private_data(NULL, &pd));
	CASE(f, "pdata is NULL", rpma_conn_req_get_private_data(r, NULL));
	OUT(f, "an outgoing request", pd, rpma_conn_req_get_private_data(r, &pd));
	must(rpma_conn_req_delete(&r));

	r = NULL;
	CASE("rpma_conn_req_connect", "req_ptr is NULL", rpma_conn_req_connect(NULL, NULL, &cn));
	OUT("rpma_conn_req_connect", "*req_ptr is NULL", cn, rpma_conn_req_connect(&r, NULL, &cn));
	connects("conn_ptr is NULL", &eight, NULL, 0);
	connects("pdata->len is 0", &none, &cn, 0);
	much.ptr = text, much.len = 56;
	connects("pdata->len is 56", &much, &cn, 0);
	much.len = 57;
	connects("pdata->len is 57", &much, &cn, 0);
	much.len = 255;
	connects("pdata->len is 255", &much, &cn, 0);
	connects("out of memory, active", &eight, &cn, 0);
	connects("conn_ptr is NULL, passive", &eight, NULL, 1);
	connects("pdata->len is 0, passive", &none, &cn, 1);
	much.len = 196;
	connects("pdata->len is 196, passive", &much, &cn, 1);
	much.len = 197;
	connects("pdata->len is 197, passive", &much, &cn, 1);
	connects("out of memory, passive", &eight, &cn, 1);
	must(rpma_conn_req_new(peer, address, "1", NULL, &r));
	must(rpma_conn_req_connect(&r, NULL, &cn));
	must(rpma_conn_next_event(cn, &event));
	if (mine("rpma_conn_next_event", "no listener", 0))
		printf("rpma_conn_next_event: no listener: %s\n", rpma_utils_conn_event_2str(event));
	must(rpma_conn_delete(&cn));
	if (mine("rpma_ep_next_conn_req", "out of memory", 1)) {
		int ret;

		request();
		must(rpma_conn_req_connect(&r, NULL, &cn));
		memset(&r, MARK, sizeof(r));
		starving = 1;
		ret = rpma_ep_next_conn_req(ep, NULL, &r);
		say("rpma_ep_next_conn_req", "out of memory", ret, became(&r, sizeof(r)));
	}
}

static void connections(void)
{
	const char *f = "rpma_conn_next_event";
	enum rpma_conn_event event;

	join(cfg, &conn, &other);
	join(shared_cfg, &shared, &other_shared);
	OUT(f, "conn is NULL", event, rpma_conn_next_event(NULL, &event));
	CASE(f, "event is NULL", rpma_conn_next_event(conn, NULL));
	must(rpma_conn_get_event_fd(conn, &fd));
	must(fcntl(fd, F_SETFL, O_NONBLOCK));
	OUT(f, "no event, the descriptor does not block", event, rpma_conn_next_event(conn, &event));
	must(fcntl(fd, F_SETFL, 0));
	OUT("rpma_conn_get_event_fd", "conn is NULL", fd, rpma_conn_get_event_fd(NULL, &fd));
	CASE("rpma_conn_get_event_fd", "fd is NULL", rpma_conn_get_event_fd(conn, NULL));
	OUT("rpma_conn_get_private_data", "conn is NULL", pd, rpma_conn_get_private_data(NULL, &pd));
	CASE("rpma_conn_get_private_data", "pdata is NULL", rpma_conn_get_private_data(conn, NULL));
	OUT("rpma_conn_get_private_data", "the other side gave none", pd, rpma_conn_get_private_data(conn, &pd));
	CASE("rpma_conn_apply_remote_peer_cfg", "conn is NULL", rpma_conn_apply_remote_peer_cfg(NULL, pcfg));
	CASE("rpma_conn_apply_remote_peer_cfg", "pcfg is NULL", rpma_conn_apply_remote_peer_cfg(conn, NULL));
	OUT("rpma_conn_get_qp_num", "conn is NULL", u32, rpma_conn_get_qp_num(NULL, &u32));
	CASE("rpma_conn_get_qp_num", "qp_num is NULL", rpma_conn_get_qp_num(conn, NULL));
	OUT("rpma_conn_get_cq", "conn is NULL", q, rpma_conn_get_cq(NULL, &q));
	CASE("rpma_conn_get_cq", "cq_ptr is NULL", rpma_conn_get_cq(conn, NULL));
	OUT("rpma_conn_get_rcq", "conn is NULL", q, rpma_conn_get_rcq(NULL, &q));
	CASE("rpma_conn_get_rcq", "rcq_ptr is NULL", rpma_conn_get_rcq(conn, NULL));
	OUT("rpma_conn_get_rcq", "no receive CQ", q, rpma_conn_get_rcq(conn, &q));
	OUT("rpma_conn_get_compl_fd", "conn is NULL", fd, rpma_conn_get_compl_fd(NULL, &fd));
	CASE("rpma_conn_get_compl_fd", "fd is NULL", rpma_conn_get_compl_fd(shared, NULL));
	OUT("rpma_conn_get_compl_fd", "the channel is not shared", fd, rpma_conn_get_compl_fd(conn, &fd));
	f = "rpma_conn_wait";
	OUT(f, "conn is NULL", q, rpma_conn_wait(NULL, 0, &q, NULL));
	CASE(f, "cq is NULL", rpma_conn_wait(shared, 0, NULL, NULL));
	OUT(f, "the channel is not shared", q, rpma_conn_wait(conn, 0, &q, NULL));
	must(rpma_conn_get_compl_fd(shared, &fd));
	must(fcntl(fd, F_SETFL, O_NONBLOCK));
	OUT(f, "no completion, the descriptor does not block", q, rpma_conn_wait(shared, 0, &q, NULL));

	must(rpma_conn_get_cq(conn, &cq));
	must(rpma_conn_get_cq(shared, &shared_cq));
	OUT("rpma_cq_get_fd", "cq is NULL", fd, rpma_cq_get_fd(NULL, &fd));
	CASE("rpma_cq_get_fd", "fd is NULL", rpma_cq_get_fd(cq, NULL));
	OUT("rpma_cq_get_fd", "the channel is shared", fd, rpma_cq_get_fd(shared_cq, &fd));
	CASE("rpma_cq_wait", "cq is NULL", rpma_cq_wait(NULL));
	CASE("rpma_cq_wait", "the channel is shared", rpma_cq_wait(shared_cq));
	must(rpma_cq_get_fd(cq, &fd));
	must(fcntl(fd, F_SETFL, O_NONBLOCK));
	CASE("rpma_cq_wait", "no completion, the descriptor does not block", rpma_cq_wait(cq));
	must(fcntl(fd, F_SETFL, 0));
	f = "rpma_cq_get_wc";
	struct ibv_wc wc[2];
	OUT(f, "cq is NULL", i, rpma_cq_get_wc(NULL, 1, wc, &i));
	OUT(f, "wc is NULL", i, rpma_cq_get_wc(cq, 1, NULL, &i));
	OUT(f, "num_entries is 0", i, rpma_cq_get_wc(cq, 0, wc, &i));
	OUT(f, "num_entries is -1", i, rpma_cq_get_wc(cq, -1, wc, &i));
	CASE(f, "num_entries is 2, num_entries_got is NULL", rpma_cq_get_wc(cq, 2, wc, NULL));
	OUT(f, "no completion", i, rpma_cq_get_wc(cq, 2, wc, &i));
	OUT("rpma_cq_get_wc", "no completion, the entries", wc, rpma_cq_get_wc(cq, 2, wc, &i));
	f = "rpma_conn_disconnect";
	CASE(f, "conn is NULL", rpma_conn_disconnect(NULL));
	CASE("rpma_conn_delete", "conn_ptr is NULL", rpma_conn_delete(NULL));
	cn = NULL;
	CASE("rpma_conn_delete", "*conn_ptr is NULL", rpma_conn_delete(&cn));
	if (mine(f, "twice", 1)) {
		must(rpma_conn_disconnect(conn));
		say(f, "twice", rpma_conn_disconnect(conn), "");
	}
	if (mine("rpma_conn_delete", "a connection that stands", 1)) {
		int ret = rpma_conn_delete(&conn);

		say("rpma_conn_delete", "a connection that stands", ret, conn ? ", *conn_ptr left" : ", *conn_ptr NULL");
	}
	if (mine("rpma_conn_next_event", "out of memory, an event waits", 1)) {
		must(rpma_conn_disconnect(other));
		starving = 1;
		say("rpma_conn_next_event", "out of memory, an event waits", rpma_conn_next_event(conn, &event), "");
	}
	f = "rpma_srq_delete";
	if (mine(f, "a connection uses the queue", 1)) {
		int ret;

		must(rpma_conn_cfg_set_srq(cfg, srq));
		join(cfg, &conn, &other);
		ret = rpma_srq_delete(&srq);
		say(f, "a connection uses the queue", ret, srq ? ", *srq_ptr left" : ", *srq_ptr NULL");
	}
	f = "rpma_recv";
	if (mine(f, "the connection has a shared receive queue", 1)) {
		must(rpma_conn_cfg_set_srq(cfg, srq));
		join(cfg, &conn, &other);
		say(f, "the connection has a shared receive queue", rpma_recv(conn, mr, 0, 64, buffer), "");
	}
}
