//! The table of figures.

use std::fmt::Write;
use std::fs;

/// Which way is good.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Better {
    /// A time.
    Lower,
    /// A rate.
    Higher,
}

/// One line: what was measured, on Verbena and on plain sockets.
pub(crate) struct Figure {
    /// The operation.
    pub what: String,
    /// Of both numbers.
    pub unit: &'static str,
    /// For the reader of the ratio.
    pub better: Better,
    /// What plain sockets give.
    pub floor: f64,
    /// Which sockets.
    pub floor_is: &'static str,
    /// What Verbena gives; `None` when only floors were measured.
    pub ours: Option<f64>,
    /// What stands for their ratio, where many were measured in pairs.
    pub of_pairs: Option<f64>,
    /// What a cache line took from one core to the other meanwhile, at least and at most, in
    /// nanoseconds, where that was looked at.
    pub line: Option<[f64; 2]>,
}

/// Three digits or so.
pub(crate) fn number(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// "64 B", "4 KiB", "16 MiB".
pub(crate) fn bytes(size: usize) -> String {
    match size {
        0x10_0000.. => format!("{} MiB", size >> 20),
        0x400.. => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

/// "model, N cores, Linux release", as far as /proc tells.
pub(crate) fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown processor", |l| l.trim_matches([':', '\t', ' ']));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", release.trim())
}

/// The page's beginning and its first table as Markdown.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut text = format!(
        "# Verbena beside its floor and its peers\n\n\
         Written by `bench/run`. Each figure stands beside plain sockets of the same run on the same machine ({}): two \
         threads or processes on the loopback interface, each pinned to a core. Verbena is measured by the network (`verbena run --wire`), as its floors are; \
         by memory it stands below. All are medians of five by turns, and the ratios are those of neighbouring turns. Latencies: both sides spin. WRITEs: the target does not poll; a \
         window of work requests is outstanding. Connections: not pinned. A ratio below 1 of a time, above 1 of a rate, is better than the floor.\n\n",
        machine()
    );
    rows(&mut text, "floor", "the floor is", figures);
    text
}

/// The page of programs of sockets.
pub(crate) fn rsockets_page(figures: &[Figure]) -> String {
    let mut text = format!(
        "# Sockets over RDMA beside loopback TCP\n\n\
         Written by `bench/run --rsockets` ({}). The same programs by `verbena run --rsockets`, and by TCP, by turns; \
         medians of three. A ratio below 1 of a time, above 1 of a rate, is better than TCP.\n\n",
        machine()
    );
    rows(&mut text, "TCP", "TCP is", figures);
    text
}

/// The table of two hosts.
pub(crate) fn hosts_table(figures: &[Figure]) -> String {
    let mut text = "\n## Between two hosts\n\n\
        `bench/run --hosts`: two network namespaces joined by a veth, perftest under `verbena run --wire`, client and server each on one core. Medians of five by turns, and the \
        ratios are those of neighbouring turns. WRITEs and READs: the target does not poll.\n\n"
        .to_owned();
    rows(&mut text, "floor", "the floor is", figures);
    text
}

/// The table of iWARP.
pub(crate) fn streams_table(figures: &[Figure]) -> String {
    let mut text = "\n## iWARP between two hosts\n\n\
        `bench/run --iwarp`: as above, perftest with `-R` under `verbena run --iwarp`. TCP of the route between the two is CUBIC, \
        for all: where a system's default is BBR, a timer paces each segment, of TCP's as of ours. Processor time is that of all \
        threads of both programs, in the system, too. Both sleep while there is nothing to do. What they take to begin and end is subtracted.\n\n"
        .to_owned();
    rows(&mut text, "TCP", "TCP is", figures);
    text
}

/// The Rust crate's table.
pub(crate) fn crate_table(figures: &[Figure]) -> String {
    let mut text = "\n## The Rust crate\n\n\
        Beside the C functions of the same stack, and its byte stream beside TCP, by turns in the same run: medians. 8-byte WRITEs have three times as many turns as the rest, and their ratios are those of neighbouring turns. Packets go by memory that both \
        processes map, and WRITEs straight to such: the memory of the crate is. Processor time: three processes work by turns of ten milliseconds; each posts 64, sleeps for 1 ms, then completes them. Medians of 280 turns in seven \
        lives of the processes, as what a turn takes depends on where a process's memory happens to lie, and on what its neighbours on the machine do; the ratios are medians, too, of those of neighbouring turns. The calling thread's does not count what its process's \
        engine thread does meanwhile, which takes in acknowledgements and, for a Connection, puts completions where their futures look; that of all threads does, and \
        the sleep. Streams: both sides sleep while \
        there is nothing to read, but for the line that says otherwise. All ping programs post a receive again behind the next SEND.\n\n"
        .to_owned();
    rows(&mut text, "beside", "which is", figures);
    text
}

