//! Names of classes, methods, attributes and status values, as rdma-core 44 gives them.

use std::ffi::{CStr, c_char};

const UNKNOWN: &CStr = c"<unknown>";

/// umad_class_str(3).
pub extern "C" fn umad_class_str(mgmt_class: u8) -> *const c_char {
    let text = match mgmt_class {
        0x01 | 0x81 => c"Subn",
        0x03 => c"SubnAdm",
        0x04 => c"Perf",
        0x05 => c"BM",
        0x06 => c"DevMgt",
        0x07 => c"ComMgt",
        0x08 => c"SNMP",
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x10 => c"DevAdm",
        0x11 => c"BootMgt",
        0x12 => c"BIS",
        0x21 => c"CongestionManagment",
        0x13..=0x2f => c"Application",
        _ => UNKNOWN,
    };
    text.as_ptr()
}

/// umad_method_str(3).
pub extern "C" fn umad_method_str(mgmt_class: u8, method: u8) -> *const c_char {
    const SUBN_ADM: u8 = 0x03;
    let text = match (method, mgmt_class) {
        (0x01, _) => c"Get",
        (0x02, _) => c"Set",
        (0x03, _) => c"Send",
        (0x05, _) => c"Trap",
        (0x06, _) => c"Report",
        (0x07, _) => c"TrapRepress",
        (0x81, _) => c"GetResp",
        (0x86, _) => c"ReportResp",
        (0x12, SUBN_ADM) => c"GetTable",
        (0x13, SUBN_ADM) => c"GetTraceTable",
        (0x14, SUBN_ADM) => c"GetMulti",
        (0x15, SUBN_ADM) => c"Delete",
        (0x92, SUBN_ADM) => c"GetTableResp",
        (0x94, SUBN_ADM) => c"GetMultiResp",
        (0x95, SUBN_ADM) => c"DeleteResp",
        _ => c"<unknown",
    };
    text.as_ptr()
}

/// umad_common_mad_status_str(3); the status is in the network's order.
pub extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let text = match (status & 1, status & 2, status & 0x1c) {
        (1, _, _) => c"Busy",
        (_, 2, _) => c"Redirection required",
        (_, _, 0x04) => c"Bad Version",
        (_, _, 0x08) => c"Method not supported",
        (_, _, 0x0c) => c"Method/Attribute combo not supported",
        (_, _, 0x1c) => c"Invalid attribute/modifier field",
        _ => c"Success",
    };
    text.as_ptr()
}

/// umad_sa_mad_status_str(3); the status is in the network's order.
pub extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    let text = match u16::from_be(status) >> 8 {
        0 => c"Success",
        1 => c"No Resources",
        2 => c"Request Invalid",
        3 => c"No Records",
        4 => c"Too Many Records",
        5 => c"Invalid GID",
        6 => c"Insufficient Components",
        7 => c"Request Denied",
        8 => c"Priority Suggested",
        _ => c"Undefined Error",
    };
    text.as_ptr()
}

/// umad_attribute_str(3); the attribute is in the network's order.
pub extern "C" fn umad_attribute_str(mgmt_class: u8, attribute: u16) -> *const c_char {
    let attribute = u16::from_be(attribute);
    let text = match (attribute, mgmt_class) {
        (0x0001, _) => c"Class Port Info",
        (0x0002, _) => c"Notice",
        (0x0003, _) => c"Inform Info",
        (_, 0x01 | 0x81) => subnet_attribute(attribute),
        (_, 0x03) => record(attribute),
        (_, 0x07) => connection_message(attribute),
        _ => UNKNOWN,
    };
    text.as_ptr()
}

fn subnet_attribute(attribute: u16) -> &'static CStr {
    match attribute {
        0x0010 => c"NodeDescription",
        0x0011 => c"NodeInfo",
        0x0012 => c"SwitchInfo",
        0x0014 => c"GUIDInfo",
        0x0015 => c"PortInfo",
        0x0016 => c"P_KeyTable",
        0x0017 => c"SLtoVLMappingTable",
        0x0018 => c"VLArbitrationTable",
        0x0019 => c"LinearForwardingTable",
        0x001a => c"RandomForwardingTable",
        0x001b => c"MulticastForwardingTable",
        0x001c => c"LinkSpeedWidthPairsTable",
        0x001d => c"VendorSpecificMadsTable",
        0x001e => c"HierarchyInfo",
        0x0020 => c"SMInfo",
        0x0030 => c"VendorDiag",
        0x0031 => c"LedInfo",
        0x0032 => c"CableInfo",
        0x0033 => c"PortInfoExtended",
        _ => UNKNOWN,
    }
}

fn record(attribute: u16) -> &'static CStr {
    match attribute {
        0x0011 => c"NodeRecord",
        0x0012 => c"PortInfoRecord",
        0x0013 => c"SLtoVLMappingTableRecord",
        0x0014 => c"SwitchInfoRecord",
        0x0015 => c"LinearForwardingTableRecord",
        0x0016 => c"RandomForwardingTableRecord",
        0x0017 => c"MulticastForwardingTableRecord",
        0x0018 => c"SMInfoRecord",
        0x0019 => c"LinkSpeedWidthPairsTableRecord",
        0x0020 => c"LinkRecord",
        0x0030 => c"GuidInfoRecord",
        0x0031 => c"ServiceRecord",
        0x0033 => c"P_KeyTableRecord",
        0x0035 => c"PathRecord",
        0x0036 => c"VLArbitrationTableRecord",
        0x0038 => c"MCMemberRecord",
        0x0039 => c"TraceRecord",
        0x003a => c"MultiPathRecord",
        0x003b => c"ServiceAssociationRecord",
        0x003c => c"HierarchyInfoRecord",
        0x003d => c"CableInfoRecord",
        0x003e => c"PortInfoExtendedRecord",
        0x00f3 => c"InformInfoRecord",
        _ => UNKNOWN,
    }
}

fn connection_message(attribute: u16) -> &'static CStr {
    match attribute {
        0x0010 => c"ConnectRequest",
        0x0011 => c"MsgRcptAck",
        0x0012 => c"ConnectReject",
        0x0013 => c"ConnectReply",
        0x0014 => c"ReadyToUse",
        0x0015 => c"DisconnectRequest",
        0x0016 => c"DisconnectReply",
        0x0017 => c"ServiceIDResReq",
        0x0018 => c"ServiceIDResReqResp",
        0x0019 => c"LoadAlternatePath",
        0x001a => c"AlternatePathResponse",
        0x001b => c"SuggestAlternatePath",
        0x001c => c"SuggestPathResponse",
        _ => UNKNOWN,
    }
}
