/*
 * A key-value log in a peer's persistent memory, in C; crates/rpma/examples/kv_log.rs is the same in Rust, and either talks to the other.
 * A client appends by WRITE and FLUSH, and the server's processor does nothing; whatever becomes of the server, what `put` has printed is
 * there when it starts again.
 *
 *   cc -o kv_log kv_log.c -lrpma -libverbs
 *   verbena run -- ./kv_log serve 10.0.0.1 7777 /var/lib/log
 *   verbena run -- ./kv_log put 10.0.0.1 7777 colour blue size 7
 *
 *   bytes of the log   what
 *   0..8               where the last entry ends: all before it is whole
 *   64..               entries: length of the key, length of the value (4 bytes each, little-endian), key, value; each ends at a multiple of 8
 */
#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE 65536
#define FIRST 64
#define LONGEST 4096	/* of an entry */

#define must(call) must_(call, #call)
static void must_(int ret, const char *call)
{
	if (ret) {
		fprintf(stderr, "%s: %s\n", call, rpma_err_2str(ret));
		exit(1);
	}
}

static struct rpma_peer *peer_at(const char *address, enum rpma_util_ibv_context_type type)
{
	struct ibv_context *device;
	struct rpma_peer *peer;

	must(rpma_utils_get_ibv_context(address, type, &device));
	must(rpma_peer_new(device, &peer));
	return peer;
}

static uint64_t padded(uint64_t length)
{
	return (length + 7) & ~(uint64_t)7;
}

/* The entry at `at`, whose key and value are in the log; where the next one is, or 0 where there is none that can be. */
static uint64_t entry(const char *log, uint64_t at, uint32_t *key, uint32_t *value)
{
	uint64_t end;

	memcpy(&end, log, 8);
	if (end > SIZE || at + 8 > end)
		return 0;
	memcpy(key, log + at, 4);
	memcpy(value, log + at + 4, 4);
	*key = le32toh(*key), *value = le32toh(*value);
	at = padded(at + 8 + *key + *value);
	return at <= end ? at : 0;
}

/* Tells the latest value of each key. */
static void recover(const char *log)
{
	uint32_t key, value, k, v;
	const char *comma = "";

	printf("recovered {");
	for (uint64_t at = FIRST, next; (next = entry(log, at, &key, &value)); at = next) {
		int later = 0;

		for (uint64_t other = next, after; (after = entry(log, other, &k, &v)); other = after)
			later |= k == key && !memcmp(log + other + 8, log + at + 8, key);
		if (!later) {
			printf("%s\"%.*s\": \"%.*s\"", comma, (int)key, log + at + 8, (int)value, log + at + 8 + key);
			comma = ", ";
		}
	}
	printf("}\n");
	fflush(stdout);
}

/* A file, mapped so that cache lines are all that is to be written back where the file system has that. */
static char *map(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	char *at = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, SIZE) == 0) {
		at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
		if (at == MAP_FAILED)
			at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	}
	if (at == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	close(fd);
	return at;
}

