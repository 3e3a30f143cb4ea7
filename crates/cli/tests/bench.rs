//! `verbena bench`: the command as a user starts it, with sizes and times that take no time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.arg("bench").args(args).env("VERBENA_DEVICES", "rxe_lo=roce:lo");
    command
}

fn bench(args: &[&str]) -> Output {
    command(args).output().expect("cargo has built the command")
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

/// `verbena bench --listen` at a free port; killed with the test.
struct Far {
    child: Child,
    said: Receiver<String>,
}

impl Far {
    fn start() -> Self {
        let child = command(&["--listen", "--port", "0"]).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("cargo has built the command");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let (sender, said) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, said }
    }

    /// The next line on standard error.
    fn next(&self) -> String {
        self.said.recv_timeout(Duration::from_secs(60)).expect("a line in time")
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_near_end_that_leaves_before_it_connects_does_not_keep_the_far_end_from_the_next_one() {
    let far = Far::start();
    let port = far.next().split(' ').nth(3).expect("the port").to_owned();
    let mut near = TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    let asked = [b"verbena-bench 1\n".as_slice(), &8_u64.to_le_bytes(), &1_u64.to_le_bytes()].concat();
    near.write_all(&asked).expect("sent");
    let mut rdma_port = [0; 2];
    near.read_exact(&mut rdma_port).expect("it waits for rdma_connect");
    assert_ne!(rdma_port, [0; 2]);
    drop(near);
    assert_eq!(far.next(), "verbena bench: 127.0.0.1: the connection ended early");
    let args =
        ["--peer", "127.0.0.1", "--port", &port, "--sizes", "8", "--ops", "send", "--seconds", "0.002"];
    let out = bench(&args);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(far.next(), "verbena bench: measured from 127.0.0.1");
}
