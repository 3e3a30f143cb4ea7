//! The figures of a run as an SVG picture: latency and bandwidth, each over the size, on
//! logarithmic scales.

use std::fmt::Write as _;

use super::Operation;
use super::report::{Figures, Report};

/// A panel, in pixels: where it begins, and how large it is.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 300.0;
const LEFT: [f64; 2] = [70.0, 550.0];
const TOP: f64 = 50.0;
const COLOURS: [(Operation, &str); 3] =
    [(Operation::Send, "#0072b2"), (Operation::Write, "#d55e00"), (Operation::Read, "#009e73")];

/// What a panel shows of the figures.
struct Panel {
    title: &'static str,
    left: f64,
    value: fn(&Figures) -> f64,
}

/// Powers of ten, or of two, around some values.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scale {
    base: f64,
    first: i32,
    last: i32,
}

impl Scale {
    /// `None` where no value is positive.
    fn around(base: f64, values: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let logs = values.filter(|value| *value > 0.0 && value.is_finite()).map(|value| value.log(base));
        let (least, most) = (logs.clone().reduce(f64::min)?, logs.reduce(f64::max)?);
        let first = least.floor() as i32;
        Some(Self { base, first, last: (most.ceil() as i32).max(first + 1) })
    }

    /// From 0 to 1 where a value lies.
    fn place(&self, value: f64) -> f64 {
        (value.log(self.base) - f64::from(self.first)) / f64::from(self.last - self.first)
    }
}

/// The picture.
pub(super) fn draw(report: &Report) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 440\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"960\" height=\"440\" fill=\"white\"/>\n",
    );
    let panels = [
        Panel { title: "Latency, median in us", left: LEFT[0], value: |figures| figures.latency.median_us },
        Panel { title: "Bandwidth in GB/s", left: LEFT[1], value: |figures| figures.gb_per_s },
    ];
    for panel in panels {
        draw_panel(&mut svg, &panel, report);
    }
    draw_legend(&mut svg, report);
    svg + "</svg>\n"
}

/// Writes a line; writing to a string does not fail.
macro_rules! line {
    ($svg:expr, $($text:tt)*) => { _ = writeln!($svg, $($text)*) };
}

fn draw_panel(svg: &mut String, panel: &Panel, report: &Report) {
    let Panel { title, left, value } = panel;
    let values = report.points.iter().flat_map(|point| [value(&point.rdma), value(&point.tcp)]);
    let sizes = report.points.iter().map(|point| point.bytes as f64);
    let (Some(y), Some(x)) = (Scale::around(10.0, values), Scale::around(2.0, sizes)) else { return };
    let (middle, bottom) = (left + WIDTH / 2.0, TOP + HEIGHT);
    line!(svg, "<text x=\"{middle}\" y=\"30\" text-anchor=\"middle\" font-size=\"15\">{title}</text>");
    for power in y.first..=y.last {
        let at = bottom - HEIGHT * y.place(10_f64.powi(power));
        let right = left + WIDTH;
        line!(svg, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        let (label, number) = (left - 6.0, 10_f64.powi(power));
        line!(svg, "<text x=\"{label}\" y=\"{:.1}\" text-anchor=\"end\">{number}</text>", at + 4.0);
    }
    let step = ((x.last - x.first) / 8).max(1);
    for power in (x.first..=x.last).rev().step_by(step as usize) {
        let at = left + WIDTH * x.place(2_f64.powi(power));
        line!(
            svg,
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            bytes(power)
        );
    }
    line!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">bytes</text>", bottom + 36.0);
    line!(svg, "<path d=\"M{left} {TOP}V{bottom}H{}\" fill=\"none\" stroke=\"#333\"/>", left + WIDTH);
    for (op, colour) in COLOURS {
        for (is_tcp, dashes) in [(false, ""), (true, " stroke-dasharray=\"5 4\"")] {
            let of_op = report.points.iter().filter(|point| point.op == op);
            let places = of_op.filter_map(|point| {
                let value = value(if is_tcp { &point.tcp } else { &point.rdma });
                let across = left + WIDTH * x.place(point.bytes as f64);
                (value > 0.0).then(|| format!("{across:.1},{:.1}", bottom - HEIGHT * y.place(value)))
            });
            let places = places.collect::<Vec<_>>().join(" ");
            if !places.is_empty() {
                line!(
                    svg,
                    "<polyline points=\"{places}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>"
                );
            }
        }
    }
}

/// A power of two in bytes.
fn bytes(power: i32) -> String {
    match power {
        ..10 => format!("{}", 2_f64.powi(power)),
        10..20 => format!("{}k", 2_f64.powi(power - 10)),
        _ => format!("{}M", 2_f64.powi(power - 20)),
    }
}

fn draw_legend(svg: &mut String, report: &Report) {
    let used = COLOURS.iter().filter(|(op, _)| report.points.iter().any(|point| point.op == *op));
    let entries = used.flat_map(|(op, colour)| {
        [
            (format!("Verbena {}", op.name()), colour, ""),
            (format!("TCP, as {}", op.name()), colour, " stroke-dasharray=\"5 4\""),
        ]
    });
    for (n, (name, colour, dashes)) in entries.enumerate() {
        let x = 70.0 + 145.0 * n as f64;
        line!(
            svg,
            "<line x1=\"{x}\" y1=\"416\" x2=\"{}\" y2=\"416\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
            x + 26.0
        );
        line!(svg, "<text x=\"{}\" y=\"420\">{name}</text>", x + 32.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::report;

    #[test]
    fn a_picture_has_a_line_for_each_operation_and_transport_in_each_panel() {
        let svg = draw(&report());
        assert_eq!(svg.matches("<polyline").count(), 2 * 3 * 2);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for text in ["Verbena WRITE", "TCP, as READ", "Bandwidth in GB/s", ">1M<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn no_figures_and_figures_of_0_make_a_picture_too() {
        let mut empty = report();
        empty.points.iter_mut().for_each(|point| point.rdma = Figures::default());
        assert_eq!(draw(&empty).matches("<polyline").count(), 2 * 3);
        empty.points.clear();
        assert!(!draw(&empty).contains("<polyline"));
    }

    #[test]
    fn a_scale_holds_all_values() {
        let scale = Scale::around(10.0, [0.3, 25.0].into_iter()).unwrap();
        assert_eq!(scale, Scale { base: 10.0, first: -1, last: 2 });
        assert!((0.0..=1.0).contains(&scale.place(0.3)) && (0.0..=1.0).contains(&scale.place(25.0)));
        assert_eq!(Scale::around(10.0, [0.0, f64::NAN].into_iter()), None);
    }
}
