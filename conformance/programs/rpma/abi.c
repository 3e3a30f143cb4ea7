/* abi: the sizes, enum values and macros of librpma.h as a compiler sees them, and what the library says for each code and event, one line
 * each, after the path of the library. With the library's symbols (`nm -D`) this is golden/rpma-abi.txt. It needs no device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <librpma.h>
#include <stdio.h>

#define SIZE(t) printf("size %s %zu, alignment %zu\n", #t, sizeof(t), _Alignof(t))
#define FIELD(t, f) printf("field %s.%s at %zu, size %zu\n", #t, #f, __builtin_offsetof(t, f), sizeof(((t *)0)->f))
#define ENUM(e) printf("enum %s %d\n", #e, (int)(e))
#define MACRO(m) printf("macro %s %ld\n", #m, (long)(m))
#define CODE(c) printf("rpma_err_2str %s \"%s\"\n", #c, rpma_err_2str(c))
#define EVENT(e) printf("rpma_utils_conn_event_2str %s \"%s\"\n", #e, rpma_utils_conn_event_2str(e))

static void defaults(void)
{
	struct rpma_conn_cfg *c;
	struct rpma_srq_cfg *s;
	struct rpma_peer_cfg *p;
	struct rpma_srq *srq = (struct rpma_srq *)&c;
	enum rpma_log_level level;
	uint32_t size;
	int timeout;
	bool flag;

	if (rpma_conn_cfg_new(&c) || rpma_srq_cfg_new(&s) || rpma_peer_cfg_new(&p))
		return;
	rpma_conn_cfg_get_timeout(c, &timeout);
	printf("default conn timeout_ms %d\n", timeout);
#define DEFAULT(of, from, name) (rpma_##of##_cfg_get_##name(from, &size), printf("default %s %s %u\n", #of, #name, size))
	DEFAULT(conn, c, cq_size), DEFAULT(conn, c, rcq_size), DEFAULT(conn, c, sq_size), DEFAULT(conn, c, rq_size);
	rpma_conn_cfg_get_compl_channel(c, &flag);
	printf("default conn compl_channel %d\n", flag);
	rpma_conn_cfg_get_srq(c, &srq);
	printf("default conn srq %s\n", srq ? "set" : "NULL");
	DEFAULT(srq, s, rq_size), DEFAULT(srq, s, rcq_size);
	rpma_peer_cfg_get_direct_write_to_pmem(p, &flag);
	printf("default peer direct_write_to_pmem %d\n", flag);
	rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level);
	printf("default log threshold %d\n", level);
	rpma_log_get_threshold(RPMA_LOG_THRESHOLD_AUX, &level);
	printf("default log threshold of stderr %d\n", level);
	rpma_conn_cfg_delete(&c), rpma_srq_cfg_delete(&s), rpma_peer_cfg_delete(&p);
}

int main(void)
{
	Dl_info library;

	if (dladdr(dlsym(RTLD_DEFAULT, "rpma_err_2str"), &library))
		printf("library %s\n", library.dli_fname);
	SIZE(struct rpma_conn_private_data);
	FIELD(struct rpma_conn_private_data, ptr);
	FIELD(struct rpma_conn_private_data, len);
	SIZE(enum rpma_util_ibv_context_type), SIZE(enum rpma_conn_event), SIZE(enum rpma_flush_type);
	SIZE(enum rpma_log_level), SIZE(enum rpma_log_threshold), SIZE(rpma_log_function *);
	/* Those that cross the interface by pointer, of <infiniband/verbs.h>. */
	SIZE(struct ibv_wc);
	ENUM(RPMA_UTIL_IBV_CONTEXT_LOCAL), ENUM(RPMA_UTIL_IBV_CONTEXT_REMOTE);
	ENUM(RPMA_CONN_UNDEFINED), ENUM(RPMA_CONN_ESTABLISHED), ENUM(RPMA_CONN_CLOSED), ENUM(RPMA_CONN_LOST), ENUM(RPMA_CONN_REJECTED);
	ENUM(RPMA_CONN_UNREACHABLE);
	ENUM(RPMA_FLUSH_TYPE_PERSISTENT), ENUM(RPMA_FLUSH_TYPE_VISIBILITY);
	ENUM(RPMA_LOG_DISABLED), ENUM(RPMA_LOG_LEVEL_FATAL), ENUM(RPMA_LOG_LEVEL_ERROR), ENUM(RPMA_LOG_LEVEL_WARNING);
	ENUM(RPMA_LOG_LEVEL_NOTICE), ENUM(RPMA_LOG_LEVEL_INFO), ENUM(RPMA_LOG_LEVEL_DEBUG);
	ENUM(RPMA_LOG_THRESHOLD), ENUM(RPMA_LOG_THRESHOLD_AUX), ENUM(RPMA_LOG_THRESHOLD_MAX);
	MACRO(RPMA_W_WAIT_FOR_COMPLETION);
	MACRO(RPMA_E_UNKNOWN), MACRO(RPMA_E_NOSUPP), MACRO(RPMA_E_PROVIDER), MACRO(RPMA_E_NOMEM), MACRO(RPMA_E_INVAL);
	MACRO(RPMA_E_NO_COMPLETION), MACRO(RPMA_E_NO_EVENT), MACRO(RPMA_E_AGAIN), MACRO(RPMA_E_SHARED_CHANNEL), MACRO(RPMA_E_NOT_SHARED_CHNL);
	MACRO(RPMA_DEFAULT_TIMEOUT_MS);
	MACRO(RPMA_MR_USAGE_READ_SRC), MACRO(RPMA_MR_USAGE_READ_DST), MACRO(RPMA_MR_USAGE_WRITE_SRC), MACRO(RPMA_MR_USAGE_WRITE_DST);
	MACRO(RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY), MACRO(RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT), MACRO(RPMA_MR_USAGE_SEND), MACRO(RPMA_MR_USAGE_RECV);
	MACRO(RPMA_F_COMPLETION_ON_ERROR), MACRO(RPMA_F_COMPLETION_ALWAYS), MACRO(RPMA_ATOMIC_WRITE_ALIGNMENT), MACRO(RPMA_LOG_USE_DEFAULT_FUNCTION);
	CODE(0), CODE(RPMA_E_UNKNOWN), CODE(RPMA_E_NOSUPP), CODE(RPMA_E_PROVIDER), CODE(RPMA_E_NOMEM), CODE(RPMA_E_INVAL);
	CODE(RPMA_E_NO_COMPLETION), CODE(RPMA_E_NO_EVENT), CODE(RPMA_E_AGAIN), CODE(RPMA_E_SHARED_CHANNEL), CODE(RPMA_E_NOT_SHARED_CHNL);
	CODE(-1), CODE(1), CODE(-100010);
	EVENT(RPMA_CONN_UNDEFINED), EVENT(RPMA_CONN_ESTABLISHED), EVENT(RPMA_CONN_CLOSED), EVENT(RPMA_CONN_LOST), EVENT(RPMA_CONN_REJECTED);
	EVENT(RPMA_CONN_UNREACHABLE), EVENT(-2), EVENT(5);
	defaults();
	return 0;
}
