// A preloaded object that gives address handles without a GRH that of the port's second GID, RoCEv2 over IPv4. librdmacm makes such a
// handle for its own queue pair before it sends datagrams, which only InfiniBand takes; the handle itself is never used.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>

#undef ibv_create_ah
struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *(*real)(struct ibv_pd *, struct ibv_ah_attr *);
	struct ibv_ah_attr with = *attr;

	*(void **)&real = dlsym(RTLD_NEXT, "ibv_create_ah");
	if (!with.is_global && !ibv_query_gid(pd->context, with.port_num, 1, &with.grh.dgid)) {
		with.is_global = 1;
		with.grh.sgid_index = 1;
		with.grh.hop_limit = 64;
	}
	return real(pd, &with);
}
