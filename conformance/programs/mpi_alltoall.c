/* Each rank sends a block to each other rank, and looks at what came: the first says whether all is right. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK 4096

/* The byte at `i` of the block from one rank to another. */
static unsigned char byte(int from, int to, int i)
{
	return (unsigned char)(from * 7 + to * 13 + i);
}

int main(int argc, char **argv)
{
	int rank, ranks, good = 1, all, other, i;
	unsigned char *out, *in;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	out = malloc((size_t)ranks * BLOCK);
	in = calloc((size_t)ranks, BLOCK);
	if (!out || !in)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (other = 0; other < ranks; other++)
		for (i = 0; i < BLOCK; i++)
			out[other * BLOCK + i] = byte(rank, other, i);
	MPI_Alltoall(out, BLOCK, MPI_BYTE, in, BLOCK, MPI_BYTE, MPI_COMM_WORLD);
	for (other = 0; other < ranks; other++)
		for (i = 0; i < BLOCK; i++)
			good &= in[other * BLOCK + i] == byte(other, rank, i);
	MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%s %d ranks\n", all ? "ok" : "not ok", ranks);
	free(out);
	free(in);
	MPI_Finalize();
	return !all;
}
