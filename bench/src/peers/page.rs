//! The tables of processes of one host as Markdown, and their two pictures.

use std::fmt::Write;

use super::{Measured, SIZES, TESTS, Test, asleep};
use crate::picture::{Curve, Picture};
use crate::report::{bytes, number};

/// Lines of the first table: what, the test and its size.
const ROWS: [(&str, Test, usize); 8] = [
    ("64-byte SEND, half round trip", Test::SendLatency, 64),
    ("8-byte WRITE, half round trip; its target watches the memory", Test::WriteLatency, 8),
    ("64 KiB SENDs", Test::SendBandwidth, 64 << 10),
    ("1 MiB SENDs", Test::SendBandwidth, 1 << 20),
    ("64 KiB WRITEs", Test::WriteBandwidth, 64 << 10),
    ("1 MiB WRITEs", Test::WriteBandwidth, 1 << 20),
    ("64 KiB READs", Test::ReadBandwidth, 64 << 10),
    ("1 MiB READs", Test::ReadBandwidth, 1 << 20),
];

impl Test {
    fn unit(self) -> &'static str {
        if self.is_latency() { "us" } else { "GB/s" }
    }
}

impl Measured {
    /// The figure of one of the lines.
    fn figure(&self, line: usize, test: Test, size: usize) -> Option<f64> {
        let at = TESTS.iter().position(|(t, _)| *t == test)?;
        let nth = TESTS[at].1.iter().position(|s| *s == size)?;
        self.lines.get(line)?.figures[at].get(nth).copied()
    }

    /// All three tables, and the pictures between them.
    pub(crate) fn page(&self) -> String {
        let hops: Vec<String> =
            self.hops.iter().map(|hop| hop.map_or_else(|| "?".to_owned(), |ns| format!("{ns:.0}"))).collect();
        let mut text = format!(
            "\n## Processes of one host\n\n\
             Verbena by memory that both map, as it is, beside what else carries messages between two processes of one machine: each server on one core, each client on \
             the other, medians of {} turns. Verbena: perftest under `verbena run`, for the network with `--wire`. UCX: ucx_perftest with UCX_TLS=posix, posix,cma and \
             tcp; SEND is its tag matching. Its one-sided posix figures are copies to and from memory that UCX itself allocated and both map; those of cma are that transport's alone. \
             libfabric: fi_pingpong, whose bandwidth is that of one message at a time. TCP: qperf, which sleeps while nothing is there; the others poll. Latencies are \
             medians, but libfabric's and TCP's, which are means. A cache line took {} ns from one core to the other (before the turns, and after each). In brackets: Verbena by memory, divided by \
             this; below 1 of a time, above 1 of a rate, Verbena is better.\n\n",
            self.hops.len() - 1,
            hops.join(", "),
        );
        self.matrix(&mut text);
        text += &asleep::table(&self.asleep);
        text +=
            "\n![Latency over message size](latency.svg)\n\n![Bandwidth over message size](bandwidth.svg)\n";
        for (test, what) in [
            (Test::SendLatency, "Half a round trip of a SEND, us"),
            (Test::SendBandwidth, "SENDs one behind the other, MB/s"),
        ] {
            let _ = writeln!(text, "\n{what}:\n"); // Writing to a String cannot fail.
            self.over_size(&mut text, test);
        }
        text
    }

    fn heads(&self, text: &mut String, first: &str) {
        let names: Vec<&str> = self.lines.iter().map(|line| line.name).collect();
        let _ = writeln!(text, "| {first} | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    }

    fn matrix(&self, text: &mut String) {
        self.heads(text, "figure");
        for (what, test, size) in ROWS {
            let ours = self.figure(0, test, size);
            let cell = |line: usize| match (self.figure(line, test, size), ours) {
                (Some(value), _) if line == 0 => format!("{} {}", number(value), test.unit()),
                (Some(value), Some(ours)) => {
                    format!("{} {} ({:.2})", number(value), test.unit(), ours / value)
                }
                (Some(value), None) => format!("{} {}", number(value), test.unit()),
                (None, _) => "-".to_owned(),
            };
            let cells: Vec<String> = (0..self.lines.len()).map(cell).collect();
            let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
        }
    }

    fn over_size(&self, text: &mut String, test: Test) {
        self.heads(text, "bytes");
        let scale = if test.is_latency() { 1.0 } else { 1e3 };
        for size in SIZES {
            let cell = |line| {
                self.figure(line, test, size).map_or_else(|| "-".to_owned(), |value| number(value * scale))
            };
            let cells: Vec<String> = (0..self.lines.len()).map(cell).collect();
            let _ = writeln!(text, "| {} | {} |", bytes(size), cells.join(" | "));
        }
    }

    /// Latency over size and bandwidth over size, as SVG.
    pub(crate) fn pictures(&self) -> [(&'static str, String); 2] {
        [
            (
                "latency.svg",
                self.picture("Half a round trip of a message between two processes", Test::SendLatency),
            ),
            (
                "bandwidth.svg",
                self.picture("Messages one behind the other between two processes", Test::SendBandwidth),
            ),
        ]
    }

    fn picture(&self, title: &str, test: Test) -> String {
        let unit = if test.is_latency() { 1e-6 } else { 1e9 };
        let curve = |(at, line): (usize, &super::Line)| {
            let points: Vec<(usize, f64)> =
                SIZES.iter().filter_map(|&size| Some((size, self.figure(at, test, size)? * unit))).collect();
            let (family, dash) = line.look;
            (!points.is_empty()).then_some(Curve { name: line.name, family, dash, points })
        };
        let curves = self.lines.iter().enumerate().filter_map(curve).collect();
        Picture { title: title.to_owned(), is_time: test.is_latency(), curves }.svg()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Line;
    use super::*;
    use crate::picture::{Dash, Family};

    fn measured() -> Measured {
        let full = |scale: f64| -> [Vec<f64>; TESTS.len()] {
            TESTS.map(|(_, sizes)| sizes.iter().map(|&size| scale * (size as f64).sqrt()).collect())
        };
        let mut tcp = full(10.0);
        tcp[1].clear();
        Measured {
            lines: vec![
                Line { name: "Verbena, memory", look: (Family::Verbena, Dash::Solid), figures: full(1.0) },
                Line { name: "TCP", look: (Family::Tcp, Dash::Short), figures: tcp },
            ],
            hops: vec![Some(58.2), None],
            asleep: Vec::new(),
        }
    }

    #[test]
    fn the_page_has_each_figure_with_its_ratio_and_a_dash_for_what_is_not_there() {
        let page = measured().page();
        assert!(page.contains("| figure | Verbena, memory | TCP |\n|---|---|---|\n"));
        assert!(page.contains("| 64-byte SEND, half round trip | 8.00 us | 80.00 us (0.10) |\n"));
        assert!(page.contains("watches the memory | 2.83 us | - |\n"));
        assert!(page.contains("| 4 MiB | 2048 | 20480 |\n"));
        assert!(page.contains("| 4 MiB | 2048000 | 20480000 |\n"));
        assert!(page.contains("A cache line took 58, ? ns"));
        assert!(page.contains("medians of 1 turns"));
    }

    #[test]
    fn a_picture_has_a_line_a_peer() {
        for (name, svg) in measured().pictures() {
            assert_eq!(svg.matches("<polyline").count(), 2, "{name}");
            assert!(svg.contains(">Verbena, memory</text>") && svg.contains(">TCP</text>"), "{name}");
        }
    }
}
