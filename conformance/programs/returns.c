/*
 * returns ADDRESS    opens the one device and resolves ADDRESS, waits until the device is removed and is back, then does so again;
 *                    prints what it finds on the way, a line each
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(2);
	}
}

/* How many devices are listed; the first one is opened, where `context` is not NULL. */
static int listed(struct ibv_context **context)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	must(list != NULL, "ibv_get_device_list");
	if (context && count > 0) {
		*context = ibv_open_device(list[0]);
		must(*context != NULL, "ibv_open_device");
	}
	ibv_free_device_list(list);
	return count;
}

static enum rdma_cm_event_type next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	must(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	enum rdma_cm_event_type kind = event->event;
	rdma_ack_cm_event(event);
	return kind;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, const char *address)
{
	struct rdma_addrinfo *found;
	struct rdma_cm_id *id;

	must(!rdma_getaddrinfo(address, "7174", NULL, &found), "rdma_getaddrinfo");
	must(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(!rdma_resolve_addr(id, NULL, found->ai_dst_addr, 2000), "rdma_resolve_addr");
	rdma_freeaddrinfo(found);
	printf("resolved: %s\n", rdma_event_str(next(channel)));
	return id;
}

static void uses(struct ibv_context *context, const char *when)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_port_attr port;

	if (!pd) {
		printf("%s: errno %d\n", when, errno);
		return;
	}
	must(!ibv_query_port(context, 1, &port), "ibv_query_port");
	printf("%s: %s\n", when, ibv_port_state_str(port.state));
	ibv_dealloc_pd(pd);
}

int main(int argc, char **argv)
{
	struct ibv_context *before, *after;
	struct ibv_async_event event;
	struct rdma_event_channel *channel = rdma_create_event_channel();

	must(argc == 2 && channel, "usage");
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("listed: %d\n", listed(&before));
	uses(before, "before");
	struct rdma_cm_id *old = resolved(channel, argv[1]);
	do {
		must(!ibv_get_async_event(before, &event), "ibv_get_async_event");
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	printf("identifier: %s\n", rdma_event_str(next(channel)));
	printf("listed: %d\n", listed(NULL));
	uses(before, "removed");
	for (int tries = 0; listed(NULL) == 0; tries++) {
		must(tries < 1000, "the device does not come back");
		usleep(10000);
	}
	uses(before, "opened before");
	printf("listed: %d\n", listed(&after));
	uses(after, "opened anew");
	struct rdma_cm_id *new = resolved(channel, argv[1]);
	printf("the same context: %d\n", new->verbs == old->verbs);
	struct pollfd events = { .fd = before->async_fd, .events = POLLIN };
	printf("events more: %d\n", poll(&events, 1, 0));
	must(!rdma_destroy_id(new) && !rdma_destroy_id(old), "rdma_destroy_id");
	must(!ibv_close_device(after) && !ibv_close_device(before), "ibv_close_device");
	rdma_destroy_event_channel(channel);
	return 0;
}
