/* Ranks of MPI that send to each other in a ring, reduce over all, and reach into each other's memory; the first says what was right.
 * Small messages and such as go by rendezvous. `mpi`, or `mpi TEST` for one of them. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (1 << 20)

static int rank, ranks;

/* The byte that `from` sends at `i`. */
static unsigned char byte(int from, size_t i, int round)
{
	return (unsigned char)(from * 31 + i * 7 + (i >> 8) + round);
}

/* Every rank sends to its right and receives from its left, so many times. */
static int ring(size_t size, int rounds)
{
	int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, good = 1, round;
	unsigned char *out = malloc(size), *in = malloc(size);
	size_t i;

	for (round = 0; round < rounds; round++) {
		for (i = 0; i < size; i++)
			out[i] = byte(rank, i, round);
		memset(in, 0, size);
		MPI_Sendrecv(out, (int)size, MPI_BYTE, right, round, in, (int)size, MPI_BYTE, left, round, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		for (i = 0; i < size; i++)
			good &= in[i] == byte(left, i, round);
	}
	free(out);
	free(in);
	return good;
}

static int allreduce(int count, int rounds)
{
	long *mine = malloc(sizeof(long) * (size_t)count), *sum = malloc(sizeof(long) * (size_t)count);
	long all = (long)ranks * (ranks - 1) / 2;
	int good = 1, i, round;

	for (round = 0; round < rounds; round++) {
		for (i = 0; i < count; i++)
			mine[i] = rank + (long)i * round;
		MPI_Allreduce(mine, sum, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		for (i = 0; i < count; i++)
			good &= sum[i] == all + (long)i * round * ranks;
	}
	free(mine);
	free(sum);
	return good;
}

/* Put and get between fences: each rank writes its block at its right, and reads the one at its left. */
static int put_get(size_t size)
{
	int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks, good = 1;
	unsigned char *out = malloc(size), *in = malloc(size), *window;
	size_t i;
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	for (i = 0; i < size; i++)
		out[i] = byte(rank, i, 5);
	MPI_Win_fence(0, win);
	MPI_Put(out, (int)size, MPI_BYTE, right, 0, (int)size, MPI_BYTE, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < size; i++)
		good &= window[i] == byte(left, i, 5);
	MPI_Get(in, (int)size, MPI_BYTE, left, 0, (int)size, MPI_BYTE, win);
	MPI_Win_fence(0, win);
	for (i = 0; i < size; i++)
		good &= in[i] == byte((left + ranks - 1) % ranks, i, 5);
	MPI_Win_free(&win);
	free(out);
	free(in);
	return good;
}

/* All count up one number of the first rank, without its help: everyone must have seen another value. */
static int counter(int rounds)
{
	long *window, one = 1, seen, last = -1, final = 0;
	int good = 1, i;
	MPI_Win win;

	MPI_Win_allocate(sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
	*window = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	for (i = 0; i < rounds; i++) {
		MPI_Fetch_and_op(&one, &seen, MPI_LONG, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
		good &= seen > last && seen < (long)rounds * ranks;
		last = seen;
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		final = *window;
		MPI_Win_unlock(0, win);
		good &= final == (long)rounds * ranks;
	}
	MPI_Win_free(&win);
	return good;
}

static int wanted(const char *only, const char *name)
{
	return !only || strcmp(only, name) == 0;
}

static void say(const char *what, int good)
{
	int all;

	MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s %s, %d ranks\n", all ? "ok" : "not ok", what, ranks);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : NULL;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (wanted(only, "ring")) {
		say("ring of 8 bytes", ring(8, 200));
		say("ring of 20000 bytes", ring(20000, 20));
		say("ring of 1 MiB", ring(LARGE, 3));
	}
	if (wanted(only, "allreduce")) {
		say("allreduce of 1", allreduce(1, 100));
		say("allreduce of 10000", allreduce(10000, 3));
	}
	if (wanted(only, "one-sided")) {
		say("put and get of 64 bytes", put_get(64));
		say("put and get of 1 MiB", put_get(LARGE));
		say("counter", counter(50));
	}
	MPI_Finalize();
	return 0;
}
