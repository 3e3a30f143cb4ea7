//! Which attributes a transition takes, for each service.

use super::*;

#[test]
fn rtr_without_its_attributes_is_refused() {
    let attr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
    assert!(check(QpType::Rc, QpState::Init, &attr, mask::STATE | mask::AV).is_err());
    assert!(check(QpType::Rc, QpState::Reset, &attr, mask::STATE).is_err());
}

#[test]
fn a_uc_queue_pair_takes_no_retry_attributes() {
    let rtr = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    let to = |state| QpAttr { state, port: 1, ..QpAttr::default() };
    assert_eq!(check(QpType::Uc, QpState::Init, &to(QpState::Rtr), rtr), Ok(QpState::Rtr));
    assert!(check(QpType::Uc, QpState::Init, &to(QpState::Rtr), rtr | mask::MIN_RNR_TIMER).is_err());
    let rts = mask::STATE | mask::SQ_PSN;
    assert_eq!(check(QpType::Uc, QpState::Rtr, &to(QpState::Rts), rts), Ok(QpState::Rts));
    assert!(check(QpType::Uc, QpState::Rtr, &to(QpState::Rts), rts | mask::TIMEOUT).is_err());
}

#[test]
fn a_ud_queue_pair_needs_a_qkey_and_no_peer() {
    let to = |state| QpAttr { state, port: 1, ..QpAttr::default() };
    let init = mask::STATE | mask::PKEY_INDEX | mask::PORT;
    assert!(check(QpType::Ud, QpState::Reset, &to(QpState::Init), init).is_err());
    let init = init | mask::QKEY;
    assert_eq!(check(QpType::Ud, QpState::Reset, &to(QpState::Init), init), Ok(QpState::Init));
    assert_eq!(check(QpType::Ud, QpState::Init, &to(QpState::Rtr), mask::STATE), Ok(QpState::Rtr));
    assert!(check(QpType::Ud, QpState::Init, &to(QpState::Rtr), mask::STATE | mask::AV).is_err());
    let back = mask::STATE | mask::CUR_STATE;
    let attr = QpAttr { cur_state: QpState::Sqe, ..to(QpState::Rts) };
    assert_eq!(check(QpType::Ud, QpState::Sqe, &attr, back), Ok(QpState::Rts));
    assert!(check(QpType::Rc, QpState::Sqe, &attr, back).is_err());
}

#[test]
fn a_raw_packet_queue_pair_needs_a_port_and_nothing_else() {
    let to = |state| QpAttr { state, port: 1, ..QpAttr::default() };
    let init = mask::STATE | mask::PORT;
    assert!(check(QpType::RawPacket, QpState::Reset, &to(QpState::Init), mask::STATE).is_err());
    assert_eq!(check(QpType::RawPacket, QpState::Reset, &to(QpState::Init), init), Ok(QpState::Init));
    assert!(check(QpType::RawPacket, QpState::Reset, &to(QpState::Init), init | mask::QKEY).is_err());
    assert_eq!(check(QpType::RawPacket, QpState::Init, &to(QpState::Rtr), mask::STATE), Ok(QpState::Rtr));
    assert_eq!(check(QpType::RawPacket, QpState::Rtr, &to(QpState::Rts), mask::STATE), Ok(QpState::Rts));
}

#[test]
fn each_end_of_xrc_has_the_attributes_of_its_half() {
    let to = |state| QpAttr { state, port: 1, ..QpAttr::default() };
    let rtr = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
    let answers = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
    let rtr = |kind, bits| check(kind, QpState::Init, &to(QpState::Rtr), rtr | bits);
    assert_eq!(rtr(QpType::XrcSend, 0), Ok(QpState::Rtr));
    assert!(rtr(QpType::XrcSend, answers).is_err());
    assert_eq!(rtr(QpType::XrcRecv, answers), Ok(QpState::Rtr));
    assert!(rtr(QpType::XrcRecv, 0).is_err());
    let rts = mask::STATE | mask::SQ_PSN | mask::TIMEOUT;
    let asks = mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    let rts = |kind, bits| check(kind, QpState::Rtr, &to(QpState::Rts), rts | bits);
    assert_eq!(rts(QpType::XrcSend, asks), Ok(QpState::Rts));
    assert!(rts(QpType::XrcSend, 0).is_err());
    assert_eq!(rts(QpType::XrcRecv, 0), Ok(QpState::Rts));
    assert!(rts(QpType::XrcRecv, asks).is_err());
}

#[test]
fn every_state_but_reset_goes_to_error_and_all_to_reset_without_attributes() {
    use QpState::*;
    for from in [Reset, Init, Rtr, Rts, Sqd, Sqe, Error] {
        for to in [Reset, Error] {
            let attr = QpAttr { state: to, cur_state: from, ..QpAttr::default() };
            let moved = check(QpType::Rc, from, &attr, mask::STATE);
            assert_eq!(moved.ok(), ((from, to) != (Reset, Error)).then_some(to), "{from:?}");
            for more in [mask::CUR_STATE, mask::ACCESS_FLAGS, mask::PORT, 1 << 30] {
                assert!(check(QpType::Rc, from, &attr, mask::STATE | more).is_err());
            }
        }
    }
}

#[test]
fn the_current_state_is_named_on_the_way_to_rts_only() {
    let attr = |state, cur_state| QpAttr { state, cur_state, port: 1, ..QpAttr::default() };
    let bits = mask::STATE | mask::CUR_STATE;
    let rts = attr(QpState::Rts, QpState::Sqd);
    assert!(check(QpType::Rc, QpState::Sqd, &rts, bits).is_ok());
    let sqd = attr(QpState::Sqd, QpState::Rts);
    assert!(check(QpType::Rc, QpState::Rts, &sqd, bits).is_err());
    let init = bits | mask::PORT | mask::PKEY_INDEX | mask::ACCESS_FLAGS;
    let reset = attr(QpState::Init, QpState::Reset);
    assert!(check(QpType::Rc, QpState::Reset, &reset, init).is_err());
}

#[test]
fn roce_has_no_alternate_paths() {
    for kind in [QpType::Rc, QpType::Uc, QpType::XrcSend, QpType::XrcRecv] {
        let attr = QpAttr { state: QpState::Rts, ..QpAttr::default() };
        let alternate = mask::STATE | mask::ALT_PATH;
        assert!(check(kind, QpState::Rts, &attr, mask::STATE).is_ok());
        assert!(check(kind, QpState::Rts, &attr, alternate).is_err());
    }
}
