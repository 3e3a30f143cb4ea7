/* What each function of libibumad returns, its errno, and what the kernel's poll, epoll, dup and fork do with a port's descriptor.
 * Prints a line for each thing that is otherwise, and "N checks" in the end. Argument: a LID that no port has. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/umad.h>

static int checks, wrong;
#define IS(what, want) is(#what, (long)(what), (long)(want))
static void is(const char *what, long got, long want)
{
	checks++;
	if (got != want) {
		wrong++;
		printf("%s is %ld, not %ld (errno %d)\n", what, got, want, errno);
	}
}

enum { VENDOR = 0x32, SA = 0x03, GET_TABLE = 0x12, RESPONSE = 0x80, LONG = 100000, HEAD = 56 };
static uint8_t oui[3] = { 0, 0x14, 5 };
static long methods[16 / sizeof(long)];

static void method(int number)
{
	memset(methods, 0, sizeof methods);
	methods[number / (8 * sizeof(long))] = 1L << (number % (8 * sizeof(long)));
}

static void devices(void)
{
	char names[4][UMAD_CA_NAME_LEN], path[64] = "";
	umad_ca_t ca;
	umad_port_t port;
	__be64 guids[4];

	IS(umad_init(), 0);
	IS(umad_size(), 64);
	IS(umad_get_cas_names(names, 4), 1);
	IS(strcmp(names[0], "mlx5_0"), 0);
	IS(umad_get_ca("nope", &ca), -ENOENT);
	IS(umad_get_ca(NULL, &ca), 0);
	IS(ca.node_type, 1);
	IS(ca.numports, 1);
	IS(ca.ports[0] == NULL, 1);
	IS(ca.ports[1]->state, 4);
	IS(ca.ports[1]->phys_state, 5);
	IS(ca.ports[1]->rate, 100);
	IS(strcmp(ca.ports[1]->link_layer, "InfiniBand"), 0);
	IS(ca.ports[1]->pkeys_size, 1);
	IS(ca.ports[1]->pkeys[0], 0xffff);
	IS(umad_get_ca_portguids("mlx5_0", guids, 4), 2);
	IS(guids[0], 0);
	IS(guids[1] == ca.ports[1]->port_guid, 1);
	IS(umad_get_ca_portguids("mlx5_0", guids, 1), -ENOMEM);
	IS(umad_get_ca_portguids("mlx5_0", NULL, 0), 2);
	IS(umad_release_ca(&ca), 0);
	IS(umad_release_ca(NULL), -ENODEV);
	IS(umad_get_port("mlx5_0", 7, &port), -EIO);
	IS(umad_get_port("nope", 1, &port), -EIO);
	IS(umad_get_port("mlx5_0", 0, &port), 0);
	IS(port.portnum, 1);
	IS(umad_release_port(&port), 0);
	IS(umad_release_port(NULL), -ENODEV);
	IS(umad_get_issm_path("mlx5_0", 1, path, sizeof path), 0);
	IS(strcmp(path, "/dev/infiniband/issm0"), 0);
	IS(umad_get_issm_path("nope", 1, path, sizeof path), -EINVAL);
	IS(umad_open_port("nope", 1), -EINVAL);
	struct umad_device_node *list = umad_get_ca_device_list();
	IS(list != NULL && strcmp(list->ca_name, "mlx5_0") == 0 && list->next == NULL, 1);
	IS(umad_sort_ca_device_list(&list, 1), 0);
	umad_free_ca_device_list(list);
}

static void agents(int fd)
{
	struct umad_reg_attr attr = { .mgmt_class = VENDOR, .mgmt_class_version = 1, .oui = 7, .rmpp_version = 1, .flags = UMAD_USER_RMPP };
	uint32_t id = 99;
	int first, other = umad_open_port(NULL, 0);

	IS(umad_get_fd(fd), fd);
	method(1);
	first = umad_register_oui(fd, VENDOR, 0, oui, methods);
	IS(first, 0);
	IS(umad_register_oui(other, VENDOR, 0, oui, methods), -EPERM);
	IS(errno, EINVAL);
	IS(umad_register_oui(fd, SA, 0, oui, methods), -EINVAL);
	IS(umad_register(fd, 0x60, 1, 0, NULL), -EPERM);
	IS(errno, EINVAL);
	IS(umad_register2(fd, &attr, &id), 0);
	IS(id, 1);
	attr.flags = 0x80;
	IS(umad_register2(fd, &attr, &id), EINVAL);
	IS(attr.flags, UMAD_USER_RMPP);
	IS(umad_register2(fd, NULL, &id), EINVAL);
	for (int n = 2; n < UMAD_CA_MAX_AGENTS; n++)
		IS(umad_register(fd, VENDOR, 1, 0, NULL), n);
	IS(umad_register(fd, VENDOR, 1, 0, NULL), -EPERM);
	IS(errno, ENOMEM);
	for (int n = 0; n < UMAD_CA_MAX_AGENTS; n++)
		IS(umad_unregister(fd, n), 0);
	IS(umad_unregister(fd, 0), -1);
	IS(errno, EINVAL);
	IS(umad_unregister(fd, -1), -1);
	IS(umad_close_port(other), 0);
	IS(umad_register(-1, VENDOR, 1, 0, NULL), -EPERM);
	IS(errno, EBADF);
}

static void *message(int length, int class, int number, int tid)
{
	void *umad = umad_alloc(1, umad_size() + length);
	uint8_t *mad = umad_get_mad(umad);

	mad[0] = 1, mad[1] = class, mad[2] = class == SA ? 2 : 1, mad[3] = number, mad[15] = tid;
	memcpy(mad + 37, class == SA ? (uint8_t[3]){ 0 } : oui, 3);
	return umad;
}

static void waiting(int fd, int no_lid)
{
	void *umad = message(256, VENDOR, 1, 1), *got = umad_alloc(1, umad_size() + 256);
	int length = 256, agent = umad_register(fd, VENDOR, 1, 0, NULL), copy = dup(fd), ep = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN };
	struct timeval second = { 1, 0 };
	fd_set set;

	IS(umad_poll(fd, 10), -ETIMEDOUT);
	IS(umad_recv(fd, got, &length, 10), -ETIMEDOUT);
	IS(errno, ETIMEDOUT);
	IS(umad_recv(fd, got, &length, 0), -EWOULDBLOCK);
	IS(umad_recv(fd, NULL, &length, 0), -EINVAL);
	IS(umad_recv(fd, got, NULL, 0), -EINVAL);
	IS(umad_recv(-1, got, &length, 0), -EBADF);
	IS(umad_send(-1, agent, umad, 256, 0, 0), -EIO);
	IS(errno, EBADF);
	IS(umad_set_addr(umad, no_lid, 1, 0, 0x80010000), 0);
	IS(umad_set_pkey(umad, 3), 0);
	IS(umad_get_pkey(umad), 3);
	IS(umad_set_pkey(umad, 0), 0);
	IS(umad_send(fd, agent, umad, 256, 50, 1), 0);
	/* The answer to a request that has none: its header, 24 bytes, ETIMEDOUT; by whatever the kernel waits with. */
	FD_ZERO(&set);
	FD_SET(fd, &set);
	IS(select(fd + 1, &set, NULL, NULL, &second), 1);
	epoll_ctl(ep, EPOLL_CTL_ADD, copy, &event);
	IS(epoll_wait(ep, &event, 1, 1000), 1);
	IS(umad_poll(copy, 1000), 0);
	IS(umad_recv(copy, got, &length, 1000), agent);
	IS(umad_status(got), ETIMEDOUT);
	IS(length, 24);
	IS(ntohs(umad_get_mad_addr(got)->lid), no_lid);
	IS(umad_unregister(fd, agent), 0);
	close(copy), close(ep), umad_free(umad), umad_free(got);
}

