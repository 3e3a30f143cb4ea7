/* Immediate data, in both directions: with a message, with an empty message, with a write, and with a write of nothing. The value is the
 * caller's in its own byte order; in the completion it stands in network order. */
#include "scenario.h"

static void immediate(struct rpma_cq *cq, enum ibv_wc_opcode opcode, uint32_t length, uint32_t imm, const char *what)
{
	struct ibv_wc wc = next(cq);

	check(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode && (wc.wc_flags & IBV_WC_WITH_IMM) && ntohl(wc.imm_data) == imm &&
	      wc.byte_len == length, what);
}

static void serve(const char *address, const char *port)
{
	struct end e;

	prepare(&e, address, LOCAL, EVERYTHING);
	accept_one(&e, address, port, NULL, 6);
	immediate(e.cq, IBV_WC_RECV, 64, 0x01020304, "a message");
	check(filled(e.memory + IN, 7, 64), "the bytes of the message");
	immediate(e.cq, IBV_WC_RECV, 0, 0, "an empty message");
	immediate(e.cq, IBV_WC_RECV_RDMA_WITH_IMM, PAGE + 1, 0xfffffffe, "a write");
	check(filled(e.memory + 11, 2, PAGE + 1), "the bytes of the write");
	immediate(e.cq, IBV_WC_RECV_RDMA_WITH_IMM, 0, 5, "a write of nothing");
	{
		struct ibv_wc wc = next(e.cq);

		check(good(&wc, IBV_WC_RECV, e.memory + IN + 4 * 64) && !(wc.wc_flags & IBV_WC_WITH_IMM), "a message without");
	}
	must(rpma_send_with_imm(e.conn, NULL, 0, 0, ALWAYS, 0x80000001, &e));
	completed(e.cq, IBV_WC_SEND, &e, "answered");
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	int seen = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	fill(e.memory, 0, IN);
	connect_one(&e, address, port, NULL, 1);
	must(rpma_send_with_imm(e.conn, e.mr, 7, 64, ALWAYS, 0x01020304, &e));
	completed(e.cq, IBV_WC_SEND, &e, "a message");
	must(rpma_send_with_imm(e.conn, NULL, 0, 0, ALWAYS, 0, &e));
	completed(e.cq, IBV_WC_SEND, &e, "an empty message");
	must(rpma_write_with_imm(e.conn, e.remote, 11, e.mr, 2, PAGE + 1, ALWAYS, 0xfffffffe, &e));
	completed(e.cq, IBV_WC_RDMA_WRITE, &e, "a write");
	must(rpma_write_with_imm(e.conn, NULL, 0, NULL, 0, 0, ALWAYS, 5, &e));
	completed(e.cq, IBV_WC_RDMA_WRITE, &e, "a write of nothing");
	must(rpma_send(e.conn, NULL, 0, 0, ALWAYS, &e));
	while (seen != 3) {
		struct ibv_wc wc = next(e.cq);

		must(wc.status != IBV_WC_SUCCESS || (wc.opcode == IBV_WC_RECV && ntohl(wc.imm_data) != 0x80000001));
		seen |= wc.opcode == IBV_WC_SEND ? 1 : wc.opcode == IBV_WC_RECV ? 2 : 4;
	}
	check(seen == 3, "the answer's value");
	client_ends(&e);
}
