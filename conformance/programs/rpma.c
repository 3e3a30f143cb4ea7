/* librpma's calls on both ends of one connection. `rpma s ADDRESS PORT` waits and checks what was written to its memory; `rpma c ADDRESS PORT`
 * writes, flushes, reads back, writes eight bytes at once, sends and receives. Each says what was right, a line each. */
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (64 * 1024)	/* of the memory that the client reaches */
#define WORD (SIZE + 64)	/* what is written at once */
#define MESSAGE (SIZE + 128)	/* messages come here */
#define ALL (SIZE + 4096)

static int bad;

static void check(int good, const char *what)
{
	printf("%s %s\n", good ? "ok" : "not ok", what);
	fflush(stdout);
	bad |= !good;
}

static void must(int ret, const char *call)
{
	if (ret == 0)
		return;
	printf("not ok %s: %s\n", call, rpma_err_2str(ret));
	exit(1);
}

struct end {
	struct rpma_peer *peer;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	struct rpma_mr_local *mr;
	unsigned char *memory;
};

static unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 13 + (i >> 8));
}

static void prepare(struct end *e, const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;

	must(rpma_utils_get_ibv_context(address, type, &context), "rpma_utils_get_ibv_context");
	must(rpma_peer_new(context, &e->peer), "rpma_peer_new");
	e->memory = aligned_alloc(4096, ALL);
	memset(e->memory, 0, ALL);
	must(rpma_mr_reg(e->peer, e->memory, ALL, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
			 RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &e->mr),
	     "rpma_mr_reg");
}

/* Connects or accepts, with a receive posted before anything can come. */
static void establish(struct end *e, struct rpma_conn_req *request, const struct rpma_conn_private_data *data)
{
	enum rpma_conn_event event;

	must(rpma_conn_req_recv(request, e->mr, MESSAGE, 64, NULL), "rpma_conn_req_recv");
	must(rpma_conn_req_connect(&request, data, &e->conn), "rpma_conn_req_connect");
	must(rpma_conn_next_event(e->conn, &event), "rpma_conn_next_event");
	check(event == RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_cq(e->conn, &e->cq), "rpma_conn_get_cq");
}

static void completed(struct end *e, enum ibv_wc_opcode opcode, const char *what)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(e->cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		must(rpma_cq_wait(e->cq), "rpma_cq_wait");
	must(ret, "rpma_cq_get_wc");
	check(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode, what);
}

/* A send and a receive, in any order: the acknowledgement may be lost, and the answer come before it is repeated. */
static void both_completed(struct end *e)
{
	int seen = 0, ret;
	struct ibv_wc wc;

	while (seen != 3) {
		while ((ret = rpma_cq_get_wc(e->cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
			must(rpma_cq_wait(e->cq), "rpma_cq_wait");
		must(ret, "rpma_cq_get_wc");
		if (wc.status != IBV_WC_SUCCESS)
			break;
		seen |= wc.opcode == IBV_WC_SEND ? 1 : wc.opcode == IBV_WC_RECV ? 2 : 0;
	}
	check(seen == 3, "send and receive");
}

static void part(struct end *e)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	must(rpma_conn_next_event(e->conn, &event), "rpma_conn_next_event");
	check(event == RPMA_CONN_CLOSED, "closed");
	must(rpma_conn_disconnect(e->conn), "rpma_conn_disconnect");
	must(rpma_conn_delete(&e->conn), "rpma_conn_delete");
	must(rpma_mr_dereg(&e->mr), "rpma_mr_dereg");
	must(rpma_peer_delete(&e->peer), "rpma_peer_delete");
	free(e->memory);
}

static void serve(const char *address, const char *port)
{
	struct end e;
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	char descriptor[64];
	struct rpma_conn_private_data data = { .ptr = descriptor };
	size_t size, i;
	uint64_t word;
	int good = 1;

	prepare(&e, address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	must(rpma_mr_get_descriptor_size(e.mr, &size), "rpma_mr_get_descriptor_size");
	must(size > sizeof(descriptor), "the descriptor is too long");
	must(rpma_mr_get_descriptor(e.mr, descriptor), "rpma_mr_get_descriptor");
	data.len = (uint8_t)size;
	must(rpma_ep_listen(e.peer, address, port, &ep), "rpma_ep_listen");
	must(rpma_ep_next_conn_req(ep, NULL, &request), "rpma_ep_next_conn_req");
	establish(&e, request, &data);
	completed(&e, IBV_WC_RECV, "receive");
	check(strcmp((char *)e.memory + MESSAGE, "written") == 0, "the message of the client");
	for (i = 0; i < SIZE; i++)
		good &= e.memory[i] == pattern(i);
	check(good, "what the client wrote");
	memcpy(&word, e.memory + WORD, sizeof(word));
	check(word == 0x1122334455667788, "what the client wrote at once");
	strcpy((char *)e.memory + MESSAGE + 64, "seen");
	must(rpma_send(e.conn, e.mr, MESSAGE + 64, 64, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_send");
	completed(&e, IBV_WC_SEND, "send");
	/* The client disconnects first: its event is fetched in part(). */
	must(rpma_ep_shutdown(&ep), "rpma_ep_shutdown");
	part(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data;
	struct rpma_mr_remote *remote;
	const char word[8] = { (char)0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 };
	size_t size, i;

	prepare(&e, address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	must(rpma_conn_req_new(e.peer, address, port, NULL, &request), "rpma_conn_req_new");
	establish(&e, request, NULL);
	must(rpma_conn_get_private_data(e.conn, &data), "rpma_conn_get_private_data");
	must(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote), "rpma_mr_remote_from_descriptor");
	must(rpma_mr_remote_get_size(remote, &size), "rpma_mr_remote_get_size");
	check(size == ALL, "the size of the server's memory");

	for (i = 0; i < SIZE; i++)
		e.memory[i] = pattern(i);
	must(rpma_write(e.conn, remote, 0, e.mr, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_write");
	completed(&e, IBV_WC_RDMA_WRITE, "write");
	must(rpma_flush(e.conn, remote, 0, SIZE, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_flush");
	completed(&e, IBV_WC_RDMA_READ, "flush");	/* librpma reads eight bytes back */
	memset(e.memory, 0, SIZE);
	must(rpma_read(e.conn, e.mr, 0, remote, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_read");
	completed(&e, IBV_WC_RDMA_READ, "read");
	for (i = 0; i < SIZE && e.memory[i] == pattern(i); i++)
		;
	check(i == SIZE, "what was read back");
	must(rpma_atomic_write(e.conn, remote, WORD, word, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_atomic_write");
	completed(&e, IBV_WC_RDMA_WRITE, "eight bytes at once");

	strcpy((char *)e.memory + MESSAGE + 64, "written");
	must(rpma_send(e.conn, e.mr, MESSAGE + 64, 64, RPMA_F_COMPLETION_ALWAYS, NULL), "rpma_send");
	both_completed(&e);
	check(strcmp((char *)e.memory + MESSAGE, "seen") == 0, "the message of the server");
	must(rpma_mr_remote_delete(&remote), "rpma_mr_remote_delete");
	must(rpma_conn_disconnect(e.conn), "rpma_conn_disconnect");
	part(&e);
}

int main(int argc, char **argv)
{
	if (argc != 4 || (argv[1][0] != 's' && argv[1][0] != 'c')) {
		fprintf(stderr, "rpma s|c ADDRESS PORT\n");
		return 2;
	}
	(argv[1][0] == 's' ? serve : ask)(argv[2], argv[3]);
	return bad;
}
