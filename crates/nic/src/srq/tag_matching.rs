//! Tag matching (ibv_post_srq_ops(3); rdma-core, Documentation/tag_matching.md): a shared receive
//! queue with a list of tagged buffers. A message that matches goes to the oldest buffer that it
//! matches, without its headers; any other goes whole to an ordinary receive: it is unexpected, and
//! the program's to match.
//!
//! Meanwhile the program may have added the very tag that an unexpected message was for. So a tag
//! added is matched only once the program has said that it has handled as many unexpected messages
//! as there were: until the two counts agree, new tags wait in the list, in their place.
//!
//! Completions are those of Mellanox's adapters, which rdma-core's tests expect: an unexpected
//! message has the opcode of a match without its flags (the document says IBV_WC_RECV), and a
//! message without a tag, FIN included, is not unexpected.
//!
//! A rendezvous that matches is a READ, then a FIN, on the send queue of the queue pair that it
//! came to. That queue belongs to the shared queue: programs can not post to it.
//!
//! Locks: the list's comes before the receives', the completion queue's after both.

use std::ops::Range;
use std::sync::Arc;

use locks::{Mutex, MutexGuard, Rank};
use transport::op::{
    Completed, Completion, Data, Place, RecvWr, SendOp, SendWr, Sge, SgeList, Side, Status, TagInfo, Tagged,
};
use wire::Qpn;
use wire::bth::Reth;
use wire::roce::SendTail;
use wire::tm::{RENDEZVOUS_LEN, TMH_LEN, TmMessage, Tmh};

use crate::cq::{Cq, Notification};
use crate::error::{Error, PostError, in_range};
use crate::limits;
use crate::srq::Srq;

/// A tag-matching queue's own part.
#[derive(Debug)]
pub(crate) struct TagMatching {
    cq: Arc<Cq>,
    list: Mutex<TagList>,
}

/// An operation on the list of tags (`struct ibv_ops_wr`).
#[derive(Clone, Debug)]
pub struct TagWr {
    /// The program's mark, returned in the operation's completion.
    pub wr_id: u64,
    /// What is done.
    pub op: TagOp,
    /// Unexpected messages that the program has handled since the queue was made, modulo 2^32
    /// (IBV_OPS_TM_SYNC); applied first.
    pub handled: Option<u32>,
    /// A completion is wanted.
    pub signaled: bool,
}

/// What an operation does.
#[derive(Clone, Debug)]
pub enum TagOp {
    /// Adds a buffer for messages with `message.tag & mask == tag`.
    Add {
        /// The buffer; its mark is returned in the completions of the message.
        receive: RecvWr,
        /// Tag.
        tag: u64,
        /// The bits that count.
        mask: u64,
    },
    /// Removes the buffer of that handle; completes with [`Status::Tm`] where a message has taken
    /// it.
    Delete(u32),
    /// Nothing but to say what was handled.
    Sync,
}

/// The tagged buffers, and how far the program and the adapter are apart.
#[derive(Debug, Default)]
struct TagList {
    /// The oldest first.
    entries: Vec<Entry>,
    max_tags: usize,
    next_handle: u32,
    /// Unexpected messages that came, and that the program has handled.
    unexpected: u32,
    handled: u32,
}

#[derive(Debug)]
struct Entry {
    handle: u32,
    receive: RecvWr,
    tag: u64,
    mask: u64,
    /// Added, or synchronized since, while the counts agreed.
    live: bool,
}

/// A rendezvous that was matched: what the queue pair has to fetch.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    receive: RecvWr,
    tmh: Tmh,
    rvh: Reth,
}

impl TagList {
    fn in_step(&self) -> bool {
        self.unexpected == self.handled
    }
    /// The handle, or nothing where the list is full. Handles repeat after 2^32 tags.
    fn add(&mut self, receive: RecvWr, tag: u64, mask: u64) -> Option<u32> {
        if self.entries.len() >= self.max_tags || self.entries.try_reserve(1).is_err() {
            return None;
        }
        let handle = self.next_handle;
        self.next_handle = handle.wrapping_add(1);
        self.entries.push(Entry { handle, receive, tag, mask, live: self.in_step() });
        Some(handle)
    }
    fn delete(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|e| e.handle == handle);
        at.map(|at| self.entries.remove(at)).is_some()
    }
    fn synchronize(&mut self, handled: u32) {
        self.handled = handled;
        if self.in_step() {
            self.entries.iter_mut().for_each(|e| e.live = true);
        }
    }
    /// Takes the oldest buffer that a tag matches.
    fn take(&mut self, tag: u64) -> Option<RecvWr> {
        let at = self.entries.iter().position(|e| e.live && tag & e.mask == e.tag)?;
        Some(self.entries.remove(at).receive)
    }
}

