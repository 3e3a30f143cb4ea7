//! A program's futures are `Send` because what they hold is. rustc proves this for one type inside
//! of another, as deep as the program's `recursion_limit`; it is 128 where the program says
//! nothing. What this crate needs of it is not the program's any more.

// Half of it is left to the program.
#![recursion_limit = "64"]

use verbena::cm::raw;
use verbena::op::{InFlight, kind};
use verbena::prelude::*;
use verbena::{
    Connection, Cq, Device, Listener, Message, Pd, Pool, Provider, QueuePair, RdmaStream, RegBuf, Request,
    Srq, UdSocket,
};

fn are_sent<T: Send>() {}
fn are_shared<T: Send + Sync>() {}

#[test]
fn handles_and_buffers_are_proved_send_and_sync_in_half_of_the_steps_that_a_program_has() {
    are_shared::<(Provider, Device, Pd, Cq, Srq)>();
    are_shared::<(Connection, QueuePair, UdSocket, RdmaStream)>();
    are_shared::<(Listener, Request)>();
    are_shared::<(RegBuf, Message, Pool)>();
    are_shared::<(raw::Id, raw::EventChannel)>();
    are_sent::<(raw::Event, InFlight<kind::Send, RegBuf>)>();
}

#[test]
fn a_future_that_waits_for_several_others_is_proved_send_in_them_too() {
    fn is_sent<F: Future + Send>(_: F) {}
    async fn answers(conn: Connection) -> verbena::Result<()> {
        while let Some(message) = conn.recv().await? {
            conn.send(message).await.buf()?;
        }
        conn.close().await
    }
    async fn accepts(listener: Listener) -> verbena::Result<()> {
        loop {
            answers(listener.accept().await?).await?;
        }
    }
    is_sent(async { accepts(verbena::listen("127.0.0.1:7471").await?).await });
}
