//! The rules about events: completion queues that are armed too late, and events that are not
//! acknowledged.

use crate::calls::Program;
use crate::checker::Checker;
use crate::finding::{Finding, Rule, Site};
use crate::objects::{CompletionQueue, Handle};

/// How a completion queue was armed last.
#[derive(Debug)]
pub(crate) struct Armed<S> {
    thread: u64,
    site: S,
}

/// The events that a completion queue was asked for.
#[derive(Debug)]
pub(crate) struct Asked<S> {
    /// Calls that asked for one, less events that were taken.
    open: u32,
    /// The thread that asked, where it was always the same.
    by: Option<u64>,
    by_others: bool,
    /// The call that took an event last.
    taken: Option<S>,
}

impl<S> Default for Asked<S> {
    fn default() -> Self {
        Self { open: 0, by: None, by_others: false, taken: None }
    }
}

impl<S: Site> Checker<S> {
    /// A completion queue is armed by a thread. Completions that are in it give no event. A program
    /// that has not polled the queue yet may know otherwise that nothing was sent.
    pub fn armed(&mut self, queue: Handle, thread: u64, program: &dyn Program, site: &S) {
        let may_hold = self.may_hold_completions(queue, program);
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.asked.open += 1;
            queue.asked.by_others |= queue.asked.by.is_some_and(|before| before != thread);
            queue.asked.by = Some(thread);
            let may_hold = may_hold && queue.polled_by.is_some();
            queue.armed = may_hold.then(|| Armed { thread, site: site.clone() });
        }
    }

    /// A completion queue is polled by a thread.
    pub fn polled(&mut self, queue: Handle, thread: u64) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.armed = None;
            queue.polled_by_others |= queue.polled_by.is_some_and(|before| before != thread);
            queue.polled_by = Some(thread);
        }
    }

    /// A thread takes an event of a completion queue.
    pub fn event_taken(&mut self, queue: Handle, site: &S) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.asked.open = queue.asked.open.saturating_sub(1);
            queue.asked.taken = Some(site.clone());
        }
    }

    /// A thread waits for the next event of a channel, and no completion queue will tell one: it
    /// alone has armed and polled them, and has taken all events that it asked for.
    pub fn waiting_in_vain(&mut self, channel: Handle, thread: u64, site: &S) -> Vec<Finding<S>> {
        let is_own = |queue: &CompletionQueue<S>| {
            !queue.asked.by_others
                && queue.asked.by.is_none_or(|by| by == thread)
                && !queue.polled_by_others
                && queue.polled_by.is_none_or(|by| by == thread)
        };
        let mut of_channel = self.queues.values().filter(|queue| queue.channel == Some(channel));
        if !of_channel.clone().all(|queue| queue.asked.open == 0 && is_own(queue)) {
            return Vec::new();
        }
        let last = of_channel.find_map(|queue| Some((queue.asked.taken.clone()?, queue.made.clone())));
        let Some((taken, made)) = last else { return Vec::new() };
        let what =
            "The completion queue was not armed again since its event was taken: no event comes any more.";
        let calls = vec![
            ("waited", site.clone()),
            ("the last event was taken", taken),
            ("the completion queue was made", made),
        ];
        self.report(Rule::EventNotAskedFor, what.to_owned(), calls)
    }

    /// A thread asks for the next event of a channel.
    pub fn waiting(&mut self, channel: Handle, thread: u64, site: &S) -> Vec<Finding<S>> {
        let is_polled_here = |queue: &&mut CompletionQueue<S>| {
            !queue.polled_by_others && queue.polled_by.is_none_or(|by| by == thread)
        };
        let of_channel = self.queues.values_mut().filter(|queue| queue.channel == Some(channel));
        let late = of_channel.filter(is_polled_here).find_map(|queue| {
            let armed = queue.armed.take_if(|armed| armed.thread == thread)?;
            Some((armed.site, queue.made.clone()))
        });
        let Some((armed, made)) = late else { return Vec::new() };
        let what = "The completion queue was armed while requests were outstanding, and was not polled between that and waiting.\n\
                    A completion that came before it was armed gives no event.";
        let calls = vec![("waited", site.clone()), ("armed", armed), ("the completion queue was made", made)];
        self.report(Rule::LostEvent, what.to_owned(), calls)
    }

    /// A thread destroys an object, and has taken an event about it that is not acknowledged.
    pub fn unacknowledged(&mut self, taken: &S, site: &S) -> Vec<Finding<S>> {
        let what =
            "This thread took an event about the object and did not acknowledge it: the call waits for that.";
        let calls = vec![("destroyed", site.clone()), ("the event was taken", taken.clone())];
        self.report(Rule::UnacknowledgedEvent, what.to_owned(), calls)
    }

    /// Whether a request that completes into a queue is outstanding, and may have completed.
    fn may_hold_completions(&self, queue: Handle, program: &dyn Program) -> bool {
        self.pairs.iter().any(|(handle, pair)| {
            let of_shared = || pair.shared.and_then(|shared| self.shared.get(&shared));
            let has_sent = pair.send_queue == queue && pair.sends.iter().any(|posted| posted.signaled);
            let receives = pair.receive_queue == queue
                && (!pair.receives.is_empty()
                    || of_shared().is_some_and(|shared| !shared.receives.is_empty()));
            (has_sent || receives) && program.completes(*handle)
        })
    }
}
