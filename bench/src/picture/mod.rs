//! A picture of curves over the size of a message, both axes logarithmic, as SVG: the same numbers
//! give the same bytes. It has a ground of its own, light or dark as the reader's other pages are.

mod axis;

use std::fmt::Write;

use axis::Log;

use crate::report::bytes;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
/// The field of the curves; their names stand to its right.
const LEFT: f64 = 82.0;
const RIGHT: f64 = 738.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 462.0;
/// From the baseline of a name to that of the next.
const LINE_HEIGHT: f64 = 17.0;

/// Colours, on light and on dark ground, of text and lines, then of the families.
const COLOURS: [(&str, &str, &str); 4] = [
    ("verbena", "#c2340a", "#ff8f5c"),
    ("ucx", "#1a56c4", "#74a9ff"),
    ("libfabric", "#137a3f", "#5fd38d"),
    ("tcp", "#6b6f76", "#a9b0b8"),
];

/// Whose line it is: its colour.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Family {
    /// Ours.
    Verbena,
    /// UCX.
    Ucx,
    /// libfabric.
    Libfabric,
    /// Plain sockets.
    Tcp,
}

/// Which way the bytes go: how the line is dashed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Dash {
    /// Memory that both sides map.
    Solid,
    /// Copies by the kernel from one address space to the other.
    Long,
    /// The network.
    Short,
}

impl Family {
    fn class(self) -> &'static str {
        COLOURS[self as usize].0
    }
}

impl Dash {
    fn attribute(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Long => " stroke-dasharray=\"11 5\"",
            Self::Short => " stroke-dasharray=\"2.5 4\"",
        }
    }
}

/// A line.
pub(crate) struct Curve {
    /// What stands at its end.
    pub name: &'static str,
    /// The line's color.
    pub family: Family,
    /// The line's dashes.
    pub dash: Dash,
    /// Bytes of a message, and seconds or bytes a second: at least one.
    pub points: Vec<(usize, f64)>,
}

/// A picture.
pub(crate) struct Picture {
    /// What stands above it.
    pub title: String,
    /// The values are seconds, else bytes a second.
    pub is_time: bool,
    /// The picture's lines; earlier ones lie on top.
    pub curves: Vec<Curve>,
}

