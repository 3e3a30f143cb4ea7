//! `#[verbena::test]` as a user sees it: tasks, time, kills, and how a test fails.
#![cfg(feature = "sim")]

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use verbena::sim::{Faults, Host};
use verbena::time::{now, sleep, sleep_until, timeout};
use verbena::{ErrorKind, Provider};

const MS: Duration = Duration::from_millis(1);

#[verbena::test]
async fn a_test_runs_on_hosts_named_by_its_parameters(left: Host, mut r#mod: Host) {
    assert_eq!((left.name(), r#mod.name()), ("left", "mod"));
    assert_ne!(left.addr(), r#mod.addr());
    assert!(left.addr().is_ipv4() && left.addr_v6().is_ipv6());
    r#mod = left.clone();
    assert_eq!(r#mod.addr(), left.addr());
}

/// The example of the module's page: a documentation test has no `#[test]`.
#[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
async fn a_host_that_is_killed_says_nothing_more(left: Host, right: Host) {
    let work = right.spawn(async {
        sleep(Duration::from_secs(60)).await;
        "done"
    });
    left.partition(&right, Duration::from_millis(3));
    sleep(Duration::from_secs(1)).await;
    right.kill();
    assert_eq!(work.outcome().await, None);
}

#[verbena::test(seeds = 2)]
async fn each_host_has_a_provider_of_its_own(left: Host, right: Host) {
    let of = |host: &Host| host.spawn(async { Provider::current().unwrap() });
    let (ours, again, theirs) = (of(&left).await, of(&left).await, of(&right).await);
    assert_eq!(ours, again);
    assert_ne!(ours, theirs);
    assert_eq!(ours.devices().unwrap().len(), 1);
    assert!(ours.device_of(left.addr()).is_ok());
    assert_eq!(ours.device_of(right.addr()).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(Provider::current().unwrap_err().kind(), ErrorKind::WrongState);
}

#[verbena::test(seeds = 2)]
async fn time_is_virtual_and_exact(left: Host, right: Host) {
    let (real, begun) = (Instant::now(), now());
    let order = Rc::new(RefCell::new(Vec::new()));
    let sleeper = |host: &Host, ms: u32| {
        let order = order.clone();
        host.spawn(async move {
            sleep(MS * ms).await;
            order.borrow_mut().push(ms);
            now() - begun
        })
    };
    let tasks = [sleeper(&left, 3000), sleeper(&right, 1), sleeper(&left, 200)];
    for (task, ms) in tasks.into_iter().zip([3000, 1, 200]) {
        assert_eq!(task.await, MS * ms);
    }
    assert_eq!(*order.borrow(), [1, 200, 3000]);
    assert_eq!(left.elapsed(), now() - begun);
    sleep_until(begun).await;
    assert_eq!(timeout(MS, pending::<()>()).await.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(timeout(MS, async { 1 }).await.unwrap(), 1);
    assert_eq!(now() - begun, MS * 3001);
    assert!(real.elapsed() < Duration::from_secs(3));
}

#[verbena::test(seeds = 2)]
async fn tasks_run_in_the_order_in_which_they_were_woken(left: Host, right: Host) {
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..6 {
        let order = order.clone();
        let host = if n % 2 == 0 { &left } else { &right };
        tasks.push(host.spawn(async move {
            sleep(MS).await;
            order.borrow_mut().push(n);
            yield_now().await;
            order.borrow_mut().push(10 + n);
        }));
    }
    for task in tasks {
        task.await;
    }
    assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
}

#[verbena::test(seeds = 2)]
async fn a_spawned_task_is_on_the_host_of_who_spawned_it(left: Host, _right: Host) {
    let (tell, told) = std::sync::mpsc::channel();
    let run = async move {
        verbena::spawn(async move { tell.send(Provider::current().unwrap()) }).unwrap();
        Provider::current().unwrap()
    };
    let ours = left.spawn(run).await;
    sleep(MS).await;
    assert_eq!(told.recv().unwrap(), ours);
}

#[verbena::test(seeds = 2)]
async fn a_killed_host_drops_its_tasks_and_a_new_process_begins_anew(left: Host, right: Host) {
    let (dropped, polled) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let noted = || Noted(dropped.clone());
    let (guard, count) = (noted(), polled.clone());
    let work = right.spawn(async move {
        let _guard = guard;
        loop {
            count.set(count.get() + 1);
            sleep(MS).await;
        }
    });
    let before = right.spawn(async { Provider::current().unwrap() }).await;
    sleep(MS * 10).await;
    let (seen, guard, host) = (polled.get(), noted(), right.clone());
    let unpolled = Rc::new(RefCell::new(None));
    let out = unpolled.clone();
    let killer = left.spawn(async move {
        out.replace(Some(host.spawn(async move { drop(guard) })));
        host.kill();
    });
    killer.await;
    assert!(unpolled.take().expect("a task").outcome().await.is_none());
    assert!(!right.is_alive() && work.is_finished() && dropped.get() == 2);
    let guard = noted();
    assert!(right.spawn(async move { drop(guard) }).outcome().await.is_none() && dropped.get() == 3);
    sleep(MS * 10).await;
    assert!(seen >= 10 && polled.get() <= seen + 1);
    assert_eq!(work.outcome().await, None::<()>);
    right.restart();
    assert_ne!(right.spawn(async { Provider::current().unwrap() }).await, before);
}

#[verbena::test(seeds = 2)]
async fn a_task_that_kills_its_own_host_ends_at_its_next_wait(left: Host) {
    let (me, reached) = (left.clone(), Rc::new(Cell::new(0)));
    let at = reached.clone();
    let task = left.spawn(async move {
        me.kill();
        at.set(1);
        yield_now().await;
        at.set(2);
    });
    assert_eq!((task.outcome().await, reached.get()), (None, 1));
}

#[verbena::test(seeds = 1)]
async fn faults_may_be_changed_on_the_way(left: Host, right: Host) -> verbena::Result<()> {
    assert_eq!(left.faults(), Faults::none());
    left.set_faults(verbena::sim::faults("loss=5%, delay=1ms..2ms")?);
    assert_eq!((right.faults().loss, right.faults().jitter), (0.05, MS));
    let wrong = verbena::sim::faults("loss=5%, lost=3%").unwrap_err();
    assert!(wrong.to_string().ends_with("at `lost=3%` of `loss=5%, lost=3%`"), "{wrong}");
    left.partition(&right, MS);
    left.delay_link(&right, MS);
    left.heal();
    Ok(())
}

#[verbena::test(seeds = 1)]
#[should_panic(expected = "the test returned an error: TimedOut")]
async fn an_error_fails_a_test(_left: Host) -> Result<(), ErrorKind> {
    Err(ErrorKind::TimedOut)
}

/// What a test of two hosts panics with.
fn failure(args: &str, test: impl Fn(Vec<Host>) -> Pin<Box<dyn Future<Output = ()>>>) -> String {
    let run = || verbena::sim::run_seeds("simulation", "failure", args, &["left", "right"], test);
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the test fails");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a text")).to_owned(),
    }
}

#[test]
fn a_deadlock_names_the_tasks_that_wait_and_their_hosts() {
    let text = failure("seeds = 3", |hosts| {
        Box::pin(async move {
            sleep(MS).await;
            drop(hosts[0].spawn(async {}));
            drop(hosts[1].spawn(pending::<()>()));
            hosts[0].spawn(pending::<()>()).await;
        })
    });
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("deadlock: everything waits") && lines[0].contains("1ms into"), "{text}");
    assert!(
        lines[1].starts_with("  no host: the test function at crates/verbena/tests/simulation.rs:"),
        "{text}"
    );
    assert!(lines[2].starts_with("  right: task spawned at crates/verbena/tests/simulation.rs:"), "{text}");
    assert!(lines[3].starts_with("  left: task spawned at"), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
}

#[test]
fn a_test_has_only_so_much_time() {
    let text = failure("limit = \"2s\"", |_| {
        Box::pin(async {
            loop {
                sleep(MS * 300).await;
            }
        })
    });
    assert!(text.starts_with("the time limit is over, 2s into the simulation"), "{text}");
}

#[test]
fn tasks_that_never_let_time_pass_fail_the_test() {
    let text = failure("", |_| {
        Box::pin(async {
            loop {
                yield_now().await;
            }
        })
    });
    assert!(text.starts_with("tasks run for ever without time passing, 0ns into"), "{text}");
}

#[test]
fn a_panic_in_a_task_fails_the_test_and_drops_the_others() {
    let dropped = Rc::new(Cell::new(0));
    let count = dropped.clone();
    let text = failure("seeds = 3", move |hosts| {
        let guard = Noted(count.clone());
        Box::pin(async move {
            let kept = hosts[0].spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            drop(hosts[1].spawn(async { panic!("at once") }));
            kept.await;
        })
    });
    assert_eq!((text.as_str(), dropped.get()), ("at once", 1));
}

#[test]
fn awaiting_a_task_of_a_killed_host_says_so() {
    let text = failure("", |hosts| {
        Box::pin(async move {
            let task = hosts[1].spawn(pending::<()>());
            hosts[1].kill();
            task.await;
        })
    });
    assert!(text.ends_with("is awaited, but its host was killed"), "{text}");
}

#[test]
fn what_is_wrong_in_the_arguments_is_said() {
    let text = failure("seeds = 1, faults = \"loss\"", |_| Box::pin(async {}));
    let expected = "#[verbena::test(seeds = 1, faults = \"loss\")]: `=` and a value are missing, at `\"`";
    assert_eq!(text, expected);
}

#[test]
fn a_simulation_inside_of_another_is_refused() {
    let text = failure("", |_| {
        Box::pin(async {
            verbena::sim::run_seeds("", "", "", &["other"], |_| Box::pin(async {}));
        })
    });
    assert_eq!(text, "a simulation does not run inside of another");
}

/// Counts when it is dropped, and does there what drops may do: spawn, ask the time, let others go.
struct Noted(Rc<Cell<u32>>);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
        drop(sleep(now() - now()));
        if Provider::current().is_ok() {
            verbena::spawn(async { panic!("a dead host's task is never polled") }).unwrap();
        }
    }
}

async fn yield_now() {
    let mut asked = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
