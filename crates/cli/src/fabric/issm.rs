//! Whether a subnet manager keeps a port's issm open, which sets the port's IsSM bit (the kernel's
//! Documentation/infiniband/user_mad.rst). Each issm is a named pipe without a writer.
//!
//! An open is told by inotify(7), also through a bind in another mount namespace. The pipe is then
//! opened for writing, which succeeds only where a reader is there (fifo(7)). The write end is kept
//! until poll(2) tells POLLERR, which says that the last reader has closed it or has been killed.
//! So nothing is counted, and no event that is merged or lost leaves a wrong answer.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use fabric::PortId;
use sys::inotify::Inotify;

/// The issm of a port.
struct Issm {
    path: PathBuf,
    port: PortId,
    /// The write end, while a reader is there.
    held: Option<File>,
}

/// All issm files of a fabric.
pub(crate) struct Issms {
    inotify: Inotify,
    by_watch: BTreeMap<i32, Issm>,
}

/// What follows from an event.
pub(crate) enum Change {
    /// A reader is there: wait for POLLERR of this descriptor.
    Opened(PortId, RawFd),
    /// No reader is there any more.
    Closed(PortId),
}

impl Issms {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { inotify: Inotify::new()?, by_watch: BTreeMap::new() })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.inotify.as_raw_fd()
    }

    pub(crate) fn add(&mut self, path: PathBuf, port: PortId) -> io::Result<()> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let watch = self.inotify.watch(&name, libc::IN_OPEN)?;
        self.by_watch.insert(watch, Issm { path, port, held: None });
        Ok(())
    }

    /// What has happened since the last call.
    pub(crate) fn read(&mut self) -> Vec<Change> {
        let events = self.inotify.read().unwrap_or_default();
        // Where events were lost each file is looked at.
        let lost = events.iter().any(|(_, mask)| mask & libc::IN_Q_OVERFLOW != 0);
        let watches: Vec<i32> = if lost {
            self.by_watch.keys().copied().collect()
        } else {
            events.into_iter().map(|(watch, _)| watch).collect()
        };
        watches.into_iter().filter_map(|watch| self.by_watch.get_mut(&watch)?.look()).collect()
    }

    /// The write end of this number has told that the last reader is gone.
    pub(crate) fn hung_up(&mut self, fd: RawFd) -> Option<Change> {
        let is_it = |issm: &&mut Issm| issm.held.as_ref().is_some_and(|held| held.as_raw_fd() == fd);
        let issm = self.by_watch.values_mut().find(is_it)?;
        issm.held = None;
        // Another one may have opened it meanwhile.
        Some(issm.look().unwrap_or(Change::Closed(issm.port)))
    }
}

impl Issm {
    fn look(&mut self) -> Option<Change> {
        if self.held.is_some() {
            return None;
        }
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.path).ok()?;
        let fd = opened.as_raw_fd();
        self.held = Some(opened);
        Some(Change::Opened(self.port, fd))
    }
}

#[cfg(test)]
mod tests {
    use ::fabric::Fabric;
    use ::fabric::net::FatTree;

    use super::*;

    fn open(path: &PathBuf) -> File {
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap()
    }

    #[test]
    fn a_port_has_a_subnet_manager_while_any_process_keeps_its_issm_open() {
        let fabric = Fabric::new(&FatTree::new(2, 4).unwrap().net(), 1);
        let port = fabric.port_of_host("host0", "", 1).unwrap();
        let path = std::env::temp_dir().join(format!("verbena-issm-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        linux::make_pipe(&path).unwrap();
        let mut issms = Issms::new().unwrap();
        issms.add(path.clone(), port).unwrap();
        assert!(issms.read().is_empty());
        let (one, two) = (open(&path), open(&path));
        let [Change::Opened(of, fd)] = issms.read()[..] else { panic!("it is open") };
        assert_eq!(of, port);
        assert!(issms.read().is_empty(), "the write end of our own is told, and means nothing");
        let hung_up = |issms: &Issms| {
            issms.by_watch.values().any(|issm| {
                issm.held.as_ref().is_some_and(|held| {
                    sys::files::wait_for(held, 0, Some(std::time::Duration::ZERO)).unwrap() & libc::POLLERR
                        != 0
                })
            })
        };
        drop(one);
        assert!(!hung_up(&issms), "another process has it");
        drop(two);
        assert!(hung_up(&issms));
        assert!(matches!(issms.hung_up(fd), Some(Change::Closed(of)) if of == port));
        assert!(issms.hung_up(fd).is_none());
        std::fs::remove_file(path).unwrap();
    }
}
