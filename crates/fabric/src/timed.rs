//! Faults that time brings about: cables that come and go, counters that grow.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::counters::Counter;
use crate::fabric::Fabric;
use crate::faults::FaultError;
use crate::subnet::PortId;

/// Between two steps of a counter that grows.
const STEP: Duration = Duration::from_secs(1);
/// The shortest time that a cable stays as it is.
const MIN_PERIOD: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
enum What {
    /// The cable is cut, or mended, each time.
    Flap,
    /// The counter grows by so much each time.
    Grow(Counter, u64),
}

#[derive(Clone, Copy, Debug)]
struct Timed {
    what: What,
    period: Duration,
    next: Duration,
}

/// At most one flap of a port, and one growth of each of its counters.
#[derive(Debug, Default)]
pub(crate) struct TimedFaults(BTreeMap<(PortId, &'static str), Timed>);

impl TimedFaults {
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.0.values().map(|timed| timed.next).min()
    }
}

impl Fabric {
    /// Cuts the cable at a port for this time, mends it for this time, and so on; 0 ends that with
    /// a mended cable.
    ///
    /// # Errors
    ///
    /// No such port, or one without a cable.
    pub fn set_flap(
        &mut self,
        now: Duration,
        node: &str,
        port: u8,
        period: Duration,
    ) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        self.set_cut(node, port, !period.is_zero())?;
        self.timed.0.remove(&(at, ""));
        if !period.is_zero() {
            let period = period.max(MIN_PERIOD);
            self.timed.0.insert((at, ""), Timed { what: What::Flap, period, next: now + period });
        }
        Ok(())
    }

    /// Lets a counter of a port grow by so much a second; 0 ends that.
    ///
    /// # Errors
    ///
    /// No such port or counter.
    pub fn set_growth(
        &mut self,
        now: Duration,
        (node, port): (&str, u8),
        name: &str,
        a_second: u64,
    ) -> Result<(), FaultError> {
        let at = self.find_port(node, port)?;
        let counter = Counter::named(name).ok_or_else(|| FaultError::NoCounter(name.to_owned()))?;
        self.timed.0.remove(&(at, counter.name));
        if a_second != 0 {
            let what = What::Grow(counter, a_second);
            self.timed.0.insert((at, counter.name), Timed { what, period: STEP, next: now + STEP });
        }
        Ok(())
    }

    /// Brings about what is due.
    pub(crate) fn run_timed_faults(&mut self, now: Duration) {
        let due = self.timed.0.iter_mut().filter(|(_, timed)| timed.next <= now);
        for ((at, _), timed) in due {
            // After a pause of the process what was missed is not made up for.
            let next = timed.next + timed.period;
            timed.next = if next > now { next } else { now + timed.period };
            match timed.what {
                What::Flap => {
                    let is_cut = self.subnet.port(*at).cut;
                    self.subnet.set_cut(*at, !is_cut);
                }
                What::Grow(counter, by) => {
                    let counters = &mut self.subnet.port_mut(*at).counters;
                    counter.set(counters, counter.get(counters).saturating_add(by));
                }
            }
        }
    }
}
