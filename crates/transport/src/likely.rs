//! What the compiler is told of branches. It takes a check for an even chance. So it takes what
//! follows twenty of them, where nearly every message comes by, for something that hardly ever
//! runs: there it would inline nothing. (As
//! [`std::hint::cold_path`](https://doc.rust-lang.org/std/hint/fn.cold_path.html), which is younger
//! than the oldest compiler that builds this.)

/// A condition that holds nearly always.
#[inline(always)]
pub fn likely(holds: bool) -> bool {
    if !holds {
        rare();
    }
    holds
}

/// A condition that holds hardly ever.
#[inline(always)]
pub fn unlikely(holds: bool) -> bool {
    if holds {
        rare();
    }
    holds
}

/// What calls this hardly ever runs. It does nothing, but the compiler may not see that, or there
/// would be no call.
#[cold]
#[inline(never)]
pub fn rare() {
    std::hint::black_box(());
}