/// The table of processes of one host beside what Verbena stands on.
pub(crate) fn calls_table(figures: &[Figure]) -> String {
    let mut text = "\nVerbena by memory beside what it stands on, by turns: medians, and the ratios are those of neighbouring turns. Latencies have three times as many turns as the rest. WRITEs and READs: perftest, as above, beside the same calls of the kernel between two processes, with \
        no process in between. Copies refused: by a filter of system calls (seccomp), as some containers have: all goes through the ring, in pieces, as perftest's memory is its own. UCX's posix never makes these calls; its WRITEs and READs are \
        messages where the memory is the program's own (UCX_ALLOC_PRIO=heap), as perftest's is, and copies in memory that both map where UCX allocates it, \
        as those of the Rust crate are below. What a cache line took from one core to the other was looked at before each measurement and behind the last one: a virtual machine's cores are moved, and \
        where the two are far apart the ratio may be of two distances.\n\n"
        .to_owned();
    rows(&mut text, "beside", "which is", figures);
    text
}

/// librpma's table.
pub(crate) fn rpma_table(figures: &[Figure]) -> String {
    let mut text = "\n## librpma\n\n\
        `rpma_bench.c` at both ends, medians of three by turns; the client polls, the server sleeps, but for request and answer, where it polls. Debian's library flushes \
        by a READ: where its peer declares direct writes it takes that for persistence, and nothing waits for the disk. So it stands beside ours where the file is in memory.\n\n"
        .to_owned();
    rows(&mut text, "beside", "which is", figures);
    text
}

/// The page of two guests.
pub(crate) fn guests_page([apart, together, iwarp]: &[Vec<Figure>; 3]) -> String {
    let mut text = "# Verbena beside the kernel\n\n\
        Written by `bench/run --kernel`, in guests of `conformance/kernel-peer`, by the same programs and by turns: medians. Only the ratios count. In a user mode kernel a system call, a page fault \
        and a switch of processes take many times as long as on a machine. A look at a clock is a system call there, and the kernel's CRC-32 uses no instruction of its own. \
        A client that polls for READs looks at sockets and clocks by system calls there, where rdma_rxe's polls make none. Where QEMU emulates the processors all takes longer; \
        programs lie at the same addresses each time there, as it translates code anew wherever else it lies.\n\n\
        ## Between two guests\n\n\
        They have one processor each, and a bridge without offloads between them. Verbena's packets go by UDP sockets there; what plain datagrams do stands beside it, one a call, whose two sides sleep while nothing is there.\n\n"
        .to_owned();
    rows(&mut text, "beside", "which is", apart);
    text += "\n## Within one guest\n\n\
        Of two processors, at its own address: rdma_rxe goes by the kernel's loopback, Verbena by memory that both processes map.\n\n";
    rows(&mut text, "beside", "which is", together);
    text + &guests_iwarp(iwarp)
}

/// Part of the same page: iWARP.
pub(crate) fn guests_iwarp(figures: &[Figure]) -> String {
    let mut text = "\n## iWARP between two guests\n\n\
        perftest with `-R` under `verbena run --iwarp`, and by the kernel's siw. Where a line is about WRITEs or READs the server does not poll.\n\n"
        .to_owned();
    rows(&mut text, "beside", "which is", figures);
    text
}

fn rows(text: &mut String, beside: &str, which: &str, figures: &[Figure]) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "| figure | Verbena | {beside} | ratio | {which} |\n|---|---|---|---|---|");
    for f in figures {
        let (ours, ratio) = f.ours.map_or_else(
            || ("not measured".to_owned(), "-".to_owned()),
            |o| {
                (
                    format!("{} {}", number(o), f.unit),
                    format!("{:.2} ({} is better)", f.of_pairs.unwrap_or(o / f.floor), f.better.word()),
                )
            },
        );
        let _ = writeln!(
            text,
            "| {} | {ours} | {} {} | {ratio} | {}{} |",
            f.what,
            number(f.floor),
            f.unit,
            f.floor_is,
            f.line.map_or_else(String::new, |[least, most]| format!(
                "; a line took {least:.0} to {most:.0} ns"
            ))
        );
    }
}

/// What connections take that stand at once.
pub(crate) fn memory(count: usize, client: f64, server: f64) -> String {
    format!(
        "\n{count} connections held at once between two processes, queues of 128 and a completion queue each: {client:.0} bytes \
         of resident memory a connection in the client, {server:.0} in the server.\n"
    )
}

impl Better {
    fn word(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Higher => "higher",
        }
    }
}
