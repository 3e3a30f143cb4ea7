//! `verbena bench`: the command as a user starts it, with sizes and times that take no time.

use std::path::PathBuf;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbena"))
        .arg("bench")
        .args(args)
        .env("VERBENA_DEVICES", "rxe_lo=roce:lo")
        .output()
        .expect("cargo has built the command")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn two_processes_of_this_host_are_measured_beside_tcp() {
    let svg: PathBuf = std::env::temp_dir().join(format!("verbena-bench-{}.svg", std::process::id()));
    let args = ["--sizes", "8,70000", "--depth", "4", "--seconds", "0.005", "--json", "-", "--svg"];
    let out = bench(&[&args[..], &[svg.to_str().expect("a path in UTF-8")]].concat());
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(said(&out), "", "without a terminal there is no line of progress");
    let all: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON alone");
    let points = all["points"].as_array().expect("a list");
    let measured: Vec<_> =
        points.iter().map(|point| (point["operation"].as_str(), point["bytes"].as_u64())).collect();
    let wanted = ["SEND", "WRITE", "READ"].into_iter().flat_map(|op| [(op, 8), (op, 70_000)]);
    assert_eq!(measured, wanted.map(|(op, bytes)| (Some(op), Some(bytes))).collect::<Vec<_>>());
    for point in points {
        for over in ["verbena", "tcp"] {
            let figure = |name: &str| point[over][name].as_f64().unwrap_or(0.0);
            let (median, p99) = (figure("median_us"), figure("p99_us"));
            assert!(median > 0.0 && p99 >= median && figure("gb_per_s") > 0.0, "{point}");
        }
    }
    let picture = std::fs::read_to_string(&svg).expect("a picture");
    std::fs::remove_file(&svg).expect("it is ours");
    assert!(picture.starts_with("<svg") && picture.contains("<polyline"), "{picture}");
}

#[test]
fn a_table_is_printed_for_the_operations_that_are_asked_for() {
    let out = bench(&["--sizes", "64", "--ops", "write", "--seconds", "0.002"]);
    let table = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && table.contains("TCP / Verbena"), "{}", said(&out));
    assert_eq!(table.lines().filter(|line| line.starts_with("WRITE ")).count(), 1, "{table}");
    assert!(!table.contains("READ "), "{table}");
}

#[test]
fn what_cannot_be_measured_is_a_message() {
    for (args, word) in [
        (&["--sizes", "0"][..], "'0' is not a size"),
        (&["--ops", "atomic"], "'atomic' is not send, write or read"),
        (&["--seconds", "0"], "0.001 to 60 seconds"),
        (&["--depth", "0"], "0 is not in"),
        (&["--sizes", "64M", "--depth", "16"], "take a smaller --depth"),
        (&["--peer", "127.0.0.1", "--port", "1"], "`verbena bench --listen` run there, on port 1?"),
        (&["--peer", "x", "--listen"], "cannot be used with"),
    ] {
        let out = bench(args);
        assert!(!out.status.success() && said(&out).contains(word), "{args:?}: {}", said(&out));
    }
}
