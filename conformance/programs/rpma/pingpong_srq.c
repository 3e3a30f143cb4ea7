/* Messages there and back, where the server receives from a shared receive queue. */
#define SRQ
#include "pingpong.c"
