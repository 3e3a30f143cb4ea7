/*
 * errors GROUP [ADDRESS]: bad calls, and the errno that the manual pages and the kernel's rdma_rxe give. One line a check.
 * ADDRESS is the IPv4 address of the first device (127.0.0.1).
 */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>

/* A call that returns an errno (verbs), or -1 and sets errno (rdma_cm). */
#define VERB_FAILS(call, want, what) do { errno = 0; int r_ = (call); if (r_ < 0) r_ = errno; else if (r_) errno = r_; check(r_ == (want), what); } while (0)
#define CM_FAILS(call, want, what) do { errno = 0; int r_ = (call); check(r_ == -1 && errno == (want), what); } while (0)
#define NULL_FAILS(call, want, what) do { errno = 0; void *p_ = (call); check(p_ == NULL && errno == (want), what); } while (0)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_device_attr limits;
static const char *own = "127.0.0.1";

static struct sockaddr *address(const char *ip, int port)
{
	static struct sockaddr_in a[4];
	static int n;
	struct sockaddr_in *s = &a[n++ % 4];

	*s = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	inet_pton(AF_INET, ip, &s->sin_addr);
	return (struct sockaddr *)s;
}

static void device(void)
{
	struct ibv_port_attr port;
	union ibv_gid gid;

	VERB_FAILS(ibv_query_port(ctx, 0, &port), EINVAL, "ibv_query_port of port 0 is EINVAL");
	VERB_FAILS(ibv_query_port(ctx, 2, &port), EINVAL, "ibv_query_port of port 2 is EINVAL");
	check(ibv_query_gid(ctx, 1, 100000, &gid) != 0, "ibv_query_gid beyond the table fails");
	check(ibv_query_gid(ctx, 2, 0, &gid) != 0, "ibv_query_gid of port 2 fails");
	NULL_FAILS(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL, "ibv_create_cq of no entries is EINVAL");
	NULL_FAILS(ibv_create_cq(ctx, limits.max_cqe + 1, NULL, NULL, 0), EINVAL, "ibv_create_cq above max_cqe is EINVAL");
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(flow), .port = 1 };
	struct ibv_qp *qp = make_qp(pd, cq);
	errno = 0;
	check(!ibv_create_flow(qp, &flow) && errno == EINVAL, "ibv_create_flow for a connected queue pair is EINVAL");
	ibv_destroy_qp(qp);
}

static void memory(void)
{
	char buffer[64];
	size_t page = sysconf(_SC_PAGESIZE);
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	NULL_FAILS(ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_REMOTE_WRITE), EINVAL, "ibv_reg_mr for remote but not local writing is EINVAL");
	mprotect(two + page, page, PROT_READ);
	NULL_FAILS(ibv_reg_mr(pd, two, 2 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT, "ibv_reg_mr of memory that may not be written is EFAULT");
	mr = ibv_reg_mr(pd, two + page, page, IBV_ACCESS_REMOTE_READ);
	check(mr != NULL, "ibv_reg_mr of memory that may be read, for reading");
	if (mr)
		ibv_dereg_mr(mr);
	munmap(two + page, page);
	NULL_FAILS(ibv_reg_mr(pd, two, 2 * page, IBV_ACCESS_LOCAL_WRITE), EFAULT, "ibv_reg_mr of memory that is not there is EFAULT");
	munmap(two, page);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	VERB_FAILS(ibv_dealloc_pd(pd), EBUSY, "ibv_dealloc_pd with a region is EBUSY");
	VERB_FAILS(ibv_dereg_mr(mr), 0, "ibv_dereg_mr");
}