impl Picture {
    /// The whole file.
    pub(crate) fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let least = points().map(|(size, _)| *size).min().unwrap_or(1) as f64;
        let most = points().map(|(size, _)| *size).max().unwrap_or(1) as f64;
        let across = Log::new((least, most.max(least * 2.0)), LEFT, RIGHT);
        let up = Log::new(axis::covering(points().map(|(_, value)| *value)), BOTTOM, TOP);
        let mut text = head(&self.title);
        self.grid(&mut text, &across, &up);
        for curve in self.curves.iter().rev() {
            draw(&mut text, curve, &across, &up);
        }
        self.names(&mut text, &up);
        text + "</svg>\n"
    }

    /// Lines behind the curves, and what stands at them.
    fn grid(&self, text: &mut String, across: &Log, up: &Log) {
        // Writing to a String cannot fail, here and below.
        for value in up.lines() {
            let (y, decade) = (up.at(value), axis::is_decade(value));
            let class = if decade { "grid" } else { "faint" };
            let _ =
                writeln!(text, r#"<line class="{class}" x1="{LEFT}" y1="{y:.1}" x2="{RIGHT}" y2="{y:.1}"/>"#);
            if decade {
                let label = if self.is_time { axis::seconds(value) } else { axis::bytes_a_second(value) };
                let _ = writeln!(
                    text,
                    r#"<text x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
                    LEFT - 8.0,
                    y + 4.0
                );
            }
        }
        for size in self.sizes() {
            let x = across.at(size as f64);
            let _ =
                writeln!(text, r#"<line class="faint" x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{BOTTOM}"/>"#);
            let y = BOTTOM + 18.0;
            let _ = writeln!(text, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{}</text>"#, bytes(size));
        }
        let (x, y) = ((LEFT + RIGHT) / 2.0, BOTTOM + 42.0);
        let _ = writeln!(text, r#"<text x="{x}" y="{y}" text-anchor="middle">bytes of a message</text>"#);
    }

    /// Powers of four within what is shown.
    fn sizes(&self) -> Vec<usize> {
        let sizes = || self.curves.iter().flat_map(|curve| &curve.points).map(|(size, _)| *size);
        let (least, most) = (sizes().min().unwrap_or(1), sizes().max().unwrap_or(1));
        (0..=15).map(|power| 1_usize << (2 * power)).filter(|size| (least..=most).contains(size)).collect()
    }

    /// The name of each curve right of its end, moved where it would cover another one.
    fn names(&self, text: &mut String, up: &Log) {
        let ends: Vec<f64> = self
            .curves
            .iter()
            .map(|curve| curve.points.last().map_or(BOTTOM, |(_, value)| up.at(*value)))
            .collect();
        let sq_occupancy = axis::spread(&ends, LINE_HEIGHT, TOP, BOTTOM);
        for ((curve, end), place) in self.curves.iter().zip(ends).zip(sq_occupancy) {
            let class = curve.family.class();
            let (from, to) = (RIGHT + 4.0, RIGHT + 16.0);
            let _ = writeln!(
                text,
                r#"<line class="{class} lead" x1="{from}" y1="{end:.1}" x2="{to}" y2="{place:.1}"/>"#
            );
            let (x, y) = (to + 4.0, place + 4.0);
            let _ = writeln!(text, r#"<text class="{class}" x="{x}" y="{y:.1}">{}</text>"#, curve.name);
        }
    }
}

fn draw(text: &mut String, curve: &Curve, across: &Log, up: &Log) {
    let at = |(size, value): &(usize, f64)| format!("{:.1},{:.1}", across.at(*size as f64), up.at(*value));
    let points: Vec<String> = curve.points.iter().map(at).collect();
    let width = if curve.family == Family::Verbena { 3.0 } else { 1.8 };
    let (class, dash) = (curve.family.class(), curve.dash.attribute());
    let _ = writeln!(
        text,
        r#"<polyline class="{class}" stroke-width="{width}"{dash} points="{}"/>"#,
        points.join(" ")
    );
}

/// What stands before the curves: size, colours, ground, title, and what colours and dashes mean.
fn head(title: &str) -> String {
    let colours = |ground: &str,
                   ink: &str,
                   grid: &str,
                   faint: &str,
                   of: fn(&(&str, &str, &str)) -> String| {
        let families: String = COLOURS.iter().map(of).collect();
        format!(
            ".ground{{fill:{ground}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.faint{{stroke:{faint}}}{families}"
        )
    };
    let light =
        colours("#ffffff", "#24292f", "#c4cad1", "#eaedf0", |(class, colour, _)| family_rule(class, colour));
    let dark =
        colours("#12161c", "#dfe5ec", "#4a525c", "#242b33", |(class, _, colour)| family_rule(class, colour));
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">
<title>{title}</title>
<style>
text{{font:13px system-ui,sans-serif}}text.title{{font-size:16px;font-weight:600}}polyline{{fill:none;stroke-linejoin:round}}
{light}
@media(prefers-color-scheme:dark){{{dark}}}
</style>
<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>
<text class="title" x="{LEFT}" y="24">{title}</text>
<text x="{LEFT}" y="42">solid: memory that both map; dashes: copies by the kernel; dots: the network</text>
"#
    )
}

fn family_rule(class: &str, colour: &str) -> String {
    format!(".{class}{{stroke:{colour}}}text.{class}{{fill:{colour};stroke:none}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        let curve = |name, family, dash, scale: f64| {
            let points = [2, 64, 4096, 1 << 20].map(|size| (size, scale * (size as f64 / 64.0).max(1.0)));
            Curve { name, family, dash, points: points.to_vec() }
        };
        Picture {
            title: "Half a round trip".to_owned(),
            is_time: true,
            curves: vec![
                curve("ours", Family::Verbena, Dash::Solid, 2e-7),
                curve("theirs", Family::Tcp, Dash::Short, 2.1e-7),
            ],
        }
    }

    #[test]
    fn the_same_numbers_give_the_same_bytes() {
        assert_eq!(picture().svg(), picture().svg());
    }

    #[test]
    fn sizes_and_decades_are_labelled() {
        let svg = picture().svg();
        for label in ["4 B", "64 B", "4 KiB", "1 MiB", "1 us", "1 ms", "ours", "theirs", "bytes of a message"]
        {
            assert!(svg.contains(&format!(">{label}</text>")), "{label} in {svg}");
        }
        assert!(!svg.contains(">1 B</text>") && !svg.contains(">4 MiB</text>"));
    }

    #[test]
    fn every_point_lies_in_the_field() {
        let svg = picture().svg();
        let lines = svg.lines().filter_map(|line| line.split_once("points=\"")?.1.split_once('"'));
        let points: Vec<(f64, f64)> = lines
            .flat_map(|(points, _)| points.split(' '))
            .map(|point| point.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        assert_eq!(points.len(), 8);
        for (x, y) in points {
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{x}, {y}");
        }
    }

    #[test]
    fn names_of_ends_that_meet_stand_one_below_the_other() {
        let svg = picture().svg();
        let y = |name: &str| -> f64 {
            let line = svg.lines().find(|line| line.ends_with(&format!(">{name}</text>"))).unwrap();
            line.split_once(" y=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap()
        };
        assert!(y("ours") - y("theirs") >= LINE_HEIGHT - 0.2, "{} and {}", y("ours"), y("theirs"));
    }

    #[test]
    fn there_are_colours_for_both_grounds() {
        let svg = picture().svg();
        assert!(svg.contains("@media(prefers-color-scheme:dark)"));
        for (class, light, dark) in COLOURS {
            assert!(svg.contains(&format!("text.{class}{{fill:{light};")), "{class}");
            assert!(svg.contains(&format!("text.{class}{{fill:{dark};")), "{class}");
        }
    }
}
