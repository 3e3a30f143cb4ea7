//! Logarithmic axes: from values to pixels, which lines to draw, what to write at them.

/// Steps within a decade at which an axis may begin and end, and has lines.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

/// A logarithmic axis.
pub(super) struct Log {
    low: f64,
    high: f64,
    /// Where the two are, in pixels; `from` is the greater one on an axis that goes up.
    from: f64,
    to: f64,
}

impl Log {
    /// From `low` to `high`, at these pixels.
    pub(super) fn new((low, high): (f64, f64), from: f64, to: f64) -> Self {
        Self { low, high, from, to }
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        self.from + (value / self.low).log2() / (self.high / self.low).log2() * (self.to - self.from)
    }

    /// All 1, 2 and 5 of each decade that are on the axis.
    pub(super) fn lines(&self) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let all = decades.flat_map(|decade| STEPS.map(|step| step * 10_f64.powi(decade)));
        all.filter(|&value| value >= self.low * 0.999 && value <= self.high * 1.001).collect()
    }
}

/// The narrowest range from a 1, 2 or 5 of a decade to another that has all values; that of one
/// decade when there are none.
pub(super) fn covering(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(f64::NEG_INFINITY, f64::max);
    if least > most {
        return (1.0, 10.0);
    }
    let low = 10_f64.powf(least.log10().floor());
    let low = STEPS.iter().rev().map(|step| step * low).find(|&value| value <= least * 1.001).unwrap_or(low);
    let high = 10_f64.powf(most.log10().floor());
    let above = [1.0, 2.0, 5.0, 10.0].map(|step| step * high).into_iter();
    let up = above.filter(|value| *value > low).find(|value| *value >= most * 0.999);
    (low, up.unwrap_or(high * 10.0))
}

/// Whether a line of an axis is that of a decade, at which something is written.
pub(super) fn is_decade(value: f64) -> bool {
    (value.log10() - value.log10().round()).abs() < 1e-6
}

/// "50 ns", "1 us", "10 ms".
pub(super) fn seconds(value: f64) -> String {
    scaled(value, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")])
}

/// "500 kB/s", "1 GB/s".
pub(super) fn bytes_a_second(value: f64) -> String {
    scaled(value, &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
}

/// By the first unit that is no more than the value, or the smallest.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = units.iter().find(|(unit, _)| value >= unit * 0.999).or(units.last());
    fits.map_or_else(String::new, |(unit, name)| format!("{:.0} {name}", value / unit))
}

/// Where labels go that want to be at `wanted`, at least `gap` apart and within `low..=high` if
/// there is room: each as near as its order lets it be.
pub(super) fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut at = wanted.to_vec();
    let mut least = low;
    for &label in &order {
        at[label] = at[label].max(least);
        least = at[label] + gap;
    }
    let mut most = high;
    for &label in order.iter().rev() {
        at[label] = at[label].min(most);
        most = at[label] - gap;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decade_is_as_long_as_the_next() {
        let axis = Log::new((1e-7, 1e-3), 400.0, 0.0);
        let pixels: Vec<f64> = [1e-7, 1e-6, 1e-5, 1e-4, 1e-3].map(|value| axis.at(value).round()).to_vec();
        assert_eq!(pixels, [400.0, 300.0, 200.0, 100.0, 0.0]);
    }

    #[test]
    fn an_axis_covers_what_it_shows_and_little_more() {
        for (values, wanted) in [
            ([1.3e-7, 4.0e-3], (1e-7, 5e-3)),
            ([2e-7, 1e-3], (2e-7, 1e-3)),
            ([5.5e6, 2.1e10], (5e6, 5e10)),
            ([9.0, 9.0], (5.0, 10.0)),
            ([1.0, 1.0], (1.0, 2.0)),
        ] {
            let (low, high) = covering(values.into_iter());
            assert!((low / wanted.0 - 1.0).abs() < 1e-9, "{values:?}: from {low}");
            assert!((high / wanted.1 - 1.0).abs() < 1e-9, "{values:?}: to {high}");
        }
        assert_eq!(covering(std::iter::empty()), (1.0, 10.0));
    }

    #[test]
    fn lines_are_at_one_two_and_five() {
        let lines: Vec<String> =
            Log::new((2e-7, 1e-5), 1.0, 0.0).lines().iter().map(|v| seconds(*v)).collect();
        assert_eq!(lines, ["200 ns", "500 ns", "1 us", "2 us", "5 us", "10 us"]);
        assert!(is_decade(1e-5) && is_decade(1e9) && !is_decade(2e-7) && !is_decade(5e6));
    }

    #[test]
    fn labels_have_their_units() {
        let times = [1e-9, 1e-7, 1e-6, 1e-4, 1e-3, 10.0].map(seconds);
        assert_eq!(times, ["1 ns", "100 ns", "1 us", "100 us", "1 ms", "10 s"]);
        let rates = [1.0, 1e5, 1e6, 1e9, 1e11].map(bytes_a_second);
        assert_eq!(rates, ["1 B/s", "100 kB/s", "1 MB/s", "1 GB/s", "100 GB/s"]);
    }

    #[test]
    fn labels_keep_their_distance_their_order_and_the_bounds() {
        assert_eq!(spread(&[50.0, 10.0], 16.0, 0.0, 100.0), [50.0, 10.0]);
        assert_eq!(spread(&[50.0, 49.0, 51.0], 16.0, 0.0, 100.0), [65.0, 49.0, 81.0]);
        assert_eq!(spread(&[99.0, 98.0, 3.0], 16.0, 0.0, 100.0), [100.0, 84.0, 3.0]);
    }
}
