/*
 * flush -d DEVICE [-p] [-f FILE] [SERVER]: what verbs have got since rdma-core 44: WRITE, FLUSH, ATOMIC WRITE and SEND with
 * invalidate from the client to the server, one after the other; one line for each. With -p the client also asks for
 * persistence; with -f the server's memory is that file, mapped shared.
 */
#include <getopt.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/mman.h>
#include "common.h"

/* Of rdma-core 45 and later. */
#define ACCESS_FLUSH_GLOBAL (1 << 8)
#define ACCESS_FLUSH_PERSISTENT (1 << 9)
#define QP_EX_WITH_FLUSH (1 << 11)
#define QP_EX_WITH_ATOMIC_WRITE (1 << 12)
#define WC_FLUSH 8
#define WC_ATOMIC_WRITE 9
enum { TO_GLOBAL = 1, TO_PERSISTENT = 2 };
enum { RANGE = 0, REGION = 1 };

struct newer_qp_ex {
	struct ibv_qp_ex old;		/* as of rdma-core 44: wr_atomic_write is its last */
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level);
};

#define LEN 4096
#define TEXT "what the client wrote before it asked for a flush"
#define COMMIT "8 bytes!"
#define RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND | ACCESS_FLUSH_GLOBAL)

struct end {
	uint32_t qpn, rkey, window;
	uint64_t addr;
	union ibv_gid gid;
};

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;
static int sock, has_flush;

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(2);
}

static void exchange(const void *mine, void *theirs, size_t size)
{
	size_t got = 0;

	if (write(sock, mine, size) != (ssize_t)size)
		die("write");
	while (got < size) {
		ssize_t n = read(sock, (char *)theirs + got, size - got);

		if (n <= 0)
			die("the other side has gone");
		got += n;
	}
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };

	for (int i = 0; i < 200000; i++) {
		int n = ibv_poll_cq(cq, 1, &wc);

		if (n < 0)
			die("poll");
		if (n == 1)
			return wc;
		usleep(50);
	}
	fprintf(stderr, "no completion\n");
	exit(2);
}

static void connect_socket(const char *server)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(18515) };
	int on = 1, listener;

	if (server) {
		sock = socket(AF_INET, SOCK_STREAM, 0);
		if (inet_pton(AF_INET, server, &a.sin_addr) != 1 || connect(sock, (void *)&a, sizeof(a)))
			die("connect");
		return;
	}
	listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (void *)&a, sizeof(a)) || listen(listener, 1) || (sock = accept(listener, NULL, NULL)) < 0)
		die("listen");
}

static struct ibv_qp *make(struct ibv_context *ctx, uint64_t operations)
{
	struct ibv_qp_init_attr_ex a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
					 .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations };

	return ibv_create_qp_ex(ctx, &a);
}

static void set_up(const char *name, const char *file)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	uint64_t operations = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW | QP_EX_WITH_ATOMIC_WRITE;
	struct ibv_context *ctx = NULL;
	int rights = RIGHTS, fd = -1;

	for (int i = 0; list && list[i] && !ctx; i++)
		if (!name || !strcmp(ibv_get_device_name(list[i]), name))
			ctx = ibv_open_device(list[i]);
	if (!ctx || !(pd = ibv_alloc_pd(ctx)) || !(cq = ibv_create_cq(ctx, 32, NULL, NULL, 0)))
		die("device");
	has_flush = 1;
	if (!(qp = make(ctx, operations | QP_EX_WITH_FLUSH))) {
		has_flush = 0;
		if (!(qp = make(ctx, operations)))
			die("queue pair");
	}
	if (file) {
		rights |= ACCESS_FLUSH_PERSISTENT;
		if ((fd = open(file, O_RDWR | O_CREAT, 0600)) < 0 || ftruncate(fd, LEN))
			die(file);
	}
	memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	if (!(mr = (ibv_reg_mr)(pd, memory, LEN, rights)))
		die("memory");
}

static void to_rts_with(struct end *peer)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = PORT_NUM, .qp_access_flags = RIGHTS | ACCESS_FLUSH_PERSISTENT };
	struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = 100,
				 .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				 .ah_attr = { .is_global = 1, .port_num = PORT_NUM,
					      .grh = { .sgid_index = GID_INDEX, .hop_limit = 64, .dgid = peer->gid } } };
	struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 100, .max_rd_atomic = 4 };

	a.qp_access_flags &= ~(unsigned)(IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE);
	if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			  IBV_QP_MAX_QP_RD_ATOMIC))
		die("queue pair's state");
}

/* Ends the request begun; what came of it. */
static struct ibv_wc done(struct ibv_qp_ex *q)
{
	errno = ibv_wr_complete(q);
	if (errno)
		die("ibv_wr_complete");
	return completion();
}

