//! Which package has a program that is not installed: of those that programs for RDMA are tried
//! with, and Debian's.

use std::ffi::OsStr;

/// Packages of Debian, and of Ubuntu under the same names, each with its programs.
const PACKAGES: [(&str, &[&str]); 9] = [
    (
        "ibverbs-utils",
        &[
            "ibv_asyncwatch",
            "ibv_devices",
            "ibv_devinfo",
            "ibv_rc_pingpong",
            "ibv_srq_pingpong",
            "ibv_uc_pingpong",
            "ibv_ud_pingpong",
            "ibv_xsrq_pingpong",
        ],
    ),
    (
        "rdmacm-utils",
        &[
            "cmtime",
            "mckey",
            "rcopy",
            "rdma_client",
            "rdma_server",
            "rdma_xclient",
            "rdma_xserver",
            "riostream",
            "rping",
            "rstream",
            "ucmatose",
            "udaddy",
            "udpong",
        ],
    ),
    (
        "perftest",
        &[
            "ib_atomic_bw",
            "ib_atomic_lat",
            "ib_read_bw",
            "ib_read_lat",
            "ib_send_bw",
            "ib_send_lat",
            "ib_write_bw",
            "ib_write_lat",
            "raw_ethernet_burst_lat",
            "raw_ethernet_bw",
            "raw_ethernet_fs_rate",
            "raw_ethernet_lat",
        ],
    ),
    ("qperf", &["qperf"]),
    ("fio", &["fio"]),
    ("iproute2", &["rdma", "ip"]),
    ("ucx-utils", &["ucx_info", "ucx_perftest"]),
    ("libfabric-bin", &["fi_info", "fi_pingpong"]),
    ("openmpi-bin", &["mpirun", "mpiexec"]),
];

/// The package that has a program of this name.
pub(crate) fn of(program: &OsStr) -> Option<&'static str> {
    let program = program.to_str()?;
    PACKAGES.iter().find(|(_, programs)| programs.contains(&program)).map(|(package, _)| *package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn a_program_is_in_the_package_of_its_name_and_one_that_is_unknown_in_none() {
        for (program, package) in
            [("ibv_devices", "ibverbs-utils"), ("udaddy", "rdmacm-utils"), ("ib_send_lat", "perftest")]
        {
            assert_eq!(of(OsStr::new(program)), Some(package));
        }
        for unknown in ["", "ibv_", "my_program", "./rping"] {
            assert_eq!(of(OsStr::new(unknown)), None, "{unknown}");
        }
    }

    /// dpkg's list of the files of each package that is installed here (dpkg-query(1),
    /// `--listfiles`).
    #[test]
    fn installed_packages_have_the_programs_that_the_table_says() {
        for (package, programs) in PACKAGES {
            let list = Path::new("/var/lib/dpkg/info").join(format!("{package}.list"));
            let Ok(files) = fs::read_to_string(list) else {
                println!("left out: {package} is not installed, or this is not Debian");
                continue;
            };
            let names: Vec<&str> = files.lines().filter_map(|file| file.rsplit('/').next()).collect();
            for program in programs {
                // Alternatives have the package's name in theirs.
                let alternative = format!("{program}.openmpi");
                assert!(
                    names.iter().any(|name| name == program || *name == alternative),
                    "{program} of {package}"
                );
            }
        }
    }
}
