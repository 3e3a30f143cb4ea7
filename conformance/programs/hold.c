/*
 * hold PROCESSES QPS [lost]: so many processes, each with so many RC queue pairs in state RTS, one completion queue and one
 * region, until they are killed. Each queue pair is connected to itself; with `lost` to a queue pair that does not exist, and
 * has sent to it. Without queue pairs each has a shared receive queue with two receives. Prints "ready" when all are there.
 */
#include "common.h"
#include <signal.h>
#include <sys/prctl.h>

static char buffer[4096];

static int shared_receives(struct ibv_pd *pd, struct ibv_mr *mr)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge to = { (uintptr_t)buffer, 64, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &to, .num_sge = 1 }, *bad_wr;

	return !srq || ibv_post_srq_recv(srq, &wr, &bad_wr) || ibv_post_srq_recv(srq, &wr, &bad_wr);
}

static int hold(int qps, int lost)
{
	struct ibv_context *ctx = open_first();
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(ctx, 64, NULL, NULL, 0) : NULL;
	struct ibv_mr *mr = cq ? ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE) : NULL;

	if (mr && !qps && shared_receives(pd, mr))
		return -1;
	for (int i = 0; mr && i < qps; i++) {
		struct ibv_qp *qp = make_qp(pd, cq);
		struct ibv_sge from = { (uintptr_t)buffer, 64, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_wr;

		if (!qp || to_init(qp) || to_rtr(qp, lost ? qp->qp_num ^ 1 : qp->qp_num) || to_rts(qp) ||
		    (lost && ibv_post_send(qp, &wr, &bad_wr)))
			return -1;
	}
	return mr ? 0 : -1;
}

int main(int argc, char **argv)
{
	int processes = argc > 1 ? atoi(argv[1]) : 1, qps = argc > 2 ? atoi(argv[2]) : 1, ready[2];
	char byte = 1;

	if (pipe(ready))
		return 1;
	for (int i = 0; i < processes; i++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (hold(qps, argc > 3)) {
			perror("hold");
			byte = 0;
		}
		if (write(ready[1], &byte, 1) == 1)
			pause();
		return 1;
	}
	for (int i = 0; i < processes; i++)
		if (read(ready[0], &byte, 1) != 1 || !byte)
			return 1;
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