static void long_messages(int server, int client)
{
	umad_port_t port;
	void *got = umad_alloc(1, umad_size() + LONG), *request = message(256, SA, GET_TABLE, 7);
	int takes, asks, length, status;

	umad_get_port(NULL, 0, &port);
	method(GET_TABLE);
	takes = umad_register(server, SA, 2, 1, methods);
	asks = umad_register(client, SA, 2, 1, NULL);
	IS(umad_set_addr(request, port.base_lid, 1, 0, 0x80010000), 0);
	IS(umad_send(client, asks, request, 256, 2000, 0), 0);
	length = 256;
	IS(umad_recv(server, got, &length, 2000), takes);
	IS(((uint8_t *)umad_get_mad(got))[3], GET_TABLE);

	/* A child answers by the descriptor that it has inherited. */
	pid_t child = fork();
	if (child == 0) {
		void *answer = message(LONG, SA, GET_TABLE | RESPONSE, 0);
		uint8_t *mad = umad_get_mad(answer);
		memcpy(mad + 8, (uint8_t *)umad_get_mad(got) + 8, 8);
		mad[26] = 1;
		for (int n = HEAD; n < LONG; n++)
			mad[n] = n % 251;
		memcpy(umad_get_mad_addr(answer), umad_get_mad_addr(got), sizeof(ib_mad_addr_t));
		_exit(umad_send(server, takes, answer, LONG, 0, 0) != 0);
	}
	IS(waitpid(child, &status, 0), child);
	IS(status, 0);
	length = 256;
	IS(umad_recv(client, got, &length, 2000), -ENOSPC);
	IS(errno, ENOSPC);
	IS(length, LONG);
	IS(umad_recv(client, got, &length, 2000), asks);
	IS(length, LONG);
	int same = 1;
	for (int n = HEAD; n < LONG; n++)
		same &= ((uint8_t *)umad_get_mad(got))[n] == n % 251;
	IS(same, 1);
	IS(umad_recv(client, got, &length, 0), -EWOULDBLOCK);
	umad_release_port(&port), umad_free(got), umad_free(request);
}

int main(int argc, char **argv)
{
	int one, two;

	if (argc != 2)
		return 2;
	devices();
	one = umad_open_port("mlx5_0", 1);
	two = umad_open_port(NULL, 0);
	IS(one >= 0 && two >= 0 && one != two, 1);
	agents(one);
	waiting(one, atoi(argv[1]));
	long_messages(one, two);
	IS(umad_close_port(one), 0);
	IS(umad_close_port(two), 0);
	IS(umad_done(), 0);
	printf("%d checks\n", checks);
	return wrong != 0;
}
