//! The machine's libraries: which are taken, and beside what else in one process. Over Verbena's
//! own object, which lies where cargo builds it, or is the one that `support` names.
#![cfg(feature = "system")]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use verbena::prelude::*;
use verbena::{Connection, ErrorKind, Provider, Value};

/// The object, where it was built.
fn object() -> Option<PathBuf> {
    if let Some(("system", file)) = std::env::var("VERBENA_TEST_PROVIDER").ok()?.split_once(':') {
        return Some(file.into());
    }
    None
}

fn over_object() -> Option<Provider> {
    let file = object()?;
    Some(Provider::system_from(&file, &file).expect("the object"))
}

fn text(error: &verbena::Error) -> String {
    match error.value() {
        Some(Value::Text(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_library_that_is_not_there_is_named() {
    let error =
        Provider::system_from("/nowhere/libibverbs.so.1", "librdmacm.so.1").expect_err("nothing there");
    assert_eq!(error.kind(), ErrorKind::ProviderMissing);
    assert!(
        text(&error).contains("/nowhere/libibverbs.so.1") && text(&error).contains("librdmacm1"),
        "{error}"
    );
    // A library that is another one.
    let error = Provider::system_from("libc.so.6", "libc.so.6").expect_err("no verbs");
    assert_eq!(error.kind(), ErrorKind::ProviderMissing);
    assert!(text(&error).contains("ibv_"), "{error}");
}

/// Run by the test below, in a process of its own.
#[test]
#[ignore = "run by another test"]
fn what_system_says_where_it_finds_verbena() {
    let error = Provider::system().expect_err("not rdma-core");
    assert_eq!(error.kind(), ErrorKind::ProviderMissing);
    let told = text(&error);
    assert!(
        told.contains("libibverbs.so.1 is Verbena itself") && told.contains("Provider::software"),
        "{told}"
    );
}

#[test]
fn verbena_in_the_place_of_rdma_core_is_told_apart() {
    let Some(object) = object() else { return };
    let links = std::env::temp_dir().join(format!("verbena-links-{}", std::process::id()));
    std::fs::create_dir(&links).expect("a folder");
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::os::unix::fs::symlink(&object, links.join(name)).expect("a link");
    }
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again
        .args(["--ignored", "--exact", "what_system_says_where_it_finds_verbena"])
        .env("LD_LIBRARY_PATH", &links);
    let output = again.output().expect("it runs");
    std::fs::remove_dir_all(&links).expect("the folder");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Two messages, there and back.
fn talk(client: &Connection, server: &Connection) {
    for n in 0..100_u32 {
        client.send_inline(&n.to_be_bytes()).wait().expect("sent");
        let message = server.blocking_recv().expect("no failure").expect("a message");
        server.send(message).wait().buf().expect("sent back");
        assert_eq!(client.blocking_recv().expect("no failure").expect("a message")[..], n.to_be_bytes());
    }
}

#[cfg(feature = "software")]
#[test]
fn both_stacks_live_in_one_process_and_reach_each_other() {
    let Some(system) = over_object() else { return };
    let software = Provider::software().expect("the stack linked in");
    assert_ne!(system, software);
    for (near, far) in [(&system, &software), (&software, &system), (&system, &system)] {
        let listener = verbena::listen(support::any_port()).provider(far).wait().expect("a free port");
        let to = listener.local_addr();
        thread::scope(|s| {
            let client = s.spawn(move || verbena::connect(to).provider(near).wait().expect("connected"));
            let server = listener.accept();
            let server = verbena::block_on(server).expect("accepted");
            let client = client.join().expect("no panic");
            assert_eq!(client.pd().device().provider(), near);
            talk(&client, &server);
            client.blocking_close().expect("closed");
            assert!(server.blocking_recv().expect("no failure").is_none());
        });
    }
    assert!(format!("{system:?}").contains("leaked: 0"), "{system:?}");
}

#[cfg(not(any(feature = "software", feature = "sim")))]
#[test]
fn without_the_software_stack_a_program_names_its_provider() {
    let error = Provider::current().expect_err("no stack is linked in");
    assert_eq!(error.kind(), ErrorKind::ProviderMissing);
    assert!(text(&error).contains("provider"), "{error}");
}

#[test]
fn a_forked_child_finds_it_forked_and_drops_it_in_peace() {
    if support::is_software() {
        return;
    }
    let system = support::provider();
    let listener = verbena::listen(support::any_port()).provider(&system).wait().expect("a free port");
    let to = listener.local_addr();
    let (client, server) = thread::scope(|s| {
        let client = s.spawn(|| verbena::connect(to).provider(&system).wait().expect("connected"));
        let server = verbena::block_on(listener.accept()).expect("accepted");
        (client.join().expect("no panic"), server)
    });
    // SAFETY: the child takes no lock that another thread of the parent may hold: what it calls
    // asks first whose it is.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
        let sends = forked(client.send_inline(&[1]).wait().err().map(|e| e.kind()));
        let opens = forked(Provider::system().err().map(|e| e.kind()));
        drop((client, server, listener));
        // SAFETY: ends the child without what the parent has to do at exit.
        unsafe { libc::_exit(i32::from(!sends) + 2 * i32::from(!opens)) };
    }
    let mut status = -1;
    // SAFETY: the child is ours; the status is written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0);
    talk(&client, &server);
}
