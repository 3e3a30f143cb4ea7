//! What was frozen may be under way in several operations.
fn changed(buf: verbena::RegBuf) {
    let mut frozen = buf.freeze();
    frozen[0] = 1;
}

fn main() {}
