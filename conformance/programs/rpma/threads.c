/* What upstream's THREAD_SAFETY.md calls thread safe, from eight threads at once: each on a connection of its own, then all on one; in between
 * regions, configurations, descriptors and the log. The server has a thread a connection. What may not be called so (requests, regions, listening) is
 * called under a lock. */
#include "scenario.h"
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 8
#define ROUNDS 100
#define SLICE PAGE	/* of the server's memory, a thread */

static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t together;
static struct end all;	/* the peer, and the memory of this side: a slice a thread, then one more a thread */

struct job {
	pthread_t thread;
	int number, failed;
	const char *address, *port;
	struct rpma_conn_req *request;
	struct rpma_conn *conn;
	struct rpma_mr_remote *remote;
	atomic_int done;	/* of the requests on the connection that all use */
};

static struct job jobs[THREADS];
static struct rpma_conn *shared;
static struct rpma_cq *shared_cq;

static void note(const enum rpma_log_level level, const char *file, const int line, const char *function, const char *format, ...)
{
	(void)level, (void)file, (void)line, (void)function, (void)format;
}

/* Objects that are nobody else's, and questions. */
static int harmless(struct job *j, const struct rpma_conn *conn)
{
	struct rpma_peer_cfg *cfg, *copy;
	struct rpma_conn_cfg *conn_cfg;
	struct rpma_conn_private_data data;
	struct rpma_mr_remote *remote;
	struct rpma_peer *peer;
	struct rpma_cq *cq;
	enum rpma_log_level level;
	unsigned char bytes[64];
	uint32_t number;
	size_t size;
	void *at;
	bool direct;
	int fd;

	return rpma_peer_cfg_new(&cfg) || rpma_peer_cfg_set_direct_write_to_pmem(cfg, j->number & 1) ||
	       rpma_peer_cfg_get_descriptor_size(cfg, &size) || size > sizeof(bytes) || rpma_peer_cfg_get_descriptor(cfg, bytes) ||
	       rpma_peer_cfg_from_descriptor(bytes, size, &copy) || rpma_peer_cfg_get_direct_write_to_pmem(copy, &direct) ||
	       direct != (j->number & 1) || rpma_peer_cfg_delete(&copy) || rpma_peer_cfg_delete(&cfg) ||
	       rpma_conn_cfg_new(&conn_cfg) || rpma_conn_cfg_set_cq_size(conn_cfg, j->number) ||
	       rpma_conn_cfg_get_cq_size(conn_cfg, &number) || number != (uint32_t)j->number || rpma_conn_cfg_delete(&conn_cfg) ||
	       rpma_mr_get_descriptor_size(all.mr, &size) || rpma_mr_get_descriptor(all.mr, bytes) ||
	       rpma_mr_remote_from_descriptor(bytes, size, &remote) || rpma_mr_remote_get_size(remote, &size) || size != REGION ||
	       rpma_mr_remote_delete(&remote) || rpma_mr_get_ptr(all.mr, &at) || at != all.memory ||
	       rpma_mr_get_size(all.mr, &size) || rpma_conn_get_private_data(conn, &data) || !data.ptr ||
	       rpma_conn_get_qp_num(conn, &number) || rpma_conn_get_cq(conn, &cq) || rpma_cq_get_fd(cq, &fd) ||
	       rpma_conn_get_event_fd(conn, &fd) || rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING) ||
	       rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level) || rpma_log_set_function(note) || !*rpma_err_2str(-1) ||
	       rpma_cq_get_fd(NULL, &fd) != RPMA_E_INVAL || rpma_peer_new(NULL, &peer) != RPMA_E_INVAL;
}

/* Waits for one completion of a queue that is this thread's. */
static int complete(struct rpma_cq *cq, const void *context)
{
	struct ibv_wc wc;
	int ret;

	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		if (rpma_cq_wait(cq))
			return 1;
	return ret || wc.status != IBV_WC_SUCCESS || wc.wr_id != (uintptr_t)context;
}

static int alone(struct job *j)
{
	size_t out = j->number * SLICE, word = out + SLICE - 8, in = (j->number + THREADS) * 256 + THREADS * SLICE;
	unsigned char *from = all.memory + out, *to = all.memory + in;
	struct rpma_cq *cq;

	if (rpma_conn_get_cq(j->conn, &cq))
		return 1;
	for (int round = 0; round < ROUNDS; round++) {
		fill(from, round * 7 + j->number, 256);
		if (rpma_write(j->conn, j->remote, out, all.mr, out, 256, RPMA_F_COMPLETION_ON_ERROR, NULL) ||
		    rpma_flush(j->conn, j->remote, out, 256, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, from) || complete(cq, from) ||
		    rpma_atomic_write(j->conn, j->remote, word, (char *)from, ALWAYS, to) || complete(cq, to) ||
		    rpma_read(j->conn, all.mr, in, j->remote, out, 256, ALWAYS, to) || complete(cq, to) ||
		    memcmp(from, to, 256) || harmless(j, j->conn))
			return 1;
	}
	return 0;
}

