/* Four connections and one thread: the server sleeps in epoll over its endpoint, the events and the completions of all, with every
 * descriptor non-blocking. Each client writes to a place of its own and says so; the server looks and answers. With SHARED the main and
 * the receive queue of a connection have one completion channel. */
#include "scenario.h"

#include <sys/epoll.h>

#define MANY 4
#ifdef SHARED
#define RCQ_SIZE 10
#else
#define RCQ_SIZE 0
#endif

struct one {
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	int established, closed, answered, seen;
};

static struct rpma_conn_cfg *configuration(void)
{
	struct rpma_conn_cfg *cfg;
	bool shared = true;

	must(rpma_conn_cfg_new(&cfg));
	must(rpma_conn_cfg_get_compl_channel(cfg, &shared));
	must(shared);
	must(rpma_conn_cfg_set_rcq_size(cfg, RCQ_SIZE));
	must(rpma_conn_cfg_set_compl_channel(cfg, RCQ_SIZE != 0));
	return cfg;
}

/* The descriptor of completions. */
static int completions(struct one *o)
{
	int fd = -1;

#ifdef SHARED
	must(rpma_conn_get_compl_fd(o->conn, &fd));
	must(rpma_cq_wait(o->cq) != RPMA_E_SHARED_CHANNEL);
#else
	must(rpma_conn_get_compl_fd(o->conn, &fd) != RPMA_E_NOT_SHARED_CHNL || fd != -1);
	must(rpma_cq_get_fd(o->cq, &fd));
#endif
	return fd;
}

/* A queue that has completions; RPMA_E_NO_COMPLETION if none has. */
static int ready(struct one *o, struct rpma_cq **cq, bool *is_rcq)
{
#ifdef SHARED
	return rpma_conn_wait(o->conn, 0, cq, is_rcq);
#else
	*cq = o->cq;
	*is_rcq = false;
	return rpma_cq_wait(o->cq);
#endif
}

/* Its manual page says RPMA_E_NO_EVENT. Debian's library gives that for ENODATA only, and rdma_get_cm_event says EAGAIN. */
static int nothing(int ret)
{
	return ret == RPMA_E_NO_EVENT || (ret == RPMA_E_PROVIDER && errno == EAGAIN);
}

static void nonblocking(int epoll, int fd, uint32_t what)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = what };

	must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
	must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

/* What came to a connection: the client's word that its place is written, or that our answer is sent. */
static void take(struct end *e, struct one *o)
{
	struct rpma_cq *cq;
	struct ibv_wc wc[4];
	int ret, n;
	bool is_rcq;

	if ((ret = ready(o, &cq, &is_rcq)) == RPMA_E_NO_COMPLETION)
		return;
	must(ret);
	while ((ret = rpma_cq_get_wc(cq, 4, wc, &n)) == 0) {
		for (int i = 0; i < n; i++) {
			unsigned char at = e->memory[wc[i].wr_id];

			must(wc[i].status != IBV_WC_SUCCESS);
			if (wc[i].opcode == IBV_WC_SEND) {
				must(is_rcq);
				o->answered = 1;
				continue;
			}
			must(wc[i].opcode != IBV_WC_RECV || is_rcq != (RCQ_SIZE != 0) || at >= MANY);
			o->seen = filled(e->memory + at * PAGE, at, PAGE);
			must(rpma_send(o->conn, e->mr, wc[i].wr_id, 1, ALWAYS, NULL));
		}
	}
	must(ret != RPMA_E_NO_COMPLETION);
}