impl TagMatching {
    /// Where its receives complete.
    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    /// For so many tags, 1 to [`limits::MAX_TAGS`]; completes in `cq`.
    pub(crate) fn new(max_tags: u32, cq: Arc<Cq>) -> Result<Self, Error> {
        in_range("max_num_tags", max_tags, 1_u32, limits::MAX_TAGS)?;
        let list = TagList { max_tags: max_tags as usize, ..TagList::default() };
        Ok(Self { cq, list: Mutex::new(Rank::TagList, list) })
    }

    /// Where a message goes whose first packet bears `first`; `whole`: it has no other. A
    /// rendezvous is left in `fetch`.
    pub(crate) fn place(
        &self,
        srq: &Srq,
        first: &[u8],
        whole: bool,
        fetch: &mut Option<Box<Rendezvous>>,
        notifications: &mut Vec<Notification>,
    ) -> Option<Place> {
        let mut list = self.lock();
        let opcode = match TmMessage::parse(first) {
            TmMessage::Untagged | TmMessage::Fin(..) => Completed::TmNoTag,
            TmMessage::Eager(tmh) => {
                if let Some(receive) = list.take(tmh.tag) {
                    return Some(matched(receive, TMH_LEN..first.len(), Status::Success, tmh, true));
                }
                Completed::TmReceive
            }
            // One longer than `max_rndv_hdr_size` is software's.
            TmMessage::Rendezvous(tmh, rvh) if whole && first.len() <= limits::MAX_RENDEZVOUS_HEADER => {
                if let Some(receive) = list.take(tmh.tag) {
                    return Some(meet(receive, tmh, rvh, fetch));
                }
                Completed::TmReceive
            }
            TmMessage::Rendezvous(..) => Completed::TmReceive,
        };
        let receive = srq.take(notifications)?;
        if opcode == Completed::TmReceive {
            list.unexpected = list.unexpected.wrapping_add(1);
        }
        let tagged = Tagged { opcode, status: Status::Success, info: TagInfo::default() };
        Some(Place { tagged: Some(tagged), ..Place::ordinary(receive, first) })
    }

    /// A completion of a queue pair of ours: what it received, or had to send for a rendezvous.
    pub(crate) fn complete(&self, side: Side, completion: Completion, notifications: &mut Vec<Notification>) {
        let completion = match (side, completion.opcode) {
            (Side::Receive, _) => completion,
            (Side::Send, Completed::Read) => {
                let data_valid = completion.status == Status::Success;
                let tm = TagInfo { data_valid, ..TagInfo::default() };
                Completion { opcode: Completed::TmReceive, tm, ..completion }
            }
            // A FIN that fails takes the queue pair with it; its tag has completed.
            (Side::Send, _) => return,
        };
        self.cq.push(completion, notifications);
    }

    fn lock(&self) -> MutexGuard<'_, TagList> {
        self.list.lock()
    }
}

/// A match, which completes with its first packet if all data are in it.
fn matched(receive: RecvWr, part: Range<usize>, status: Status, tmh: Tmh, data_valid: bool) -> Place {
    let Tmh { tag, app_ctx } = tmh;
    let info = TagInfo { tag, app_ctx, matched: true, data_valid, sync_required: false };
    Place { receive, part, tagged: Some(Tagged { opcode: Completed::TmReceive, status, info }) }
}

/// A rendezvous that matches. Where the buffer is too small, or the data more than one READ
/// fetches, it gets the headers, and the rest is up to the program.
fn meet(receive: RecvWr, tmh: Tmh, rvh: Reth, fetch: &mut Option<Box<Rendezvous>>) -> Place {
    let len = u64::from(rvh.length);
    if len > receive.sges.len_bytes().min(limits::MAX_MESSAGE) {
        return matched(receive, 0..RENDEZVOUS_LEN, Status::TmRendezvousIncomplete, tmh, true);
    }
    *fetch = Some(Box::new(Rendezvous { receive: receive.clone(), tmh, rvh }));
    matched(receive, 0..0, Status::Success, tmh, false)
}

/// The first `len` bytes of a list that has as many.
fn shortened(sges: &SgeList, len: u32) -> SgeList {
    let mut left = len;
    let piece = |s: &Sge| {
        let length = s.length.min(left);
        left -= length;
        Sge { length, ..*s }
    };
    sges.as_slice().iter().map(piece).filter(|s| s.length > 0).collect()
}

impl Rendezvous {
    /// The READ that fetches the data, and the FIN that tells the sender so.
    pub(crate) fn requests(&self) -> [SendWr; 2] {
        let Self { receive, tmh, rvh } = self;
        let request = |op, data, signaled, fence| SendWr {
            wr_id: receive.wr_id,
            op,
            data,
            signaled,
            solicited: false,
            fence,
        };
        let read = SendOp::Read { addr: rvh.addr, rkey: rvh.rkey };
        let fin = TmMessage::Fin(*tmh, *rvh).emit();
        [
            request(read, Data::Sges(shortened(&receive.sges, rvh.length)), true, false),
            // Not before the data are here: the sender frees them when it learns of this.
            request(SendOp::Send(SendTail::None), Data::inline(&fin), false, true),
        ]
    }
}

