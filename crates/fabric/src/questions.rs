//! Questions of a program to the administration of the subnet, as messages of a umad port.

use wire::LidAddress;
use wire::mad::{MAD_LEN, class};

use crate::agents::Registration;
use crate::umad::UmadHeader;

const QP1: u32 = 1;
/// The version of the class of subnet administration (IBA 1.4 §15.2.1).
const ADMINISTRATION_VERSION: u8 = 2;
/// How long the port waits for an answer before it asks again, and how often it does. A program
/// that asks again meanwhile asks nothing new.
const TIMEOUT_MS: u32 = 500;
const RETRIES: u32 = 8;

/// What a program that asks registers.
pub fn registration() -> Registration {
    let (class, version) = (class::SUBN_ADM, ADMINISTRATION_VERSION);
    Registration { qpn: QP1, class, version, keeps_memberships: true, ..Registration::default() }
}

/// The message of an agent to QP1 of another port.
pub fn question(agent: u32, to: LidAddress, mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let header = UmadHeader {
        agent,
        timeout_ms: TIMEOUT_MS,
        retries: RETRIES,
        length: (UmadHeader::LEN + MAD_LEN) as u32,
        qpn: QP1,
        lid: to.lid(),
        sl: to.service_level(),
        path_bits: to.path_bits(),
        ..UmadHeader::default()
    };
    [&header.emit()[..], mad].concat()
}

/// The answer that a message is; `None` for one that tells of a question without an answer.
pub fn answer(message: &[u8]) -> Option<Box<[u8; MAD_LEN]>> {
    let is_answer = UmadHeader::parse(message)?.status == 0;
    let mad: [u8; MAD_LEN] = message.get(UmadHeader::LEN..)?.try_into().ok()?;
    is_answer.then(|| Box::new(mad))
}
