//! What the tests of this folder run over: the stack linked in, or with the feature `system` what
//! `VERBENA_TEST_PROVIDER` names:
//!
//! | value | |
//! |---|---|
//! | none, `software` | the stack linked in |
//! | `system` | the machine's libibverbs and librdmacm |
//! | `system:FILE` | the object FILE, which is both, such as target/debug/libverbena_rdma.so |
//!
//! `VERBENA_TEST_ADDRESS` is an IPv4 address of ours that RDMA reaches, 127.0.0.1 where it is not
//! said.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use verbena::cm::ToAddr;
use verbena::{Connect, Listen, Provider, Resolve};

fn named() -> String {
    std::env::var("VERBENA_TEST_PROVIDER").unwrap_or_else(|_| "software".to_owned())
}

/// Whether the tests run over the stack linked in.
pub(crate) fn is_software() -> bool {
    named() == "software"
}

/// Whether Verbena carries them out, linked in or as an object.
pub(crate) fn is_ours() -> bool {
    is_software() || named().starts_with("system:")
}

/// The provider.
pub(crate) fn provider() -> Provider {
    let named = named();
    #[cfg(feature = "system")]
    match named.split_once(':') {
        Some(("system", file)) => return Provider::system_from(file, file).expect("the object"),
        _ if named == "system" => return Provider::system().expect("rdma-core"),
        _ => {}
    }
    assert_eq!(named, "software", "VERBENA_TEST_PROVIDER");
    #[cfg(feature = "software")]
    return Provider::software().expect("a provider");
    #[cfg(not(feature = "software"))]
    panic!("the feature software is off: VERBENA_TEST_PROVIDER is to name another provider")
}

/// An address of ours.
pub(crate) fn address() -> IpAddr {
    std::env::var("VERBENA_TEST_ADDRESS")
        .map_or(IpAddr::from([127, 0, 0, 1]), |text| text.parse().expect("an address"))
}

/// An address of ours, with any port.
pub(crate) fn any_port() -> SocketAddr {
    (address(), 0).into()
}

pub(crate) fn connect(to: impl ToAddr) -> Connect {
    verbena::connect(to).provider(&provider())
}

pub(crate) fn listen(on: impl ToAddr) -> Listen {
    verbena::listen(on).provider(&provider())
}

pub(crate) fn resolve(to: impl ToAddr) -> Resolve {
    verbena::resolve(to).provider(&provider())
}

/// The longest that a test waits for anything. A kernel repeats a message of the connection manager
/// that was lost after some 4 s, and again.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits in this thread, for 30 s at most.
pub(crate) fn within<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, begin) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = TIMEOUT.saturating_sub(begin.elapsed());
        assert!(!left.is_zero(), "nothing has happened for {TIMEOUT:?}");
        thread::park_timeout(left);
    }
}

/// What a future is ready with at once.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits until `seen` gives `wanted`, for 30 s at most; what it gave last. For what another thread
/// that polls at the moment may be about to do, as to post a receive again or to give up its handle
/// of a queue pair.
pub(crate) fn soon<T: PartialEq>(wanted: T, seen: impl Fn() -> T) -> T {
    let begin = Instant::now();
    loop {
        let now = seen();
        if now == wanted || begin.elapsed() > TIMEOUT {
            return now;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
