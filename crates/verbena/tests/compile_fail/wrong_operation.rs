//! What a queue pair can not do is not there.
use verbena::{QueuePair, RemoteMemory, Request, Uc};

fn added(qp: &QueuePair<Uc>, at: RemoteMemory) {
    let _ = qp.fetch_add(at, 1);
}

fn too_early(request: Request) {
    let _ = request.send_inline(b"not accepted");
}

fn main() {}
