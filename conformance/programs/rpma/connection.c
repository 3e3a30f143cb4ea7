/* A connection with private data in both directions: what each side says, the other reads from the request or from the connection. */
#include "scenario.h"

static const char CLIENTS[] = "from the client", SERVERS[] = "the server answers with something longer";

static int said(const struct rpma_conn_private_data *data, const char *text, size_t size)
{
	/* The connection manager carries a fixed number of bytes: what was not said is zero. */
	if (!data->ptr || data->len < size || memcmp(data->ptr, text, size) != 0)
		return 0;
	for (size_t i = size; i < data->len; i++)
		if (((const char *)data->ptr)[i] != 0)
			return 0;
	return 1;
}

static void described(struct rpma_conn *conn)
{
	uint32_t number = 0;
	int fd = -1;
	struct rpma_cq *rcq = (struct rpma_cq *)&number;

	must(rpma_conn_get_qp_num(conn, &number));
	check(number != 0 && number < 1 << 24, "the number of the queue pair");
	must(rpma_conn_get_event_fd(conn, &fd));
	check(fcntl(fd, F_GETFL) != -1, "the descriptor of events");
	must(rpma_conn_get_rcq(conn, &rcq));
	check(rcq == NULL, "no receive queue of its own");
}

static void serve(const char *address, const char *port)
{
	struct rpma_conn_private_data said_by_client = { 0 }, again = { 0 }, own = { (void *)SERVERS, sizeof(SERVERS) };
	struct rpma_peer *peer = peer_of(address, LOCAL);
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;

	must(rpma_ep_listen(peer, address, port, &ep));
	/* The first request is let go: its client is refused. */
	must(rpma_ep_next_conn_req(ep, NULL, &request));
	must(rpma_conn_req_delete(&request));
	check(request == NULL, "a refused request is NULL");

	must(rpma_ep_next_conn_req(ep, NULL, &request));
	must(rpma_conn_req_get_private_data(request, &said_by_client));
	check(said(&said_by_client, CLIENTS, sizeof(CLIENTS)), "private data of the request");
	must(rpma_conn_req_connect(&request, &own, &conn));
	check(request == NULL, "the request is consumed");
	event_is(conn, RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_private_data(conn, &again));
	check(said(&again, CLIENTS, sizeof(CLIENTS)), "private data of the connection");
	described(conn);
	must(rpma_ep_shutdown(&ep));
	check(ep == NULL, "the endpoint is NULL");
	must(rpma_conn_disconnect(conn));
	event_is(conn, RPMA_CONN_CLOSED, "closed, after the endpoint is gone");
	must(rpma_conn_delete(&conn));
	must(rpma_peer_delete(&peer));
}

static void ask(const char *address, const char *port)
{
	struct rpma_conn_private_data theirs = { 0 }, own = { (void *)CLIENTS, sizeof(CLIENTS) };
	struct rpma_peer *peer = peer_of(address, REMOTE);
	struct rpma_conn_req *request;
	struct rpma_conn *conn;

	must(rpma_conn_req_new(peer, address, port, NULL, &request));
	must(rpma_conn_req_connect(&request, NULL, &conn));
	event_is(conn, RPMA_CONN_REJECTED, "refused");
	must(rpma_conn_delete(&conn));

	/* A request that is not used. */
	must(rpma_conn_req_new(peer, address, port, NULL, &request));
	must(rpma_conn_req_delete(&request));

	must(rpma_conn_req_new(peer, address, port, NULL, &request));
	must(rpma_conn_req_connect(&request, &own, &conn));
	check(request == NULL, "the request is consumed");
	event_is(conn, RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_private_data(conn, &theirs));
	check(said(&theirs, SERVERS, sizeof(SERVERS)), "private data of the server");
	described(conn);
	event_is(conn, RPMA_CONN_CLOSED, "closed by the server");
	must(rpma_conn_disconnect(conn));
	must(rpma_conn_delete(&conn));
	check(conn == NULL, "the connection is NULL");
	must(rpma_peer_delete(&peer));
}
