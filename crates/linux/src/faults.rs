//! Faults that the environment asks for (`verbena run --faults`): `VERBENA_FAULTS` has the rules,
//! `VERBENA_FAULTS_SEED` the seed.

use std::sync::Arc;
use std::time::Instant;

use faults::{FaultLink, Spec, Surroundings};
use nic::{Link, Platform};

use crate::env::LinuxEnv;

/// What the environment asks for.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    spec: Spec,
    seed: u64,
}

impl Faults {
    /// `None` where it asks for none. What has no meaning is said on standard error.
    pub(crate) fn from_environment() -> Option<Self> {
        let text = std::env::var("VERBENA_FAULTS").ok().filter(|text| !text.trim().is_empty())?;
        let seed = std::env::var("VERBENA_FAULTS_SEED").unwrap_or_default();
        let Ok(seed) = seed.trim().parse() else {
            eprintln!("verbena: VERBENA_FAULTS_SEED: '{seed}' is no number; there are no faults");
            return None;
        };
        match text.parse() {
            Ok(spec) => Some(Self { spec, seed }),
            Err(error) => {
                eprintln!("verbena: VERBENA_FAULTS: {error}");
                None
            }
        }
    }

    /// A link over `link` on which they happen from now on.
    pub(crate) fn over(&self, link: Arc<dyn Link>, env: Arc<LinuxEnv>) -> Arc<dyn Link> {
        let link = FaultLink::new(link, env);
        link.set(&self.spec, self.seed);
        Arc::new(link)
    }
}

impl Surroundings for LinuxEnv {
    fn now(&self) -> Instant {
        Instant::now()
    }
    fn wake_at(&self, at: Instant) {
        Platform::wake_at(self, at);
    }
}
