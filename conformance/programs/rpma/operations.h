/* The operations of a connection: each row of their pages, then what they do beyond a region's bounds, with a full queue and after the end. */

/* What completes first, in at most two seconds. */
static const char *completion(void)
{
	static char words[80];
	struct ibv_wc wc;

	for (int n = 0; n < 2000; n++, usleep(1000))
		if (rpma_cq_get_wc(cq, 1, &wc, NULL) == 0) {
			snprintf(words, sizeof(words), ", completion: %s", ibv_wc_status_str(wc.status));
			return words;
		}
	return ", no completion";
}

/* A case that may end the connection, with its completion. */
#define ENDS(f, what, call) do { if (mine(f, what, 1)) { int r_ = (call); say(f, what, r_, r_ ? "" : completion()); } } while (0)
/* Until the queue has no room: at most a million. */
#define FULL(f, call) do { if (mine(f, "the queue is full", 1)) { int r_, n_ = 0; do r_ = (call); while (r_ == 0 && n_++ < 1000000); \
	say(f, "the queue is full", r_, ""); } } while (0)
#define AFTER(f, call) do { if (mine(f, "after the connection is closed", 1)) { enum rpma_conn_event event_; must(rpma_conn_disconnect(conn)); \
	must(rpma_conn_next_event(conn, &event_)); must(event_ != RPMA_CONN_CLOSED); { int r_ = (call); \
	say(f, "after the connection is closed", r_, r_ ? "" : completion()); } } } while (0)

#define EARLY(f, call) do { if (mine(f, "before the connection is established", 1)) { request(); must(rpma_conn_req_connect(&r, NULL, &cn)); \
	say(f, "before the connection is established", (call), ""); } } while (0)

#define READ(conn, dst, d, src, s, len, flags) rpma_read(conn, dst, d, src, s, len, flags, buffer)
#define WRITE(conn, src, s, dst, d, len, flags) rpma_write(conn, dst, d, src, s, len, flags, buffer)
#define IMM(conn, src, s, dst, d, len, flags) (rpma_recv(other, NULL, 0, 0, NULL), rpma_write_with_imm(conn, dst, d, src, s, len, flags, 7, buffer))
/* Rows that read and the two writes share: the local region, then the remote one. */
#define ONE_SIDED(f, DO, local, far) do { \
	CASE(f, "conn is NULL", DO(NULL, mr, 0, remote, 0, 8, ALWAYS)); \
	CASE(f, "flags is 0", DO(conn, mr, 0, remote, 0, 8, 0)); \
	CASE(f, local " is NULL", DO(conn, NULL, 0, remote, 0, 8, ALWAYS)); \
	CASE(f, local " is NULL, len is 0", DO(conn, NULL, 0, remote, 0, 0, ALWAYS)); \
	CASE(f, far " is NULL", DO(conn, mr, 0, NULL, 0, 8, ALWAYS)); \
	CASE(f, far " is NULL, len is 0", DO(conn, mr, 0, NULL, 0, 0, ALWAYS)); \
	CASE(f, "both are NULL, the local offset is 1", DO(conn, NULL, 1, NULL, 0, 0, ALWAYS)); \
	CASE(f, "both are NULL, the remote offset is 1", DO(conn, NULL, 0, NULL, 1, 0, ALWAYS)); \
	CASE(f, "both are NULL, len is 1", DO(conn, NULL, 0, NULL, 0, 1, ALWAYS)); \
	ENDS(f, "both are NULL, nothing", DO(conn, NULL, 0, NULL, 0, 0, ALWAYS)); \
	ENDS(f, "both are given, len is 0", DO(conn, mr, 0, remote, 0, 0, ALWAYS)); \
	ENDS(f, "flags is a bit that nobody knows", DO(conn, mr, 0, remote, PAGE, 8, 1 << 10)); \
	ENDS(f, "beyond the local region", DO(conn, mr, 4 * PAGE - 4, remote, 0, 8, ALWAYS)); \
	ENDS(f, "beyond the remote region", DO(conn, mr, 0, remote, 4 * PAGE - 4, 8, ALWAYS)); \
	ENDS(f, "the local region is not for it", DO(conn, idle, 0, remote, 0, 8, ALWAYS)); \
	ENDS(f, "the remote region is not for it", DO(conn, mr, 0, closed_remote, 0, 8, ALWAYS)); \
	ENDS(f, "len is 2^32 + 8", DO(conn, mr, 0, remote, 0, (1ul << 32) + 8, ALWAYS)); \
	FULL(f, DO(conn, mr, 0, remote, PAGE, 8, RPMA_F_COMPLETION_ON_ERROR)); \
	AFTER(f, DO(conn, mr, 0, remote, PAGE, 8, ALWAYS)); \
} while (0)

