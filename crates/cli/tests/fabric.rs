//! `verbena fabric` as a user calls it, with no program of others.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A directory of a test's own, in which its fabrics lie, and the name of the first one: this user
/// may have others elsewhere.
struct Place {
    dir: PathBuf,
    name: String,
}

impl Place {
    fn new(name: &str) -> Self {
        let dir = PathBuf::from(format!("/tmp/vbt-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).expect("a directory in /tmp");
        Self { dir, name: format!("vbt-{name}-{}", std::process::id()) }
    }

    fn verbena(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        command
            .args(args)
            .env("TMPDIR", &self.dir)
            .env_remove("XDG_RUNTIME_DIR")
            .env("VERBENA_FABRIC", &self.name);
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.verbena(args).output().expect("cargo has built the command")
    }

    /// What a command prints, which must succeed.
    fn says(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What a command complains of.
    fn fails(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text").trim().trim_start_matches("verbena: ").to_owned()
    }

    /// A fabric of this name, once it listens.
    fn run(&self, name: &str, net: &str) -> (Running, String) {
        let mut child = self
            .verbena(&["fabric", "run", net, "--name", name])
            .stdout(Stdio::piped())
            .spawn()
            .expect("cargo has built the command");
        let mut line = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        (Running(child), line)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        fs::write(&path, text).expect("a file of the test's own");
        path.to_str().expect("UTF-8").to_owned()
    }
}

/// The process that has a fabric; a test that fails leaves none.
struct Running(Child);

impl Running {
    fn ends_well(&mut self) -> bool {
        self.0.wait().expect("a child").success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const NET: &str = "Switch 4 \"leaf\"\n[1] \"a\"[1]\n[2] \"b\"[1]\n\nCa 1 \"a\"\nCa 1 \"b\"\n";

#[test]
fn a_fabric_is_shown_broken_mended_written_and_stopped() {
    let place = Place::new("whole");
    let net = place.file("small.net", NET);
    let (mut fabric, line) = place.run(&place.name, &net);
    let programs = "Programs: verbena run --on HOST -- PROGRAM";
    assert_eq!(line, format!("fabric {}: 3 nodes, 2 links. {programs}\n", place.name));
    let is_listed = || place.says(&["fabric", "list"]).lines().any(|line| line == place.name);
    assert!(is_listed());
    let shown = || place.says(&["fabric", "show", "a"]);
    assert!(shown().contains("1 init     -> leaf 1"), "{}", shown());
    place.says(&["fabric", "down", "leaf", "1"]);
    assert!(shown().contains("1 cut "), "{}", shown());
    place.says(&["fabric", "up", "leaf", "1"]);
    place.says(&["fabric", "drop", "leaf", "2", "1.5%"]);
    assert!(place.says(&["fabric", "show", "leaf"]).contains("-> b 1 drop 1.5%"));
    place.says(&["fabric", "set", "leaf", "1", "PortXmitDiscards", "3"]);
    place.says(&["fabric", "freeze", "leaf"]);
    assert!(place.says(&["fabric", "show", "leaf"]).contains(", frozen)"));
    place.says(&["fabric", "thaw", "leaf"]);
    let status = place.says(&["fabric", "status"]);
    assert!(status.contains("linked ports  4\nactive ports  0\n"), "{status}");
    let written = place.says(&["fabric", "write", "-"]);
    let file = place.dir.join("again.net");
    place.says(&["fabric", "write", file.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert!(written.contains("Switch\t4 \"leaf\"\t\t# \"leaf\" base port 0 lid 0 lmc 0\n"), "{written}");
    place.says(&["fabric", "stop"]);
    assert!(fabric.ends_well());
    assert!(!is_listed());
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let place = Place::new("wrong");
    let none = format!("no fabric of the name {:?} runs; `verbena fabric run` starts one", place.name);
    assert_eq!(place.fails(&["fabric", "status"]), none);
    assert_eq!(place.fails(&["run", "--on", "a", "--", "true"]), none);
    let bad = place.file("bad.net", "Switch 4 \"leaf\"\n[9] \"a\"[1]\n");
    assert_eq!(
        place.fails(&["fabric", "run", &bad]),
        format!("{bad}: line 2, column 1: there is no port \"9\": the node has 1 to 4")
    );
    assert!(place.fails(&["fabric", "run", "/no/such/file"]).contains("No such file"));
    let net = place.file("small.net", NET);
    let (mut one, _) = place.run(&place.name, &net);
    let taken = place.fails(&["fabric", "run", &net, "--name", &place.name]);
    assert_eq!(taken, format!("a fabric of the name {} runs already", place.name));
    assert_eq!(place.fails(&["fabric", "down", "c", "1"]), "there is no node \"c\"");
    assert_eq!(place.fails(&["fabric", "down", "leaf", "3"]), "port 3 of \"leaf\" has no cable");
    assert_eq!(
        place.fails(&["fabric", "trace", "a", "b"]),
        "\"b\" has no LID: no subnet manager has given it one"
    );
    assert!(place.fails(&["run", "--on", "c", "--", "true"]).contains("no such port of a host \"c\""));
    let second = format!("{}-2", place.name);
    let (mut two, _) = place.run(&second, &net);
    let output = place.verbena(&["fabric", "status"]).env_remove("VERBENA_FABRIC").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("verbena: several fabrics run; say --fabric NAME: "), "{said}");
    assert!(said.contains(&place.name) && said.contains(&second), "{said}");
    place.says(&["fabric", "stop"]);
    place.says(&["fabric", "stop", "--fabric", &second]);
    assert!(one.ends_well() && two.ends_well());
}

#[test]
fn a_file_includes_others_by_names_that_begin_at_its_own_directory() {
    let place = Place::new("include");
    fs::create_dir(place.dir.join("racks")).expect("a directory of the test's own");
    let net = place.file("top.net", "Switch 4 \"leaf\"\n[1] \"a\"[1]\ninclude \"racks/one.net\"\n");
    place.file("racks/one.net", "include \"two.net\"\n");
    place.file("racks/two.net", "Ca 1 \"a\"\n");
    let (mut fabric, line) = place.run(&place.name, &net);
    assert!(line.contains(": 2 nodes, 1 links."), "{line}");
    place.says(&["fabric", "stop"]);
    assert!(fabric.ends_well());
    let two = place.file("racks/two.net", "Ca 0 \"a\"\n");
    let wrong = place.fails(&["fabric", "run", &net]);
    assert_eq!(wrong, format!("{net}: {two}: line 1, column 4: a node has 1 to 254 ports, not \"0\""));
    place.file("racks/one.net", "include \"three.net\"\n");
    assert!(place.fails(&["fabric", "run", &net]).contains("\"three.net\" is not included: No such file"));
}

#[test]
fn the_commands_know_the_devices_of_the_host_that_they_run_on() {
    let place = Place::new("devices");
    let net = place.file("small.net", NET);
    let (mut fabric, _) = place.run(&place.name, &net);
    let own = env!("CARGO_BIN_EXE_verbena");
    let said = place.says(&["run", "--on", "a", "--", own, "devices"]);
    let devices: Vec<&str> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(devices[0].starts_with("mlx5_0 ") && devices[1].starts_with("same host"), "{said}");
    let said = place.says(&["run", "--on", "a", "--", "rdma", "link", "show"]);
    let link = "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 0 sm_lid 0 lmc 0 state INIT physical_state LINK_UP \n";
    assert_eq!(said, link);
    place.says(&["fabric", "stop"]);
    assert!(fabric.ends_well());
}

#[test]
fn a_program_on_a_host_loads_the_library_and_knows_its_fabric() {
    let place = Place::new("on");
    let net = place.file("small.net", NET);
    let (mut fabric, _) = place.run(&place.name, &net);
    let script = "echo $VERBENA_HOST; basename $(dirname $VERBENA_FABRIC); \
                  for dir in $(echo $LD_LIBRARY_PATH | tr : ' '); do readlink $dir/libibumad.so.3; done; true";
    let said = place.says(&["run", "--on", "a", "--", "sh", "-c", script]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["a", &place.name]);
    assert!(Path::new(lines[2]).ends_with("libverbena_umad.so"), "{said}");
    // Without --on the system's stays.
    let said = place.says(&["run", "--", "sh", "-c", script]);
    assert!(!said.contains("libverbena_umad.so"), "{said}");
    place.says(&["fabric", "stop"]);
    assert!(fabric.ends_well());
}
