//! Programs of other projects, started by `verbena run`: the loader must find every symbol and
//! version they and their libraries want, in one object. A program that is not installed is left
//! out with one line.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `verbena run -- program args`, all symbols bound at the start; `None` if not installed.
fn verbena_run(program: &str, args: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    verbena_run_with(&[], program, args, env)
}

/// Like [`verbena_run`], with options of `verbena run`.
fn verbena_run_with(options: &[&str], program: &str, args: &[&str], env: &[(&str, &str)]) -> Option<Output> {
    if !Path::new(program).exists() {
        println!("left out: {program} is not installed");
        return None;
    }
    let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
    verbena.arg("run").args(options).args(["--", program]).args(args);
    verbena.env("LD_BIND_NOW", "1").envs(env.iter().copied());
    Some(verbena.output().expect("cargo has built the command"))
}

/// What the loader says when something is missing (glibc's elf/dl-lookup.c and dl-version.c).
fn loader_complains(out: &Output) -> bool {
    let text = String::from_utf8_lossy(&out.stderr);
    ["symbol lookup error", "undefined symbol", "not found (required by", "cannot open shared object"]
        .iter()
        .any(|c| text.contains(c))
}

#[test]
fn programs_of_others_find_every_symbol_they_want() {
    for (program, args, says) in [
        ("/usr/bin/ibv_devices", &[][..], ""),
        ("/usr/bin/ibv_devinfo", &["--help"], "Usage"),
        ("/usr/bin/rping", &["-h"], "rping"),
        ("/usr/bin/ucmatose", &["-h"], "usage"),
        ("/usr/bin/ib_write_bw", &["--version"], "Version"),
        ("/usr/bin/qperf", &["--version"], "qperf"),
        ("/usr/bin/fio", &["--version"], "fio-"),
        ("/usr/bin/fio", &["--enghelp=rdma"], "hostname"),
    ] {
        let Some(out) = verbena_run(program, args, &[]) else { continue };
        let text =
            format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(!loader_complains(&out), "{program}: {text}");
        assert!(text.contains(says), "{program} {args:?} does not say {says}: {text}");
    }
}

/// pyverbs links libmlx5 and libefa, which want the private nodes of the libibverbs they were built
/// with.
#[test]
fn pyverbs_and_its_providers_load_one_object_under_all_names() {
    let script = "import pyverbs.device, pyverbs.cmid, pyverbs.providers.mlx5.mlx5dv, pyverbs.providers.efa.efadv, ctypes\n\
                  for line in open('/proc/self/maps'):\n  \
                  if 'r-xp' in line and any(n in line for n in ('verbs', 'rdma')): print(line.split()[-1])\n";
    let Some(probe) = verbena_run("/usr/bin/python3", &["-c", "import pyverbs"], &[]) else { return };
    if !probe.status.success() {
        println!("left out: pyverbs is not installed");
        return;
    }
    let out = verbena_run("/usr/bin/python3", &["-c", script], &[]).expect("it was there a moment ago");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let objects: Vec<_> = text.lines().filter(|l| !l.contains("pyverbs")).collect();
    assert_eq!(objects.len(), 1, "{text}");
    assert!(objects[0].ends_with("libverbena_rdma.so"), "{text}");
}

/// Says which file the program's librpma is, after a call that reaches a device. The object of
/// verbs names nothing of librpma's, as it could come before the library where both are loaded.
const RPMA: &str = "import ctypes\n\
    assert not hasattr(ctypes.CDLL('libibverbs.so.1'), 'rpma_conn_req_new')\n\
    try: rpma = ctypes.CDLL('librpma.so.0')\n\
    except OSError: print('left out: librpma is not installed'); exit()\n\
    context = ctypes.c_void_p()\n\
    assert rpma.rpma_utils_get_ibv_context(b'127.0.0.1', 1, ctypes.byref(context)) == 0\n\
    print([line for line in open('/proc/self/maps') if 'rpma' in line.split('/')[-1]][0])\n";

#[test]
fn librpma_is_ours() {
    let Some(out) = verbena_run("/usr/bin/python3", &["-c", RPMA], &[]) else { return };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.trim_end().ends_with("/libverbena_rpma.so"), "{text}");
}

#[test]
fn a_librpma_of_the_system_is_shown_where_it_is_asked_for_and_runs_on_the_object() {
    let systems = |text: &str| text.contains("/librpma.so.0") || text.starts_with("left out");
    let option = ["--system-librpma"];
    let Some(out) = verbena_run_with(&option, "/usr/bin/python3", &["-c", RPMA], &[]) else { return };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(systems(&text), "{text}");
    // Inside a run that shows ours, too.
    let inner = [env!("CARGO_BIN_EXE_verbena"), "run", option[0], "--", "/usr/bin/python3", "-c", RPMA];
    let out = verbena_run(inner[0], &inner[1..], &[]).expect("the command");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && systems(&text), "{text}");
    print!("{text}");
}

