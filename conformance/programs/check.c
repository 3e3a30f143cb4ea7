/*
 * check BUG [mended]
 *
 * Two queue pairs of one process, connected to each other. The program makes one mistake with them, which
 * `verbena run --check` is to find, or does the same thing right. It ends with 0 in either case.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checked.h"
#include "finding.h"

static struct ibv_pd *other_pd;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static struct ibv_mr *other_mr;
static char *other;

static struct ibv_qp *queue_pair(struct ibv_cq *queue)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 1, .max_inline_data = 8 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	MUST(qp);
	return qp;
}

/* The PSN of the first request to every queue pair but that of the mistake "ends". */
static uint32_t first_psn;

/* READs that a queue pair may have under way, and those that it serves at a time. */
static int reads_sent = 1, reads_served = 1;

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.rq_psn = first_psn;
	attr.max_dest_rd_atomic = reads_served;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 1;
	attr.ah_attr.grh.sgid_index = 0;
	MUST(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 10;
	attr.retry_cnt = 1;
	attr.rnr_retry = 1;
	attr.max_rd_atomic = reads_sent;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_all(void)
{
	open_device();
	open_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	MUST(other_pd = ibv_alloc_pd(context));
	MUST(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
	a = queue_pair(cq);
	b = queue_pair(cq);
	connect_to(a, b);
	connect_to(b, a);
	MUST(other = aligned_alloc(SIZE, SIZE));
	memset(other, 2, SIZE);
	MUST(other_mr = ibv_reg_mr(other_pd, other, SIZE, 0));
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, int flags, void *at, int len, uint32_t lkey)
{
	static uint64_t posted;
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = len, .lkey = lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = ++posted, .opcode = opcode, .send_flags = flags, .sg_list = &sge, .num_sge = 1 };

	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}

static void receive(struct ibv_qp *qp, void *at, int len, uint32_t lkey)
{
	static uint64_t posted = 100;
	struct ibv_sge sge = { .addr = (uintptr_t)at, .length = len, .lkey = lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = ++posted, .sg_list = &sge, .num_sge = 1 };

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

/* Takes so many completions; returns the last status. */
static enum ibv_wc_status take(int count)
{
	struct ibv_wc wc = { 0 };

	while (count > 0) {
		int n = ibv_poll_cq(cq, 1, &wc);

		MUST(n >= 0);
		count -= n;
	}
	return wc.status;
}

/* A queue pair whose completions raise events, connected to another one. */
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq_of_events;
static struct ibv_qp *raises, *peer_of_it;

static void open_channel(void)
{
	MUST(channel = ibv_create_comp_channel(context));
	MUST(cq_of_events = ibv_create_cq(context, DEPTH, NULL, channel, 0));
	raises = queue_pair(cq_of_events);
	peer_of_it = queue_pair(cq);
	connect_to(raises, peer_of_it);
	connect_to(peer_of_it, raises);
	receive(raises, buffer, 64, mr->lkey);
}

static void get_event(void)
{
	struct ibv_cq *told;
	void *of_it;

	MUST(!ibv_get_cq_event(channel, &told, &of_it));
	MUST(told == cq_of_events);
}

static void *acknowledge_later(void *nothing)
{
	await_finding();
	ibv_ack_cq_events(cq_of_events, 1);
	return nothing;
}

static void events(int is_lost, int is_unacknowledged)
{
	struct ibv_wc wc;
	pthread_t thread;

	open_channel();
	MUST(ibv_poll_cq(cq_of_events, 1, &wc) == 0);
	MUST(!ibv_req_notify_cq(cq_of_events, 0));
	if (!is_lost)
		MUST(ibv_poll_cq(cq_of_events, 1, &wc) == 0);
	MUST(!post(peer_of_it, IBV_WR_SEND, IBV_SEND_SIGNALED, buffer + 64, 64, mr->lkey));
	get_event();
	if (is_unacknowledged)
		MUST(!pthread_create(&thread, NULL, acknowledge_later, NULL));
	else
		ibv_ack_cq_events(cq_of_events, 1);
	take(1);
	while (ibv_poll_cq(cq_of_events, 1, &wc) == 0)
		;
	MUST(!ibv_destroy_qp(raises));
	MUST(!ibv_destroy_qp(peer_of_it));
	MUST(!ibv_destroy_cq(cq_of_events));
	if (is_unacknowledged)
		MUST(!pthread_join(thread, NULL));
	MUST(!ibv_destroy_comp_channel(channel));
}

/* A WRITE built, and its completion taken, step by step. */
static void by_steps(int is_early)
{
	struct ibv_cq_init_attr_ex of_queue = { .cqe = DEPTH };
	struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &of_queue);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(queue), .recv_cq = ibv_cq_ex_to_cq(queue), .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init), *peer = queue_pair(cq);
	struct ibv_qp_ex *built = ibv_qp_to_qp_ex(qp);
	struct ibv_poll_cq_attr none = { 0 };

	connect_to(qp, peer);
	connect_to(peer, qp);
	ibv_wr_start(built);
	built->wr_id = 1;
	built->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(built, mr->rkey, (uintptr_t)buffer + 2048);
	ibv_wr_set_sge(built, mr->lkey, (uintptr_t)buffer, 64);
	MUST(!ibv_wr_complete(built));
	if (is_early)
		buffer[3] = 7;
	while (ibv_start_poll(queue, &none))
		;
	MUST(queue->status == IBV_WC_SUCCESS);
	ibv_end_poll(queue);
	MUST(!ibv_destroy_qp(qp));
	MUST(!ibv_destroy_qp(peer));
	MUST(!ibv_destroy_cq(ibv_cq_ex_to_cq(queue)));
}