static void serve(const char *address, const char *port)
{
	struct end e;
	struct rpma_conn_private_data data;
	struct rpma_conn_cfg *cfg = configuration();
	struct one ones[MANY] = { 0 };
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	int epoll = epoll_create1(0), fd, accepted = 0, open = MANY, right = 0, none;

	prepare(&e, address, LOCAL, EVERYTHING);
	data = describe(&e);
	must(rpma_ep_listen(e.peer, address, port, &ep));
	must(rpma_ep_get_fd(ep, &fd));
	nonblocking(epoll, fd, MANY);
	none = rpma_ep_next_conn_req(ep, cfg, &request);
	check(nothing(none) || none == 0, "the endpoint does not block");
	while (open) {
		struct epoll_event events[8];
		int n = none == 0 ? 1 : epoll_wait(epoll, events, 8, -1);

		if (none == 0)
			events[0].data.u32 = MANY;
		for (int i = 0; i < n; i++) {
			struct one *o = &ones[events[i].data.u32 & 7];
			enum rpma_conn_event event;
			int ret;

			if (events[i].data.u32 == MANY) {
				if (none != 0 && nothing(ret = rpma_ep_next_conn_req(ep, cfg, &request)))
					continue;
				must(none != 0 ? ret : 0);
				none = 1;
				must(accepted == MANY);
				o = &ones[accepted];
				must(rpma_conn_req_recv(request, e.mr, IN + accepted * 64, 64, (void *)(uintptr_t)(IN + accepted * 64)));
				must(rpma_conn_req_connect(&request, &data, &o->conn));
				must(rpma_conn_get_event_fd(o->conn, &fd));
				nonblocking(epoll, fd, accepted);
#ifdef SHARED
				must(rpma_conn_get_rcq(o->conn, &o->cq));
#else
				must(rpma_conn_get_cq(o->conn, &o->cq));
#endif
				nonblocking(epoll, completions(o), 8 | accepted++);
			} else if (events[i].data.u32 & 8) {
				take(&e, o);
			} else if (!o->closed) {
				if (nothing(ret = rpma_conn_next_event(o->conn, &event)))
					continue;
				must(ret);
				o->established += event == RPMA_CONN_ESTABLISHED;
				if (event != RPMA_CONN_CLOSED)
					continue;
				take(&e, o);
				right += o->established == 1 && o->seen && o->answered;
				o->closed = 1;
				must(rpma_conn_disconnect(o->conn));
				must(rpma_conn_delete(&o->conn));
				open--;
			}
		}
	}
	check(right == MANY, "all were established, seen, answered and closed");
	must(rpma_ep_shutdown(&ep));
	must(rpma_conn_cfg_delete(&cfg));
	check(cfg == NULL, "the configuration is NULL");
	close(epoll);
	release(&e);
}

static void ask(const char *address, const char *port)
{
	struct end e;
	struct rpma_conn_private_data theirs, own;
	struct rpma_conn_cfg *cfg = configuration();
	struct rpma_conn *conns[MANY];
	struct rpma_mr_remote *remote;
	int right = 0;

	prepare(&e, address, REMOTE, EVERYTHING);
	own = describe(&e);
	for (int i = 0; i < MANY; i++) {
		struct rpma_conn_req *request;

		must(rpma_conn_req_new(e.peer, address, port, cfg, &request));
		must(rpma_conn_req_recv(request, e.mr, IN + i * 64, 64, NULL));
		must(rpma_conn_req_connect(&request, &own, &conns[i]));
		event_is(conns[i], RPMA_CONN_ESTABLISHED, "established");
	}
	must(rpma_conn_get_private_data(conns[0], &theirs));
	must(rpma_mr_remote_from_descriptor(theirs.ptr, theirs.len, &remote));
	/* All at once, then the completions of each. */
	for (int i = 0; i < MANY; i++) {
		fill(e.memory + i * PAGE, i, PAGE);
		e.memory[OUT + i] = (unsigned char)i;
		must(rpma_write(conns[i], remote, i * PAGE, e.mr, i * PAGE, PAGE, RPMA_F_COMPLETION_ON_ERROR, NULL));
		must(rpma_send(conns[i], e.mr, OUT + i, 1, ALWAYS, NULL));
	}
	for (int i = 0; i < MANY; i++) {
		int seen = 0;

		while (seen != 3) {
			struct one o = { .conn = conns[i] };
			struct rpma_cq *cq;
			struct ibv_wc wc;
			bool is_rcq;

			must(rpma_conn_get_cq(o.conn, &o.cq));
			must(ready(&o, &cq, &is_rcq));
			while (rpma_cq_get_wc(cq, 1, &wc, NULL) == 0) {
				must(wc.status);
				seen |= wc.opcode == IBV_WC_SEND ? 1 : wc.opcode == IBV_WC_RECV && is_rcq == (RCQ_SIZE != 0) ? 2 : 4;
			}
			must(seen & 4);
		}
		right += e.memory[IN + i * 64] == i;
	}
	check(right == MANY, "each connection was answered on its own");
	for (int i = 0; i < MANY; i++) {
		must(rpma_conn_disconnect(conns[i]));
		event_is(conns[i], RPMA_CONN_CLOSED, "closed");
		must(rpma_conn_delete(&conns[i]));
	}
	must(rpma_mr_remote_delete(&remote));
	must(rpma_conn_cfg_delete(&cfg));
	release(&e);
}
