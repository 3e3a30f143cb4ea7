/* What programs share that need little: a device, a protection domain, registered memory, a raw packet queue pair. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(x) do { if (!(x)) { perror(#x); exit(1); } } while (0)
#define SIZE 4096
#define DEPTH 16

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *buffer;

static inline void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	MUST(list && list[0]);
	MUST(context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	MUST(pd = ibv_alloc_pd(context));
}

static inline void open_memory(int access)
{
	MUST(buffer = aligned_alloc(SIZE, SIZE));
	memset(buffer, 1, SIZE);
	MUST(mr = ibv_reg_mr(pd, buffer, SIZE, access));
}

/* A raw packet queue pair, which is ready to send. */
static inline struct ibv_qp *raw_queue_pair(struct ibv_cq *queue, int sends, int receives)
{
	struct ibv_qp_init_attr init = {
		.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RAW_PACKET,
		.cap = { .max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp;

	MUST(qp = ibv_create_qp(pd, &init));
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}
