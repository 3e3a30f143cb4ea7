/*
 * lifecycle SCENE: fork, exit and pthread_cancel in a program that has RDMA open. Prints "ok SCENE" as its last word.
 */
#include "common.h"

#include <netinet/in.h>
#include <arpa/inet.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

static struct sockaddr_in loopback(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	return a;
}

static int listen_on(int port, struct rdma_event_channel **channel, struct rdma_cm_id **id)
{
	struct sockaddr_in a = loopback(port);

	*channel = rdma_create_event_channel();
	return !*channel || rdma_create_id(*channel, id, NULL, RDMA_PS_TCP) || rdma_bind_addr(*id, (struct sockaddr *)&a) || rdma_listen(*id, 8);
}

static int said(int good, const char *scene)
{
	printf("%s %s\n", good ? "ok" : "not ok", scene);
	fflush(stdout);
	return good ? 0 : 1;
}

/* The whole life of a device: open, send to ourselves, close. */
static int whole_life(void)
{
	struct ibv_context *ctx = open_first();
	struct loop l;

	return loop_open(ctx, &l) || loop_send(&l, "hello") || loop_close(&l) || ibv_close_device(ctx);
}

static int forked(int (*child)(void))
{
	struct ibv_context *ctx = open_first();
	struct loop l;
	int status = -1;
	pid_t pid;

	if (loop_open(ctx, &l) || loop_send(&l, "before"))
		return -1;
	pid = fork();
	if (pid == 0)
		exit(child ? child() != 0 : 0);
	/* The parent's queue pair works on while the child lives and after it has gone. */
	if (pid < 0 || loop_send(&l, "during") || waitpid(pid, &status, 0) != pid || status != 0)
		return -1;
	return loop_send(&l, "after") || loop_close(&l) || ibv_close_device(ctx);
}

static int parent_killed(const char *scene)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int wait_for_death[2];
	pid_t pid;
	char c;

	if (pipe(wait_for_death) || listen_on(7200, &channel, &id))
		return said(0, scene);
	pid = fork();
	if (pid == 0) {
		struct rdma_event_channel *own;
		struct rdma_cm_id *mine;
		int taken = -1;

		close(wait_for_death[1]);
		if (read(wait_for_death[0], &c, 1) != 0)
			return said(0, scene);
		/* The parent's names are gone though we, its child, live: its port can be had. */
		for (int i = 0; i < 100 && taken; i++) {
			taken = listen_on(7200, &own, &mine);
			if (taken)
				usleep(20000);
		}
		return said(!taken && !whole_life() && !rdma_destroy_id(mine), scene);
	}
	kill(getpid(), SIGKILL);
	return 1;
}

static void *in_cm_event(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *in_cq_event(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *in_async_event(void *ctx)
{
	struct ibv_async_event event;

	ibv_get_async_event(ctx, &event);
	return NULL;
}

static int cancelled(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	void *result = NULL;

	if (pthread_create(&thread, NULL, body, argument))
		return -1;
	usleep(200000);
	return pthread_cancel(thread) || pthread_join(thread, &result) || result != PTHREAD_CANCELED;
}

static int exit_open(const char *scene)
{
	struct rdma_event_channel *channel;
	struct ibv_comp_channel *completions;
	struct rdma_cm_id *id;
	struct ibv_context *ctx = open_first();
	static struct loop l;
	pthread_t t[3];

	if (loop_open(ctx, &l) || loop_send(&l, "open") || listen_on(7201, &channel, &id) || !(completions = ibv_create_comp_channel(ctx)))
		return said(0, scene);
	if (pthread_create(&t[0], NULL, in_cm_event, channel) || pthread_create(&t[1], NULL, in_cq_event, completions) ||
	    pthread_create(&t[2], NULL, in_async_event, ctx))
		return said(0, scene);
	usleep(200000);
	exit(said(1, scene));
}

/*
 * What a malloc that is interrupted holds is held until it goes on: here by the thread that exits, so nothing may ask for it. A small piece is given
 * back without.
 */
enum { SMALL = 1032 };
static _Thread_local int in_malloc, interrupted;

static void held(void)
{
	static const char text[] = "not ok exit-in-malloc: malloc within exit, which interrupted malloc\n";

	if (in_malloc)
		_exit(write(STDOUT_FILENO, text, sizeof text - 1) > 0 ? 1 : 3);
}

extern void *__libc_malloc(size_t size), *__libc_calloc(size_t count, size_t size), *__libc_realloc(void *piece, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *piece);

void *malloc(size_t size)
{
	held();
	if (interrupted) {
		in_malloc = 1;
		raise(SIGUSR1);
	}
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	held();
	return __libc_calloc(count, size);
}

void *realloc(void *piece, size_t size)
{
	held();
	return __libc_realloc(piece, size);
}

int posix_memalign(void **piece, size_t align, size_t size)
{
	held();
	*piece = __libc_memalign(align, size);
	return *piece ? 0 : ENOMEM;
}

void free(void *piece)
{
	if (piece && malloc_usable_size(piece) > SMALL)
		held();
	__libc_free(piece);
}

static void exits(int number)
{
	(void)number;
	exit(0);
}

static int exit_in_malloc(const char *scene)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_context *ctx = open_first();
	static struct loop l;

	if (loop_open(ctx, &l) || loop_send(&l, "open") || listen_on(7201, &channel, &id) || signal(SIGUSR1, exits) == SIG_ERR)
		return said(0, scene);
	said(1, scene);
	fflush(stdout);
	interrupted = 1;
	return malloc(1) ? 1 : 2;
}

static int cancel_cm(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;

	if (listen_on(7202, &channel, &id) || cancelled(in_cm_event, channel) || rdma_destroy_id(id))
		return -1;
	rdma_destroy_event_channel(channel);
	return whole_life();
}

static int cancel_in_device(void *(*body)(void *), int completions)
{
	struct ibv_context *ctx = open_first();
	struct ibv_comp_channel *channel = ctx ? ibv_create_comp_channel(ctx) : NULL;

	if (!channel || cancelled(body, completions ? (void *)channel : (void *)ctx))
		return -1;
	return ibv_destroy_comp_channel(channel) || ibv_close_device(ctx) || whole_life();
}

int main(int argc, char **argv)
{
	const char *scene = argc == 2 ? argv[1] : "";

	if (!strcmp(scene, "child-exits"))
		return said(!forked(NULL), scene);
	if (!strcmp(scene, "child-opens"))
		return said(!forked(whole_life), scene);
	if (!strcmp(scene, "parent-killed"))
		return parent_killed(scene);
	if (!strcmp(scene, "exit-open"))
		return exit_open(scene);
	if (!strcmp(scene, "exit-in-malloc"))
		return exit_in_malloc(scene);
	if (!strcmp(scene, "cancel-cm"))
		return said(!cancel_cm(), scene);
	if (!strcmp(scene, "cancel-cq"))
		return said(!cancel_in_device(in_cq_event, 1), scene);
	if (!strcmp(scene, "cancel-async"))
		return said(!cancel_in_device(in_async_event, 0), scene);
	fprintf(stderr, "usage: lifecycle SCENE (see main)\n");
	return 2;
}