#define SEND(conn, src, s, len, flags) rpma_send(conn, src, s, len, flags, buffer)
#define SEND_IMM(conn, src, s, len, flags) rpma_send_with_imm(conn, src, s, len, flags, 7, buffer)
#define TWO_SIDED(f, DO) do { \
	CASE(f, "conn is NULL", DO(NULL, mr, 0, 8, ALWAYS)); \
	CASE(f, "flags is 0", DO(conn, mr, 0, 8, 0)); \
	CASE(f, "src is NULL, offset is 1", DO(conn, NULL, 1, 0, ALWAYS)); \
	CASE(f, "src is NULL, len is 1", DO(conn, NULL, 0, 1, ALWAYS)); \
	ENDS(f, "beyond the region", (must(rpma_recv(other, mr, 0, 64, buffer)), DO(conn, mr, 4 * PAGE - 4, 8, ALWAYS))); \
	ENDS(f, "the region is not for it", (must(rpma_recv(other, mr, 0, 64, buffer)), DO(conn, idle, 0, 8, ALWAYS))); \
	ENDS(f, "larger than what the other side receives", (must(rpma_recv(other, mr, 0, 64, buffer)), DO(conn, mr, 0, 65, ALWAYS))); \
	ENDS(f, "the other side receives into what is not for it", (must(rpma_recv(other, idle, 0, 64, buffer)), DO(conn, mr, 0, 8, ALWAYS))); \
	FULL(f, DO(conn, mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR)); \
	AFTER(f, DO(conn, mr, 0, 8, ALWAYS)); \
} while (0)

static void operations(void)
{
	struct rpma_mr_local *idle;	/* a region for nothing that is tried here */
	struct rpma_mr_remote *idle_remote, *closed_remote;
	const char *f;

	must(rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &idle));
	must(rpma_mr_get_descriptor(idle, descriptor));
	must(rpma_mr_get_descriptor_size(idle, &size));
	must(rpma_mr_remote_from_descriptor(descriptor, size, &idle_remote));
	must(rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_SEND, &m));
	must(rpma_mr_get_descriptor(m, descriptor));
	must(rpma_mr_remote_from_descriptor(descriptor, size, &closed_remote));
	ONE_SIDED("rpma_read", READ, "dst", "src");
	ONE_SIDED("rpma_write", WRITE, "src", "dst");
	ONE_SIDED("rpma_write_with_imm", IMM, "src", "dst");
	TWO_SIDED("rpma_send", SEND);
	TWO_SIDED("rpma_send_with_imm", SEND_IMM);
	f = "rpma_atomic_write";
	CASE(f, "conn is NULL", rpma_atomic_write(NULL, remote, 0, buffer, ALWAYS, NULL));
	CASE(f, "dst is NULL", rpma_atomic_write(conn, NULL, 0, buffer, ALWAYS, NULL));
	CASE(f, "src is NULL", rpma_atomic_write(conn, remote, 0, NULL, ALWAYS, NULL));
	CASE(f, "dst_offset is 4", rpma_atomic_write(conn, remote, 4, buffer, ALWAYS, NULL));
	CASE(f, "flags is 0", rpma_atomic_write(conn, remote, 0, buffer, 0, NULL));
	ENDS(f, "beyond the remote region", rpma_atomic_write(conn, remote, 4 * PAGE, buffer, ALWAYS, NULL));
	ENDS(f, "the remote region is not for it", rpma_atomic_write(conn, closed_remote, 0, buffer, ALWAYS, NULL));
	FULL(f, rpma_atomic_write(conn, remote, 0, buffer, RPMA_F_COMPLETION_ON_ERROR, NULL));
	AFTER(f, rpma_atomic_write(conn, remote, 0, buffer, ALWAYS, NULL));
	f = "rpma_flush";
	CASE(f, "conn is NULL", rpma_flush(NULL, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	CASE(f, "dst is NULL", rpma_flush(conn, NULL, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	CASE(f, "type is unknown", rpma_flush(conn, remote, 0, 8, 2, ALWAYS, NULL));
	CASE(f, "flags is 0", rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, 0, NULL));
	CASE(f, "persistent, direct write is not said", rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL));
	ENDS(f, "persistent, direct write is said, the region has no such usage",
	     (must(rpma_peer_cfg_set_direct_write_to_pmem(pcfg, true)), must(rpma_conn_apply_remote_peer_cfg(conn, pcfg)),
	      rpma_flush(conn, idle_remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL)));
	ENDS(f, "visibility, a region for visibility alone", rpma_flush(conn, idle_remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	ENDS(f, "visibility, the region has no such usage",
	     (must(rpma_mr_reg(peer, buffer, PAGE, RPMA_MR_USAGE_WRITE_DST, &m)), must(rpma_mr_get_descriptor(m, descriptor)),
	      must(rpma_mr_remote_from_descriptor(descriptor, size, &rm)),
	      rpma_flush(conn, rm, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL)));
	ENDS(f, "len is 0", rpma_flush(conn, remote, 0, 0, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	ENDS(f, "beyond the remote region", rpma_flush(conn, remote, 4 * PAGE, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	FULL(f, rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ON_ERROR, NULL));
	AFTER(f, rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
	f = "rpma_recv";
	CASE(f, "conn is NULL", rpma_recv(NULL, mr, 0, 64, buffer));
	CASE(f, "dst is NULL, offset is 1", rpma_recv(conn, NULL, 1, 0, buffer));
	CASE(f, "dst is NULL, len is 1", rpma_recv(conn, NULL, 0, 1, buffer));
	CASE(f, "dst is NULL, nothing", rpma_recv(conn, NULL, 0, 0, buffer));
	CASE(f, "op_context is NULL", rpma_recv(conn, mr, 0, 64, NULL));
	FULL(f, rpma_recv(conn, mr, 0, 64, buffer));
	AFTER(f, rpma_recv(conn, mr, 0, 64, buffer));
	EARLY("rpma_write", rpma_write(cn, remote, 0, mr, 0, 8, ALWAYS, buffer));
	EARLY("rpma_send", rpma_send(cn, mr, 0, 8, ALWAYS, buffer));
	EARLY("rpma_recv", rpma_recv(cn, mr, 0, 64, buffer));
}
