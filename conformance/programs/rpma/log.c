/* The log: what the thresholds let through to a function of the user during a connection, and what the default function writes. */
#include "scenario.h"

static struct {
	int messages, beyond, unnamed, empty;
} seen;

static void listener(enum rpma_log_level level, const char *file, const int line, const char *function, const char *format, ...)
{
	enum rpma_log_level limit = RPMA_LOG_DISABLED;
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	must(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &limit));
	seen.messages++;
	seen.beyond += level > limit || level <= RPMA_LOG_DISABLED;
	seen.unnamed += file && (line <= 0 || !function);
	seen.empty += text[0] == 0;
}

/* What a failing call says. */
static int said(void)
{
	struct ibv_context *context;
	int before = seen.messages;

	check(rpma_utils_get_ibv_context("not an address", LOCAL, &context) == RPMA_E_PROVIDER, "a call that fails");
	return seen.messages - before;
}

static void thresholds(void)
{
	enum rpma_log_level level = RPMA_LOG_LEVEL_DEBUG;

	must(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level));
	check(level == RPMA_LOG_LEVEL_WARNING, "warnings, unless it is said");
	must(rpma_log_get_threshold(RPMA_LOG_THRESHOLD_AUX, &level));
	check(level == RPMA_LOG_DISABLED, "nothing to stderr, unless it is said");
	for (int l = RPMA_LOG_DISABLED; l <= RPMA_LOG_LEVEL_DEBUG; l++) {
		must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, l));
		must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_DEBUG - l - 1));
		must(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level));
		must((int)level != l);
		must(rpma_log_get_threshold(RPMA_LOG_THRESHOLD_AUX, &level));
		must((int)level != RPMA_LOG_LEVEL_DEBUG - l - 1);
	}
	check(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_DEBUG + 1) == RPMA_E_INVAL, "no level above the last");
	check(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_MAX, RPMA_LOG_LEVEL_ERROR) == RPMA_E_INVAL, "no third threshold");
	check(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level) == 0 && level == RPMA_LOG_LEVEL_DEBUG, "what was wrong changed nothing");

	must(rpma_log_set_function(listener));
	check(said() > 0, "a failure is told at the level of debugging");
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_ERROR));
	check(said() > 0, "and at the level of errors");
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_FATAL));
	check(said() == 0, "not at the level of fatal errors");
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED));
	check(said() == 0, "nor where the log is off");
}

/* The default function again: its words for a failure in a file in place of stderr. */
static void by_default(void)
{
	FILE *words = tmpfile();
	int kept = dup(2);
	long none, some;

	must(!words || dup2(fileno(words), 2) != 2);
	must(rpma_log_set_function(RPMA_LOG_USE_DEFAULT_FUNCTION));
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING));
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED));
	said();
	none = lseek(fileno(words), 0, SEEK_END);
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING));
	said();
	some = lseek(fileno(words), 0, SEEK_END);
	dup2(kept, 2);
	close(kept);
	fclose(words);
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED));
	check(none == 0, "nothing on stderr");
	check(some > 0, "an error on stderr where its threshold lets it");
}

static void during(void)
{
	memset(&seen, 0, sizeof(seen));
	must(rpma_log_set_function(listener));
	must(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_NOTICE));
}

static void judged(void)
{
	check(seen.messages > 0, "notices of a connection");
	check(seen.beyond == 0, "no message beyond the threshold");
	check(seen.unnamed == 0, "a line and a function with every file");
	check(seen.empty == 0, "words in every message");
}

static void serve(const char *address, const char *port)
{
	struct end e;

	thresholds();
	by_default();
	during();
	prepare(&e, address, LOCAL, EVERYTHING);
	accept_one(&e, address, port, NULL, 0);
	greet(&e);
	server_ends(&e);
	judged();
}

static void ask(const char *address, const char *port)
{
	struct end e;

	thresholds();
	by_default();
	during();
	prepare(&e, address, REMOTE, EVERYTHING);
	connect_one(&e, address, port, NULL, 1);
	greeted(&e);
	client_ends(&e);
	judged();
}
