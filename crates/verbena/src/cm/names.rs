//! From a text to addresses. Numbers, and the names of a simulation's hosts, are known at once.
//! Other names are asked for in a thread that lives as long as the question, because the system's
//! resolver blocks and a future must not.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use locks::{Mutex, Rank};
use nic::program::{Kept, wake_all};

use super::{Addr, limits};
use crate::error::{Error, ErrorKind, Result, Value};
#[cfg(feature = "sim")]
use crate::provider::Ours;
use crate::provider::Stack;

/// The C function that does it, as errors name it.
const CALL: &str = "getaddrinfo";

/// All addresses that a program's address stands for, at least one.
pub(crate) async fn look_up(stack: &Stack, addr: &Addr) -> Result<Vec<SocketAddr>> {
    let text = match addr {
        Addr::Known(address) => return Ok(vec![*address]),
        Addr::Name(text) => text,
    };
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    let unknown = || Error::new(ErrorKind::NotFound, CALL).with(Value::Text(text.clone()));
    let (host, port) = text.rsplit_once(':').ok_or_else(unknown)?;
    let port: u16 = port.parse().map_err(|_| unknown())?;
    let found: Vec<SocketAddr> = match stack {
        #[cfg(feature = "sim")]
        Stack::Ours(Ours::Sim(_)) => {
            let known = crate::sim::addresses_of(host);
            known.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
        }
        #[cfg(any(feature = "software", feature = "system"))]
        _ => asked(host.to_owned(), port).await.map_err(|e| match e.raw_os_error() {
            Some(_) => Error::of_io(CALL, &e),
            None => unknown(),
        })?,
    };
    if found.is_empty() { Err(unknown()) } else { Ok(found) }
}

/// A question to the system's resolver.
struct Question(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    found: Option<std::io::Result<Vec<SocketAddr>>>,
    waker: Option<Kept<Waker>>,
}

/// Threads that ask.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// A thread that asks, as counted in [`ASKING`].
struct Place;

impl Place {
    fn take() -> std::io::Result<Self> {
        let free = |n: usize| (n < limits::CONCURRENT_LOOKUPS_MAX).then_some(n + 1);
        match ASKING.try_update(Ordering::Relaxed, Ordering::Relaxed, free) {
            Ok(_) => Ok(Self),
            Err(_) => Err(nic::Errno::EAGAIN.into()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        ASKING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg_attr(
    not(any(feature = "software", feature = "system")),
    allow(dead_code, reason = "simulated hosts do not ask")
)]
async fn asked(host: String, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    let question = Arc::new(Question(Mutex::new(Rank::ConnectionState, Asked::default())));
    let (place, asks) = (Place::take()?, question.clone());
    let ask = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(place);
        let waker = {
            let mut asked = asks.0.lock();
            asked.found = Some(found);
            asked.waker.take()
        };
        wake_all(waker);
    };
    std::thread::Builder::new().name("verbena-names".to_owned()).spawn(ask)?;
    std::future::poll_fn(move |cx| {
        let waker = Kept::of(cx);
        let (found, old) = {
            let mut asked = question.0.lock();
            match asked.found.take() {
                Some(found) => (Poll::Ready(found), Some(waker)),
                None => (Poll::Pending, asked.waker.replace(waker)),
            }
        };
        drop(old);
        found
    })
    .await
}

#[cfg(all(test, feature = "software"))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_asked_for_and_a_number_is_not() {
        let provider = crate::Provider::software().expect("a provider");
        let found =
            |text: &str| crate::exec::block_on(look_up(provider.stack(), &Addr::Name(text.to_owned())));
        assert_eq!(found("127.0.0.1:7").expect("numbers"), ["127.0.0.1:7".parse().expect("an address")]);
        let local = found("localhost:7").expect("in /etc/hosts");
        assert!(local.iter().all(|a| a.ip().is_loopback() && a.port() == 7), "{local:?}");
        for wrong in ["no port", "host:", "host:65536", ""] {
            let error = found(wrong).expect_err("not an address");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{wrong}");
            assert_eq!(error.value(), Some(&Value::Text(wrong.to_owned())));
        }
    }
}
