/* The table test of librpma's errors: one line a case, `function: case: result`, and for an out parameter what became of it. A case that
 * may kill the process, or that starves it, runs in a process of its own: this program again, which leaves out all other cases. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <librpma.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define ALWAYS RPMA_F_COMPLETION_ALWAYS
#define MARK 0x5a

/* A case of a function without an out parameter; one with; and the same in a process of their own, after `before`. */
#define CASE(f, what, call) do { if (mine(f, what, 0)) say(f, what, (call), ""); } while (0)
#define OUT(f, what, var, call) do { if (mine(f, what, 0)) { int r_; memset(&(var), MARK, sizeof(var)); r_ = (call); \
	say(f, what, r_, became(&(var), sizeof(var))); } } while (0)
#define ALONE(f, what, before, call) do { if (mine(f, what, 1)) { before; say(f, what, (call), ""); } } while (0)
#define ALONE_OUT(f, what, before, var, call) do { if (mine(f, what, 1)) { int r_; before; memset(&(var), MARK, sizeof(var)); r_ = (call); \
	starving = 0; say(f, what, r_, became(&(var), sizeof(var))); } } while (0)
/* What must work for the cases after it. */
#define must(call) must_(call, #call)

static int number, only;	/* of the present case; of the one that this process is for, or 0 */
static char *self, *address, *port_text;
static volatile int starving;
static uintptr_t library_from, library_to;

static void must_(int ret, const char *call)
{
	if (ret == 0)
		return;
	printf("not ok %s: %s\n", call, rpma_err_2str(ret));
	exit(2);
}

static const char *name_of(int ret)
{
	static char other[32];

	switch (ret) {
	case 0: return "0";
	case RPMA_E_UNKNOWN: return "RPMA_E_UNKNOWN";
	case RPMA_E_NOSUPP: return "RPMA_E_NOSUPP";
	case RPMA_E_PROVIDER: return "RPMA_E_PROVIDER";
	case RPMA_E_NOMEM: return "RPMA_E_NOMEM";
	case RPMA_E_INVAL: return "RPMA_E_INVAL";
	case RPMA_E_NO_COMPLETION: return "RPMA_E_NO_COMPLETION";
	case RPMA_E_NO_EVENT: return "RPMA_E_NO_EVENT";
	case RPMA_E_AGAIN: return "RPMA_E_AGAIN";
	case RPMA_E_SHARED_CHANNEL: return "RPMA_E_SHARED_CHANNEL";
	case RPMA_E_NOT_SHARED_CHNL: return "RPMA_E_NOT_SHARED_CHNL";
	}
	snprintf(other, sizeof(other), "%d", ret);
	return other;
}

/* An out parameter was marked before the call. */
static const char *became(const void *var, size_t size)
{
	int marked = 1, zero = 1;

	for (size_t i = 0; i < size; i++) {
		marked &= ((const unsigned char *)var)[i] == MARK;
		zero &= ((const unsigned char *)var)[i] == 0;
	}
	return marked ? ", out parameter left" : zero ? ", out parameter zero" : ", out parameter set";
}

static void say(const char *f, const char *what, int ret, const char *more)
{
	starving = 0;
	printf("%s: %s: %s%s\n", f, what, name_of(ret), more);
	fflush(stdout);
	if (only)
		_exit(0);
}

/* Whether this process runs the case. One that stands alone is run by another process here and now. */
static int mine(const char *f, const char *what, int alone)
{
	char n[16];
	int status;
	pid_t pid;

	number++;
	if (only)
		return only == number;
	if (!alone)
		return 1;
	snprintf(n, sizeof(n), "%d", number);
	if ((pid = fork()) == 0) {
		execl(self, self, address, port_text, n, (char *)NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	if (WIFSIGNALED(status))
		printf("%s: %s: killed by SIG%s\n", f, what, sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		printf("%s: %s: exit %d\n", f, what, WEXITSTATUS(status));
	fflush(stdout);
	return 0;
}

/* -- no memory, for the library alone -------------------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static int starved(void *caller)
{
	if (!starving || (uintptr_t)caller < library_from || (uintptr_t)caller >= library_to)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t n) { return starved(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return starved(__builtin_return_address(0)) ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return starved(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { return starved(__builtin_return_address(0)) ? NULL : __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n)
{
	return starved(__builtin_return_address(0)) || !(*p = __libc_memalign(a, n)) ? ENOMEM : 0;
}

/* Where the library is mapped, whatever its file is called: what is called from there gets no memory while it starves. */
static void find_library(void)
{
	char line[PATH_MAX + 128], file[PATH_MAX];
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	Dl_info library;

	if (!maps || !dladdr(dlsym(RTLD_DEFAULT, "rpma_err_2str"), &library) || !realpath(library.dli_fname, file)) {
		printf("not ok find the library\n");
		exit(2);
	}
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, file) && sscanf(line, "%lx-%lx", &from, &to) == 2) {
			library_from = library_from ? library_from : from;
			library_to = to;
		}
	fclose(maps);
}

/* No descriptor more for this process. */
static void no_descriptors(void)
{
	int fd = dup(0);
	struct rlimit limit = { fd, fd };

	close(fd);
	setrlimit(RLIMIT_NOFILE, &limit);
}
