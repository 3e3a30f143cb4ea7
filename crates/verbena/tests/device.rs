//! What a device says of itself.

use verbena::verbs::AtomicCaps;
use verbena::{ErrorKind, Provider, Srq};

#[cfg(feature = "software")]
#[test]
fn the_loopback_device_says_its_limits_and_addresses() {
    let device = Provider::software().unwrap().device_of("127.0.0.1".parse().unwrap()).unwrap();
    let attr = device.attr().unwrap();
    assert_eq!(
        (attr.max_qp_rd_atom, attr.atomic_caps),
        (verbena::cm::limits::RD_ATOMIC_MAX, AtomicCaps::Hca)
    );
    let port = device.port().unwrap();
    assert!(port.active && port.mtu == 4096 && port.speed_mbps.is_none(), "{port:?}");
    assert!(port.addresses.contains(&"127.0.0.1".parse().unwrap()));
    assert_eq!(device.addresses().unwrap(), port.addresses);
    // A limit is what is granted, and one more is refused.
    let pd = device.pd().unwrap();
    assert!(Srq::new(&pd, attr.max_srq_wr, 1).is_ok());
    assert_eq!(Srq::new(&pd, attr.max_srq_wr + 1, 1).unwrap_err().kind(), ErrorKind::OutOfRange);
}

#[cfg(feature = "sim")]
#[verbena::test(seeds = 2)]
async fn a_simulated_device_bears_the_addresses_of_its_host(left: verbena::sim::Host) {
    let (v4, v6) = (left.addr(), left.addr_v6());
    let port = left.spawn(async move { Provider::current()?.device_of(v4)?.port() }).await.unwrap();
    assert!(port.active && port.addresses.contains(&v4) && port.addresses.contains(&v6), "{port:?}");
    assert!((256..=4096).contains(&port.mtu));
}
