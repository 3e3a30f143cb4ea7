/* Persistence without direct write, by request and answer (the general purpose server persistency method): the client writes, then asks
 * with a message for a range to be made persistent; the server writes it back to its file and answers with the same number. */
#include "scenario.h"

#define ROUNDS 20

struct request {
	uint64_t number, offset, length;
};

static void serve(const char *address, const char *port)
{
	struct end e;
	struct request r;
	int right = 0, fd;

	prepare_file(&e, address, LOCAL, EVERYTHING | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT);
	fd = open(e.file, O_RDONLY);
	must(fd < 0);
	accept_one(&e, address, port, NULL, 1);
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		struct ibv_wc wc = next(e.cq);
		unsigned char bytes[PAGE];
		uint64_t start;

		while (wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND)
			wc = next(e.cq);
		if (!good(&wc, IBV_WC_RECV, e.memory + IN) || wc.byte_len != sizeof(r))
			break;
		memcpy(&r, e.memory + IN, sizeof(r));
		must(r.length > PAGE || r.offset > IN - r.length);
		start = r.offset / PAGE * PAGE;
		must(msync(e.memory + start, r.offset + r.length - start, MS_SYNC));
		right += r.number == round && pread(fd, bytes, r.length, r.offset) == (ssize_t)r.length && filled(bytes, round, r.length);
		must(rpma_recv(e.conn, e.mr, IN, 64, e.memory + IN));
		memcpy(e.memory + OUT, &r.number, 8);
		/* Every eighth answer completes, which makes place for the next ones. */
		must(rpma_send(e.conn, e.mr, OUT, 8, round % 8 ? RPMA_F_COMPLETION_ON_ERROR : ALWAYS, &r));
	}
	check(right == ROUNDS, "every range was in the file when it was answered");
	close(fd);
	server_ends(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	int right = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	connect_one(&e, address, port, NULL, 1);
	check(rpma_flush(e.conn, e.remote, 0, PAGE, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL) == RPMA_E_NOSUPP, "no direct write to persistence");
	for (uint64_t round = 1; round <= ROUNDS; round++) {
		struct request r = { round, round * 512 + round, 3000 + round };

		fill(e.memory, round, r.length);
		must(rpma_write(e.conn, e.remote, r.offset, e.mr, 0, r.length, RPMA_F_COMPLETION_ON_ERROR, NULL));
		memcpy(e.memory + OUT, &r, sizeof(r));
		must(rpma_send(e.conn, e.mr, OUT, sizeof(r), ALWAYS, &e));
		if (!sent_and_received(e.cq, &e, e.memory + IN) || memcmp(e.memory + IN, &round, 8) != 0)
			break;
		must(rpma_recv(e.conn, e.mr, IN, 64, e.memory + IN));
		right++;
	}
	check(right == ROUNDS, "every range was answered");
	client_ends(&e);
}
