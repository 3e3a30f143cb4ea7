/* What the scenarios of librpma share. Each program is called `NAME server|client ADDRESS PORT`, where ADDRESS and PORT are the server's;
 * it defines serve() and ask(), prints a line a check, and exits with 0 only if every check was good. The first line names the library
 * that it runs on. A program that waits for 40 seconds ends by SIGALRM. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <librpma.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define REGION (16 * PAGE)	/* of the memory of an end */
#define IN (14 * PAGE)		/* messages come here */
#define OUT (15 * PAGE)		/* and go out from here */
#define EVERYTHING (RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_WRITE_DST | \
		    RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV)
#define LOCAL RPMA_UTIL_IBV_CONTEXT_LOCAL
#define REMOTE RPMA_UTIL_IBV_CONTEXT_REMOTE
#define ALWAYS RPMA_F_COMPLETION_ALWAYS

static int bad;

static inline void check(int good, const char *what)
{
	printf("%s %s\n", good ? "ok" : "not ok", what);
	fflush(stdout);
	bad |= !good;
}

/* Without this call nothing more can be tried. */
#define must(call) must_(call, #call)
static inline void must_(int ret, const char *call)
{
	if (ret == 0)
		return;
	printf("not ok %s: %s\n", call, rpma_err_2str(ret));
	exit(1);
}

/* One peer, its memory, and one connection at most. */
struct end {
	struct rpma_peer *peer;
	unsigned char *memory;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	struct rpma_mr_remote *remote;	/* what the other side described in its private data */
	char file[64];			/* of the memory, or empty */
};

static inline unsigned char pattern(size_t i)
{
	return (unsigned char)(i * 13 + (i >> 8) + 1);
}

static inline void fill(unsigned char *at, size_t from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		at[i] = pattern(from + i);
}

static inline int filled(const unsigned char *at, size_t from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (at[i] != pattern(from + i))
			return 0;
	return 1;
}

static inline struct rpma_peer *peer_of(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *context;
	struct rpma_peer *peer;

	must(rpma_utils_get_ibv_context(address, type, &context));
	must(rpma_peer_new(context, &peer));
	return peer;
}

static inline void prepare(struct end *e, const char *address, enum rpma_util_ibv_context_type type, int usage)
{
	memset(e, 0, sizeof(*e));
	e->peer = peer_of(address, type);
	e->memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(e->memory == MAP_FAILED);
	must(rpma_mr_reg(e->peer, e->memory, REGION, usage, &e->mr));
}

/* The same over a file in the present directory. */
static inline void prepare_file(struct end *e, const char *address, enum rpma_util_ibv_context_type type, int usage)
{
	int fd;

	memset(e, 0, sizeof(*e));
	e->peer = peer_of(address, type);
	strcpy(e->file, "rpma-file.XXXXXX");
	fd = mkstemp(e->file);
	must(fd < 0 || ftruncate(fd, REGION) != 0);
	e->memory = mmap(NULL, REGION, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(e->memory == MAP_FAILED);
	close(fd);
	must(rpma_mr_reg(e->peer, e->memory, REGION, usage, &e->mr));
}

/* The descriptor of the end's memory, as private data. */
static inline struct rpma_conn_private_data describe(struct end *e)
{
	static char bytes[256];
	struct rpma_conn_private_data data = { .ptr = bytes };
	size_t size;

	must(rpma_mr_get_descriptor_size(e->mr, &size));
	must(size == 0 || size > sizeof(bytes));
	must(rpma_mr_get_descriptor(e->mr, bytes));
	data.len = (uint8_t)size;
	return data;
}

static inline void event_is(struct rpma_conn *conn, enum rpma_conn_event wanted, const char *what)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	must(rpma_conn_next_event(conn, &event));
	if (event != wanted)
		printf("event %s\n", rpma_utils_conn_event_2str(event));
	check(event == wanted, what);
}

/* From a request to a connection; then the memory of the other side, where it described one. */
static inline void establish(struct end *e, struct rpma_conn_req *request, const struct rpma_conn_private_data *data)
{
	struct rpma_conn_private_data theirs = { 0 };

	must(rpma_conn_req_connect(&request, data, &e->conn));
	event_is(e->conn, RPMA_CONN_ESTABLISHED, "established");
	must(rpma_conn_get_cq(e->conn, &e->cq));
	must(rpma_conn_get_private_data(e->conn, &theirs));
	if (theirs.ptr && theirs.len)
		must(rpma_mr_remote_from_descriptor(theirs.ptr, theirs.len, &e->remote));
}

