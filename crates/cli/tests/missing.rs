//! What `verbena run` says of a program that is not there: its name, and the package that has it.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// The exit code of `verbena run -- program`, with nothing in PATH, and the only line that it says.
fn run(program: &str) -> (Option<i32>, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_verbena"))
        .args(["run", "--", program])
        .env("PATH", "/nowhere")
        .output()
        .expect("cargo has built the command");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    (out.status.code(), said)
}

#[test]
fn a_well_known_program_that_is_not_installed_is_named_with_its_package() {
    for (program, package) in [
        ("ibv_devices", "ibverbs-utils"),
        ("ibv_rc_pingpong", "ibverbs-utils"),
        ("rping", "rdmacm-utils"),
        ("ib_write_bw", "perftest"),
    ] {
        let (code, said) = run(program);
        assert_eq!(code, Some(127));
        let begins = format!("verbena: cannot run {program}: there is no such program in PATH");
        assert!(said.starts_with(&begins) && said.contains("os error 2"), "{said}");
        assert!(said.trim_end().ends_with(&format!("apt-get install {package}")), "{said}");
    }
}

#[test]
fn a_program_that_no_package_is_known_for_is_named_alone() {
    let (code, said) = run("my_program");
    assert_eq!(code, Some(127));
    assert!(said.contains("cannot run my_program: there is no such program in PATH"), "{said}");
    assert!(!said.contains("apt-get"), "{said}");
    // One with a path is the caller's own, whatever its name.
    let (code, said) = run("/nowhere/rping");
    assert_eq!(code, Some(127));
    assert!(said.contains("cannot run /nowhere/rping: there is no such file"), "{said}");
    assert!(!said.contains("apt-get"), "{said}");
}

#[test]
fn a_script_whose_interpreter_is_missing_is_told_from_one_that_is_not_there() {
    let script = std::env::temp_dir().join(format!("verbena-script.{}", std::process::id()));
    std::fs::write(&script, "#!/nowhere/python3\n").expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let (code, said) = run(script.to_str().expect("a name"));
    std::fs::remove_file(&script).expect("the file");
    assert_eq!(code, Some(127));
    assert!(said.contains("there is no /nowhere/python3, which it names"), "{said}");
}
