/*
 * checkold BUG [mended]
 *
 * Bugs that many programs have had. The program has one of them, of which `verbena run --check` is to show the cause, or
 * does the same thing right. It ends with 0 in either case.
 */
#include <pthread.h>
#include <arpa/inet.h>

#include "checked.h"
#include "finding.h"

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq, *told;
static union ibv_gid gid;
static int rnr_retry = 7, timeout = 10;

static void open_all(void)
{
	open_device();
	open_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	MUST(channel = ibv_create_comp_channel(context));
	MUST(cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0));
	MUST(told = ibv_create_cq(context, DEPTH, NULL, channel, 0));
	MUST(!ibv_query_gid(context, 1, 0, &gid));
}

static struct ibv_qp *queue_pair(enum ibv_qp_type type, struct ibv_cq *receives)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = receives, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp;

	MUST(qp = ibv_create_qp(pd, &init));
	return qp;
}

static void initialize(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };

	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)));
}

static int make_ready(struct ibv_qp *qp, uint32_t peer, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 1 } };

	attr.ah_attr.grh.dgid = gid;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

#define CONNECTED (IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)

static int make_send(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .timeout = timeout, .retry_cnt = 1, .rnr_retry = rnr_retry, .max_rd_atomic = 1 };
	int connected = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (qp->qp_type == IBV_QPT_UD ? 0 : connected));
}

static void connect_both(struct ibv_qp *one, struct ibv_qp *two)
{
	initialize(one);
	initialize(two);
	MUST(!make_ready(one, two->qp_num, CONNECTED) && !make_ready(two, one->qp_num, CONNECTED));
	MUST(!make_send(one) && !make_send(two));
}

static void receive(struct ibv_qp *qp, int at, int len)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + at, .length = len, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 100, .sg_list = &sge, .num_sge = 1 };

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *wr, int count)
{
	struct ibv_sge sges[] = {
		{ .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey },
		{ .addr = (uintptr_t)buffer + 8, .length = 8, .lkey = mr->lkey },
		{ .addr = (uintptr_t)buffer + 16, .length = 8, .lkey = mr->lkey },
	};
	struct ibv_send_wr *bad;

	wr->sg_list = sges;
	wr->num_sge = count;
	wr->send_flags |= IBV_SEND_SIGNALED;
	return ibv_post_send(qp, wr, &bad);
}

static void take(struct ibv_cq *from)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(from, 1, &wc)) == 0)
		;
	MUST(n == 1);
}

static void take_all(struct ibv_cq *from, int count)
{
	for (int i = 0; i < count; i++)
		take(from);
}

static void send_one(struct ibv_qp *qp)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };

	MUST(!post(qp, &wr, 1));
	take(cq);
}

static void take_event(void)
{
	struct ibv_cq *of;
	void *nothing;

	MUST(!ibv_get_cq_event(channel, &of, &nothing));
	ibv_ack_cq_events(of, 1);
	take(of);
}

/* Ends the wait of a program that would wait for ever. */
static void *rescue(void *qp)
{
	await_finding();
	MUST(!ibv_req_notify_cq(told, 0));
	send_one(qp);
	return NULL;
}

static void two_events(int is_armed_again)
{
	struct ibv_qp *one = queue_pair(IBV_QPT_RC, cq), *two = queue_pair(IBV_QPT_RC, told);
	pthread_t thread;

	connect_both(one, two);
	receive(two, 1024, 64);
	receive(two, 2048, 64);
	MUST(!ibv_req_notify_cq(told, 0));
	send_one(one);
	take_event();
	if (is_armed_again) {
		struct ibv_wc wc;

		MUST(!ibv_req_notify_cq(told, 0));
		MUST(ibv_poll_cq(told, 1, &wc) == 0);
		send_one(one);
	} else {
		MUST(!pthread_create(&thread, NULL, rescue, one));
	}
	take_event();
	if (!is_armed_again)
		MUST(!pthread_join(thread, NULL));
	MUST(!ibv_destroy_qp(one) && !ibv_destroy_qp(two));
}

static void *send_once_found(void *qp)
{
	await_finding();
	send_one(qp);
	return NULL;
}