int main(int argc, char **argv)
{
	int mended = argc == 3 && !strcmp(argv[2], "mended");
	const char *bug = argc > 1 ? argv[1] : "";
	int write = IBV_WR_RDMA_WRITE, send = IBV_WR_SEND, signaled = IBV_SEND_SIGNALED;

	setbuf(stdout, NULL);
	open_all();
	if (!strcmp(bug, "send-buffer-changed")) {
		MUST(!post(a, write, signaled, buffer, 64, mr->lkey));
		if (mended)
			take(1);
		buffer[3] = 7;
		if (!mended)
			take(1);
	} else if (!strcmp(bug, "overlapping-receives")) {
		receive(b, buffer, 64, mr->lkey);
		receive(b, buffer + (mended ? 64 : 32), 64, mr->lkey);
	} else if (!strcmp(bug, "receive-over-send")) {
		receive(b, buffer + (mended ? 64 : 0), 64, mr->lkey);
		MUST(!post(a, send, signaled, buffer, 64, mr->lkey));
		take(2);
	} else if (!strcmp(bug, "unknown-key")) {
		MUST(!post(a, write, signaled, buffer, 64, mended ? mr->lkey : 0x12345678));
		take(1);
	} else if (!strcmp(bug, "outside-region")) {
		MUST(!post(a, write, signaled, buffer + SIZE - 64, mended ? 64 : 65, mr->lkey));
		take(1);
	} else if (!strcmp(bug, "wrong-domain")) {
		MUST(!post(a, write, signaled, mended ? buffer : other, 64, mended ? mr->lkey : other_mr->lkey));
		take(1);
	} else if (!strcmp(bug, "no-local-write")) {
		struct ibv_mr *read_only = ibv_reg_mr(pd, other, SIZE, mended ? IBV_ACCESS_LOCAL_WRITE : 0);

		receive(b, other, 64, read_only->lkey);
		MUST(!post(a, send, signaled, buffer, 64, mr->lkey));
		take(2);
		MUST(!ibv_dereg_mr(read_only));
	} else if (!strcmp(bug, "region-in-use")) {
		struct ibv_mr *short_lived = ibv_reg_mr(pd, other, SIZE, IBV_ACCESS_LOCAL_WRITE);

		receive(b, other, 64, short_lived->lkey);
		if (mended) {
			MUST(!post(a, send, signaled, buffer, 64, mr->lkey));
			take(2);
		}
		MUST(!ibv_dereg_mr(short_lived));
	} else if (!strcmp(bug, "queue-may-overrun")) {
		struct ibv_cq *shallow = ibv_create_cq(context, mended ? 8 : 4, NULL, NULL, 0);
		struct ibv_qp *qp = queue_pair(shallow);

		connect_to(qp, a);
		for (int i = 0; i < 8; i++)
			receive(qp, buffer + i * 64, 64, mr->lkey);
		MUST(!ibv_destroy_qp(qp));
		MUST(!ibv_destroy_cq(shallow));
	} else if (!strcmp(bug, "never-signaled")) {
		for (int i = 0; i <= DEPTH; i++) {
			int last = mended && i == DEPTH - 1;

			post(a, write, last ? signaled : 0, buffer, 64, mr->lkey);
			if (last)
				take(1);
		}
	} else if (!strcmp(bug, "more-requests-than-asked")) {
		for (int i = 0; i <= DEPTH; i++) {
			int refused;

			/* Once the adapter has done what was posted before, there is room, though no completion is taken. */
			do
				refused = post(a, write, signaled, buffer, 64, mr->lkey);
			while (refused == ENOMEM);
			MUST(!refused);
			if (mended || i == DEPTH)
				take(mended ? 1 : DEPTH + 1);
		}
	} else if (!strcmp(bug, "refused-request")) {
		struct ibv_qp *unconnected = queue_pair(cq);

		if (!post(mended ? a : unconnected, write, signaled, buffer, 64, mr->lkey))
			take(1);
		MUST(!ibv_destroy_qp(unconnected));
	} else if (!strcmp(bug, "ends")) {
		struct ibv_qp *one = queue_pair(cq), *two = queue_pair(cq);

		connect_to(one, two);
		first_psn = mended ? 0 : 100;
		connect_to(two, one);
		MUST(!post(one, write, signaled, buffer, 64, mr->lkey));
		take(1);
		MUST(!ibv_destroy_qp(one));
		MUST(!ibv_destroy_qp(two));
	} else if (!strcmp(bug, "more-reads-than-served")) {
		struct ibv_qp *one = queue_pair(cq), *two = queue_pair(cq);

		reads_sent = mended ? 1 : 4;
		connect_to(one, two);
		connect_to(two, one);
		for (int i = 0; i < 4; i++)
			MUST(!post(one, IBV_WR_RDMA_READ, signaled, buffer + i * 64, 64, mr->lkey));
		take(4);
		MUST(!ibv_destroy_qp(one));
		MUST(!ibv_destroy_qp(two));
	} else if (!strcmp(bug, "steps")) {
		by_steps(!mended);
	} else if (!strcmp(bug, "lost-event")) {
		events(!mended, 0);
	} else if (!strcmp(bug, "unacknowledged-event")) {
		events(0, !mended);
	} else if (!strcmp(bug, "use-after-destroy")) {
		struct ibv_qp *gone = queue_pair(cq);

		MUST(!ibv_destroy_qp(gone));
		if (!post(mended ? a : gone, write, signaled, buffer, 64, mr->lkey))
			take(1);
	} else if (!strcmp(bug, "fork-unprepared")) {
		pid_t child;

		if (mended)
			MUST(!ibv_fork_init());
		MUST((child = fork()) >= 0);
		if (child == 0)
			_exit(0);
		MUST(waitpid(child, NULL, 0) == child);
	} else if (!strcmp(bug, "more-inline-than-asked")) {
		MUST(!post(a, write, signaled | IBV_SEND_INLINE, buffer, mended ? 8 : 9, 0));
		take(1);
	} else if (!strcmp(bug, "remote-range")) {
		struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
		struct ibv_send_wr *bad, wr = { .opcode = write, .send_flags = signaled, .sg_list = &sge, .num_sge = 1 };

		wr.wr.rdma.remote_addr = (uintptr_t)buffer + SIZE - (mended ? 64 : 32);
		wr.wr.rdma.rkey = mr->rkey;
		MUST(!ibv_post_send(a, &wr, &bad));
		take(1);
	} else if (!strcmp(bug, "failed-request")) {
		receive(b, buffer + 64, mended ? 64 : 63, mr->lkey);
		MUST(!post(a, send, signaled, buffer, 64, mr->lkey));
		take(2);
	} else if (strcmp(bug, "leak")) {
		fprintf(stderr, "usage: check BUG [mended]\n");
		return 2;
	}
	if (!strcmp(bug, "leak") && !mended)
		return 0;
	MUST(!ibv_destroy_qp(a));
	MUST(!ibv_destroy_qp(b));
	MUST(!ibv_destroy_cq(cq));
	MUST(!ibv_dereg_mr(mr));
	MUST(!ibv_dereg_mr(other_mr));
	MUST(!ibv_dealloc_pd(pd));
	MUST(!ibv_dealloc_pd(other_pd));
	MUST(!ibv_close_device(context));
	puts("done");
	return 0;
}
