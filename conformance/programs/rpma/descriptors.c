/* The bytes that two libraries must agree on (docs/rpma-wire.md): the descriptors of a region and of a peer configuration, and what each
 * side is told of the other's private data. */
#include "scenario.h"

#define AT ((unsigned char *)0x123456789000)
#define LENGTH 0x1234

static void region(struct rpma_peer *peer, int usage)
{
	static const unsigned char size[8] = { 0x34, 0x12 };
	unsigned char address[8] = { usage & 0xf0 ? 0x40 : 0x10, 0x90, 0x78, 0x56, 0x34, 0x12 }, bytes[64];
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	size_t length = 0;
	int types = -1;
	char what[64];

	must(rpma_mr_reg(peer, AT + address[0], LENGTH, usage, &mr));
	must(rpma_mr_get_descriptor_size(mr, &length));
	memset(bytes, 0xee, sizeof(bytes));
	must(rpma_mr_get_descriptor(mr, bytes));
	snprintf(what, sizeof(what), "the descriptor of a region with usage %#x", usage);
	check(length == 21 && !memcmp(bytes, address, 8) && !memcmp(bytes + 8, size, 8) && bytes[20] == usage && bytes[21] == 0xee, what);
	/* As a whole buffer of private data, of which it is the beginning. */
	must(rpma_mr_remote_from_descriptor(bytes, 56, &remote));
	must(rpma_mr_remote_get_size(remote, &length));
	must(rpma_mr_remote_get_flush_type(remote, &types));
	must(length != LENGTH || types != (usage & 0x30));
	must(rpma_mr_remote_delete(&remote));
	must(rpma_mr_dereg(&mr));
}

static void bytes_of_descriptors(struct rpma_peer *peer)
{
	struct rpma_peer_cfg *cfg, *theirs;
	unsigned char byte[4] = { 0xee, 0xee, 0xee, 0xee };
	size_t length = 0;
	bool direct = false;

	must(mmap(AT, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != AT);
	for (int bit = 0; bit < 8; bit++)
		region(peer, 1 << bit);
	region(peer, 0xff);
	must(rpma_peer_cfg_new(&cfg));
	must(rpma_peer_cfg_get_descriptor_size(cfg, &length));
	must(rpma_peer_cfg_get_descriptor(cfg, byte));
	/* Verbena's has a second byte, which says what the device executes; others ignore it. */
	check((length == 1 || (length == 2 && byte[1] <= 3)) && byte[0] == 0 && byte[length] == 0xee, "the descriptor of a peer without direct write");
	must(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	must(rpma_peer_cfg_get_descriptor(cfg, byte));
	check(byte[0] == 1 && byte[length] == 0xee, "the descriptor of a peer with direct write");
	byte[0] = 0x80;
	must(rpma_peer_cfg_from_descriptor(byte, 2, &theirs));
	must(rpma_peer_cfg_get_direct_write_to_pmem(theirs, &direct));
	check(direct, "any byte but zero is direct write");
	must(rpma_peer_cfg_delete(&theirs));
	must(rpma_peer_cfg_delete(&cfg));
}

static void told(const struct rpma_conn_private_data *data, const char *text, size_t size, size_t length, const char *what)
{
	int zero = data->len == length;

	for (size_t i = size; zero && i < length; i++)
		zero = ((const char *)data->ptr)[i] == 0;
	check(zero && memcmp(data->ptr, text, size) == 0, what);
}

static void serve(const char *address, const char *port)
{
	struct rpma_conn_private_data own = { "answer", 6 }, data;
	struct rpma_peer *peer = peer_of(address, LOCAL);
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;

	bytes_of_descriptors(peer);
	must(rpma_ep_listen(peer, address, port, &ep));
	for (int round = 0; round < 2; round++) {
		must(rpma_ep_next_conn_req(ep, NULL, &request));
		must(rpma_conn_req_get_private_data(request, &data));
		told(&data, "hello", round ? 5 : 0, 56, round ? "5 bytes of the client are told as 56" : "none of the client are told as 56");
		must(rpma_conn_req_connect(&request, round ? &own : NULL, &conn));
		event_is(conn, RPMA_CONN_ESTABLISHED, "established");
		must(rpma_conn_disconnect(conn));
		event_is(conn, RPMA_CONN_CLOSED, "closed");
		must(rpma_conn_get_private_data(conn, &data));
		told(&data, "hello", round ? 5 : 0, 56, "and the connection has them after its end");
		must(rpma_conn_delete(&conn));
	}
	must(rpma_ep_shutdown(&ep));
	must(rpma_peer_delete(&peer));
}

static void ask(const char *address, const char *port)
{
	struct rpma_conn_private_data own = { "hello", 5 }, data;
	struct rpma_peer *peer = peer_of(address, REMOTE);
	struct rpma_conn_req *request;
	struct rpma_conn *conn;

	bytes_of_descriptors(peer);
	for (int round = 0; round < 2; round++) {
		must(rpma_conn_req_new(peer, address, port, NULL, &request));
		must(rpma_conn_req_get_private_data(request, &data));
		check(!data.ptr && !data.len, "nothing is told of a request of one's own");
		must(rpma_conn_req_connect(&request, round ? &own : NULL, &conn));
		must(rpma_conn_get_private_data(conn, &data));
		check(!data.ptr && !data.len, "nor of a connection that does not stand yet");
		event_is(conn, RPMA_CONN_ESTABLISHED, "established");
		must(rpma_conn_get_private_data(conn, &data));
		told(&data, "answer", round ? 6 : 0, 196, round ? "6 bytes of the server are told as 196" : "none of the server are told as 196");
		event_is(conn, RPMA_CONN_CLOSED, "closed by the server");
		must(rpma_conn_disconnect(conn));
		must(rpma_conn_delete(&conn));
	}
	must(rpma_peer_delete(&peer));
}
