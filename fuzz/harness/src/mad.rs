//! Any bytes as a MAD, as an RDMA IP CM header and as a GRH: what parses must survive emit and
//! parse.

use wire::grh::Grh;
use wire::mad::{IpCm, Mad};

/// The fuzzer's bytes are all three.
pub fn run(bytes: &[u8]) {
    if let Ok(mad) = Mad::parse(bytes) {
        assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
    }
    if let Ok(ip_cm) = IpCm::parse(bytes) {
        assert_eq!(IpCm::parse(&ip_cm.emit()), Ok(ip_cm));
    }
    if let Ok(grh) = Grh::parse(bytes) {
        assert_eq!(Grh::parse(&grh.emit()), Ok(grh));
    }
}
