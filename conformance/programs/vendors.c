/*
 * vendors: a program that would use the direct verbs of Mellanox and Amazon adapters where there are such, and the plain verbs
 * elsewhere. It links libmlx5 and libefa, as such programs do.
 */
#include "common.h"
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>

/* Whether a direct-verbs call says that the device is not its own: the errno comes back, by one way or the other. */
static int refused(int rc)
{
	return rc == EOPNOTSUPP || rc == -EOPNOTSUPP || (rc == -1 && errno == EOPNOTSUPP);
}

int main(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	check(list && n > 0, "devices");
	for (int i = 0; list && i < n; i++) {
		struct mlx5dv_context mlx5 = { 0 };
		struct mlx5dv_context_attr open = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
		struct efadv_device_attr efa = { 0 };
		struct ibv_context *ctx;

		check(!mlx5dv_is_supported(list[i]), "not mlx5's");
		errno = 0;
		check(!mlx5dv_open_device(list[i], &open) && errno, "mlx5dv_open_device fails");
		ctx = ibv_open_device(list[i]);
		check(!!ctx, "ibv_open_device");
		if (!ctx)
			return 1;
		check(refused(mlx5dv_query_device(ctx, &mlx5)), "mlx5dv_query_device: EOPNOTSUPP");
		check(refused(efadv_query_device(ctx, &efa, sizeof(efa))), "efadv_query_device: EOPNOTSUPP");
		if (i == 0) {
			static struct loop l;

			check(!loop_open(ctx, &l), "plain verbs: a queue pair");
			check(!loop_send(&l, "by the plain verbs"), "plain verbs: a message");
			check(!loop_close(&l), "plain verbs: closed");
		}
		check(!ibv_close_device(ctx), "ibv_close_device");
	}
	if (list)
		ibv_free_device_list(list);
	return bad;
}