#[test]
fn the_private_directory_stands_before_the_library_path_of_the_caller() {
    let env = [("LD_LIBRARY_PATH", "/nowhere/else")];
    let out = verbena_run("/bin/sh", &["-c", "echo $LD_LIBRARY_PATH"], &env).expect("a shell");
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    let (dir, rest) = text.split_once(':').expect("two entries");
    assert_eq!(rest, "/nowhere/else");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let target = std::fs::canonicalize(Path::new(dir).join(name)).expect("a link to the object");
        assert!(target.ends_with("libverbena_rdma.so"));
    }
    let target = std::fs::canonicalize(Path::new(dir).join("librpma.so.0")).expect("a link to the other");
    assert!(target.ends_with("libverbena_rpma.so"));
}

#[test]
fn the_programs_exit_code_is_the_commands_and_what_cannot_run_is_127_or_126() {
    let run = |args: &[&str]| {
        let out =
            Command::new(env!("CARGO_BIN_EXE_verbena")).arg("run").args(args).output().expect("the command");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(run(&["--", "/bin/sh", "-c", "exit 7"]).0, Some(7));
    // Without `--` too: what follows the program is the program's.
    assert_eq!(run(&["/bin/sh", "-c", "exit 8"]).0, Some(8));
    assert_eq!(run(&["--", "/nowhere/program"]).0, Some(127));
    let (code, text) = run(&["--", "/etc/passwd"]);
    assert_eq!(code, Some(126));
    assert!(text.contains("cannot run /etc/passwd"), "{text}");
}

#[test]
fn a_program_that_exits_with_everything_open_leaves_its_counters() {
    let dir = std::env::temp_dir().join(format!("verbena-counters.{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let script = "import ctypes, os, sys\n\
                  v = ctypes.CDLL('libibverbs.so.1')\n\
                  v.ibv_get_device_list.restype = ctypes.c_void_p\n\
                  assert v.ibv_get_device_list(None)\n\
                  os.chdir('/')\n\
                  os._exit(0) if len(sys.argv) > 1 and sys.argv[1] == 'quick' else sys.exit(3)\n";
    if !Path::new("/usr/bin/python3").exists() {
        println!("left out: /usr/bin/python3 is not installed");
        return;
    }
    let run = |more: &[&str]| {
        let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
        verbena.current_dir(&dir).args([
            "run",
            "--counters",
            "counters.%p",
            "--",
            "/usr/bin/python3",
            "-c",
            script,
        ]);
        verbena.args(more).output().expect("the command").status.code()
    };
    let files = || std::fs::read_dir(&dir).expect("the directory").map(|e| e.expect("an entry").path());
    // _exit(2) leaves nothing to other code.
    assert_eq!((run(&["quick"]), files().count()), (Some(0), 0));
    assert_eq!(run(&[]), Some(3));
    let files: Vec<_> = files().collect();
    let text = std::fs::read_to_string(&files[0]).expect("counters");
    std::fs::remove_dir_all(&dir).expect("the directory");
    assert_eq!(files.len(), 1);
    let pid = files[0].extension().and_then(|p| p.to_str()).and_then(|p| p.parse::<u32>().ok());
    assert!(pid.is_some(), "{files:?}");
    for name in ["host.packets_received", "node.icrc", "node.malformed", "node.mads"] {
        let line = format!("{name} 0");
        assert!(text.lines().any(|l| l == line), "{text}");
    }
}

#[test]
fn a_missing_object_is_said_with_what_to_do() {
    let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
    verbena.args(["run", "true"]).env("VERBENA_LIBRARY", "/nowhere/libverbena_rdma.so");
    let out = verbena.output().expect("the command");
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("VERBENA_LIBRARY names /nowhere/libverbena_rdma.so"), "{text}");
}

/// Whether this kernel, and what confines this process, let a private view of /sys be made.
fn sysfs_is_presented() -> bool {
    let out = verbena_run("/bin/sh", &["-c", "test -e /sys/class/infiniband_verbs/abi_version"], &[]);
    let presented = out.expect("a shell").status.success();
    if !presented {
        println!("left out: the kernel refuses a mount namespace");
    }
    presented
}

/// What a shell prints that is started by `verbena run`.
fn shell(script: &str) -> String {
    let out = verbena_run("/bin/sh", &["-c", script], &[]).expect("a shell");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn sysfs_and_the_library_tell_of_the_same_devices_and_only_the_program_sees_them() {
    let real = Path::new("/sys/class/infiniband_verbs/uverbs0/ibdev");
    let before = real.exists();
    if !Path::new("/usr/bin/ibv_devices").exists() || !sysfs_is_presented() {
        return;
    }
    let shown = shell("cd /sys/class/infiniband && grep -H . */node_guid");
    let mut shown: Vec<_> = shown.lines().map(|l| l.replace("/node_guid:", " ").replace(':', "")).collect();
    let listed = shell("/usr/bin/ibv_devices");
    let listed = listed.lines().skip(2).map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut listed: Vec<_> = listed.collect();
    shown.sort();
    listed.sort();
    assert_eq!(shown, listed);
    assert_eq!(real.exists(), before);
}

#[test]
fn what_else_stands_in_sysfs_stays_there() {
    if !sysfs_is_presented() {
        return;
    }
    let list = "ls -L /sys/class/net; ls /sys/class | grep -v infiniband; cat /sys/class/net/lo/mtu";
    let plain = Command::new("/bin/sh").args(["-c", list]).output().expect("a shell");
    assert_eq!(shell(list), String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn each_device_has_a_character_device_that_may_be_read_and_written() {
    if !sysfs_is_presented() {
        return;
    }
    let each = "cd /dev/infiniband; for d in *; do test -c $d -a -r $d -a -w $d -a -e /sys/class/infiniband_verbs/$d && echo $d; done";
    let shown = shell(each);
    assert_eq!(shown, shell("ls /dev/infiniband"));
    assert!(shown.starts_with("uverbs"), "{shown}");
    // No driver answers behind them, and a program that asks is told so.
    shell("for d in /dev/infiniband/*; do ! (echo x > $d) 2> /dev/null || exit 1; done");
}

#[test]
fn what_else_stands_in_dev_stays_there() {
    if !sysfs_is_presented() {
        return;
    }
    let list = "ls -l /dev | awk '$NF != \"infiniband\" && !/ptmx/ { print $1, $5, $NF }' | grep -v ^total; ls /dev/shm; echo x > /dev/null";
    let plain = Command::new("/bin/sh").args(["-c", list]).output().expect("a shell");
    assert_eq!(shell(list), String::from_utf8_lossy(&plain.stdout));
}

/// The kernel looks for terminals beside the place where /dev/ptmx was opened. Only root may open
/// the one in /dev/pts, on most hosts.
#[test]
fn root_and_ordinary_users_open_terminals_and_see_the_devices() {
    let open = "import os\nmaster, slave = os.openpty()\nos.write(master, b'x\\n')\nassert os.read(slave, 2) == b'x\\n'\n\
                assert os.path.exists(os.ttyname(slave))\nd = '/dev/infiniband/'\nprint(all(os.access(d + n, os.R_OK | os.W_OK) for n in os.listdir(d)))\n";
    if !Path::new("/usr/bin/python3").exists() || !sysfs_is_presented() {
        println!("left out: /usr/bin/python3 is not installed, or nothing is presented");
        return;
    }
    let run = |uid: Option<u32>| {
        let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
        verbena.args(["run", "--", "/usr/bin/python3", "-c", open]);
        uid.map(|uid| verbena.uid(uid).gid(uid));
        let out = verbena.output();
        out.map(|out| {
            (
                String::from_utf8_lossy(&out.stdout).into_owned(),
                String::from_utf8_lossy(&out.stderr).into_owned(),
            )
        })
    };
    assert_eq!(run(None).expect("the command"), ("True\n".to_owned(), String::new()));
    // Where this is not root, that was an ordinary user; where the build tree is root's alone,
    // another user has no command.
    match run(Some(54321)) {
        Ok(said) => assert_eq!(said, ("True\n".to_owned(), String::new())),
        Err(error) => println!("left out: another user cannot run the command: {error}"),
    }
}

#[test]
fn without_sysfs_the_program_stays_in_its_callers_namespaces() {
    let namespaces =
        || ["mnt", "user"].map(|n| std::fs::read_link(format!("/proc/self/ns/{n}")).expect("/proc"));
    let out = Command::new(env!("CARGO_BIN_EXE_verbena"))
        .args(["run", "--no-sysfs", "--", "readlink", "/proc/self/ns/mnt", "/proc/self/ns/user"])
        .output()
        .expect("the command");
    let own = namespaces().map(|n| n.display().to_string()).join("\n");
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), own);
}

/// A shell under `verbena run` that prints its user namespace, and stays until its input ends.
fn stays_in_its_namespace(uid: Option<u32>) -> std::io::Result<(std::process::Child, String)> {
    let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
    verbena.args(["run", "--", "/bin/sh", "-c", "readlink /proc/self/ns/user; read ended"]);
    uid.map(|uid| verbena.uid(uid).gid(uid));
    let mut child = verbena.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut namespace = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut namespace)?;
    Ok((child, namespace))
}

/// The kernel lets them reach each other's memory only there (`linux::user_namespace`).
#[test]
fn programs_of_one_ordinary_user_share_a_user_namespace() {
    if !sysfs_is_presented() {
        return;
    }
    let own = std::fs::read_link("/proc/self/ns/user").expect("/proc").display().to_string();
    let own_uid = std::fs::metadata("/proc/self").expect("/proc").uid();
    let uid = (own_uid == 0).then_some(54322);
    let Ok((mut first, namespace)) = stays_in_its_namespace(uid) else {
        println!("left out: another user cannot run the command");
        return;
    };
    let (mut second, shared) = stays_in_its_namespace(uid).expect("the command");
    // It goes on where the first one has ended.
    first.kill().and_then(|()| first.wait()).expect("a child");
    let (mut third, still) = stays_in_its_namespace(uid).expect("the command");
    for child in [&mut second, &mut third] {
        drop(child.stdin.take());
        child.wait().expect("a child");
    }
    assert_ne!(namespace.trim(), own, "an ordinary user needs one");
    assert_eq!((&shared, &still), (&namespace, &namespace));
}

#[test]
fn rdma_link_show_tells_of_the_devices_and_other_questions_go_to_the_system() {
    let text = shell("rdma link show -j");
    assert!(text.contains("\"ifname\":\"rxe_lo\",\"port\":1,\"state\":\"ACTIVE\""), "{text}");
    // Whether or not iproute2 is installed: the answer is not ours, and it comes.
    let out = verbena_run("/bin/sh", &["-c", "rdma -V; true"], &[]).expect("a shell");
    assert!(out.status.success());
}

/// A directory of a test's own, which goes with it.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("verbena-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The file that a program loads by this name where the command alone lies in `dir`, and what the
/// command said.
fn loaded_from(dir: &Path, name: &str, env: &[(&str, &Path)]) -> (String, String) {
    let alone = dir.join("bin/verbena");
    if !alone.exists() {
        std::fs::create_dir_all(dir.join("bin")).expect("a directory");
        std::fs::copy(env!("CARGO_BIN_EXE_verbena"), &alone).expect("a copy of the command");
    }
    let mut verbena = Command::new(alone);
    let script = format!("readlink -f ${{LD_LIBRARY_PATH%%:*}}/{name}");
    verbena.args(["run", "--no-sysfs", "--", "/bin/sh", "-c", &script]).envs(env.iter().copied());
    let out = verbena.env_remove("VERBENA_LIBRARY").output().expect("the command");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    (text(out.stdout), text(out.stderr))
}

#[test]
fn a_command_that_stands_alone_unpacks_the_objects_inside_it() {
    let dir = Scratch::new("alone");
    let cache = dir.0.join("cache");
    for name in ["libibverbs.so.1", "librpma.so.0"] {
        let (object, _) = loaded_from(&dir.0, name, &[("XDG_CACHE_HOME", &cache)]);
        assert!(Path::new(&object).starts_with(cache.join("verbena")), "{object}");
        let of_the_tree = shell(&format!("readlink -f ${{LD_LIBRARY_PATH%%:*}}/{name}"));
        let [inside, built] =
            [&object, of_the_tree.trim()].map(|path| std::fs::read(path).expect("an object"));
        assert!(inside == built, "the object inside is not the one that was built with the command");
        let inode = || MetadataExt::ino(&std::fs::metadata(&object).expect("the object"));
        let first = inode();
        assert_eq!(loaded_from(&dir.0, name, &[("XDG_CACHE_HOME", &cache)]).0, object);
        assert_eq!(inode(), first, "it was written twice");
    }
}

#[test]
fn installed_objects_come_before_those_inside() {
    let dir = Scratch::new("installed");
    let lib = dir.0.join("lib/verbena");
    std::fs::create_dir_all(&lib).expect("a directory");
    let names = [("libibverbs.so.1", "libverbena_rdma.so"), ("librpma.so.0", "libverbena_rpma.so")];
    let names = names.map(|(name, file)| (name, lib.join(file)));
    for (_, installed) in &names {
        std::fs::write(installed, "").expect("a file");
    }
    for (name, installed) in names {
        let (object, _) = loaded_from(&dir.0, name, &[("XDG_CACHE_HOME", &dir.0.join("cache"))]);
        assert_eq!(Path::new(&object), installed.canonicalize().expect("the object"));
    }
    assert!(!dir.0.join("cache").exists());
}

#[test]
fn a_home_that_cannot_be_written_is_no_obstacle() {
    let dir = Scratch::new("readonly");
    let runtime = dir.0.join("runtime");
    std::fs::create_dir(&runtime).expect("a directory");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&runtime, private).expect("a directory of ours");
    // /proc takes no directories, not even root's.
    let env = [("XDG_CACHE_HOME", Path::new("/proc/nowhere")), ("XDG_RUNTIME_DIR", &runtime)];
    let (object, said) = loaded_from(&dir.0, "libibverbs.so.1", &env);
    assert!(Path::new(&object).starts_with(&runtime), "{object} {said}");
}

#[test]
fn a_directory_in_which_another_user_could_replace_the_library_is_not_taken() {
    let dir = Scratch::new("open");
    let [open, inner] = ["shared", "shared/inner"].map(|name| dir.0.join(name));
    std::fs::create_dir_all(&inner).expect("a directory");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .expect("a directory of ours");
    };
    mode(&inner, 0o700);
    let nowhere = Path::new("/proc/nowhere");
    for (bits, taken) in [(0o777, false), (0o1777, true)] {
        mode(&open, bits);
        for base in [&open, &inner] {
            let env = [("TMPDIR", &**base), ("XDG_CACHE_HOME", nowhere), ("XDG_RUNTIME_DIR", nowhere)];
            let (object, said) = loaded_from(&dir.0, "libibverbs.so.1", &env);
            assert!(object.ends_with("/libverbena_rdma.so"), "{said}");
            assert_eq!(Path::new(&object).starts_with(base), taken, "{object}");
            // Neither the links lie there.
            let left = std::fs::read_dir(base).expect("a directory").flatten();
            let made =
                left.filter(|entry| entry.file_name().to_string_lossy().starts_with("verbena-")).count();
            assert_eq!(made > 0, taken, "{bits:o} {}", base.display());
        }
    }
}