static void queues(void)
{
	struct ibv_qp_init_attr a = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
				      .cap = { .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_send_wr swr = { .opcode = IBV_WR_SEND }, *bad_swr;
	struct ibv_recv_wr rwr = { 0 }, *bad_rwr;
	struct ibv_sge sge[64] = { 0 };
	struct ibv_qp *qp;
	int r = 0, i;

	a.cap.max_send_wr = limits.max_qp_wr + 1;
	NULL_FAILS(ibv_create_qp(pd, &a), EINVAL, "ibv_create_qp above max_qp_wr is EINVAL");
	a.cap.max_send_wr = 2;
	a.cap.max_send_sge = limits.max_sge + 1;
	NULL_FAILS(ibv_create_qp(pd, &a), EINVAL, "ibv_create_qp above max_sge is EINVAL");
	a.cap.max_send_sge = 1;
	qp = ibv_create_qp(pd, &a);
	check(qp != NULL, "ibv_create_qp");
	if (!qp)
		return;
	VERB_FAILS(ibv_destroy_cq(cq), EBUSY, "ibv_destroy_cq with a queue pair is EBUSY");
	VERB_FAILS(ibv_post_send(qp, &swr, &bad_swr), EINVAL, "ibv_post_send in RESET is EINVAL");
	check(bad_swr == &swr, "bad_wr is the request that failed");
	VERB_FAILS(ibv_post_recv(qp, &rwr, &bad_rwr), EINVAL, "ibv_post_recv in RESET is EINVAL");
	to_init(qp);
	rwr.sg_list = sge;
	rwr.num_sge = 64;
	VERB_FAILS(ibv_post_recv(qp, &rwr, &bad_rwr), EINVAL, "ibv_post_recv with too many pieces is EINVAL");
	rwr.num_sge = 0;
	for (i = 0; i < 1 << 20 && !r; i++)
		r = ibv_post_recv(qp, &rwr, &bad_rwr);
	VERB_FAILS(r, ENOMEM, "ibv_post_recv to a full queue is ENOMEM");
	/* No peer answers on this number: requests stay outstanding. */
	to_rtr(qp, 0xfffffe);
	to_rts(qp);
	for (i = 0, r = 0; i < 1 << 20 && !r; i++)
		r = ibv_post_send(qp, &swr, &bad_swr);
	VERB_FAILS(r, ENOMEM, "ibv_post_send to a full queue is ENOMEM");
	VERB_FAILS(ibv_destroy_qp(qp), 0, "ibv_destroy_qp");
}

static void states(void)
{
	struct ibv_qp *qp = make_qp(pd, cq);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_init_attr init;

	VERB_FAILS(to_rts(qp), EINVAL, "RESET to RTS is EINVAL");
	VERB_FAILS(to_rtr(qp, 1), EINVAL, "RESET to RTR is EINVAL");
	a.qp_state = IBV_QPS_INIT;
	VERB_FAILS(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL, "INIT without its attributes is EINVAL");
	VERB_FAILS(to_init(qp), 0, "RESET to INIT");
	a.qp_state = IBV_QPS_RTR;
	VERB_FAILS(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL, "RTR without its attributes is EINVAL");
	VERB_FAILS(to_rtr(qp, qp->qp_num), 0, "INIT to RTR");
	VERB_FAILS(to_rts(qp), 0, "RTR to RTS");
	check(!ibv_query_qp(qp, &a, IBV_QP_STATE, &init) && a.qp_state == IBV_QPS_RTS, "ibv_query_qp says RTS");
	a.qp_state = IBV_QPS_ERR;
	VERB_FAILS(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0, "RTS to ERR");
	VERB_FAILS(to_rtr(qp, qp->qp_num), EINVAL, "ERR to RTR is EINVAL");
	ibv_destroy_qp(qp);
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = NULL;

	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		check(0, "rdma_create_id");
	return id;
}

/* Waits up to two seconds for one event and acknowledges it; its type, or -1. */
static int next_event(struct rdma_event_channel *channel, int *status, struct rdma_cm_id **id)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *e;
	int type;

	if (poll(&p, 1, 2000) != 1 || rdma_get_cm_event(channel, &e))
		return -1;
	type = e->event;
	if (status)
		*status = e->status;
	if (id)
		*id = e->id;
	rdma_ack_cm_event(e);
	return type;
}

/* What the kernel says of a port that another has (cma_check_port): a loopback address stands for all addresses. */
static int taken(void)
{
	return strncmp(own, "127.", 4) ? EADDRINUSE : EADDRNOTAVAIL;
}