/* Takes one of the completions that an event is for, or all, and waits for the next event. */
static void events_of_several(int are_all_taken)
{
	struct ibv_qp *one = queue_pair(IBV_QPT_RC, cq), *two = queue_pair(IBV_QPT_RC, told);
	struct ibv_cq *of;
	pthread_t thread;
	void *nothing;

	connect_both(one, two);
	for (int i = 0; i < 3; i++)
		receive(two, 1024 + 64 * i, 64);
	MUST(!ibv_req_notify_cq(told, 0));
	send_one(one);
	send_one(one);
	MUST(!ibv_get_cq_event(channel, &of, &nothing));
	ibv_ack_cq_events(of, 1);
	MUST(!ibv_req_notify_cq(told, 0));
	/* Both have come, as both sends have completed. */
	take_all(told, are_all_taken ? 2 : 1);
	if (are_all_taken) {
		struct ibv_wc wc;

		MUST(ibv_poll_cq(told, 1, &wc) == 0);
		send_one(one);
	} else {
		MUST(!pthread_create(&thread, NULL, send_once_found, one));
	}
	take_event();
	if (!are_all_taken) {
		MUST(!pthread_join(thread, NULL));
		take(told);
	}
	MUST(!ibv_destroy_qp(one) && !ibv_destroy_qp(two));
}

/* Waits for the completion of a WRITE, if that gives one. */
static void write_and_wait(struct ibv_qp *qp, int is_signaled)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc;
	int n = 0;

	wr.send_flags = is_signaled ? IBV_SEND_SIGNALED : 0;
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 1024;
	wr.wr.rdma.rkey = mr->rkey;
	MUST(!ibv_post_send(qp, &wr, &bad));
	for (int i = 0; n == 0 && (is_signaled || i < 2000000); i++)
		n = ibv_poll_cq(cq, 1, &wc);
	MUST(n == is_signaled);
}

/* Writes to an address that a peer has sent: each converts it, the one as 32 bits, and that is not enough. */
static void write_to_address(struct ibv_qp *qp, int is_whole)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE };
	uint64_t addr = (uintptr_t)buffer + 1024, sent = is_whole ? addr : htonl(addr);

	wr.wr.rdma.remote_addr = is_whole ? sent : ntohl(sent);
	wr.wr.rdma.rkey = mr->rkey;
	MUST(!post(qp, &wr, 1));
	take(cq);
}

/* A datagram by the address handle of another protection domain. */
static void datagram_by(int is_own)
{
	struct ibv_qp *one = queue_pair(IBV_QPT_UD, cq), *two = queue_pair(IBV_QPT_UD, told);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_pd *other;

	initialize(one);
	MUST(!make_ready(one, 0, 0) && !make_send(one));
	MUST(other = ibv_alloc_pd(context));
	MUST(wr.wr.ud.ah = ibv_create_ah(is_own ? pd : other, &attr));
	wr.wr.ud.remote_qpn = two->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	if (!post(one, &wr, 1))
		take(cq);
	MUST(!ibv_destroy_ah(wr.wr.ud.ah));
	MUST(!ibv_dealloc_pd(other));
	MUST(!ibv_destroy_qp(one) && !ibv_destroy_qp(two));
}

static void datagram(int room)
{
	struct ibv_qp *one = queue_pair(IBV_QPT_UD, cq), *two = queue_pair(IBV_QPT_UD, told);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };

	initialize(one);
	initialize(two);
	MUST(!make_ready(one, 0, 0) && !make_ready(two, 0, 0) && !make_send(one));
	receive(two, 1024, room);
	MUST(wr.wr.ud.ah = ibv_create_ah(pd, &attr));
	wr.wr.ud.remote_qpn = two->qp_num;
	wr.wr.ud.remote_qkey = 0x11111111;
	MUST(!post(one, &wr, 1));
	take(cq);
	/* What is too long for its receive is dropped in silence. */
	if (room >= 48)
		take(told);
	MUST(!ibv_destroy_ah(wr.wr.ud.ah));
	MUST(!ibv_destroy_qp(one) && !ibv_destroy_qp(two));
}

