//! What the tests over sockets run over: the stack linked in, or with the feature `system` what
//! `VERBENA_TEST_PROVIDER` names, `system` or `system:FILE`, as those of crate `verbena`.
//! `VERBENA_TEST_ADDRESS` is an address of ours that RDMA reaches, 127.0.0.1 where it is not said.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::{IpAddr, SocketAddr};

use rpma::Peer;
use verbena::Provider;

fn named() -> String {
    std::env::var("VERBENA_TEST_PROVIDER").unwrap_or_else(|_| "software".to_owned())
}

/// Whether the tests run over the stack linked in.
pub(crate) fn is_software() -> bool {
    named() == "software"
}

fn provider() -> Provider {
    let named = named();
    #[cfg(feature = "system")]
    match named.split_once(':') {
        Some(("system", file)) => return Provider::system_from(file, file).expect("the object"),
        _ if named == "system" => return Provider::system().expect("rdma-core"),
        _ => {}
    }
    assert_eq!(named, "software", "VERBENA_TEST_PROVIDER");
    Provider::software().expect("a provider")
}

/// An address of ours, with any port.
pub(crate) fn address() -> SocketAddr {
    let ip: Option<IpAddr> =
        std::env::var("VERBENA_TEST_ADDRESS").ok().map(|text| text.parse().expect("an address"));
    (ip.unwrap_or_else(|| [127, 0, 0, 1].into()), 0).into()
}

/// A peer on its device.
pub(crate) fn peer() -> Peer {
    Peer::local_of(&provider(), address().ip()).unwrap()
}
