//! Sets of epoll(7) that hold rsockets. At first a set is the kernel's, and the descriptors of
//! rsockets mirror them there. From the first time that a thread sleeps in `repoll_wait` the set
//! keeps its rsockets here: what has changed is listed, looked at when a thread asks, and wakes
//! threads that sleep, without a system call for each event. Other descriptors stay the kernel's.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN,
    EPOLLONESHOT, EPOLLOUT, EPOLLWAKEUP, POLLIN, epoll_event, pollfd,
};
use nic::Errno;

use crate::ffi_guard;
use crate::instance::{self, Instance};
use crate::rsocket::object::{Rsocket, State, Watched};
use crate::rsocket::poll::events_of;
use crate::rsocket::set::{Member, Set};
use crate::rsocket::set_list::{self, control};
use crate::rsocket::{table, waiting};

/// Calls that find rsockets ready look at other descriptors every so often.
const OTHERS: u32 = 4;

/// What may stand beside EPOLLEXCLUSIVE (epoll_ctl(2)).
const BESIDE_EXCLUSIVE: c_int =
    EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;

/// Whether epoll_ctl(2) may do that to a member of a set, or to a descriptor that is none.
fn check(op: c_int, member: Option<&Member>, event: Option<&epoll_event>) -> Result<(), Errno> {
    let is_exclusive = |event: &epoll_event| event.events & EPOLLEXCLUSIVE as u32 != 0;
    let asked = match (op, event) {
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, None) => return Err(Errno::EFAULT),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD, Some(event)) => Some(event).filter(|event| is_exclusive(event)),
        _ => None,
    };
    let is_alone = |event: &epoll_event| event.events & !(BESIDE_EXCLUSIVE as u32) == 0;
    match (op, member) {
        (EPOLL_CTL_ADD, _) if asked.is_some_and(|event| !is_alone(event)) => Err(Errno::EINVAL),
        (EPOLL_CTL_MOD, _) if asked.is_some() => Err(Errno::EINVAL),
        (EPOLL_CTL_ADD, Some(_)) => Err(Errno::EEXIST),
        (EPOLL_CTL_MOD | EPOLL_CTL_DEL, None) => Err(Errno::ENOENT),
        (EPOLL_CTL_MOD, Some(member)) if is_exclusive(&member.event) => Err(Errno::EINVAL),
        (EPOLL_CTL_ADD | EPOLL_CTL_MOD | EPOLL_CTL_DEL, _) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// epoll_wait(2) of the kernel's set, without waiting.
fn events_of_kernel(set: c_int, events: &mut [epoll_event]) -> Result<usize, Errno> {
    let (at, most) = (events.as_mut_ptr(), events.len());
    // SAFETY: so many events; the call does not wait.
    let n = unsafe { libc::syscall(libc::SYS_epoll_pwait, set, at, most, 0, std::ptr::null::<u8>(), 8) };
    usize::try_from(n).map_err(|_| Errno::last())
}

impl Set {
    /// epoll_ctl(2) of an rsocket. `at`: the descriptor of the set.
    fn control(
        self: &Arc<Self>,
        at: c_int,
        op: c_int,
        fd: c_int,
        rsocket: &Arc<Rsocket>,
        event: Option<epoll_event>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if self.is_own() {
            let member = state.members.get(&fd);
            let member = member.filter(|of| of.rsocket.as_ptr() == Arc::as_ptr(rsocket));
            check(op, member, event.as_ref())?;
        } else {
            let event = event.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            control(at, op, fd, event)?;
        }
        state.touched.retain(|touched| *touched != fd);
        let Some(event) = event.filter(|_| op != EPOLL_CTL_DEL) else {
            state.members.remove(&fd);
            drop(state);
            rsocket.unwatch(self);
            return Ok(());
        };
        let member = Member {
            rsocket: Arc::downgrade(rsocket),
            event,
            of_kernel: !self.is_own(),
            is_touched: false,
            is_muted: false,
            told: Watched::default(),
        };
        state.members.insert(fd, member);
        drop(state);
        rsocket.watch(self, fd, event.events & EPOLLET as u32 != 0);
        Ok(())
    }

    /// Takes the rsockets out of the kernel's set; the events that it had for the caller before.
    fn become_own(&self, at: c_int, events: &mut [epoll_event]) -> Result<usize, Errno> {
        let members: Vec<(c_int, Weak<Rsocket>)> = {
            let state = self.state.lock();
            // The kernel does not say which of these it has told of.
            let is_once = |member: &Member| member.event.events & EPOLLONESHOT as u32 != 0;
            let stays = state.is_looked_at || state.members.values().any(is_once);
            if stays || self.own.swap(true, Ordering::Relaxed) {
                return Ok(0);
            }
            state.members.iter().map(|(fd, member)| (*fd, member.rsocket.clone())).collect()
        };
        let told: Vec<Watched> = members
            .iter()
            .map(|(_, rsocket)| rsocket.upgrade().map(|rsocket| rsocket.told()).unwrap_or_default())
            .collect();
        let found = events_of_kernel(at, events)?;
        // Where all places are taken, the kernel may have had more to tell: that is told anew.
        let is_full = found == events.len();
        for ((fd, _), told) in members.iter().zip(told) {
            // One that was changed meanwhile is told of anew.
            let mut state = self.state.lock();
            if let Some(member) = state.members.get_mut(fd).filter(|of| of.of_kernel && !is_full) {
                member.told = told;
            }
            drop(state);
            self.touch(*fd);
        }
        let state = self.state.lock();
        // Unless another set has begun to look at it meanwhile.
        if self.is_own() {
            // An error says that the descriptor was closed.
            members.iter().for_each(|(fd, _)| _ = control(at, EPOLL_CTL_DEL, *fd, std::ptr::null()));
        }
        drop(state);
        Ok(found)
    }

    /// Has the kernel's set hold the rsockets for good: what the set's descriptor says counts.
    pub(super) fn leave_to_kernel(&self, at: c_int) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_looked_at, true) || !self.own.swap(false, Ordering::Relaxed) {
            return;
        }
        state.touched.clear();
        let back = |(fd, member): (&c_int, &mut Member)| {
            member.is_touched = false;
            // One that was told of once is told of its end at most.
            let events = if member.is_muted { EPOLLONESHOT as u32 } else { member.event.events };
            let event = epoll_event { events, ..member.event };
            // An error says that the descriptor was closed.
            _ = control(at, EPOLL_CTL_ADD, *fd, &raw const event);
            member.rsocket.upgrade()
        };
        let rsockets: Vec<_> = state.members.iter_mut().filter_map(back).collect();
        drop(state);
        rsockets.iter().for_each(|rsocket| rsocket.lock().show());
    }

    /// Events of members that may be ready.
    fn collect(&self, events: &mut [epoll_event]) -> usize {
        let touched: Vec<(c_int, Weak<Rsocket>)> = {
            let mut state = self.state.lock();
            let most = state.touched.len().min(events.len());
            let fds: Vec<c_int> = state.touched.drain(..most).collect();
            let mut member = |fd| {
                let member = state.members.get_mut(&fd)?;
                member.is_touched = false;
                Some((fd, member.rsocket.clone()))
            };
            fds.into_iter().filter_map(&mut member).collect()
        };
        let mut found = 0;
        for (fd, rsocket) in touched {
            let now = rsocket.upgrade().map(|rsocket| rsocket.watched());
            let mut state = self.state.lock();
            let Some(now) = now else {
                state.members.remove(&fd);
                continue;
            };
            let Some(member) = state.members.get_mut(&fd) else { continue };
            let bits = member.events(now);
            if bits == 0 {
                continue;
            }
            events[found] = epoll_event { events: bits, u64: member.event.u64 };
            found += 1;
            // Level-triggered, it is ready until a look says otherwise.
            let flags = member.event.events;
            if flags & EPOLLONESHOT as u32 != 0 {
                member.is_muted = true;
            } else if flags & EPOLLET as u32 == 0 && !std::mem::replace(&mut member.is_touched, true) {
                state.touched.push_back(fd);
            }
        }
        found
    }

    /// Looks at all, without waiting.
    fn look(&self, at: c_int, events: &mut [epoll_event]) -> Result<usize, Errno> {
        let found = if self.is_own() { self.collect(events) } else { 0 };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let left = &mut events[found..];
        if left.is_empty() || (found > 0 && !turn.is_multiple_of(OTHERS)) {
            return Ok(found);
        }
        match events_of_kernel(at, left) {
            Err(_) if found > 0 => Ok(found),
            others => others.map(|n| found + n),
        }
    }

    fn wait(
        &self,
        at: c_int,
        instance: &Instance,
        events: &mut [epoll_event],
        until: Option<Instant>,
    ) -> Result<usize, Errno> {
        loop {
            let found = self.look(at, events)?;
            if found > 0 || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(found);
            }
            if !self.is_own() {
                let found = self.become_own(at, events)?;
                if found > 0 {
                    return Ok(found);
                }
            }
            let counter = waiting::counter()?;
            self.state.lock().sleepers.push(counter.clone());
            // What came before the counter was listed.
            let found = if self.is_own() { self.collect(events) } else { 0 };
            let mut fds = vec![pollfd { fd: at, events: POLLIN, revents: 0 }];
            let slept = match found {
                0 => waiting::sleep(instance, &counter, &mut fds, until),
                _ => Ok(()),
            };
            self.state.lock().sleepers.retain(|sleeper| sleeper.id() != counter.id());
            slept?;
            if found > 0 {
                return Ok(found);
            }
        }
    }
}