int main(int argc, char **argv)
{
	int mended = argc == 3 && !strcmp(argv[2], "mended");
	const char *bug = argc > 1 ? argv[1] : "";
	struct ibv_qp *one, *two;

	setbuf(stdout, NULL);
	open_all();
	one = queue_pair(IBV_QPT_RC, cq);
	two = queue_pair(IBV_QPT_RC, cq);
	if (!strcmp(bug, "not-armed-again")) {
		two_events(mended);
	} else if (!strcmp(bug, "no-room-for-the-header")) {
		datagram(mended ? 48 : 8);
	} else if (!strcmp(bug, "unaligned-atomic")) {
		struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };

		connect_both(one, two);
		wr.wr.atomic.remote_addr = (uintptr_t)buffer + 1024 + (mended ? 0 : 4);
		wr.wr.atomic.rkey = mr->rkey;
		if (!post(one, &wr, 1))
			take(cq);
	} else if (!strcmp(bug, "attribute-forgotten")) {
		initialize(one);
		make_ready(one, two->qp_num, CONNECTED & ~(mended ? 0 : IBV_QP_MIN_RNR_TIMER));
	} else if (!strcmp(bug, "attribute-out-of-range")) {
		initialize(one);
		MUST(!make_ready(one, two->qp_num, CONNECTED));
		timeout = mended ? 14 : 40;
		make_send(one);
	} else if (!strcmp(bug, "too-many-elements")) {
		struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE };

		connect_both(one, two);
		wr.wr.rdma.remote_addr = (uintptr_t)buffer + 1024;
		wr.wr.rdma.rkey = mr->rkey;
		if (!post(one, &wr, mended ? 2 : 3))
			take(cq);
	} else if (!strcmp(bug, "late-receive")) {
		rnr_retry = mended ? 7 : 0;
		connect_both(one, two);
		if (mended)
			receive(two, 1024, 64);
		send_one(one);
		if (mended)
			take(cq);
	} else if (!strcmp(bug, "not-polled-until-empty")) {
		events_of_several(mended);
	} else if (!strcmp(bug, "acknowledged-too-often")) {
		two_events(1);
		if (!mended)
			ibv_ack_cq_events(told, 1);
	} else if (!strcmp(bug, "waits-for-no-completion")) {
		connect_both(one, two);
		write_and_wait(one, mended);
	} else if (!strcmp(bug, "half-an-address")) {
		connect_both(one, two);
		write_to_address(one, mended);
	} else if (!strcmp(bug, "number-in-network-order")) {
		initialize(one);
		initialize(two);
		MUST(!make_ready(one, mended ? two->qp_num : htonl(two->qp_num), CONNECTED));
		MUST(!make_ready(two, one->qp_num, CONNECTED) && !make_send(one));
		write_and_wait(one, 1);
	} else if (!strcmp(bug, "foreign-address-handle")) {
		datagram_by(mended);
	} else if (!strcmp(bug, "queue-pair-too-large")) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = mended ? 16 : 1000000, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_qp *large = ibv_create_qp(pd, &init);

		MUST(!large == !mended);
		if (large)
			MUST(!ibv_destroy_qp(large));
	} else if (!strcmp(bug, "remote-write-alone")) {
		struct ibv_mr *written = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_REMOTE_WRITE | (mended ? IBV_ACCESS_LOCAL_WRITE : 0));

		MUST(!written == !mended);
		if (written)
			MUST(!ibv_dereg_mr(written));
	} else if (!strcmp(bug, "domain-before-region")) {
		if (!mended)
			MUST(ibv_dealloc_pd(pd));
	} else {
		fprintf(stderr, "usage: checkold BUG [mended]\n");
		return 2;
	}
	MUST(!ibv_destroy_qp(one) && !ibv_destroy_qp(two));
	MUST(!ibv_destroy_cq(cq) && !ibv_destroy_cq(told));
	MUST(!ibv_destroy_comp_channel(channel));
	MUST(!ibv_dereg_mr(mr));
	MUST(!ibv_dealloc_pd(pd));
	MUST(!ibv_close_device(context));
	puts("done");
	return 0;
}