#[test]
fn a_program_that_does_not_get_the_library_is_told_of_and_runs() {
    let run = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_verbena")).arg("run").args(args).output();
        let out = out.expect("the command");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (code, said) = run(&["--", "env", "-i", "/bin/sh", "-c", "exit 7"]);
    assert_eq!(code, Some(7));
    assert!(said.contains("env does not get Verbena") && said.contains("Troubleshooting"), "{said}");
    assert_eq!(run(&["--", "env", "A=b", "/bin/sh", "-c", "exit 8"]), (Some(8), String::new()));
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guide/src/troubleshooting.md");
    let page = std::fs::read_to_string(page);
    let page = page.expect("the page");
    assert!(page.contains("## Programs that do not get Verbena"));
    assert!(page.contains("## Address already in use"), "the library's message about its port");
}

#[test]
fn under_a_limit_of_file_sizes_the_command_says_so_or_starts_the_program_and_no_signal_ends_it() {
    let dir = Scratch::new("limit");
    let alone = dir.0.join("bin/verbena");
    std::fs::create_dir_all(dir.0.join("bin")).expect("a directory");
    std::fs::copy(env!("CARGO_BIN_EXE_verbena"), &alone).expect("a copy of the command");
    let limited = |command: &Path, options: &str, env: &[(&str, &Path)]| {
        let script = format!("ulimit -f 1; exec {} run {options} -- true", command.display());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).env_remove("VERBENA_LIBRARY").envs(env.iter().copied());
        let out = shell.output().expect("a shell");
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let env = [
        ("XDG_CACHE_HOME", dir.0.join("cache")),
        ("XDG_RUNTIME_DIR", dir.0.clone()),
        ("TMPDIR", dir.0.clone()),
    ];
    let env: Vec<_> = env.iter().map(|(name, path)| (*name, path.as_path())).collect();
    // Nothing is to be unpacked, and the view of /sys is not needed.
    assert_eq!(limited(Path::new(env!("CARGO_BIN_EXE_verbena")), "", &[]), (Some(0), String::new()));
    let (code, said) = limited(&alone, "--no-sysfs", &env);
    // An earlier run may have left what is inside in /tmp, whole.
    assert!(code == Some(0) || code == Some(1) && said.contains("File too large"), "{code:?} {said}");
}
