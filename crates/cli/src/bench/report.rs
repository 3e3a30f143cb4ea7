//! The figures of a run, as a table and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::Operation;

/// Times of operations that were measured one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Latency {
    /// Microseconds.
    pub(super) median_us: f64,
    /// Microseconds: 99 of 100 took no longer.
    pub(super) p99_us: f64,
}

impl Latency {
    /// Of so many times; sorts them. 0 of none.
    pub(super) fn of(times: &mut [Duration]) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
            times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Self { median_us: at(50), p99_us: at(99) }
    }

    /// Half of it: of the time there and back, the time one way.
    pub(super) fn halved(self) -> Self {
        Self { median_us: self.median_us / 2.0, p99_us: self.p99_us / 2.0 }
    }
}

/// What was measured over one transport.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) latency: Latency,
    /// 10^9 bytes in a second.
    pub(super) gb_per_s: f64,
}

impl Figures {
    pub(super) fn new(latency: Latency, gb_per_s: f64) -> Self {
        Self { latency, gb_per_s }
    }

    /// With half of the latency.
    pub(super) fn halved(self) -> Self {
        Self { latency: self.latency.halved(), ..self }
    }

    fn json(self) -> Value {
        let Self { latency: Latency { median_us, p99_us }, gb_per_s } = self;
        json!({ "median_us": median_us, "p99_us": p99_us, "gb_per_s": gb_per_s })
    }
}

/// An operation of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) op: Operation,
    pub(super) bytes: usize,
    pub(super) rdma: Figures,
    pub(super) tcp: Figures,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Report {
    pub(super) peer: String,
    pub(super) depth: u32,
    pub(super) seconds: Duration,
    pub(super) points: Vec<Point>,
}

impl Report {
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "Between two processes, the other one on {}; {} operations under way for bandwidth.\n\n\
             {:<10}{:>9}  {:>27}  {:>27}  {:>15}\n{:<10}{:>9}  {:>9}{:>9}{:>9}  {:>9}{:>9}{:>9}  {:>7}{:>8}\n",
            self.peer,
            self.depth,
            "",
            "",
            "Verbena",
            "TCP",
            "TCP / Verbena",
            "operation",
            "bytes",
            "median us",
            "p99 us",
            "GB/s",
            "median us",
            "p99 us",
            "GB/s",
            "latency",
            "rate"
        );
        for Point { op, bytes, rdma, tcp } in &self.points {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:<10}{bytes:>9}  {}  {}  {:>7}{:>8}",
                op.name(),
                columns(rdma),
                columns(tcp),
                ratio(tcp.latency.median_us, rdma.latency.median_us),
                ratio(tcp.gb_per_s, rdma.gb_per_s),
            );
        }
        text
    }

    pub(super) fn json(&self) -> String {
        let points = self.points.iter().map(|point| {
            let Point { op, bytes, rdma, tcp } = *point;
            json!({ "operation": op.name(), "bytes": bytes, "verbena": rdma.json(), "tcp": tcp.json() })
        });
        let seconds = self.seconds.as_secs_f64();
        let all = json!({
            "version": env!("CARGO_PKG_VERSION"), "peer": self.peer, "depth": self.depth, "seconds": seconds,
            "points": points.collect::<Vec<_>>(),
        });
        format!("{all:#}\n")
    }
}

fn columns(figures: &Figures) -> String {
    let Figures { latency: Latency { median_us, p99_us }, gb_per_s } = figures;
    format!("{median_us:>9.2}{p99_us:>9.2}{gb_per_s:>9.3}")
}

/// How many times as much; `-` beside nothing.
fn ratio(tcp: f64, rdma: f64) -> String {
    if rdma > 0.0 { format!("{:.2}", tcp / rdma) } else { "-".to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn report() -> Report {
        let figures = |us, gb_per_s| Figures::new(Latency { median_us: us, p99_us: 2.0 * us }, gb_per_s);
        let point = |op, bytes: usize| Point {
            op,
            bytes,
            rdma: figures(0.5 + bytes as f64 / 1e4, 4.0),
            tcp: figures(10.0, 1.0),
        };
        let points =
            Operation::ALL.into_iter().flat_map(|op| [8, 512, 1 << 20].map(|bytes| point(op, bytes)));
        Report {
            peer: "this host".into(),
            depth: 16,
            seconds: Duration::from_millis(300),
            points: points.collect(),
        }
    }

    #[test]
    fn the_median_and_the_99th_percentile_are_of_the_times() {
        let mut times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(Latency::of(&mut times), Latency { median_us: 100.0, p99_us: 198.0 });
        assert_eq!(Latency::of(&mut [Duration::from_micros(3)]), Latency { median_us: 3.0, p99_us: 3.0 });
        assert_eq!(Latency::of(&mut []), Latency::default());
    }

    #[test]
    fn a_line_of_the_table_has_both_transports_and_how_they_compare() {
        let table = report().table();
        let line = table.lines().find(|line| line.starts_with("WRITE")).unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["WRITE", "8", "0.50", "1.00", "4.000", "10.00", "20.00", "1.000", "19.97", "0.25"]
        );
        let widths: Vec<_> = table.lines().skip(3).map(str::len).collect();
        assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "{table}");
    }

    #[test]
    fn json_says_what_the_table_says() {
        let said: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(said["points"].as_array().map(Vec::len), Some(9));
        let point = &said["points"][4];
        assert_eq!((point["operation"].as_str(), point["bytes"].as_u64()), (Some("WRITE"), Some(512)));
        assert_eq!(point["tcp"]["p99_us"].as_f64(), Some(20.0));
    }
}
