/* errors ADDRESS PORT [NUMBER]: what each function of librpma answers to each row of its manual page's ERRORS, and then to what the page
 * does not say. ADDRESS is one of this host's. Judged against golden/rpma-errors.txt. Rows that nothing here provokes are named at the
 * end of it. With NUMBER only that case. */
#include "errors.h"

static struct ibv_context *context, *ctx;
static struct rpma_peer *peer, *p;
static struct rpma_peer_cfg *pcfg, *pc;
static struct rpma_conn_cfg *cfg, *shared_cfg, *c;
static struct rpma_srq_cfg *scfg, *sc;
static struct rpma_srq *srq, *s;
static struct rpma_mr_local *mr, *m;
static struct rpma_mr_remote *remote, *rm;
static struct rpma_ep *ep, *e;
static struct rpma_conn_req *r;
static struct rpma_conn *conn, *other, *shared, *other_shared, *cn;
static struct rpma_cq *cq, *shared_cq, *q;
static struct rpma_conn_private_data pd, eight = { "8 bytes", 8 }, none = { "none", 0 }, much;
static char buffer[4 * PAGE] __attribute__((aligned(PAGE))), descriptor[64], text[256];
static size_t size;
static uint32_t u32;
static int i, fd;
static bool flag;
static char port[16];