static void addresses(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *a = new_id(channel), *b = new_id(channel), *c = new_id(channel), *d = new_id(channel);
	struct sockaddr odd = { .sa_family = AF_UNIX };
	struct rdma_addrinfo *info = NULL;

	CM_FAILS(rdma_bind_addr(a, &odd), EINVAL, "rdma_bind_addr of another family is EINVAL");
	CM_FAILS(rdma_bind_addr(a, address("203.0.113.1", 7300)), EADDRNOTAVAIL, "rdma_bind_addr of a foreign address is EADDRNOTAVAIL");
	check(!rdma_bind_addr(a, address(own, 7300)), "rdma_bind_addr");
	CM_FAILS(rdma_bind_addr(b, address(own, 7300)), taken(), "rdma_bind_addr of a port in use is EADDRINUSE, on loopback EADDRNOTAVAIL");
	check(!rdma_listen(a, 1), "rdma_listen");
	CM_FAILS(rdma_listen(a, 1), EINVAL, "rdma_listen again is EINVAL");
	CM_FAILS(rdma_bind_addr(c, address("0.0.0.0", 7300)), EADDRNOTAVAIL, "rdma_bind_addr of the wildcard beside it is EADDRNOTAVAIL");
	CM_FAILS(rdma_bind_addr(a, address(own, 7301)), EINVAL, "rdma_bind_addr of a bound id is EINVAL");
	CM_FAILS(rdma_resolve_addr(d, NULL, address("198.51.100.1", 7300), 1000), ENETUNREACH, "rdma_resolve_addr without a route is ENETUNREACH");
	check(rdma_getaddrinfo("not.a.host.invalid", "7300", NULL, &info) != 0, "rdma_getaddrinfo of no host fails");
	rdma_destroy_id(a), rdma_destroy_id(b), rdma_destroy_id(c), rdma_destroy_id(d);
	a = new_id(channel);
	check(!rdma_bind_addr(a, address(own, 7300)), "the port is free again");
	rdma_destroy_id(a);
	rdma_destroy_event_channel(channel);
}

/* An id with a queue pair whose route to our own address and that port is resolved. */
static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, int port)
{
	struct rdma_cm_id *id = new_id(channel);
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (rdma_resolve_addr(id, NULL, address(own, port), 2000) || next_event(channel, NULL, NULL) != RDMA_CM_EVENT_ADDR_RESOLVED ||
	    rdma_resolve_route(id, 2000) || next_event(channel, NULL, NULL) != RDMA_CM_EVENT_ROUTE_RESOLVED || rdma_create_qp(id, NULL, &a))
		check(0, "resolve"), exit(1);
	return id;
}

static void connect_(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *raw = new_id(channel), *id;
	struct rdma_conn_param p = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	static char private_data[256];

	CM_FAILS(rdma_connect(raw, &p), EINVAL, "rdma_connect before the route is EINVAL");
	CM_FAILS(rdma_connect(raw, NULL), EINVAL, "rdma_connect without parameters and queue pair is EINVAL");
	CM_FAILS(rdma_resolve_route(raw, 1000), EINVAL, "rdma_resolve_route before the address is EINVAL");
	CM_FAILS(rdma_accept(raw, &p), EINVAL, "rdma_accept without a request is EINVAL");
	CM_FAILS(rdma_reject(raw, NULL, 0), EINVAL, "rdma_reject without a request is EINVAL");
	CM_FAILS(rdma_disconnect(raw), EINVAL, "rdma_disconnect without a connection is EINVAL");
	id = resolved(channel, 7310);
	rdma_destroy_qp(id);
	CM_FAILS(rdma_connect(id, NULL), EINVAL, "rdma_connect with a route but neither parameters nor queue pair is EINVAL");
	rdma_destroy_id(id);
	id = resolved(channel, 7310);
	p.responder_resources = limits.max_qp_rd_atom + 1;
	if (limits.max_qp_rd_atom < 254)
		CM_FAILS(rdma_connect(id, &p), EINVAL, "responder_resources above max_qp_rd_atom is EINVAL");
	p.responder_resources = 1;
	p.initiator_depth = limits.max_qp_init_rd_atom + 1;
	if (limits.max_qp_init_rd_atom < 254)
		CM_FAILS(rdma_connect(id, &p), EINVAL, "initiator_depth above max_qp_init_rd_atom is EINVAL");
	p.initiator_depth = 1;
	p.private_data = private_data;
	p.private_data_len = 57;
	CM_FAILS(rdma_connect(id, &p), EINVAL, "57 bytes of private data are EINVAL");
	p.private_data_len = 56;
	check(!rdma_connect(id, &p), "56 bytes of private data are taken");
	CM_FAILS(rdma_connect(id, &p), EINVAL, "rdma_connect again is EINVAL");
	rdma_destroy_qp(id);
	rdma_destroy_id(id), rdma_destroy_id(raw);
	rdma_destroy_event_channel(channel);
}

