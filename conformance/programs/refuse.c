/* refuse ERRNO WHAT... -- PROGRAM ARGUMENT...
 *
 * Runs a program for which the kernel refuses some system calls with that errno (seccomp(2)), as
 * containers, service managers and old kernels do. WHAT is the name of a call in the table below,
 * or `newer`: all that Linux has had since 4.18. One call is ENOSYS whatever ERRNO says: clone3, which
 * the C library takes for missing only then, and without which no program has threads.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Since Linux 5.1 new calls have the same numbers everywhere, from this one on. */
#define FIRST_NEWER 424
#define CLONE3 435

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/* A call, and where only some uses are refused, an argument: `mask` of it is at least `least`. */
struct rule {
	const char *name;
	unsigned int number, argument, mask, least;
};

#define WHOLE(name) { #name, SYS_##name, 0, 0, 0 }
#define LEVEL_SOCKET 1
#define LEVEL_UDP 17

static const struct rule rules[] = {
	WHOLE(memfd_create), WHOLE(socketpair), WHOLE(process_vm_readv), WHOLE(process_vm_writev),
	WHOLE(preadv2), WHOLE(epoll_pwait),
#ifdef SYS_epoll_wait
	WHOLE(epoll_wait),
#endif
	WHOLE(sched_setaffinity), WHOLE(statx), WHOLE(getrandom), WHOLE(madvise), WHOLE(unshare),
	{ "epoll_pwait2", 441, 0, 0, 0 },
	{ "pidfd_send_signal", 424, 0, 0, 0 },
	/* From MADV_COLD on, the first advice after 4.18. */
	{ "madvise-newer", SYS_madvise, 2, 0x7f, 20 },
	/* F_ADD_SEALS of F_SEAL_FUTURE_WRITE. */
	{ "seal-newer", SYS_fcntl, 2, 0x10, 0x10 },
};

static struct sock_filter program[256];
static unsigned int length;

static void put(unsigned short code, unsigned char yes, unsigned char no, unsigned int k)
{
	if (length == sizeof(program) / sizeof(*program)) {
		fprintf(stderr, "refuse: too many rules\n");
		exit(125);
	}
	program[length++] = (struct sock_filter){ code, yes, no, k };
}

static void load(size_t offset)
{
	put(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset);
}

static void answer(unsigned int error)
{
	put(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error);
}

static void refuse(const struct rule *rule, unsigned int error)
{
	const int seals = rule->number == SYS_fcntl;

	put(BPF_JMP | BPF_JEQ | BPF_K, 0, rule->mask ? (seals ? 7 : 5) : 1, rule->number);
	if (rule->mask) {
		if (seals) {
			load(offsetof(struct seccomp_data, args[1]));
			put(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, 1033 /* F_ADD_SEALS */);
		}
		load(offsetof(struct seccomp_data, args) + 8 * rule->argument);
		put(BPF_ALU | BPF_AND | BPF_K, 0, 0, rule->mask);
		put(BPF_JMP | BPF_JGE | BPF_K, 0, 1, rule->least);
		answer(error);
		load(offsetof(struct seccomp_data, nr));
	} else {
		answer(error);
	}
}

/* The calls themselves, and newer uses of older calls, which an old kernel answers with another
 * errno than ENOSYS.
 */
static void newer(unsigned int error)
{
	static const unsigned int options[][2] = {
		{ LEVEL_UDP, 104 /* UDP_GRO, 5.0 */ },
		{ LEVEL_SOCKET, 77 /* SO_PEERPIDFD, 6.5 */ },
	};
	static const unsigned int calls[] = { SYS_setsockopt, SYS_getsockopt };
	size_t i, j;

	put(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, CLONE3);
	answer(ENOSYS);
	put(BPF_JMP | BPF_JGE | BPF_K, 0, 1, FIRST_NEWER);
	answer(error);
	for (i = 0; i < sizeof(rules) / sizeof(*rules); i++)
		if (strstr(rules[i].name, "-newer"))
			refuse(&rules[i], error == ENOSYS ? EINVAL : error);
	for (i = 0; i < 2; i++)
		for (j = 0; j < 2; j++) {
			put(BPF_JMP | BPF_JEQ | BPF_K, 0, 6, calls[j]);
			load(offsetof(struct seccomp_data, args[1]));
			put(BPF_JMP | BPF_JEQ | BPF_K, 0, 3, options[i][0]);
			load(offsetof(struct seccomp_data, args[2]));
			put(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, options[i][1]);
			answer(error == ENOSYS ? ENOPROTOOPT : error);
			load(offsetof(struct seccomp_data, nr));
		}
}

int main(int argc, char **argv)
{
	struct sock_fprog filter = { 0, program };
	unsigned int error;
	size_t r;
	int i = 2;

	if (argc < 5) {
		fprintf(stderr, "refuse ERRNO WHAT... -- PROGRAM ARGUMENT...\n");
		return 125;
	}
	error = !strcmp(argv[1], "EPERM") ? EPERM : !strcmp(argv[1], "ENOSYS") ? ENOSYS : atoi(argv[1]);
	load(offsetof(struct seccomp_data, arch));
	put(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, ARCHITECTURE);
	put(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
	load(offsetof(struct seccomp_data, nr));
	for (; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "newer")) {
			newer(error);
			continue;
		}
		for (r = 0; r < sizeof(rules) / sizeof(*rules) && strcmp(rules[r].name, argv[i]); r++)
			;
		if (r == sizeof(rules) / sizeof(*rules)) {
			fprintf(stderr, "refuse: %s is not in the table\n", argv[i]);
			return 125;
		}
		refuse(&rules[r], error);
	}
	put(BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW);
	filter.len = length;
	if (i + 1 >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
		perror("refuse");
		return 125;
	}
	execvp(argv[i + 1], argv + i + 1);
	perror(argv[i + 1]);
	return 126;
}
