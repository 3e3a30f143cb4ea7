//! The counters of a port as files (Documentation/ABI/stable/sysfs-class-infiniband), which the
//! processes that `verbena run` has started keep up to date for all of them.
//!
//! Each process adds to the files what it has counted since it did so last, a few times a second
//! and when it ends. So no process stays behind for that, and no counter goes backwards. The files
//! lie in memory that belongs to the program's view of the file system, and go with it. A file is
//! replaced by another one: no reader finds half a number.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nic::Errno;

/// The variable that names the directory of devices whose ports have such files.
pub const VARIABLE: &str = "VERBENA_PORT_COUNTERS";
/// The directories of a port.
pub const DIRS: [&str; 2] = ["counters", "hw_counters"];
/// How often a process adds to the files, in milliseconds.
pub const LIFESPAN_MS: u64 = 300;

/// The counters of every port in the kernel's ABI.
const COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// The counters of rdma_rxe, in its order.
pub const HW_COUNTERS: [&str; 15] = [
    "sent_pkts",
    "rcvd_pkts",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_rnr_err",
    "send_rnr_err",
    "rcvd_seq_err",
    "ack_deferred",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "completer_retry_err",
    "send_err",
    "link_downed",
    "rdma_sends",
    "rdma_recvs",
];

/// The files of one port.
#[derive(Clone, Debug)]
pub struct PortFiles {
    port: PathBuf,
}

impl PortFiles {
    /// The files of a device's one port, below the directory of devices.
    pub fn of(class: &Path, device: &str) -> Self {
        Self { port: class.join(device).join("ports/1") }
    }

    /// One of [`DIRS`].
    pub fn dir(&self, name: &str) -> PathBuf {
        self.port.join(name)
    }

    /// Fills the directories, which are there and empty, with counters of 0.
    ///
    /// # Errors
    ///
    /// What the kernel refused.
    pub fn create(&self) -> io::Result<()> {
        let [counters, hw_counters] = DIRS.map(|name| self.dir(name));
        for (dir, names) in [(&counters, &COUNTERS[..]), (&hw_counters, &HW_COUNTERS[..])] {
            // One file under many names is made faster than many files.
            let zero = dir.join(names[0]);
            replace(&zero, "0")?;
            names[1..].iter().try_for_each(|name| fs::hard_link(&zero, dir.join(name)))?;
        }
        replace(&hw_counters.join("lifespan"), &LIFESPAN_MS.to_string())
    }