static void utils(void)
{
	const char *f = "rpma_utils_get_ibv_context";

	OUT(f, "addr is NULL", ctx, rpma_utils_get_ibv_context(NULL, RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	CASE(f, "ibv_ctx_ptr is NULL", rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, NULL));
	OUT(f, "type is unknown", ctx, rpma_utils_get_ibv_context(address, 2, &ctx));
	ALONE_OUT(f, "out of memory", starving = 1, ctx, rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "rdma_getaddrinfo fails, local", ctx, rpma_utils_get_ibv_context("not an address", RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "rdma_getaddrinfo fails, remote", ctx, rpma_utils_get_ibv_context("not an address", RPMA_UTIL_IBV_CONTEXT_REMOTE, &ctx));
	ALONE_OUT(f, "rdma_create_id fails, no descriptor", no_descriptors(), ctx, rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "rdma_bind_addr fails, another host's address", ctx, rpma_utils_get_ibv_context("203.0.113.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "rdma_resolve_addr fails, no route", ctx, rpma_utils_get_ibv_context("203.0.113.1", RPMA_UTIL_IBV_CONTEXT_REMOTE, &ctx));
	OUT(f, "127.0.0.1, local", ctx, rpma_utils_get_ibv_context("127.0.0.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "the address of an interface, local", ctx, rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &ctx));
	OUT(f, "the address of an interface, remote", ctx, rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_REMOTE, &ctx));
	must(rpma_utils_get_ibv_context(address, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	f = "rpma_utils_ibv_context_is_odp_capable";
	OUT(f, "ibv_ctx is NULL", i, rpma_utils_ibv_context_is_odp_capable(NULL, &i));
	CASE(f, "is_odp_capable is NULL", rpma_utils_ibv_context_is_odp_capable(context, NULL));
	OUT(f, "a context", i, rpma_utils_ibv_context_is_odp_capable(context, &i));
}

static void peer_configuration(void)
{
	const char *f = "rpma_peer_cfg_new";

	CASE(f, "pcfg_ptr is NULL", rpma_peer_cfg_new(NULL));
	ALONE_OUT(f, "out of memory", starving = 1, pc, rpma_peer_cfg_new(&pc));
	must(rpma_peer_cfg_new(&pcfg));
	f = "rpma_peer_cfg_delete";
	CASE(f, "pcfg_ptr is NULL", rpma_peer_cfg_delete(NULL));
	pc = NULL;
	CASE(f, "*pcfg_ptr is NULL", rpma_peer_cfg_delete(&pc));
	CASE("rpma_peer_cfg_set_direct_write_to_pmem", "pcfg is NULL", rpma_peer_cfg_set_direct_write_to_pmem(NULL, true));
	OUT("rpma_peer_cfg_get_direct_write_to_pmem", "pcfg is NULL", flag, rpma_peer_cfg_get_direct_write_to_pmem(NULL, &flag));
	CASE("rpma_peer_cfg_get_direct_write_to_pmem", "supported is NULL", rpma_peer_cfg_get_direct_write_to_pmem(pcfg, NULL));
	OUT("rpma_peer_cfg_get_descriptor", "pcfg is NULL", descriptor, rpma_peer_cfg_get_descriptor(NULL, descriptor));
	CASE("rpma_peer_cfg_get_descriptor", "desc is NULL", rpma_peer_cfg_get_descriptor(pcfg, NULL));
	OUT("rpma_peer_cfg_get_descriptor_size", "pcfg is NULL", size, rpma_peer_cfg_get_descriptor_size(NULL, &size));
	CASE("rpma_peer_cfg_get_descriptor_size", "desc_size is NULL", rpma_peer_cfg_get_descriptor_size(pcfg, NULL));
	must(rpma_peer_cfg_get_descriptor_size(pcfg, &size));
	must(rpma_peer_cfg_get_descriptor(pcfg, descriptor));
	f = "rpma_peer_cfg_from_descriptor";
	OUT(f, "desc is NULL", pc, rpma_peer_cfg_from_descriptor(NULL, 1, &pc));
	CASE(f, "pcfg_ptr is NULL", rpma_peer_cfg_from_descriptor(descriptor, 1, NULL));
	OUT(f, "desc_size is 0", pc, rpma_peer_cfg_from_descriptor(descriptor, 0, &pc));
	OUT(f, "desc_size is 2", pc, rpma_peer_cfg_from_descriptor(descriptor, 2, &pc));
	ALONE_OUT(f, "out of memory", starving = 1, pc, rpma_peer_cfg_from_descriptor(descriptor, 1, &pc));
	descriptor[0] = 2;
	OUT(f, "a byte that is neither 0 nor 1", pc, rpma_peer_cfg_from_descriptor(descriptor, 1, &pc));
}

static void peers(void)
{
	const char *f = "rpma_peer_new";

	OUT(f, "ibv_ctx is NULL", p, rpma_peer_new(NULL, &p));
	CASE(f, "peer_ptr is NULL", rpma_peer_new(context, NULL));
	ALONE_OUT(f, "out of memory", starving = 1, p, rpma_peer_new(context, &p));
	must(rpma_peer_new(context, &peer));
	f = "rpma_peer_delete";
	ALONE(f, "peer_ptr is NULL", , rpma_peer_delete(NULL));
	p = NULL;
	CASE(f, "*peer_ptr is NULL", rpma_peer_delete(&p));
	if (mine(f, "the protection domain has a memory region", 1)) {
		int ret;

		must(rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_SEND, &m));
		ret = rpma_peer_delete(&peer);
		say(f, "the protection domain has a memory region", ret, peer ? ", *peer_ptr left" : ", *peer_ptr NULL");
	}
}

static void memory(void)
{
	const char *f = "rpma_mr_reg";
	char *read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *unmapped = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *at;

	OUT(f, "peer is NULL", m, rpma_mr_reg(NULL, buffer, PAGE, RPMA_MR_USAGE_SEND, &m));
	OUT(f, "ptr is NULL", m, rpma_mr_reg(peer, NULL, PAGE, RPMA_MR_USAGE_SEND, &m));
	CASE(f, "mr_ptr is NULL", rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_SEND, NULL));
	OUT(f, "size is 0", m, rpma_mr_reg(peer, buffer, 0, RPMA_MR_USAGE_SEND, &m));
	ALONE_OUT(f, "out of memory", starving = 1, m, rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_SEND, &m));
	munmap(unmapped, PAGE);
	OUT(f, "memory that is not mapped", m, rpma_mr_reg(peer, unmapped, PAGE, RPMA_MR_USAGE_RECV, &m));
	OUT(f, "memory that is only for reading, to receive", m, rpma_mr_reg(peer, read_only, PAGE, RPMA_MR_USAGE_RECV, &m));
	OUT(f, "memory that is only for reading, to send", m, rpma_mr_reg(peer, read_only, PAGE, RPMA_MR_USAGE_SEND, &m));
	OUT(f, "usage is 0", m, rpma_mr_reg(peer, buffer, PAGE, 0, &m));
	OUT(f, "usage is a bit that nobody knows", m, rpma_mr_reg(peer, buffer, PAGE, 1 << 20, &m));
	OUT(f, "usage is persistent flush alone, anonymous memory", m, rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &m));
	must(rpma_mr_reg(peer, buffer, sizeof(buffer), 0xff, &mr));
	CASE("rpma_mr_dereg", "mr_ptr is NULL", rpma_mr_dereg(NULL));
	m = NULL;
	CASE("rpma_mr_dereg", "*mr_ptr is NULL", rpma_mr_dereg(&m));
	OUT("rpma_mr_get_descriptor", "mr is NULL", descriptor, rpma_mr_get_descriptor(NULL, descriptor));
	CASE("rpma_mr_get_descriptor", "desc is NULL", rpma_mr_get_descriptor(mr, NULL));
	OUT("rpma_mr_get_descriptor_size", "mr is NULL", size, rpma_mr_get_descriptor_size(NULL, &size));
	CASE("rpma_mr_get_descriptor_size", "desc_size is NULL", rpma_mr_get_descriptor_size(mr, NULL));
	OUT("rpma_mr_get_ptr", "mr is NULL", at, rpma_mr_get_ptr(NULL, &at));
	CASE("rpma_mr_get_ptr", "ptr is NULL", rpma_mr_get_ptr(mr, NULL));
	OUT("rpma_mr_get_size", "mr is NULL", size, rpma_mr_get_size(NULL, &size));
	CASE("rpma_mr_get_size", "size is NULL", rpma_mr_get_size(mr, NULL));

	must(rpma_mr_get_descriptor_size(mr, &size));
	must(rpma_mr_get_descriptor(mr, descriptor));
	f = "rpma_mr_remote_from_descriptor";
	OUT(f, "desc is NULL", rm, rpma_mr_remote_from_descriptor(NULL, size, &rm));
	CASE(f, "mr_ptr is NULL", rpma_mr_remote_from_descriptor(descriptor, size, NULL));
	OUT(f, "desc_size is one too small", rm, rpma_mr_remote_from_descriptor(descriptor, size - 1, &rm));
	OUT(f, "desc_size is one too large", rm, rpma_mr_remote_from_descriptor(descriptor, size + 1, &rm));
	OUT(f, "desc_size is 0", rm, rpma_mr_remote_from_descriptor(descriptor, 0, &rm));
	OUT(f, "desc_size is 56, as private data", rm, rpma_mr_remote_from_descriptor(descriptor, 56, &rm));
	memset(text, 0, sizeof(text));
	OUT(f, "all bytes are zero", rm, rpma_mr_remote_from_descriptor(text, size, &rm));
	memset(text, 0xff, sizeof(text));
	OUT(f, "all bytes are ff", rm, rpma_mr_remote_from_descriptor(text, size, &rm));
	memcpy(text, descriptor, size);
	text[size - 1] = 0;
	OUT(f, "no usage", rm, rpma_mr_remote_from_descriptor(text, size, &rm));
	ALONE_OUT(f, "out of memory", starving = 1, rm, rpma_mr_remote_from_descriptor(descriptor, size, &rm));
	must(rpma_mr_remote_from_descriptor(descriptor, size, &remote));
	OUT("rpma_mr_remote_get_size", "mr is NULL", size, rpma_mr_remote_get_size(NULL, &size));
	CASE("rpma_mr_remote_get_size", "size is NULL", rpma_mr_remote_get_size(remote, NULL));
	OUT("rpma_mr_remote_get_flush_type", "mr is NULL", i, rpma_mr_remote_get_flush_type(NULL, &i));
	CASE("rpma_mr_remote_get_flush_type", "flush_type is NULL", rpma_mr_remote_get_flush_type(remote, NULL));
	CASE("rpma_mr_remote_delete", "mr_ptr is NULL", rpma_mr_remote_delete(NULL));
	rm = NULL;
	CASE("rpma_mr_remote_delete", "*mr_ptr is NULL", rpma_mr_remote_delete(&rm));

	f = "rpma_mr_advise";
	ALONE(f, "mr is NULL", , rpma_mr_advise(NULL, 0, PAGE, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	CASE(f, "prefetch", rpma_mr_advise(mr, 0, PAGE, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	CASE(f, "the range is out of bounds", rpma_mr_advise(mr, 0, 5 * PAGE, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	CASE(f, "the usage does not allow the advice", rpma_mr_advise(mr, 0, PAGE, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH));
	CASE(f, "the flags are invalid", rpma_mr_advise(mr, 0, PAGE, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 30));
	CASE(f, "an advice that nobody knows", rpma_mr_advise(mr, 0, PAGE, 1000, 0));
}

#define GET(f, var) OUT(#f, "cfg is NULL", var, f(NULL, &var)); CASE(#f, "the out parameter is NULL", f(cfg, NULL))
#define SRQ_GET(f, var) OUT(#f, "cfg is NULL", var, f(NULL, &var)); CASE(#f, "the out parameter is NULL", f(scfg, NULL))

static void connection_configuration(void)
{
	CASE("rpma_conn_cfg_new", "cfg_ptr is NULL", rpma_conn_cfg_new(NULL));
	ALONE_OUT("rpma_conn_cfg_new", "out of memory", starving = 1, c, rpma_conn_cfg_new(&c));
	must(rpma_conn_cfg_new(&cfg));
	CASE("rpma_conn_cfg_delete", "cfg_ptr is NULL", rpma_conn_cfg_delete(NULL));
	c = NULL;
	CASE("rpma_conn_cfg_delete", "*cfg_ptr is NULL", rpma_conn_cfg_delete(&c));
	CASE("rpma_conn_cfg_set_timeout", "cfg is NULL", rpma_conn_cfg_set_timeout(NULL, 1));
	CASE("rpma_conn_cfg_set_timeout", "timeout_ms is -1", rpma_conn_cfg_set_timeout(cfg, -1));
	CASE("rpma_conn_cfg_set_timeout", "timeout_ms is 0", rpma_conn_cfg_set_timeout(cfg, 0));
	must(rpma_conn_cfg_set_timeout(cfg, 1000));
	GET(rpma_conn_cfg_get_timeout, i);
	CASE("rpma_conn_cfg_set_cq_size", "cfg is NULL", rpma_conn_cfg_set_cq_size(NULL, 1));
	GET(rpma_conn_cfg_get_cq_size, u32);
	CASE("rpma_conn_cfg_set_rcq_size", "cfg is NULL", rpma_conn_cfg_set_rcq_size(NULL, 1));
	GET(rpma_conn_cfg_get_rcq_size, u32);
	CASE("rpma_conn_cfg_set_sq_size", "cfg is NULL", rpma_conn_cfg_set_sq_size(NULL, 1));
	GET(rpma_conn_cfg_get_sq_size, u32);
	CASE("rpma_conn_cfg_set_rq_size", "cfg is NULL", rpma_conn_cfg_set_rq_size(NULL, 1));
	GET(rpma_conn_cfg_get_rq_size, u32);
	CASE("rpma_conn_cfg_set_compl_channel", "cfg is NULL", rpma_conn_cfg_set_compl_channel(NULL, true));
	GET(rpma_conn_cfg_get_compl_channel, flag);
	CASE("rpma_conn_cfg_set_srq", "cfg is NULL", rpma_conn_cfg_set_srq(NULL, NULL));
	CASE("rpma_conn_cfg_set_srq", "srq is NULL", rpma_conn_cfg_set_srq(cfg, NULL));
	GET(rpma_conn_cfg_get_srq, s);
	/* Sizes are taken as they are; what uses them may fail. */
	CASE("rpma_conn_cfg_set_cq_size", "cq_size is 0", rpma_conn_cfg_set_cq_size(cfg, 0));
	CASE("rpma_conn_cfg_set_cq_size", "cq_size is 4294967295", rpma_conn_cfg_set_cq_size(cfg, UINT32_MAX));
	must(rpma_conn_cfg_set_cq_size(cfg, 10));
	must(rpma_conn_cfg_new(&shared_cfg));
	must(rpma_conn_cfg_set_compl_channel(shared_cfg, true));
	must(rpma_conn_cfg_set_rcq_size(shared_cfg, 10));
}

static void shared_receive_queues(void)
{
	const char *f = "rpma_srq_cfg_new";
	struct rpma_srq_cfg *large;

	CASE(f, "cfg_ptr is NULL", rpma_srq_cfg_new(NULL));
	ALONE_OUT(f, "out of memory", starving = 1, sc, rpma_srq_cfg_new(&sc));
	must(rpma_srq_cfg_new(&scfg));
	CASE("rpma_srq_cfg_delete", "cfg_ptr is NULL", rpma_srq_cfg_delete(NULL));
	sc = NULL;
	CASE("rpma_srq_cfg_delete", "*cfg_ptr is NULL", rpma_srq_cfg_delete(&sc));
	CASE("rpma_srq_cfg_set_rq_size", "cfg is NULL", rpma_srq_cfg_set_rq_size(NULL, 1));
	SRQ_GET(rpma_srq_cfg_get_rq_size, u32);
	CASE("rpma_srq_cfg_set_rcq_size", "cfg is NULL", rpma_srq_cfg_set_rcq_size(NULL, 1));
	SRQ_GET(rpma_srq_cfg_get_rcq_size, u32);
	f = "rpma_srq_new";
	OUT(f, "peer is NULL", s, rpma_srq_new(NULL, scfg, &s));
	CASE(f, "srq_ptr is NULL", rpma_srq_new(peer, scfg, NULL));
	ALONE_OUT(f, "out of memory", starving = 1, s, rpma_srq_new(peer, scfg, &s));
	must(rpma_srq_cfg_new(&large));
	must(rpma_srq_cfg_set_rq_size(large, INT32_MAX));
	OUT(f, "ibv_create_srq fails, rq_size is 2147483647", s, rpma_srq_new(peer, large, &s));
	must(rpma_srq_cfg_set_rq_size(large, 0));
	OUT(f, "rq_size is 0", s, rpma_srq_new(peer, large, &s));
	must(rpma_srq_cfg_set_rq_size(large, 10));
	must(rpma_srq_cfg_set_rcq_size(large, INT32_MAX));
	OUT(f, "ibv_create_cq fails, rcq_size is 2147483647", s, rpma_srq_new(peer, large, &s));
	ALONE_OUT(f, "ibv_create_comp_channel fails, no descriptor", no_descriptors(), s, rpma_srq_new(peer, scfg, &s));
	OUT(f, "cfg is NULL", s, rpma_srq_new(peer, NULL, &s));
	must(rpma_srq_cfg_set_rcq_size(large, 0));
	must(rpma_srq_new(peer, large, &s));
	OUT("rpma_srq_get_rcq", "rcq_size was 0", q, rpma_srq_get_rcq(s, &q));
	must(rpma_srq_delete(&s));
	must(rpma_srq_cfg_set_rq_size(large, 2));
	must(rpma_srq_new(peer, large, &srq));
	OUT("rpma_srq_get_rcq", "srq is NULL", q, rpma_srq_get_rcq(NULL, &q));
	CASE("rpma_srq_get_rcq", "rcq_ptr is NULL", rpma_srq_get_rcq(srq, NULL));
	CASE("rpma_srq_delete", "srq_ptr is NULL", rpma_srq_delete(NULL));
	s = NULL;
	CASE("rpma_srq_delete", "*srq_ptr is NULL", rpma_srq_delete(&s));
	f = "rpma_srq_recv";
	CASE(f, "srq is NULL", rpma_srq_recv(NULL, mr, 0, 64, buffer));
	CASE(f, "dst is NULL, offset is 1", rpma_srq_recv(srq, NULL, 1, 0, buffer));
	CASE(f, "dst is NULL, len is 1", rpma_srq_recv(srq, NULL, 0, 1, buffer));
	CASE(f, "dst is NULL, nothing", rpma_srq_recv(srq, NULL, 0, 0, buffer));
	CASE(f, "op_context is NULL", rpma_srq_recv(srq, mr, 0, 64, NULL));
	if (mine(f, "the queue is full", 1)) {
		int ret, n = 0;

		while ((ret = rpma_srq_recv(srq, mr, 0, 64, buffer)) == 0 && n < 1000000)
			n++;
		say(f, "the queue is full", ret, "");
	}
}

#include "connections.h"
#include "operations.h"

static void logging(void)
{
	enum rpma_log_level level;

	CASE("rpma_log_set_threshold", "threshold is 2", rpma_log_set_threshold(2, RPMA_LOG_LEVEL_ERROR));
	CASE("rpma_log_set_threshold", "threshold is -1", rpma_log_set_threshold(-1, RPMA_LOG_LEVEL_ERROR));
	CASE("rpma_log_set_threshold", "level is -2", rpma_log_set_threshold(RPMA_LOG_THRESHOLD, -2));
	CASE("rpma_log_set_threshold", "level is 6", rpma_log_set_threshold(RPMA_LOG_THRESHOLD, 6));
	OUT("rpma_log_get_threshold", "threshold is 2", level, rpma_log_get_threshold(2, &level));
	OUT("rpma_log_get_threshold", "threshold is -1", level, rpma_log_get_threshold(-1, &level));
	CASE("rpma_log_get_threshold", "level is NULL", rpma_log_get_threshold(RPMA_LOG_THRESHOLD, NULL));
	CASE("rpma_log_set_function", "the default", rpma_log_set_function(RPMA_LOG_USE_DEFAULT_FUNCTION));
}

/* Rows of the pages that need a provider that fails on purpose, or a race. */
static void not_provoked(void)
{
	static const char *const rows[] = {
		"rpma_utils_ibv_context_is_odp_capable: RPMA_E_PROVIDER", "rpma_peer_new: RPMA_E_PROVIDER", "rpma_peer_new: RPMA_E_UNKNOWN",
		"rpma_mr_dereg: RPMA_E_PROVIDER", "rpma_mr_advise: RPMA_E_PROVIDER", "rpma_ep_shutdown: RPMA_E_PROVIDER",
		"rpma_ep_next_conn_req: RPMA_E_INVAL of another event", "rpma_conn_req_delete: RPMA_E_PROVIDER", "rpma_conn_next_event: RPMA_E_UNKNOWN",
		"rpma_conn_delete: RPMA_E_PROVIDER and RPMA_E_INVAL of munmap", "rpma_conn_wait: RPMA_E_UNKNOWN and RPMA_E_PROVIDER",
		"rpma_cq_wait: RPMA_E_PROVIDER", "rpma_cq_get_wc: RPMA_E_PROVIDER and RPMA_E_UNKNOWN", "rpma_log_set_threshold: RPMA_E_AGAIN",
		"rpma_log_set_function: RPMA_E_AGAIN",
	};

	for (size_t n = 0; !only && n < sizeof(rows) / sizeof(*rows); n++)
		printf("%s: not provoked\n", rows[n]);
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4) {
		fprintf(stderr, "errors ADDRESS PORT [NUMBER]\n");
		return 2;
	}
	self = "/proc/self/exe", address = argv[1], port_text = argv[2];
	only = argc == 4 ? atoi(argv[3]) : 0;
	alarm(only ? 20 : 300);
	/* A case of its own has a port of its own: the first process listens. */
	snprintf(port, sizeof(port), "%d", atoi(port_text) + only);
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED));
	find_library();
	utils();
	peer_configuration();
	peers();
	memory();
	connection_configuration();
	shared_receive_queues();
	endpoints();
	requests();
	connections();
	operations();
	logging();
	not_provoked();
	return only ? 3 : 0;
}