/* A server for one client that describes its memory to it. Receives of `receives` messages of 64 bytes stand before the client can send. */
static inline void accept_one(struct end *e, const char *address, const char *port, const struct rpma_conn_cfg *cfg, int receives)
{
	struct rpma_conn_private_data data = describe(e);
	struct rpma_ep *ep;
	struct rpma_conn_req *request;

	must(rpma_ep_listen(e->peer, address, port, &ep));
	must(rpma_ep_next_conn_req(ep, cfg, &request));
	for (int i = 0; i < receives; i++)
		must(rpma_conn_req_recv(request, e->mr, IN + 64 * i, 64, e->memory + IN + 64 * i));
	establish(e, request, &data);
	must(rpma_ep_shutdown(&ep));
}

static inline void connect_one(struct end *e, const char *address, const char *port, const struct rpma_conn_cfg *cfg, int receives)
{
	struct rpma_conn_private_data data = describe(e);
	struct rpma_conn_req *request;

	must(rpma_conn_req_new(e->peer, address, port, cfg, &request));
	for (int i = 0; i < receives; i++)
		must(rpma_conn_req_recv(request, e->mr, IN + 64 * i, 64, e->memory + IN + 64 * i));
	establish(e, request, &data);
}

/* The next completion of the queue, waiting for it. */
static inline struct ibv_wc next(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		must(rpma_cq_wait(cq));
	must(ret);
	return wc;
}

static inline int good(const struct ibv_wc *wc, enum ibv_wc_opcode opcode, const void *context)
{
	if (wc->status == IBV_WC_SUCCESS && wc->opcode == opcode && wc->wr_id == (uintptr_t)context)
		return 1;
	printf("completion: %s, opcode %d, wr_id %#llx\n", ibv_wc_status_str(wc->status), wc->opcode, (unsigned long long)wc->wr_id);
	return 0;
}

static inline void completed(struct rpma_cq *cq, enum ibv_wc_opcode opcode, const void *context, const char *what)
{
	struct ibv_wc wc = next(cq);

	check(good(&wc, opcode, context), what);
}

/* The completions of a send and of a receive, in any order: the acknowledgement may be lost, and the answer come first. */
static inline int sent_and_received(struct rpma_cq *cq, const void *sent, const void *received)
{
	int seen = 0;

	while (seen != 3) {
		struct ibv_wc wc = next(cq);
		int is = wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV ? 2 : 1;

		if ((seen & is) || !good(&wc, is == 2 ? IBV_WC_RECV : IBV_WC_SEND, is == 2 ? received : sent))
			return 0;
		seen |= is;
	}
	return 1;
}

/* A client that ends a connection at once may be told to the server as closed before it was established: the message that says the one may
 * be lost, and the other not. So a server that has nothing else to say says that it is there. */
static inline void greet(struct end *e)
{
	must(rpma_send(e->conn, NULL, 0, 0, ALWAYS, NULL));
	completed(e->cq, IBV_WC_SEND, NULL, "greeted");
}

static inline void greeted(struct end *e)
{
	completed(e->cq, IBV_WC_RECV, e->memory + IN, "the server is there");
}

static inline void release(struct end *e)
{
	if (e->remote)
		must(rpma_mr_remote_delete(&e->remote));
	must(rpma_mr_dereg(&e->mr));
	must(rpma_peer_delete(&e->peer));
	check(!e->remote && !e->mr && !e->peer, "what is deleted is NULL");
	munmap(e->memory, REGION);
	if (e->file[0])
		unlink(e->file);
}

/* The client ends the connection; the server is told. */
static inline void client_ends(struct end *e)
{
	must(rpma_conn_disconnect(e->conn));
	event_is(e->conn, RPMA_CONN_CLOSED, "closed");
	must(rpma_conn_delete(&e->conn));
	check(!e->conn, "the connection is NULL");
	release(e);
}

static inline void server_leaves(struct end *e)
{
	event_is(e->conn, RPMA_CONN_CLOSED, "closed by the client");
	must(rpma_conn_disconnect(e->conn));
	must(rpma_conn_delete(&e->conn));
}

static inline void server_ends(struct end *e)
{
	server_leaves(e);
	release(e);
}

static void serve(const char *address, const char *port);
static void ask(const char *address, const char *port);

int main(int argc, char **argv)
{
	int server = argc == 4 && strcmp(argv[1], "server") == 0;
	Dl_info library;

	if (!server && (argc != 4 || strcmp(argv[1], "client") != 0)) {
		fprintf(stderr, "%s server|client ADDRESS PORT\n", argv[0]);
		return 2;
	}
	alarm(40);
	/* By dlsym: the address of a function may be one in the program itself. */
	if (dladdr(dlsym(RTLD_DEFAULT, "rpma_err_2str"), &library))
		printf("library %s\n", library.dli_fname);
	(server ? serve : ask)(argv[2], argv[3]);
	return bad;
}