    /// The counters of one of [`DIRS`] that are there, in the order of `names`.
    pub fn read(&self, dir: &str, names: &[&'static str]) -> Vec<(&'static str, u64)> {
        let dir = self.dir(dir);
        names.iter().filter_map(|name| Some((*name, number(&dir.join(name)).ok()?))).collect()
    }

    /// A number that this view of the file system has alone, and those below it; `None` where there
    /// are no counters.
    pub fn view(&self) -> Option<u64> {
        fs::metadata(self.dir(DIRS[0])).ok().map(|dir| dir.dev())
    }

    /// Adds to counters, named as `counters/port_xmit_data`, and raises others to what they are at
    /// least. Waits for so long for other processes that do so.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT, and what the kernel refused: nothing, or a part, was added then.
    pub fn add(&self, more: &[(&str, u64)], at_least: &[(&str, u64)], limit: Duration) -> io::Result<()> {
        let locked = lock(&self.dir(DIRS[0]), limit)?;
        let added = more.iter().filter(|(_, more)| *more > 0).try_for_each(|(name, more)| {
            let file = self.port.join(name);
            replace(&file, &number(&file)?.wrapping_add(*more).to_string())
        });
        let raised = at_least.iter().try_for_each(|(name, least)| {
            let file = self.port.join(name);
            if number(&file)? < *least { replace(&file, &least.to_string()) } else { Ok(()) }
        });
        // A child that was forked meanwhile has the descriptor, too, and must not keep the lock.
        let _ = locked.unlock();
        added.and(raised)
    }
}

/// What an interface says of its link, for counters that are at least so much. Those of 0 are left
/// out.
pub fn of_link(interface: &str) -> Vec<(&'static str, u64)> {
    let interface = Path::new("/sys/class/net").join(interface);
    let read = |file: &str| number(&interface.join(file)).unwrap_or(0);
    let downed = read("carrier_down_count");
    let all = [
        ("counters/symbol_error", read("statistics/rx_crc_errors")),
        ("counters/link_downed", downed),
        ("hw_counters/link_downed", downed),
    ];
    all.into_iter().filter(|(_, n)| *n > 0).collect()
}

/// Locks a directory, for which it waits no longer than `limit`.
fn lock(dir: &Path, limit: Duration) -> io::Result<File> {
    let (dir, until) = (File::open(dir)?, Instant::now() + limit);
    loop {
        match dir.try_lock() {
            Ok(()) => return Ok(dir),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                thread::sleep(Duration::from_micros(500));
            }
            Err(TryLockError::WouldBlock) => return Err(Errno::ETIMEDOUT.into()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// The number that a file says.
fn number(file: &Path) -> io::Result<u64> {
    fs::read_to_string(file)?.trim_end().parse().map_err(|_| ErrorKind::InvalidData.into())
}

/// Puts another file with this line in the place of one.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let new = file.with_file_name(format!(".{name}"));
    // A process may have been killed in here.
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o444);
    options.open(&new)?.write_all(format!("{text}\n").as_bytes())?;
    fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> (Self, PortFiles) {
            let class = std::env::temp_dir().join(format!("verbena-port-{}-{name}", std::process::id()));
            let files = PortFiles::of(&class, "rxe_lo");
            DIRS.iter().for_each(|dir| fs::create_dir_all(files.dir(dir)).unwrap());
            files.create().unwrap();
            (Self(class), files)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn counters_begin_at_0_and_each_is_a_file_of_its_own() {
        let (_scratch, files) = Scratch::new("begin");
        let all = files.read("hw_counters", &HW_COUNTERS);
        assert_eq!(all.len(), HW_COUNTERS.len());
        assert!(all.iter().all(|(_, n)| *n == 0));
        files.add(&[("hw_counters/sent_pkts", 7)], &[("counters/link_downed", 3)], LIMIT).unwrap();
        files.add(&[("hw_counters/sent_pkts", 5)], &[("counters/link_downed", 2)], LIMIT).unwrap();
        assert_eq!(
            files.read("hw_counters", &["sent_pkts", "rcvd_pkts"]),
            [("sent_pkts", 12), ("rcvd_pkts", 0)]
        );
        assert_eq!(files.read("counters", &["link_downed"]), [("link_downed", 3)]);
        assert_eq!(fs::read_to_string(files.dir("hw_counters").join("lifespan")).unwrap(), "300\n");
    }

    #[test]
    fn what_many_add_at_once_is_all_there_and_no_reader_sees_less_than_before() {
        let (_scratch, files) = Scratch::new("many");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        files.add(&[("counters/port_xmit_data", 99)], &[], LIMIT).unwrap();
                    }
                });
            }
            let mut last = 0;
            while last < 4 * 50 * 99 {
                let now = files.read("counters", &["port_xmit_data"])[0].1;
                assert!(now >= last && now % 99 == 0, "{now} after {last}");
                last = now;
            }
        });
    }

    #[test]
    fn a_process_that_keeps_the_lock_is_waited_for_no_longer_than_is_said() {
        let (_scratch, files) = Scratch::new("locked");
        let kept = lock(&files.dir("counters"), LIMIT).unwrap();
        let added = files.add(&[("counters/port_xmit_data", 1)], &[], Duration::from_millis(20));
        assert_eq!(added.unwrap_err().raw_os_error(), Some(libc::ETIMEDOUT));
        kept.unlock().unwrap();
        files.add(&[("counters/port_xmit_data", 1)], &[], LIMIT).unwrap();
        assert!(files.add(&[("counters/none", 1)], &[], LIMIT).is_err());
    }
}