static void refusal(void)
{
	struct rdma_event_channel *ours = rdma_create_event_channel(), *theirs = rdma_create_event_channel();
	struct rdma_cm_id *server = new_id(theirs), *client, *request = NULL;
	struct rdma_conn_param p = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	static char private_data[256];
	int status = 0;

	client = resolved(ours, 7320);
	check(!rdma_connect(client, &p) && next_event(ours, &status, NULL) == RDMA_CM_EVENT_REJECTED && status == 8, "no listener: REJECTED 8");
	rdma_destroy_qp(client), rdma_destroy_id(client);

	check(!rdma_bind_addr(server, address(own, 7320)) && !rdma_listen(server, 4), "rdma_listen");
	client = resolved(ours, 7320);
	check(!rdma_connect(client, &p) && next_event(theirs, NULL, &request) == RDMA_CM_EVENT_CONNECT_REQUEST, "CONNECT_REQUEST");
	if (request) {
		struct rdma_conn_param long_ = p;

		long_.private_data = private_data;
		long_.private_data_len = 197;
		CM_FAILS(rdma_accept(request, &long_), EINVAL, "rdma_accept with 197 bytes of private data is EINVAL");
		long_ = p;
		long_.responder_resources = limits.max_qp_rd_atom + 1;
		if (limits.max_qp_rd_atom < 254)
			CM_FAILS(rdma_accept(request, &long_), EINVAL, "rdma_accept with responder_resources above max_qp_rd_atom is EINVAL");
		long_ = p;
		long_.initiator_depth = limits.max_qp_init_rd_atom + 1;
		if (limits.max_qp_init_rd_atom < 254)
			CM_FAILS(rdma_accept(request, &long_), EINVAL, "rdma_accept with initiator_depth above max_qp_init_rd_atom is EINVAL");
		rdma_destroy_id(request);
		request = NULL;
		check(next_event(ours, &status, NULL) == RDMA_CM_EVENT_REJECTED, "a request whose id is destroyed is rejected");
	}
	rdma_destroy_qp(client), rdma_destroy_id(client);

	client = resolved(ours, 7320);
	check(!rdma_connect(client, &p) && next_event(theirs, NULL, &request) == RDMA_CM_EVENT_CONNECT_REQUEST, "another CONNECT_REQUEST");
	if (request) {
		check(!rdma_reject(request, "no", 3), "rdma_reject");
		check(next_event(ours, &status, NULL) == RDMA_CM_EVENT_REJECTED && status == 28, "rejected by the server: REJECTED 28");
		rdma_destroy_id(request);
	}
	rdma_destroy_qp(client), rdma_destroy_id(client), rdma_destroy_id(server);
	rdma_destroy_event_channel(ours), rdma_destroy_event_channel(theirs);
}

static void endpoints(void)
{
	struct ibv_qp_init_attr a = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_addrinfo passive = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC };
	struct rdma_addrinfo active = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC };
	struct rdma_cm_id *id = NULL, *other = NULL;

	passive.ai_src_len = active.ai_dst_len = sizeof(struct sockaddr_in);
	passive.ai_src_addr = address("203.0.113.1", 7330);
	CM_FAILS(rdma_create_ep(&id, &passive, NULL, NULL), EADDRNOTAVAIL, "rdma_create_ep on a foreign address is EADDRNOTAVAIL");
	passive.ai_src_addr = address(own, 7330);
	check(!rdma_create_ep(&id, &passive, NULL, NULL), "rdma_create_ep to listen");
	CM_FAILS(rdma_create_ep(&other, &passive, NULL, NULL), taken(), "rdma_create_ep on a port in use is EADDRINUSE, on loopback EADDRNOTAVAIL");
	CM_FAILS(rdma_create_qp(other = new_id(rdma_create_event_channel()), NULL, &a), EINVAL, "rdma_create_qp without a device is EINVAL");
	CM_FAILS(rdma_get_request(other, &id), EINVAL, "rdma_get_request with a channel is EINVAL");
	CM_FAILS(rdma_get_cm_event(other->channel, NULL), EINVAL, "rdma_get_cm_event into nothing is EINVAL");
	rdma_destroy_id(other);
	active.ai_dst_addr = address("198.51.100.1", 7330);
	CM_FAILS(rdma_create_ep(&other, &active, NULL, NULL), ENETUNREACH, "rdma_create_ep without a route is ENETUNREACH");
	active.ai_dst_addr = address(own, 7331);
	a.cap.max_send_wr = limits.max_qp_wr + 1;
	check(rdma_create_ep(&other, &active, NULL, &a) == -1 && (errno == EINVAL || errno == ENOMEM), "rdma_create_ep above max_qp_wr fails");
	a.cap.max_send_wr = 4;
	a.send_cq = a.recv_cq = NULL;
	check(!rdma_create_ep(&other, &active, NULL, &a), "rdma_create_ep to connect");
	CM_FAILS(rdma_create_qp(other, NULL, &a), EINVAL, "rdma_create_qp again is EINVAL");
	errno = 0;
	check(rdma_connect(other, NULL) == -1 && errno == ECONNREFUSED, "rdma_connect to no listener is ECONNREFUSED");
	rdma_destroy_ep(other), rdma_destroy_ep(id);
}

