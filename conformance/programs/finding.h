/* What programs share whose mistake is that they wait for ever: another thread ends the wait once it is found. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns once `verbena run --check-json FILE` has told a finding. */
static inline void await_finding(void)
{
	const char *file = getenv("VERBENA_CHECK_JSON");
	struct stat found;

	while (file && (stat(file, &found) || found.st_size == 0))
		usleep(10000);
}
