//! Padding and pointers do not travel.
use verbena::RegBuf;

struct Padded {
    _small: u8,
    _large: u64,
}

fn padded(buf: &RegBuf) {
    let _ = buf.read::<Padded>(0);
}

fn pointer(buf: &RegBuf) {
    let _ = buf.read::<&'static u64>(0);
}

fn not_every_byte(buf: &RegBuf) {
    let _ = buf.read::<bool>(0);
}

fn main() {}
