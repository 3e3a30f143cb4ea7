/* What both C programs share: one line for each check, and a queue pair that is connected to itself. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORT_NUM 1
#define GID_INDEX 1     /* the interface's IPv4 address */

static int bad;

static inline void check(int good, const char *what)
{
	if (good) {
		printf("ok %s\n", what);
	} else {
		printf("not ok %s (errno %d)\n", what, errno);
		bad = 1;
	}
	fflush(stdout);
}

static inline struct ibv_context *open_first(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = list && n > 0 ? ibv_open_device(list[0]) : NULL;

	if (list)
		ibv_free_device_list(list);
	return ctx;
}

struct loop {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char buffer[128];
};

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = PORT_NUM,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static inline int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 100,
				 .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				 .ah_attr = { .is_global = 1, .port_num = PORT_NUM,
					      .grh = { .sgid_index = GID_INDEX, .hop_limit = 64 } } };

	if (ibv_query_gid(qp->context, PORT_NUM, GID_INDEX, &a.ah_attr.grh.dgid))
		return -1;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static inline int to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = 100, .max_rd_atomic = 1 };

	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC);
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
				      .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &a);
}

/* Everything that one SEND from a queue pair to itself needs; 0 when it is there. */
static inline int loop_open(struct ibv_context *ctx, struct loop *l)
{
	memset(l, 0, sizeof(*l));
	if (!ctx || !(l->pd = ibv_alloc_pd(ctx)) || !(l->cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)) || !(l->qp = make_qp(l->pd, l->cq)) ||
	    !(l->mr = ibv_reg_mr(l->pd, l->buffer, sizeof(l->buffer), IBV_ACCESS_LOCAL_WRITE)))
		return -1;
	return to_init(l->qp) || to_rtr(l->qp, l->qp->qp_num) || to_rts(l->qp);
}

/* A SEND to ourselves: 0 when the bytes came and both completions are good. */
static inline int loop_send(struct loop *l, const char *text)
{
	size_t size = strlen(text) + 1;
	struct ibv_sge from = { (uintptr_t)l->buffer, (uint32_t)size, l->mr->lkey };
	struct ibv_sge to = { (uintptr_t)l->buffer + 64, 64, l->mr->lkey };
	struct ibv_recv_wr rwr = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_rwr;
	struct ibv_send_wr swr = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_swr;
	struct ibv_wc wc;
	int done = 0;

	memcpy(l->buffer, text, size);
	if (ibv_post_recv(l->qp, &rwr, &bad_rwr) || ibv_post_send(l->qp, &swr, &bad_swr))
		return -1;
	for (int i = 0; i < 100000 && done < 2; i++) {
		int n = ibv_poll_cq(l->cq, 1, &wc);

		if (n < 0 || (n == 1 && wc.status != IBV_WC_SUCCESS))
			return -1;
		done += n;
		if (!n)
			usleep(20);
	}
	return done == 2 && !memcmp(l->buffer + 64, text, size) ? 0 : -1;
}

static inline int loop_close(struct loop *l)
{
	return ibv_destroy_qp(l->qp) || ibv_dereg_mr(l->mr) || ibv_destroy_cq(l->cq) || ibv_dealloc_pd(l->pd);
}
