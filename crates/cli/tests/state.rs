//! `verbena ps` and `verbena show`, of a process that listens: the server of `verbena demo`. Also
//! what `verbena top` says where it has no terminal.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than a process takes to answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn verbena(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_verbena")).args(args).output().expect("cargo has built the command")
}

fn stdout(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The exit code, and the only line that it says.
fn refused(out: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.stdout.is_empty() && said.lines().count() == 1, "{said}");
    (out.status.code(), said.trim_end().to_owned())
}

/// A process on Verbena, ended when this is dropped.
struct Server(Child);

impl Server {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        let started = command.args(["demo", "--server"]).env("VERBENA_DEVICES", "rxe0=roce:lo");
        let mut child = started.stdout(Stdio::piped()).spawn().expect("cargo has built the command");
        let mut port = String::new();
        let told = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut port));
        let server = Self(child);
        assert!(told.is_some_and(|told| told.is_ok()) && !port.is_empty(), "the server listens");
        server
    }
    fn pid(&self) -> String {
        self.0.id().to_string()
    }
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid()]).status();
        assert!(sent.expect("kill(1)").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is shown of a process that lives, which on a busy machine may not answer in time at once.
fn shown(args: &[&str]) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let out = verbena(args);
        let is_late = String::from_utf8_lossy(&out.stderr).contains("does not answer");
        if !is_late || Instant::now() > end {
            return stdout(&out);
        }
    }
}

fn line_of(server: &Server) -> Vec<String> {
    let text = stdout(&verbena(&["ps"]));
    let words = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    let line = words.into_iter().find(|words| words.first() == Some(&server.pid()));
    line.unwrap_or_else(|| panic!("no line of {} in\n{text}", server.pid()))
}

#[test]
fn a_process_that_listens_is_in_the_list_and_is_shown_with_its_identifier() {
    let server = Server::start();
    assert_eq!(line_of(&server)[1], "verbena");
    let text = shown(&["show", &server.pid()]);
    assert!(text.starts_with(&format!("process {} verbena up ", server.pid())), "{text}");
    assert!(text.contains("\ndev rxe0 netdev lo state ACTIVE "), "{text}");
    let listens =
        |line: &str| line.starts_with("cm_id ") && line.contains(" state LISTEN (listening) ps TCP ");
    assert!(text.lines().any(listens), "{text}");
    let shown = shown(&["show", "--json", &server.pid()]);
    let json: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(json["pid"].as_u64(), Some(server.0.id().into()));
    assert_eq!(json["cm-ids"][0]["state"], "LISTEN");
    assert!(!shown.contains("lkey") && !shown.contains("rkey"), "{shown}");
}

#[test]
fn a_process_that_is_stopped_does_not_answer_and_holds_nothing_up() {
    let server = Server::start();
    server.signal("-STOP");
    // On a busy machine the commands wait for a processor, too: the shortest of a few times counts.
    let asked = || {
        let began = Instant::now();
        assert_eq!(line_of(&server)[1..], ["verbena", "does", "not", "answer"]);
        (verbena(&["show", &server.pid()]), began.elapsed())
    };
    let is_quick = |(_, took): &(Output, Duration)| *took < Duration::from_secs(2);
    let (out, _) = (0..5).map(|_| asked()).find(is_quick).expect("an answer within two seconds");
    let (code, said) = refused(&out);
    assert_eq!(code, Some(1));
    assert_eq!(said, format!("verbena: process {} does not answer; is it stopped?", server.pid()));
    server.signal("-CONT");
    let end = Instant::now() + PATIENCE;
    while line_of(&server)[2..] == ["does", "not", "answer"] {
        assert!(Instant::now() < end, "it does not answer again");
    }
    assert!(line_of(&server).len() > 4);
}

#[test]
fn a_process_that_is_not_on_verbena_is_said_to_be_none() {
    let own = std::process::id().to_string();
    let (code, said) = refused(&verbena(&["show", &own]));
    assert_eq!(code, Some(1));
    assert!(said.starts_with(&format!("verbena: process {own} is not on Verbena ")), "{said}");
}

#[test]
fn without_a_terminal_top_names_the_commands_that_print_the_same() {
    let (code, said) = refused(&verbena(&["top"]));
    assert_eq!(code, Some(1));
    assert!(said.starts_with("verbena: standard output is not a terminal: "), "{said}");
    assert!(said.contains("`verbena ps`") && said.contains("`verbena show --json`"), "{said}");
    assert_eq!(verbena(&["top", "--interval", "0.05"]).status.code(), Some(2));
}