/* All threads post to one connection and poll its queue; whoever finds a completion tells the one whose it is. */
static int with_others(struct job *j)
{
	size_t out = j->number * SLICE;

	for (int round = 0; round < ROUNDS; round++) {
		int ret = round % 2 ? rpma_write(shared, jobs[0].remote, out, all.mr, out, 64, ALWAYS, &j->done)
				    : rpma_flush(shared, jobs[0].remote, out, 64, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, &j->done);
		struct ibv_wc wc[4];
		int got;

		if (ret)
			return 1;
		while (atomic_load(&j->done) <= round) {
			if ((ret = rpma_cq_get_wc(shared_cq, 4, wc, &got)) == RPMA_E_NO_COMPLETION) {
				sched_yield();
				continue;
			}
			for (int i = 0; !ret && i < got; i++) {
				if (wc[i].status != IBV_WC_SUCCESS)
					return 1;
				atomic_fetch_add((atomic_int *)(uintptr_t)wc[i].wr_id, 1);
			}
			if (ret)
				return 1;
		}
	}
	return 0;
}

static void *client(void *argument)
{
	struct job *j = argument;
	struct rpma_conn_private_data theirs;
	struct rpma_conn_cfg *cfg;
	enum rpma_conn_event event;

	pthread_mutex_lock(&one);
	j->failed = rpma_conn_cfg_new(&cfg) || rpma_conn_cfg_set_sq_size(cfg, 64) || rpma_conn_cfg_set_cq_size(cfg, 64) ||
		    rpma_conn_req_new(all.peer, j->address, j->port, cfg, &j->request) || rpma_conn_cfg_delete(&cfg);
	pthread_mutex_unlock(&one);
	j->failed = j->failed || rpma_conn_req_connect(&j->request, NULL, &j->conn) || rpma_conn_next_event(j->conn, &event) ||
		    event != RPMA_CONN_ESTABLISHED || rpma_conn_get_private_data(j->conn, &theirs) ||
		    rpma_mr_remote_from_descriptor(theirs.ptr, theirs.len, &j->remote) || alone(j);
	pthread_barrier_wait(&together);
	if (j->number == 0 && !j->failed) {
		shared = j->conn;
		j->failed = rpma_conn_get_cq(shared, &shared_cq);
	}
	pthread_barrier_wait(&together);
	j->failed = j->failed || !shared || with_others(j);
	pthread_barrier_wait(&together);
	j->failed = j->failed || rpma_conn_disconnect(j->conn) || rpma_conn_next_event(j->conn, &event) || event != RPMA_CONN_CLOSED ||
		    rpma_conn_delete(&j->conn) || rpma_mr_remote_delete(&j->remote);
	return NULL;
}

static void *server(void *argument)
{
	struct job *j = argument;
	enum rpma_conn_event event;

	j->failed = rpma_conn_next_event(j->conn, &event) || event != RPMA_CONN_CLOSED || rpma_conn_disconnect(j->conn) ||
		    rpma_conn_delete(&j->conn);
	return NULL;
}

static void joined(const char *what)
{
	int failed = 0;

	for (int i = 0; i < THREADS; i++) {
		pthread_join(jobs[i].thread, NULL);
		failed += jobs[i].failed;
	}
	check(failed == 0, what);
}

static void serve(const char *address, const char *port)
{
	struct rpma_conn_private_data data;
	struct rpma_conn_req *request;
	struct rpma_ep *ep;

	prepare(&all, address, LOCAL, EVERYTHING);
	data = describe(&all);
	must(rpma_ep_listen(all.peer, address, port, &ep));
	for (int i = 0; i < THREADS; i++) {
		must(rpma_ep_next_conn_req(ep, NULL, &request));
		must(rpma_conn_req_connect(&request, &data, &jobs[i].conn));
		event_is(jobs[i].conn, RPMA_CONN_ESTABLISHED, "established");
		must(pthread_create(&jobs[i].thread, NULL, server, &jobs[i]));
	}
	joined("each connection ended");
	must(rpma_ep_shutdown(&ep));
	release(&all);
}

static void ask(const char *address, const char *port)
{
	prepare(&all, address, REMOTE, EVERYTHING);
	must(pthread_barrier_init(&together, NULL, THREADS));
	for (int i = 0; i < THREADS; i++) {
		jobs[i].number = i, jobs[i].address = address, jobs[i].port = port;
		must(pthread_create(&jobs[i].thread, NULL, client, &jobs[i]));
	}
	joined("eight threads, each on its connection, then all on one");
	check(atomic_load(&jobs[0].done) == ROUNDS, "every completion came to whom it was for");
	release(&all);
}