impl Member {
    /// What is to be told of it now.
    fn events(&mut self, now: Watched) -> u32 {
        let wanted = self.event.events;
        let ready = events_of(now.ready, (wanted & 0xffff) as i16).cast_unsigned();
        let told = std::mem::replace(&mut self.told, now);
        let rose = |was: bool, is: bool| is && !was;
        let is_edge = rose(told.ready.readable && told.arrivals == now.arrivals, now.ready.readable)
            || rose(told.ready.writable && told.refusals == now.refusals, now.ready.writable)
            || rose(told.ready.read_hup, now.ready.read_hup)
            || rose(told.ready.hup, now.ready.hup);
        match self.is_muted || (wanted & EPOLLET as u32 != 0 && !is_edge) {
            true => 0,
            false => ready.into(),
        }
    }
}

impl State {
    /// Tells the sets of epoll(7) that have the rsocket of a change.
    pub(super) fn show_sets(&mut self) {
        let mut mirrors = false;
        for (set, fd) in &self.sets {
            match set.is_own() {
                true => set.touch(*fd),
                false => mirrors = true,
            }
        }
        if mirrors {
            self.show();
        }
    }
}

impl Rsocket {
    /// A set has its descriptor from now on.
    fn watch(&self, set: &Arc<Set>, fd: c_int, edge: bool) {
        let mut state = self.lock();
        state.edge |= edge;
        if !state.sets.iter().any(|(other, at)| Arc::ptr_eq(other, set) && *at == fd) {
            state.sets.push((set.clone(), fd));
        }
        state.show_sets();
    }