impl Srq {
    /// Does an operation on the list of tags; the handle of a tag added.
    ///
    /// # Errors
    ///
    /// [`PostError::Full`] where the list is; [`PostError::Invalid`] for a queue without tags.
    pub fn post_tag_op(&self, wr: TagWr) -> Result<Option<u32>, PostError> {
        let Some(TagMatching { cq, list }) = &self.tags else {
            return Err(PostError::Invalid("the shared receive queue matches no tags"));
        };
        let mut notifications = Vec::new();
        let mut list = list.lock();
        if matches!(wr.op, TagOp::Add { .. }) && list.entries.len() >= list.max_tags {
            return Err(PostError::Full);
        }
        if let Some(handled) = wr.handled {
            list.synchronize(handled);
        }
        let (opcode, status, handle) = match wr.op {
            TagOp::Add { receive, tag, mask } => {
                let handle = list.add(receive, tag, mask).ok_or(PostError::Full)?;
                (Completed::TmAdd, Status::Success, Some(handle))
            }
            TagOp::Delete(handle) => {
                let status = if list.delete(handle) { Status::Success } else { Status::Tm };
                (Completed::TmDelete, status, None)
            }
            TagOp::Sync => (Completed::TmSync, Status::Success, None),
        };
        if wr.signaled {
            let tm = TagInfo { sync_required: !list.in_step(), ..TagInfo::default() };
            let done = Completion { tm, ..Completion::new(wr.wr_id, status, opcode, Qpn::default()) };
            // The list stays locked: the completions of matches come after that of the tag.
            cq.push(done, &mut notifications);
        }
        drop(list);
        notifications.into_iter().for_each(Notification::send);
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(unexpected: u32, handled: u32) -> TagList {
        TagList { max_tags: 3, unexpected, handled, ..TagList::default() }
    }

    fn buffer(wr_id: u64) -> RecvWr {
        RecvWr { wr_id, sges: [].into_iter().collect() }
    }

    fn take(list: &mut TagList, tag: u64) -> Option<u64> {
        list.take(tag).map(|r| r.wr_id)
    }

    #[test]
    fn the_oldest_tag_of_those_that_match_is_taken() {
        let mut list = list(0, 0);
        for (id, tag, mask) in [(1, 0x10, 0xf0), (2, 0x12, 0xff), (3, 0, 0)] {
            assert!(list.add(buffer(id), tag, mask).is_some());
        }
        assert_eq!(list.add(buffer(4), 0, 0), None, "full");
        assert_eq!(
            [0x12, 0x12, 0x12, 0x12].map(|tag| take(&mut list, tag)),
            [Some(1), Some(2), Some(3), None]
        );
    }

    #[test]
    fn a_tag_with_bits_outside_its_mask_matches_nothing() {
        let mut list = list(0, 0);
        list.add(buffer(1), 0x100, 0xff);
        assert_eq!([0, 0x100, 0x1ff].map(|tag| take(&mut list, tag)), [None; 3]);
    }

    #[test]
    fn tags_of_the_past_match_while_new_ones_wait_in_their_place() {
        let mut list = list(0, 0);
        list.add(buffer(1), 5, u64::MAX);
        list.unexpected += 1;
        list.add(buffer(2), 6, u64::MAX);
        list.add(buffer(3), 6, u64::MAX);
        assert_eq!([take(&mut list, 5), take(&mut list, 6)], [Some(1), None]);
        list.synchronize(1);
        assert_eq!([take(&mut list, 6), take(&mut list, 6)], [Some(2), Some(3)]);
    }

    #[test]
    fn counts_agree_across_the_end_of_their_numbers() {
        let mut list = list(u32::MAX, u32::MAX);
        assert!(list.in_step());
        list.unexpected = list.unexpected.wrapping_add(1);
        assert!(!list.in_step());
        list.synchronize(0);
        assert!(list.in_step());
    }

    #[test]
    fn a_handle_deletes_its_tag_once_and_leaves_the_order() {
        let mut list = list(0, 0);
        let handles: Vec<_> = (0..3).filter_map(|id| list.add(buffer(id), 0, 0)).collect();
        assert!(list.delete(handles[1]) && !list.delete(handles[1]) && !list.delete(99));
        assert_eq!([take(&mut list, 7), take(&mut list, 7), take(&mut list, 7)], [Some(0), Some(2), None]);
    }

    #[test]
    fn a_list_is_shortened_to_the_bytes_that_come() {
        let sge = |length| Sge { addr: 0, length, lkey: wire::Rkey(1) };
        let list: SgeList = [sge(10), sge(0), sge(20), sge(30)].into_iter().collect();
        let lengths = |len| shortened(&list, len).as_slice().iter().map(|s| s.length).collect::<Vec<_>>();
        assert_eq!([lengths(0), lengths(10), lengths(11)], [vec![], vec![10], vec![10, 1]]);
        assert_eq!([lengths(60), lengths(45)], [vec![10, 20, 30], vec![10, 20, 15]]);
    }
}
