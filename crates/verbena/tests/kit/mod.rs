//! What the tests of this folder run over: the stack linked in, or with the feature `system` what `VERBENA_TEST_PROVIDER` names:
//!
//! | value | |
//! |---|---|
//! | none, `software` | the stack linked in |
//! | `system` | the machine's libibverbs and librdmacm |
//! | `system:FILE` | the object FILE, which is both, such as target/debug/libverbena_rdma.so |
//!
//! `VERBENA_TEST_ADDRESS` is an IPv4 address of ours that RDMA reaches, 127.0.0.1 where it is not said.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::{IpAddr, SocketAddr};

use verbena::cm::ToAddr;
use verbena::{Connect, Listen, Provider, Resolve};

fn named() -> String {
    std::env::var("VERBENA_TEST_PROVIDER").unwrap_or_else(|_| "software".to_owned())
}

/// Whether the tests run over the stack linked in.
pub fn is_software() -> bool {
    named() == "software"
}

/// The provider.
pub fn provider() -> Provider {
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

/// An address of ours.
pub fn address() -> IpAddr {
    std::env::var("VERBENA_TEST_ADDRESS")
        .map_or(IpAddr::from([127, 0, 0, 1]), |text| text.parse().expect("an address"))
}

/// The same with any port.
pub fn any_port() -> SocketAddr {
    (address(), 0).into()
}

pub fn connect(to: impl ToAddr) -> Connect {
    verbena::connect(to).provider(&provider())
}

pub fn listen(on: impl ToAddr) -> Listen {
    verbena::listen(on).provider(&provider())
}

pub fn resolve(to: impl ToAddr) -> Resolve {
    verbena::resolve(to).provider(&provider())
}
