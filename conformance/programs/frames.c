/*
 * frames COUNT
 *
 * A raw packet queue pair sends COUNT Ethernet frames to a multicast address, which a flow rule steers back to it. Each
 * frame that comes is a line: its number, whether its bytes are those that were sent, and milliseconds since the first
 * one left. A send that fails is a line with its status.
 */
#include <time.h>
#include <unistd.h>

#include "checked.h"

#define LEN 256
#define MAX 64
#define SILENCE_MS 400

static unsigned char group[6] = { 3, 0, 0, 0, 0, 0x17 };

static void fill(unsigned char *frame, int number)
{
	memcpy(frame, group, 6);
	memcpy(frame + 6, "\x02\0\0\0\0\x01\x88\xb5", 8);
	frame[14] = number;
	for (int i = 15; i < LEN; i++)
		frame[i] = i;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	static unsigned char sent[MAX][LEN], came[2 * MAX][LEN];
	struct { struct ibv_flow_attr attr; struct ibv_flow_spec_eth eth; } rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth },
	};
	int count = argc > 1 ? atoi(argv[1]) : 0;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
	struct ibv_mr *of_sent, *of_came;
	struct ibv_wc wc;

	if (count < 1 || count > MAX) {
		fprintf(stderr, "usage: frames COUNT (1 to %d)\n", MAX);
		return 2;
	}
	open_device();
	MUST(cq = ibv_create_cq(context, 3 * MAX, NULL, NULL, 0));
	MUST(of_sent = ibv_reg_mr(pd, sent, sizeof sent, 0));
	MUST(of_came = ibv_reg_mr(pd, came, sizeof came, IBV_ACCESS_LOCAL_WRITE));
	qp = raw_queue_pair(cq, MAX, 2 * MAX);
	memcpy(rule.eth.val.dst_mac, group, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	MUST(flow = ibv_create_flow(qp, &rule.attr));
	for (int i = 0; i < 2 * MAX; i++) {
		struct ibv_sge sge = { (uintptr_t)came[i], LEN, of_came->lkey };
		struct ibv_recv_wr *bad_wr, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

		MUST(!ibv_post_recv(qp, &wr, &bad_wr));
	}
	long began = now_ms();
	for (int i = 0; i < count; i++) {
		struct ibv_sge sge = { (uintptr_t)sent[i], LEN, of_sent->lkey };
		struct ibv_send_wr *bad_wr, wr = {
			.wr_id = 2 * MAX, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1,
		};

		fill(sent[i], i);
		MUST(!ibv_post_send(qp, &wr, &bad_wr));
	}
	for (long last = now_ms(); now_ms() - last < SILENCE_MS;) {
		unsigned char whole[LEN];
		int n = ibv_poll_cq(cq, 1, &wc);

		MUST(n >= 0);
		if (n == 0) {
			usleep(100);
			continue;
		}
		last = now_ms();
		if (wc.wr_id == 2 * MAX && wc.status != IBV_WC_SUCCESS) {
			printf("send: status %d\n", wc.status);
			continue;
		}
		MUST(wc.status == IBV_WC_SUCCESS);
		if (wc.wr_id == 2 * MAX)
			continue;
		fill(whole, came[wc.wr_id][14]);
		printf("frame %d %s after %ld ms\n", came[wc.wr_id][14],
		       wc.byte_len == LEN && !memcmp(came[wc.wr_id], whole, LEN) ? "whole" : "damaged", last - began);
	}
	MUST(!ibv_destroy_flow(flow));
	MUST(!ibv_destroy_qp(qp) && !ibv_dereg_mr(of_sent) && !ibv_dereg_mr(of_came));
	MUST(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
