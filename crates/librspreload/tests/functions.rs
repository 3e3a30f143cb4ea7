//! Which functions of the C library that take descriptors this object stands in front of.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where the C library declares functions that take a descriptor of a socket, or several.
const HEADERS: [&str; 18] = [
    "sys/socket.h",
    "bits/socket2.h",
    "unistd.h",
    "bits/unistd.h",
    "bits/unistd_ext.h",
    "fcntl.h",
    "bits/fcntl-linux.h",
    "sys/poll.h",
    "bits/poll2.h",
    "sys/select.h",
    "sys/epoll.h",
    "sys/uio.h",
    "bits/uio-ext.h",
    "sys/sendfile.h",
    "sys/ioctl.h",
    "sys/stat.h",
    "stdio.h",
    "spawn.h",
];

/// Functions that are left to the C library, and why.
const LEFT: [(&str, &str); 8] = [
    (
        "of files: a socket has no offset, no length and no directory",
        "copy_file_range fallocate fallocate64 faccessat fchdir fchownat fchmodat fdatasync fexecve execveat \
         fstatat fstatat64 fsync ftruncate ftruncate64 futimens futimesat linkat lockf lockf64 lseek lseek64 mkdirat \
         mkfifoat mknodat name_to_handle_at open_by_handle_at openat openat64 posix_fadvise posix_fadvise64 \
         posix_fallocate posix_fallocate64 pread pread64 __pread_chk __pread64_chk preadv preadv64 pwrite pwrite64 \
         pwritev pwritev64 readahead readlinkat __readlinkat_chk renameat renameat2 symlinkat sync_file_range \
         syncfs unlinkat utimensat",
    ),
    ("of terminals", "isatty tcgetpgrp tcsetpgrp ttyname ttyname_r __ttyname_r_chk"),
    ("of pipes", "tee vmsplice"),
    (
        "true of the program's descriptor, too, which is a socket",
        "fchmod fchown fpathconf fstat fstat64 isfdtype",
    ),
    ("of a new pair, which is local", "socketpair"),
    (
        "of a child's descriptors, of which the program has passed the socket by adddup2",
        "posix_spawn_file_actions_addclose posix_spawn_file_actions_addfchdir_np posix_spawn_file_actions_addopen \
         posix_spawn_file_actions_addtcsetpgrp_np",
    ),
    ("variable arguments, which Rust does not define: they fail on a stream by RDMA", "dprintf vdprintf"),
    (
        "names for times of 64 bits on machines of 32",
        "__fcntl_time64 __getsockopt64 __ioctl_time64 __recvmmsg64 __recvmsg64 __sendmmsg64 __sendmsg64 \
         __setsockopt64 __pselect64 __select64 __ppoll64 __ppoll64_chk",
    ),
];

/// The functions of a header that have a parameter named as descriptors are.
fn declared(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (at, _) in text.match_indices('(') {
        let Some(arguments) = text[at + 1..].split([')', '(']).next() else { continue };
        let is_descriptor = |word: &str| word.starts_with("__") && word.contains("fd");
        let words = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect::<Vec<_>>()
        };
        if arguments.contains(' ')
            && words(arguments).iter().any(|word| is_descriptor(word) && word != "__fd_mask")
            && let Some(name) = words(text[..at].trim_end()).pop()
            && !name.is_empty()
            && name != "sizeof"
            && !name.starts_with("__glibc_")
            && !name.ends_with("_alias")
            && !name.ends_with("_warn")
        {
            all.insert(name);
        }
    }
    all
}

/// The functions that this object exports.
fn exported() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("sources") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for (at, word) in text.match_indices("fn ") {
            let line = text[..at].lines().last().unwrap_or("").trim();
            let is_public = line.starts_with("pub unsafe extern \"C");
            let name = text[at + word.len()..].split('(').next().unwrap_or("");
            // Functions of the two macros have no word before them.
            let is_listed = line.is_empty() && text[..at].trim_end().ends_with('.');
            if (is_public || is_listed) && !name.contains('$') {
                all.insert(name.to_owned());
            }
        }
    }
    all
}

#[test]
fn each_function_that_takes_descriptors_is_exported_or_left_for_a_reason() {
    let mut declared_all = BTreeSet::new();
    for header in HEADERS {
        for directory in ["/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"] {
            let text = fs::read_to_string(Path::new(directory).join(header)).unwrap_or_default();
            declared_all.extend(declared(&text));
        }
    }
    assert!(declared_all.len() > 50, "the C library's headers are not installed");
    let exported = exported();
    let left: BTreeSet<&str> = LEFT.iter().flat_map(|(_, names)| names.split_whitespace()).collect();
    let missing: Vec<_> = declared_all
        .iter()
        .filter(|name| !exported.contains(*name) && !left.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "neither exported nor left: {missing:?}");
    let both: Vec<_> = left.iter().filter(|name| exported.contains(**name)).collect();
    assert!(both.is_empty(), "exported and left: {both:?}");
}