static void serve(const char *address, const char *port, const char *path)
{
	struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	char *log = map(path), described[256];
	struct rpma_conn_private_data data = { .ptr = described };
	struct rpma_mr_local *memory;
	struct rpma_peer_cfg *cfg;
	size_t of_memory, of_cfg;
	struct rpma_ep *ep;

	recover(log);
	must(rpma_mr_reg(peer, log, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &memory));
	/* For clients that do not know FLUSH: what is written here is in the file, and there it stays when this process ends. */
	must(rpma_peer_cfg_new(&cfg));
	must(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	must(rpma_mr_get_descriptor_size(memory, &of_memory));
	must(rpma_peer_cfg_get_descriptor_size(cfg, &of_cfg));
	must(rpma_mr_get_descriptor(memory, described));
	must(rpma_peer_cfg_get_descriptor(cfg, described + of_memory));
	data.len = (uint8_t)(of_memory + of_cfg);

	must(rpma_ep_listen(peer, address, port, &ep));
	for (;;) {
		enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
		struct rpma_conn_req *request;
		struct rpma_conn *conn;

		must(rpma_ep_next_conn_req(ep, NULL, &request));
		if (rpma_conn_req_connect(&request, &data, &conn))
			continue;	/* it is gone again */
		while (rpma_conn_next_event(conn, &event) == 0 && event == RPMA_CONN_ESTABLISHED)
			;
		rpma_conn_disconnect(conn);
		must(rpma_conn_delete(&conn));
	}
}

/* A client's end. */
static struct rpma_conn *conn;
static struct rpma_mr_remote *log_;
static struct rpma_mr_local *mine;
static char *bytes;

/* Waits for the operation that completes next, the last one of those that were posted. */
static void done(void)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;

	must(rpma_conn_get_cq(conn, &cq));
	must(rpma_cq_wait(cq));
	must(rpma_cq_get_wc(cq, 1, &wc, NULL));
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static uint64_t connect_to(const char *address, const char *port)
{
	struct rpma_peer *peer = peer_at(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	struct rpma_conn_private_data data;
	struct rpma_conn_req *request;
	struct rpma_peer_cfg *cfg;
	size_t of_memory;
	uint64_t end;

	bytes = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(rpma_mr_reg(peer, bytes, LONGEST, RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC, &mine));
	must(rpma_conn_req_new(peer, address, port, NULL, &request));
	must(rpma_conn_req_connect(&request, NULL, &conn));
	must(rpma_conn_next_event(conn, &event));
	must(rpma_conn_get_private_data(conn, &data));
	must(rpma_mr_get_descriptor_size(mine, &of_memory));
	if (event != RPMA_CONN_ESTABLISHED || data.len < of_memory + 2) {
		fprintf(stderr, "nobody serves a log there\n");
		exit(1);
	}
	must(rpma_mr_remote_from_descriptor(data.ptr, of_memory, &log_));
	/* One byte of upstream's, or two; what comes behind private data is zeros. */
	must(rpma_peer_cfg_from_descriptor((char *)data.ptr + of_memory, 2, &cfg));
	must(rpma_conn_apply_remote_peer_cfg(conn, cfg));
	must(rpma_peer_cfg_delete(&cfg));

	must(rpma_read(conn, mine, 0, log_, 0, 8, RPMA_F_COMPLETION_ALWAYS, NULL));
	done();
	memcpy(&end, bytes, 8);
	return end < FIRST ? FIRST : end;
}

/* When it returns, the entry survives. Where the next one goes. */
static uint64_t put(uint64_t at, const char *key, const char *value)
{
	uint32_t lengths[2] = { htole32((uint32_t)strlen(key)), htole32((uint32_t)strlen(value)) };
	uint64_t end = padded(at + 8 + strlen(key) + strlen(value));

	if (end - at > LONGEST || end > SIZE) {
		fprintf(stderr, "%s: there is no room for it\n", key);
		exit(1);
	}
	memset(bytes, 0, end - at);
	memcpy(bytes, lengths, 8);
	memcpy(bytes + 8, key, strlen(key));
	memcpy(bytes + 8 + strlen(key), value, strlen(value));
	must(rpma_write(conn, log_, at, mine, 0, end - at, RPMA_F_COMPLETION_ON_ERROR, NULL));
	/* First the entry, then, when that is persistent, where it ends: both at once might survive the other way round. */
	must(rpma_flush(conn, log_, at, end - at, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, NULL));
	done();
	must(rpma_atomic_write(conn, log_, 0, (char *)&end, RPMA_F_COMPLETION_ON_ERROR, NULL));
	must(rpma_flush(conn, log_, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, RPMA_F_COMPLETION_ALWAYS, NULL));
	done();
	printf("%s\n", key);
	return end;
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "serve")) {
		serve(argv[2], argv[3], argv[4]);
	} else if (argc >= 4 && argc % 2 == 0 && !strcmp(argv[1], "put")) {
		uint64_t end = connect_to(argv[2], argv[3]);

		for (int i = 4; i < argc; i += 2)
			end = put(end, argv[i], argv[i + 1]);
		must(rpma_conn_disconnect(conn));
		return 0;
	}
	fprintf(stderr, "usage: kv_log serve ADDRESS PORT FILE | put ADDRESS PORT KEY VALUE ..\n");
	return 2;
}
