//! The rules about events: completion queues that are armed too late, and events that are not
//! acknowledged.

use crate::calls::Program;
use crate::checker::Checker;
use crate::finding::{Finding, Rule, Site};
use crate::name::Name;
use crate::objects::{CompletionQueue, Handle, QueuePair};

/// Polls that find nothing, with no request posted in between, after which a program is waiting.
const IN_VAIN: u32 = 1 << 20;

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
    /// The call that asked last.
    at: Option<S>,
    /// The call that took an event last.
    taken: Option<S>,
}

impl<S> Default for Asked<S> {
    fn default() -> Self {
        Self { open: 0, by: None, by_others: false, at: None, taken: None }
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
            queue.asked.at = Some(site.clone());
            let may_hold = may_hold && queue.polled_by.is_some();
            queue.armed = may_hold.then(|| Armed { thread, site: site.clone() });
        }
    }

    /// A completion queue is polled by a thread. True where that has been so often in vain that
    /// [`Checker::polled_in_vain`] is to look why.
    pub fn polled(&mut self, queue: Handle, thread: u64) -> bool {
        // A thread that polls several queues in turns waits for no completion of this one alone.
        let is_first = self.polls.insert(thread, queue) != Some(queue);
        let Some(queue) = self.queues.get_mut(&queue) else { return false };
        queue.armed = None;
        queue.polled_by_others |= queue.polled_by.is_some_and(|before| before != thread);
        queue.polled_by = Some(thread);
        queue.polls = if is_first { 1 } else { queue.polls.saturating_add(1) };
        queue.polls == IN_VAIN
    }

    /// A thread polls a completion queue again and again, and nothing was posted or completed
    /// meanwhile. Where no request that is outstanding gives a completion, it polls for ever.
    pub fn polled_in_vain(&mut self, queue: Handle, program: &dyn Program, site: &S) -> Vec<Finding<S>> {
        let is_shared = |pair: &QueuePair<S>| {
            let shared = pair.shared.and_then(|shared| self.shared.get(&shared));
            pair.receive_queue == queue && shared.is_some_and(|shared| !shared.receives.is_empty())
        };
        let is_expected = self.queues.get(&queue).is_none_or(|queue| queue.expected > 0);
        if is_expected || self.pairs.values().any(is_shared) {
            return Vec::new();
        }
        let is_silent = |(handle, pair): &(&Handle, &QueuePair<S>)| {
            pair.send_queue == queue && !pair.has_signaled && program.executes(**handle)
        };
        let last = self.pairs.iter().filter(is_silent).find_map(|(_, pair)| Some((pair.sends.back()?, pair)));
        let Some((posted, pair)) = last else { return Vec::new() };
        let name = Name::on_pair(posted, pair.number);
        let what = format!(
            "The completion queue was polled {IN_VAIN} times in vain, and no outstanding request completes into it.\n\
             {name} gives no completion: its send_flags are without IBV_SEND_SIGNALED, and sq_sig_all is 0."
        );
        let calls = vec![("polled", site.clone()), ("posted", posted.site.clone())];
        self.report(Rule::NeverSignaled, what, calls)
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

    /// A thread waits for the next event of a channel that has none, while a completion queue that
    /// it alone polls holds completions from before it was armed.
    pub fn waiting_beside_completions(
        &mut self,
        channel: Handle,
        thread: u64,
        program: &dyn Program,
        site: &S,
    ) -> Vec<Finding<S>> {
        let is_own = |queue: &CompletionQueue<S>| {
            queue.channel == Some(channel) && !queue.polled_by_others && queue.polled_by == Some(thread)
        };
        let of_channel = self.queues.iter().filter(|(_, queue)| is_own(queue));
        let mut left = of_channel.map(|(handle, queue)| (program.unannounced(*handle), queue));
        let Some((count, queue)) = left.find(|(count, _)| *count > 0) else { return Vec::new() };
        let what = format!(
            "The completion queue was not polled until it was empty since it was armed.\n\
             A completion that came before it was armed gives no event; the queue holds {count}."
        );
        let mut calls = vec![("waited", site.clone())];
        calls.extend(queue.asked.at.clone().map(|at| ("armed", at)));
        calls.push(("the completion queue was made", queue.made.clone()));
        self.report(Rule::LostEvent, what, calls)
    }

    /// A thread acknowledges more events of an object than it has taken.
    pub fn acknowledged_too_often(&mut self, count: u32, owed: u32, site: &S) -> Vec<Finding<S>> {
        let what = format!(
            "The call acknowledges {count} events of the object; of those taken, {owed} were left to acknowledge."
        );
        self.report(Rule::AcknowledgedTooOften, what, vec![("acknowledged", site.clone())])
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
