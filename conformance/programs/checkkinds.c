/*
 * checkkinds BUG [mended]
 *
 * Queue pairs of XRC, and of raw packets, and work queues. The program makes one mistake with them, which `verbena run --check` is to
 * find, or does the same thing right. It ends with 0 in either case.
 */
#include <fcntl.h>

#include "checked.h"

static struct ibv_cq *cq, *cq_of_srq;

static struct ibv_xrcd *xrcd;
static struct ibv_srq *srq;
static struct ibv_qp *initiator, *target;
static uint32_t srq_number;

static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 1;
	MUST(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 10;
	attr.retry_cnt = 1;
	attr.rnr_retry = 1;
	attr.max_rd_atomic = 1;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_all(void)
{
	open_device();
	open_memory(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	MUST(cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0));
	MUST(cq_of_srq = ibv_create_cq(context, 4, NULL, NULL, 0));
}

static void open_xrc(void)
{
	struct ibv_xrcd_init_attr of_domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex of_srq = {
		.attr = { .max_wr = DEPTH, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq_of_srq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_qp_init_attr_ex of_initiator = {
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd, .cap = { .max_send_wr = DEPTH, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp_init_attr_ex of_target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };

	MUST(xrcd = ibv_open_xrcd(context, &of_domain));
	of_target.xrcd = of_srq.xrcd = xrcd;
	MUST(srq = ibv_create_srq_ex(context, &of_srq));
	MUST(!ibv_get_srq_num(srq, &srq_number));
	MUST(initiator = ibv_create_qp_ex(context, &of_initiator));
	MUST(target = ibv_create_qp_ex(context, &of_target));
	connect_to(initiator, target->qp_num);
	connect_to(target, initiator->qp_num);
}

static void close_xrc(void)
{
	MUST(!ibv_destroy_qp(initiator));
	MUST(!ibv_destroy_qp(target));
	MUST(!ibv_destroy_srq(srq));
	MUST(!ibv_close_xrcd(xrcd));
}

static void send_to_srq(int at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + at, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		.qp_type.xrc.remote_srqn = srq_number,
	};

	MUST(!ibv_post_send(initiator, &wr, &bad));
}

static void send_by_steps(int at)
{
	struct ibv_qp_ex *built = ibv_qp_to_qp_ex(initiator);

	ibv_wr_start(built);
	built->wr_id = 1;
	built->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(built);
	ibv_wr_set_xrc_srqn(built, srq_number);
	ibv_wr_set_sge(built, mr->lkey, (uintptr_t)buffer + at, 64);
	MUST(!ibv_wr_complete(built));
}

static void receive_by_srq(int at)
{
	static uint64_t posted = 100;
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + at, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = ++posted, .sg_list = &sge, .num_sge = 1 };

	MUST(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void take(struct ibv_cq *from)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(from, 1, &wc)) == 0)
		;
	MUST(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void raw_receive(struct ibv_qp *qp, int at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + at, .length = 1024, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 };

	MUST(!ibv_post_recv(qp, &wr, &bad));
}

/* A frame to no one, of a type that no one listens for. */
static void raw_send(struct ibv_qp *qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
	};

	memset(buffer, 0, 12);
	memcpy(buffer + 12, "\x88\xb5", 2);
	MUST(!ibv_post_send(qp, &wr, &bad));
}

static struct ibv_wq *work_queue(void)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = DEPTH, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_wq *wq = ibv_create_wq(context, &init);

	MUST(wq);
	MUST(!ibv_modify_wq(wq, &ready));
	return wq;
}

static void receive_by_wq(struct ibv_wq *wq, int at)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + at, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 };

	MUST(!ibv_post_wq_recv(wq, &wr, &bad));
}

int main(int argc, char **argv)
{
	int mended = argc == 3 && !strcmp(argv[2], "mended");
	const char *bug = argc > 1 ? argv[1] : "";

	setbuf(stdout, NULL);
	open_all();
	if (!strncmp(bug, "xrc", 3))
		open_xrc();
	if (!strcmp(bug, "xrc-send") || !strcmp(bug, "xrc-steps")) {
		receive_by_srq(2048);
		if (!strcmp(bug, "xrc-send"))
			send_to_srq(0);
		else
			send_by_steps(0);
		if (!mended)
			buffer[3] = 7;
		take(cq);
		take(cq_of_srq);
		buffer[3] = 7;
	} else if (!strcmp(bug, "xrc-receives")) {
		receive_by_srq(2048);
		receive_by_srq(mended ? 2112 : 2080);
	} else if (!strcmp(bug, "xrc-overrun")) {
		for (int i = 0; i < 6; i++) {
			receive_by_srq(2048 + 64 * i);
			if (mended) {
				send_to_srq(0);
				take(cq);
				take(cq_of_srq);
			}
		}
	} else if (!strcmp(bug, "xrc-region")) {
		struct ibv_mr *kept = mr;

		MUST(mr = ibv_reg_mr(pd, buffer + 2048, 64, IBV_ACCESS_LOCAL_WRITE));
		receive_by_srq(2048);
		if (mended)
			MUST(!ibv_destroy_qp(target));
		MUST(!ibv_dereg_mr(mr));
		mr = kept;
		if (mended) {
			MUST(!ibv_destroy_qp(initiator));
			MUST(!ibv_destroy_srq(srq));
			MUST(!ibv_close_xrcd(xrcd));
		}
	} else if (!strcmp(bug, "xrc-leak")) {
		if (!mended)
			return 0;
	} else if (!strcmp(bug, "raw-receives") || !strcmp(bug, "raw-send")) {
		struct ibv_qp *raw = raw_queue_pair(cq, DEPTH, DEPTH);

		if (!strcmp(bug, "raw-receives")) {
			raw_receive(raw, 1024);
			raw_receive(raw, mended ? 2048 : 1536);
		} else {
			raw_send(raw);
			if (!mended)
				buffer[20] = 7;
			take(cq);
			buffer[20] = 7;
		}
		MUST(!ibv_destroy_qp(raw));
	} else if (!strncmp(bug, "wq-", 3)) {
		struct ibv_wq_attr reset = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RESET };
		struct ibv_wq *wq = work_queue();
		struct ibv_mr *kept = mr;

		if (!strcmp(bug, "wq-leak") && !mended)
			return 0;
		receive_by_wq(wq, 2048);
		receive_by_wq(wq, !strcmp(bug, "wq-receives") && !mended ? 2080 : 2112);
		if (!strcmp(bug, "wq-region")) {
			MUST(mr = ibv_reg_mr(pd, buffer + 1024, 64, IBV_ACCESS_LOCAL_WRITE));
			receive_by_wq(wq, 1024);
			if (mended)
				MUST(!ibv_modify_wq(wq, &reset));
			MUST(!ibv_dereg_mr(mr));
			mr = kept;
		}
		MUST(!ibv_destroy_wq(wq));
	} else {
		fprintf(stderr, "usage: checkkinds BUG [mended]\n");
		return 2;
	}
	if (!strncmp(bug, "xrc", 3) && !(mended && !strcmp(bug, "xrc-region")))
		close_xrc();
	MUST(!ibv_destroy_cq(cq));
	MUST(!ibv_destroy_cq(cq_of_srq));
	MUST(!ibv_dereg_mr(mr));
	MUST(!ibv_dealloc_pd(pd));
	MUST(!ibv_close_device(context));
	puts("done");
	return 0;
}
