//! Tasks beside the one that runs.

use std::future::Future;
use std::panic::Location;

use crate::error::{Error, Result};
use crate::exec;

/// Runs a task beside this one: in a simulation on the same host, elsewhere in a thread of its own.
/// A program with a runtime gives its tasks to that instead: nothing of this crate asks for one of
/// the two.
///
/// # Errors
///
/// `Exhausted` where the system has no thread for it, with the task dropped. Never in a simulation.
///
/// # Examples
///
/// ```
/// let (said, heard) = std::sync::mpsc::channel();
/// verbena::spawn(async move { said.send("done") })?;
/// assert_eq!(heard.recv(), Ok("done"));
/// # Ok::<(), verbena::Error>(())
/// ```
#[track_caller]
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Result<()> {
    let _spawned_at = Location::caller();
    #[cfg(feature = "sim")]
    let task = match crate::sim::spawn(task, _spawned_at) {
        Ok(()) => return Ok(()),
        Err(task) => task,
    };
    let run = move || drop(exec::block_on(task));
    let started = std::thread::Builder::new().name("verbena-task".to_owned()).spawn(run);
    started.map(drop).map_err(|e| Error::of_io("spawn", &e))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn outside_of_a_simulation_a_task_has_a_thread() {
        let (done, wait) = channel();
        crate::spawn(async move {
            crate::time::sleep(Duration::from_millis(1)).await;
            done.send(std::thread::current().id())
        })
        .unwrap();
        assert_ne!(wait.recv().unwrap(), std::thread::current().id());
    }
}