static struct ibv_wc write_to(struct ibv_qp_ex *q, uint32_t rkey, uint64_t addr, uint32_t size)
{
	ibv_wr_start(q);
	ibv_wr_rdma_write(q, rkey, addr);
	ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, size);
	return done(q);
}

static struct ibv_wc flush(struct ibv_qp_ex *q, struct end *to, size_t len, uint8_t type, uint8_t level)
{
	ibv_wr_start(q);
	((struct newer_qp_ex *)q)->wr_flush(q, to->rkey, to->addr, len, type, level);
	return done(q);
}

static void client(struct end *to, int persistent)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;
	char word = 0;

	strcpy(memory, TEXT);
	q->wr_flags = IBV_SEND_SIGNALED;
	wc = write_to(q, to->rkey, to->addr, sizeof(TEXT));
	check(wc.status == IBV_WC_SUCCESS, "write");
	if (has_flush) {
		wc = flush(q, to, sizeof(TEXT), TO_GLOBAL, RANGE);
		check(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_FLUSH, "flush of a range");
		wc = flush(q, to, 0, TO_GLOBAL, REGION);
		check(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_FLUSH, "flush of the region");
	} else {
		printf("the library has no flush\n");
	}
	ibv_wr_start(q);
	ibv_wr_atomic_write(q, to->rkey, to->addr + 1024, COMMIT);
	wc = done(q);
	check(wc.status == IBV_WC_SUCCESS && (int)wc.opcode == WC_ATOMIC_WRITE, "atomic write");
	wc = write_to(q, to->window, to->addr, 8);
	check(wc.status == IBV_WC_SUCCESS, "write to the window");
	ibv_wr_start(q);
	ibv_wr_send_inv(q, to->window);
	ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, sizeof(TEXT));
	wc = done(q);
	check(wc.status == IBV_WC_SUCCESS, "send with invalidate");
	if (has_flush && persistent) {
		wc = flush(q, to, sizeof(TEXT), TO_PERSISTENT, RANGE);
		printf("flush to persistence: %s\n", ibv_wc_status_str(wc.status));
	}
	exchange("1", &word, 1);
	wc = write_to(q, to->window, to->addr, 8);
	check(wc.status != IBV_WC_SUCCESS, "no write to the window that was invalidated");
	exchange("2", &word, 1);
}

static void bind_window(struct end *mine)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr = { .wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad_wr;

	if (!mw)
		die("window");
	mine->window = wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.mw = mw;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)memory, LEN, IBV_ACCESS_REMOTE_WRITE };
	if ((errno = ibv_post_send(qp, &wr, &bad_wr)))
		die("bind");
	check(completion().status == IBV_WC_SUCCESS, "window bound");
}

static void server(struct end *mine)
{
	struct ibv_wc wc = completion();
	char word = 0;

	check(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == sizeof(TEXT), "receive");
	/* The kernel's rdma_rxe says it with the flag that is 4 inside the kernel and 8 here. */
	check(wc.wc_flags & (4 | IBV_WC_WITH_INV) && wc.invalidated_rkey == mine->window, "the window is invalidated");
	check(!memcmp(memory, TEXT, sizeof(TEXT)), "what was written is there");
	check(!memcmp(memory + 1024, COMMIT, 8), "what was written at once is there");
	exchange("1", &word, 1);
	exchange("2", &word, 1);
}

int main(int argc, char **argv)
{
	const char *name = NULL, *file = NULL, *host = NULL;
	int persistent = 0, c;
	struct end mine = { 0 }, peer;

	while ((c = getopt(argc, argv, "d:f:p")) != -1) {
		if (c == 'd')
			name = optarg;
		else if (c == 'f')
			file = optarg;
		else if (c == 'p')
			persistent = 1;
		else
			return 2;
	}
	if (optind < argc)
		host = argv[optind];
	set_up(name, file);
	mine.qpn = qp->qp_num;
	mine.rkey = mr->rkey;
	mine.addr = (uintptr_t)memory;
	if (ibv_query_gid(qp->context, PORT_NUM, GID_INDEX, &mine.gid))
		die("gid");
	connect_socket(host);
	exchange(&mine, &peer, sizeof(mine));
	to_rts_with(&peer);
	if (!host) {
		struct ibv_sge sge = { (uintptr_t)memory + 2048, 1024, mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1 }, *bad_wr;

		if ((errno = ibv_post_recv(qp, &wr, &bad_wr)))
			die("receive");
		bind_window(&mine);
	}
	exchange(&mine, &peer, sizeof(mine));
	if (host)
		client(&peer, persistent);
	else
		server(&mine);
	return bad;
}
