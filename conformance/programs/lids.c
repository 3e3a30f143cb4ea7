/*
 * lids listen              opens an RC and a UD queue pair, prints "LID RC-QPN UD-QPN", and what comes by UD within 15 seconds
 * lids rc LID QPN          sends one message by RC, with a short timeout, and prints the status of its completion
 * lids ud LID QPN          sends one message by UD, and prints that
 * lids self                sends to queue pairs of its own by RC, UC and UD, without and with a GRH, and prints what the receives say
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum { LEN = 64, QKEY = 0x1234 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
/* What comes, with room for a GRH, and what goes. */
static char buffer[40 + 2 * LEN];

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(2);
	}
}

static struct ibv_qp *make(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = type };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	must(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	must(!ibv_modify_qp(qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), "INIT");
	return qp;
}

/* To RTR and RTS. Neither end knows of the other one: PSNs are 0. */
static void connect_by(struct ibv_qp *qp, struct ibv_ah_attr to, unsigned qpn)
{
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .ah_attr = to };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 2, .rnr_retry = 0, .max_rd_atomic = 1 };
	int is_rc = qp->qp_type == IBV_QPT_RC;

	must(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)), "RTR");
	must(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN | (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)), "RTS");
}

static struct ibv_ah_attr by_lid(int lid)
{
	return (struct ibv_ah_attr){ .dlid = lid, .port_num = 1 };
}

static void ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };

	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

static void listens(void)
{
	struct ibv_port_attr port;
	struct ibv_qp *rc = make(IBV_QPT_RC), *ud = make(IBV_QPT_UD);
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof(buffer), mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	int messages = 0;

	must(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	ready(ud);
	must(!ibv_post_recv(ud, &wr, &bad), "ibv_post_recv");
	printf("%d %u %u\n", port.lid, rc->qp_num, ud->qp_num);
	fflush(stdout);
	/* Until its caller has seen what it came for. */
	for (int n = 0; n < 1500 && !messages; n++) {
		if (ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS) {
			printf("came from LID %d, %u bytes, GRH %d\n", wc.slid, wc.byte_len, !!(wc.wc_flags & IBV_WC_GRH));
			messages++;
		}
		usleep(10000);
	}
	printf("%d messages\n", messages);
}

static void sends(enum ibv_qp_type type, int lid, unsigned qpn)
{
	struct ibv_qp *qp = make(type);
	struct ibv_sge sge = { (uintptr_t)buffer, LEN, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	if (type == IBV_QPT_RC) {
		connect_by(qp, by_lid(lid), qpn);
	} else {
		struct ibv_ah_attr to = by_lid(lid);

		ready(qp);
		wr.wr.ud.ah = ibv_create_ah(pd, &to);
		must(wr.wr.ud.ah != NULL, "ibv_create_ah");
		wr.wr.ud.remote_qpn = qpn;
		wr.wr.ud.remote_qkey = QKEY;
	}
	must(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
	for (int n = 0; n < 1000; n++) {
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			printf("status %d\n", wc.status);
			return;
		}
		usleep(10000);
	}
	printf("no completion\n");
}

/* One message between two queue pairs of this port: what the receive says of a GRH, and where it came from. */
static void to_itself(enum ibv_qp_type type, const char *name, struct ibv_ah_attr to)
{
	struct ibv_qp *from = make(type), *at = make(type);
	struct ibv_sge in = { (uintptr_t)buffer, 40 + LEN, mr->lkey }, out = { (uintptr_t)buffer + 40 + LEN, LEN, mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &in, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 2, .sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc = { 0 };
	int seen = 0;

	if (type == IBV_QPT_UD) {
		ready(from);
		ready(at);
		send.wr.ud.ah = ibv_create_ah(pd, &to);
		must(send.wr.ud.ah != NULL, "ibv_create_ah");
		send.wr.ud.remote_qpn = at->qp_num;
		send.wr.ud.remote_qkey = QKEY;
	} else {
		connect_by(from, to, at->qp_num);
		connect_by(at, to, from->qp_num);
	}
	must(!ibv_post_recv(at, &receive, &bad_receive), "ibv_post_recv");
	must(!ibv_post_send(from, &send, &bad), "ibv_post_send");
	for (int n = 0; n < 1000 && seen < 2; n++) {
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			seen++;
			if (wc.wr_id == 1)
				printf("%s%s: status %d, %u bytes, GRH %d\n", name, to.is_global ? " with a GRH" : "", wc.status,
				       wc.byte_len, !!(wc.wc_flags & IBV_WC_GRH));
			else
				must(wc.status == IBV_WC_SUCCESS, "the message");
		}
		usleep(10000);
	}
	must(seen == 2, "completions");
}

static void all_to_itself(void)
{
	static const struct { enum ibv_qp_type type; const char *name; } kinds[] = {
		{ IBV_QPT_RC, "RC" }, { IBV_QPT_UC, "UC" }, { IBV_QPT_UD, "UD" } };
	struct ibv_port_attr port;
	struct ibv_ah_attr to;

	must(!ibv_query_port(ctx, 1, &port), "ibv_query_port");
	for (size_t n = 0; n < 2 * sizeof(kinds) / sizeof(*kinds); n++) {
		to = by_lid(port.lid);
		to.is_global = n % 2;
		to.grh.hop_limit = 1;
		must(!ibv_query_gid(ctx, 1, 0, &to.grh.dgid), "ibv_query_gid");
		to_itself(kinds[n / 2].type, kinds[n / 2].name, to);
	}
}

int main(int argc, char **argv)
{
	int many;
	struct ibv_device **all = ibv_get_device_list(&many);

	must(all && many > 0, "ibv_get_device_list");
	ctx = ibv_open_device(all[0]);
	must(ctx != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	must(pd && cq, "ibv_create_cq");
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	must(mr != NULL, "ibv_reg_mr");
	if (argc == 2 && !strcmp(argv[1], "listen"))
		listens();
	else if (argc == 2 && !strcmp(argv[1], "self"))
		all_to_itself();
	else if (argc == 4)
		sends(!strcmp(argv[1], "rc") ? IBV_QPT_RC : IBV_QPT_UD, atoi(argv[2]), atoi(argv[3]));
	else
		return 2;
	return 0;
}