static void events(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ibv_comp_channel *completions = ibv_create_comp_channel(ctx);
	struct rdma_cm_event *e;
	struct ibv_async_event async;
	struct ibv_cq *which;
	void *context;

	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	CM_FAILS(rdma_get_cm_event(channel, &e), EAGAIN, "rdma_get_cm_event on an empty non-blocking channel is EAGAIN");
	fcntl(completions->fd, F_SETFL, fcntl(completions->fd, F_GETFL) | O_NONBLOCK);
	CM_FAILS(ibv_get_cq_event(completions, &which, &context), EAGAIN, "ibv_get_cq_event on an empty non-blocking channel is EAGAIN");
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	CM_FAILS(ibv_get_async_event(ctx, &async), EAGAIN, "ibv_get_async_event on an empty non-blocking device is EAGAIN");
	VERB_FAILS(ibv_destroy_comp_channel(completions), 0, "ibv_destroy_comp_channel");
	completions = ibv_create_comp_channel(ctx);
	which = ibv_create_cq(ctx, 4, NULL, completions, 0);
	VERB_FAILS(ibv_destroy_comp_channel(completions), EBUSY, "ibv_destroy_comp_channel with a queue is EBUSY");
	ibv_destroy_cq(which), ibv_destroy_comp_channel(completions);
	rdma_destroy_event_channel(channel);
}

static void regions(void)
{
	struct ibv_mr **all, *one = NULL;
	static char byte;
	int n = 0;

	if (limits.max_mr > 1 << 20) {
		printf("ok max_mr is out of reach\n");
		return;
	}
	all = calloc(limits.max_mr + 1, sizeof(*all));
	while (n <= limits.max_mr && (one = ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE)))
		all[n++] = one;
	errno = n <= limits.max_mr ? errno : 0;
	check(n == limits.max_mr && errno == ENOMEM, "ibv_reg_mr beyond max_mr is ENOMEM");
	while (n)
		ibv_dereg_mr(all[--n]);
	one = ibv_reg_mr(pd, &byte, 1, IBV_ACCESS_LOCAL_WRITE);
	check(one != NULL, "there is room for regions again");
	if (one)
		ibv_dereg_mr(one);
	free(all);
}

/* As many as the device says, and then ENOMEM. */
static void limits_(void)
{
	int most = limits.max_pd - 1, n = 0;
	struct ibv_pd **all, *one;

	if (most > 1 << 20) {
		printf("ok max_pd is out of reach\n");
		return;
	}
	all = calloc(most + 2, sizeof(*all));
	while (n <= most && (one = ibv_alloc_pd(ctx)))
		all[n++] = one;
	errno = n <= most ? errno : 0;
	check(n == most && errno == ENOMEM, "ibv_alloc_pd beyond max_pd is ENOMEM");
	while (n)
		ibv_dealloc_pd(all[--n]);
	one = ibv_alloc_pd(ctx);
	check(one != NULL, "there is room again");
	if (one)
		ibv_dealloc_pd(one);
	free(all);
	regions();
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } groups[] = {
		{ "device", device }, { "memory", memory }, { "queues", queues }, { "states", states }, { "addresses", addresses },
		{ "connect", connect_ }, { "refusal", refusal }, { "endpoints", endpoints }, { "events", events }, { "limits", limits_ },
	};

	ctx = open_first();
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	cq = ctx ? ibv_create_cq(ctx, 64, NULL, NULL, 0) : NULL;
	if (!ctx || !pd || !cq || ibv_query_device(ctx, &limits)) {
		check(0, "open the first device");
		return 1;
	}
	if (argc == 3)
		own = argv[2];
	for (size_t i = 0; argc >= 2 && i < sizeof(groups) / sizeof(*groups); i++)
		if (!strcmp(argv[1], groups[i].name)) {
			groups[i].run();
			return bad;
		}
	fprintf(stderr, "usage: errors GROUP [ADDRESS] (see main)\n");
	return 2;
}
