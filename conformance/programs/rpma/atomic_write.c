/* Eight bytes at once: the client counts in a word of the server's, which never sees half of a number. */
#include "scenario.h"

#define ROUNDS 2000
#define WORD 72

/* Every byte is that of the round, so that a torn word has two different ones. */
static uint64_t word_of(uint64_t round)
{
	return (round & 255) * 0x0101010101010101;
}

static void serve(const char *address, const char *port)
{
	struct end e;
	volatile uint64_t *word;
	uint64_t seen;
	struct ibv_wc wc;
	int torn = 0, ret;

	prepare(&e, address, LOCAL, EVERYTHING);
	word = (volatile uint64_t *)(e.memory + WORD);
	accept_one(&e, address, port, NULL, 1);
	while ((ret = rpma_cq_get_wc(e.cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION) {
		seen = *word;
		torn += seen != word_of(seen);
	}
	must(ret);
	check(good(&wc, IBV_WC_RECV, e.memory + IN), "the client is through");
	check(torn == 0, "no torn word");
	check(*word == word_of(ROUNDS) && e.memory[WORD - 1] == 0 && e.memory[WORD + 8] == 0, "the last word, and nothing around it");
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	int right = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	connect_one(&e, address, port, NULL, 0);
	check(rpma_atomic_write(e.conn, e.remote, WORD + 4, "12345678", ALWAYS, NULL) == RPMA_E_INVAL, "a place that is not a multiple of eight");
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		uint64_t word = word_of(round);
		struct ibv_wc wc;

		/* The bytes are taken at the call. */
		must(rpma_atomic_write(e.conn, e.remote, WORD, (const char *)&word, ALWAYS, &e));
		word = 0x1234567812345678;
		wc = next(e.cq);
		/* Not its opcode: a write, or the opcode of a native atomic write. */
		if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uintptr_t)&e)
			break;
		right++;
	}
	check(right == ROUNDS, "each was written");
	must(rpma_read(e.conn, e.mr, 0, e.remote, WORD, 8, ALWAYS, &right));
	completed(e.cq, IBV_WC_RDMA_READ, &right, "read");
	check(e.memory[0] == (ROUNDS & 255) && e.memory[7] == (ROUNDS & 255), "what was read back");
	must(rpma_send(e.conn, NULL, 0, 0, ALWAYS, NULL));
	completed(e.cq, IBV_WC_SEND, NULL, "told the server");
	client_ends(&e);
}
