//! The local path of a queue pair: what its engine asks about a peer that is a process of the same
//! host ([`LocalPath`]). Copies are in `direct_copy`, fragments in `fragments`, short messages in
//! `short`.

use transport::op::{DirectOutcome, Fault, FragmentBytes, FragmentOutcome, LocalPath, Part, RecvWr, SendWr};
use wire::roce::Header;

use crate::qp::engine_context::EngineContext;

/// The local path of the queue pair of a context.
pub(super) struct HostPath<'a, 'b> {
    pub(super) context: &'a mut EngineContext<'b>,
}

impl LocalPath for HostPath<'_, '_> {
    fn reaches(&self) -> bool {
        self.context.may_be_zero_copy()
    }
    fn hear(&mut self) {
        self.context.hear();
    }
    fn is_mapped(&self, wr: &SendWr) -> bool {
        self.context.is_mapped(wr)
    }
    fn is_stream(&self, wr: &SendWr) -> bool {
        self.context.engine_state.sq_occupancy.are_a_stream_with(wr.data.len_bytes())
    }
    fn copy(&mut self, wr: &SendWr) -> DirectOutcome {
        self.context.copy_directly(wr)
    }
    fn max_fragment(&self) -> usize {
        self.context.max_fragment()
    }
    fn send_fragment(
        &mut self,
        header: &Header,
        part: Part<'_>,
        bytes: FragmentBytes,
    ) -> Result<FragmentOutcome, Fault> {
        Ok(match bytes {
            FragmentBytes::Inline => self.context.send_inline(header, part)?,
            FragmentBytes::Exported => self.context.export(header, part),
            FragmentBytes::Placed(to) => self.context.place(header, part, to),
            FragmentBytes::Requested => self.context.ask(header, part),
        })
    }
    fn advertise(&mut self, header: &Header, receive: &RecvWr) -> bool {
        self.context.advertise(header, receive)
    }
    fn report_unsent(&mut self, header: &Header, count: u32) {
        self.context.say_used_up(header, count);
    }
    fn revoke(&mut self) {
        if let Some((local, _)) = self.context.peer() {
            local.close(self.context.qp.qpn(), false);
        }
    }
    fn has_unread(&self) -> bool {
        // Also where all goes as packets, which a process of this host has to take, too.
        let path = self.context.path();
        path.is_some_and(|path| self.context.qp.pd().device.link.has_unread(path))
    }
    fn min_zero_copy(&self) -> Option<u32> {
        self.context.peer().and_then(|(local, _)| local.shares_from())
    }
}
