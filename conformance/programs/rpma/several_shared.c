/* Several connections, where the main and the receive queue of each share a completion channel: rpma_conn_wait says whose turn it is. */
#define SHARED
#include "several.c"