    /// A set has it no more.
    pub(super) fn unwatch(&self, set: &Arc<Set>) {
        self.lock().sets.retain(|(other, _)| !Arc::ptr_eq(other, set));
    }
}

/// `repoll_create`, epoll_create1(2).
pub unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    ffi_guard::making(|| {
        // SAFETY: no pointer.
        let set = unsafe { libc::syscall(libc::SYS_epoll_create1, flags) };
        if set < 0 {
            return Err(Errno::last());
        }
        set_list::add(set as c_int);
        Ok(set as c_int)
    })
}

/// `repoll_ctl`, epoll_ctl(2), for rsockets and other descriptors. errno: those of epoll_ctl(2).
pub unsafe extern "C" fn repoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    ffi_guard::or_minus_one(|| {
        let Some(rsocket) = table::get(fd) else {
            control(set, op, fd, event)?;
            set_list::is_looked_at(fd);
            return Ok(0);
        };
        // SAFETY: NULL or an event, by the man page's contract, which need not be aligned.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        let of = match set_list::find(set) {
            Some(of) => of,
            // It is a set where the kernel can look for a member.
            None => match control(set, EPOLL_CTL_DEL, fd, std::ptr::null()) {
                Ok(()) | Err(Errno::ENOENT) => set_list::find_or_add(set),
                Err(error) => return Err(error),
            },
        };
        of.control(set, op, fd, &rsocket, event).map(|()| 0)
    })
}

/// `repoll_wait`, epoll_wait(2). A set that a thread has slept in so tells of rsockets by this call
/// alone. errno: EINTR; EFAULT for NULL; those of epoll_wait(2).
pub unsafe extern "C" fn repoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        let most = usize::try_from(most).ok().filter(|&most| most > 0).ok_or(Errno::EINVAL)?;
        if events.is_null() {
            return Err(Errno::EFAULT);
        }
        // SAFETY: so many events, by the man page's contract. They are packed, so aligned anywhere.
        let events = unsafe { std::slice::from_raw_parts_mut(events, most) };
        let until = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        let instance = instance::get()?;
        // A program that has much to do is not waited for by the engine, which would be woken.
        instance.host.poll();
        instance.host.later().run();
        let of = match set_list::get(set) {
            Some(of) => of,
            None => {
                // An error says that it is none.
                let found = events_of_kernel(set, events)?;
                let of = set_list::find_or_add(set);
                if found > 0 {
                    return Ok(found as c_int);
                }
                of
            }
        };
        of.wait(set, &instance, events, until).map(|n| n as c_int)
    })
}
