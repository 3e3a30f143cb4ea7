//! The other side: it listens, lends memory, and sends back what it is told. And what is left of
//! everything.

use stack::objects::Objects;

use crate::mem::{Memory, RemoteWrite};
use crate::provider::node;
use crate::{Connection, Provider, Request, Result};

/// A client that asks with this ends the service.
pub(super) const STOP: &[u8] = b"stop";

/// Accepts all clients that come, until one asks it to stop.
pub(super) async fn serve(on: &str) -> Result<()> {
    let listener = crate::listen(on).await?;
    let memory = Memory::<RemoteWrite>::zeroed(4096)?;
    loop {
        let request = listener.request().await?;
        if request.private_data().starts_with(STOP) {
            return Ok(());
        }
        crate::spawn(answer(request, memory.clone()))?;
    }
}

async fn answer(request: Request, memory: Memory<RemoteWrite>) {
    let Ok(mr) = memory.mr(request.pd()) else { return };
    // The client that asked may have gone.
    if let Ok(conn) = request.accept().private_data(mr.remote().to_bytes()).await {
        echo(conn).await;
    }
}

/// Sends back what comes, until the other side ends.
pub(super) async fn echo(conn: Connection) {
    while let Ok(Some(message)) = conn.recv().await {
        if conn.send(message).await.0.is_err() {
            return;
        }
    }
}

/// What there is on the host of the task that runs.
pub(super) fn left_over() -> Objects {
    let provider = Provider::current().expect("a host");
    let mut objects = node!(provider.stack().ours().expect("Verbena's own"), node => node.objects());
    // A device with nothing is none.
    objects.devices.retain(|device| *device != Default::default());
    objects
}
