//! Programs that bring libibverbs along, as wheels of PyPI do, started by `verbena run`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library that knows no device, and a program that asks it for some.
const LIBRARY: &str = "struct ibv_device *none[1];
    struct ibv_device **ibv_get_device_list(int *n) { if (n) *n = -7; return none; }";
const PROGRAM: &str = "#include <stdio.h>
    struct ibv_device; struct ibv_device **ibv_get_device_list(int *);
    int main(void) { int n = -1; ibv_get_device_list(&n); puts(n == -7 ? \"its own\" : \"verbena\"); }";

/// A directory with the two; `None` where there is no C compiler. `linked`: how the program finds
/// the library of this name.
fn made(name: &str, library: &str, linked: &[&str]) -> Option<PathBuf> {
    let dir = std::env::temp_dir().join(format!("verbena-brought-{}-{name}", std::process::id()));
    std::fs::create_dir_all(dir.join(".libs")).unwrap();
    for (file, text) in [("library.c", LIBRARY), ("program.c", PROGRAM)] {
        std::fs::write(dir.join(file), text).unwrap();
    }
    let soname = format!("-Wl,-soname,{library}");
    let path = format!(".libs/{library}");
    let cc = |args: &[&str]| {
        let ran = Command::new("cc").current_dir(&dir).args(args).status();
        ran.is_ok_and(|status| status.success())
    };
    if !cc(&["-w", "-shared", "-fPIC", &soname, "-o", &path, "library.c"]) {
        println!("left out: there is no C compiler");
        return None;
    }
    let program = ["-w", "-o", "program", "program.c", &path];
    assert!(cc(&program.iter().chain(linked).copied().collect::<Vec<_>>()));
    Some(dir)
}

fn run(dir: &Path, options: &[&str], command: &[&str]) -> Output {
    let mut verbena = Command::new(env!("CARGO_BIN_EXE_verbena"));
    verbena.current_dir(dir).args(["run", "--no-sysfs"]).args(options).arg("--").args(command);
    verbena.output().expect("cargo has built the command")
}

fn texts(out: &Output) -> [String; 2] {
    [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[test]
fn a_program_that_brings_libibverbs_along_gets_verbenas_and_a_line_says_so() {
    for (name, library, linked) in [
        ("renamed", "libibverbs-1a2b3c4d.so.1", &["-Wl,-rpath,$ORIGIN/.libs"][..]),
        ("before", "libibverbs.so.1", &["-Wl,-rpath,$ORIGIN/.libs", "-Wl,--disable-new-dtags"]),
    ] {
        let Some(dir) = made(name, library, linked) else { return };
        let alone = Command::new(dir.join("program")).output().unwrap();
        assert_eq!(texts(&alone)[0], "its own\n");
        let [out, err] = texts(&run(&dir, &[], &["./program"]));
        assert_eq!(out, "verbena\n", "{name}: {err}");
        assert!(err.contains("brings") && err.contains(library), "{err}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn what_is_loaded_while_a_program_runs_is_verbenas_where_that_is_preloaded() {
    let Some(dir) = made("loaded", "libibverbs-1a2b3c4d.so.1", &["-Wl,-rpath,$ORIGIN/.libs"]) else { return };
    let [out, err] = texts(&run(&dir, &["--preload"], &["/bin/sh", "-c", "./program; echo $LD_PRELOAD"]));
    assert!(out.starts_with("verbena\n") && out.trim_end().ends_with("/libibverbs.so.1"), "{out}{err}");
    assert!(!err.contains("brings"), "{err}");
    let [out, _] = texts(&run(&dir, &[], &["/bin/sh", "-c", "./program; echo $LD_PRELOAD"]));
    assert_eq!(out, "its own\n\n", "a shell brings nothing along");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_program_that_brings_nothing_along_has_nothing_preloaded() {
    let linked = ["-Wl,-rpath,$ORIGIN/.libs", "-Wl,--enable-new-dtags"];
    let Some(dir) = made("plain", "libibverbs.so.1", &linked) else { return };
    let [out, err] = texts(&run(&dir, &[], &["./program"]));
    assert_eq!((out.as_str(), err.as_str()), ("verbena\n", ""), "by LD_LIBRARY_PATH");
    std::fs::remove_dir_all(dir).unwrap();
}
