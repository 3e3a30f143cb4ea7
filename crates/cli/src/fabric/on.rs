//! `verbena run --on HOST`: what a program of a simulated host sees of it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::fabric::describe::DeviceDescription;
use ::fabric::protocol::{Reply, Request};
use linux::mount_namespace::{self, View};

use super::call::call;
use super::files::{adapters, issm};
use super::place::{Place, VARIABLE};
use crate::{dev, object};

/// Names the host to libibumad.
const HOST: &str = "VERBENA_HOST";
const CLASS: &str = "/sys/class";
const DEV: &str = "/dev";
const CACHE: &str = "/var/cache";
/// What scripts know of a topology, and the LIDs that OpenSM gave.
pub(super) const CACHES: [&str; 2] = ["infiniband-diags", "opensm"];

/// A host of a fabric that runs.
pub(crate) struct On {
    place: Place,
    host: String,
    devices: Vec<DeviceDescription>,
    dir: PathBuf,
}

impl On {
    /// Has the fabric write the files of the host.
    ///
    /// # Errors
    ///
    /// A message: no such fabric, or no such host.
    pub(crate) fn enter(fabric: Option<&str>, host: &str) -> Result<Self, String> {
        let place = Place::find(fabric)?;
        match call(&place, &Request::Enter { host: host.to_owned() })? {
            Reply::Host { devices, directory: Some(dir) } => {
                Ok(Self { place, host: host.to_owned(), devices, dir: dir.into() })
            }
            other => Err(format!("fabric {}: not an answer: {other:?}", place.name)),
        }
    }

    /// Names fabric and host to the program, and shows it the host's files where the kernel allows
    /// that. libibumad asks the fabric itself, and works without them.
    pub(crate) fn present(&self, command: &mut Command, shows_files: bool) {
        command.env(VARIABLE, self.place.socket()).env(HOST, &self.host);
        if shows_files {
            let _ = mount_namespace::enter(object::roster().as_deref(), |view| {
                view.attempt(|view| self.classes(view))?;
                // Programs without it mix what they know of several fabrics. Programs run all the
                // same.
                let _ = view.attempt(|view| self.cache(view));
                view.attempt(|view| self.devices(view))
            });
        }
    }

    fn classes(&self, view: &mut View) -> io::Result<()> {
        let names = ["infiniband", "infiniband_mad", "infiniband_verbs"];
        let class = Path::new(CLASS);
        let missing: Vec<_> = names.into_iter().filter(|name| !class.join(name).is_dir()).collect();
        if !missing.is_empty() {
            view.extend(class)?;
            missing.iter().try_for_each(|name| fs::create_dir(class.join(name)))?;
        }
        for name in names {
            view.show_dir(&self.dir.join("class").join(name), &class.join(name))?;
        }
        if missing.is_empty() { Ok(()) } else { view.seal(class) }
    }

    fn cache(&self, view: &mut View) -> io::Result<()> {
        let all = Path::new(CACHE);
        let missing: Vec<_> = CACHES.into_iter().filter(|name| !all.join(name).is_dir()).collect();
        if !missing.is_empty() {
            view.extend(all)?;
            missing.iter().try_for_each(|name| DirBuilder::new().mode(0o755).create(all.join(name)))?;
        }
        CACHES
            .into_iter()
            .try_for_each(|name| view.share(&File::open(self.dir.join("cache").join(name))?, &all.join(name)))
    }

    fn devices(&self, view: &mut View) -> io::Result<()> {
        let ports: Vec<u32> =
            self.devices.iter().flat_map(|device| device.ports.iter().map(|port| port.umad)).collect();
        dev::show(view, Path::new(DEV), |view, dir, model| {
            (0..adapters(&self.devices).count())
                .try_for_each(|index| view.show(model, &dir.join(format!("uverbs{index}"))))?;
            ports.iter().try_for_each(|umad| {
                view.show(model, &dir.join(format!("umad{umad}")))?;
                view.show(&issm(&self.dir, *umad), &dir.join(format!("issm{umad}")))
            })
        })
    }
}
