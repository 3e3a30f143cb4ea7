/*
 * memory QPS RECEIVES: makes so many RC queue pairs with queue depths of 128 and posts so many receives to each; prints the
 * resident memory that one takes, in bytes.
 */
#include "common.h"

static long resident(void)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "VmRSS: %ld", &kib) != 1)
		;
	if (f)
		fclose(f);
	return kib;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 10000, receives = argc > 2 ? atoi(argv[2]) : 0;
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && *list ? ibv_open_device(*list) : NULL;
	struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	struct ibv_cq *cq = pd ? ibv_create_cq(ctx, 1000, NULL, NULL, 0) : NULL;
	static char buffer[4096];
	struct ibv_mr *mr = cq ? ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE) : NULL;
	long before;

	if (!mr) {
		perror("set-up");
		return 1;
	}
	before = resident();
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
						 .cap = { .max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1 } };
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		if (!qp || ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) {
			perror("queue pair");
			return 1;
		}
		for (int r = 0; r < receives; r++) {
			struct ibv_sge sge = { (uintptr_t)buffer, 64, mr->lkey };
			struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

			if (ibv_post_recv(qp, &wr, &bad)) {
				perror("receive");
				return 1;
			}
		}
	}
	printf("%ld\n", (resident() - before) * 1024 / count);
	return 0;
}
