//! Subnet administration (IBA 1.4 §15.2): what a subnet manager tells programs.
//!
//! | bytes of the MAD | field |
//! |---|---|
//! | 0..24, 24..36 | the common header, that of RMPP |
//! | 36..44 | SM_Key: not 0 in requests of a manager |
//! | 44..46 | bytes of a record in an answer of several, in words of 8 |
//! | 48..56 | the components of the record that a request gives a value, a bit each |
//! | 56.. | the record; in an answer of several one after the other, each padded to 8 bytes |

use super::Header;
use super::rmpp::Rmpp;
use crate::bytes::{Reader, Writer};
use crate::{Gid, Malformed};

/// The version of the class.
pub const VERSION: u8 = 2;
/// Where the record begins in the MAD.
pub const DATA: usize = 56;
/// Bytes of the record in a single MAD.
pub const DATA_LEN: usize = 200;

/// Attributes (IBA 1.4 table 189).
#[expect(missing_docs, reason = "named as the specification names them")]
pub mod attribute {
    pub const CLASS_PORT_INFO: u16 = 0x0001;
    pub const NODE_RECORD: u16 = 0x0011;
    pub const PORT_INFO_RECORD: u16 = 0x0012;
    pub const SWITCH_INFO_RECORD: u16 = 0x0014;
    pub const SM_INFO_RECORD: u16 = 0x0018;
    pub const LINK_RECORD: u16 = 0x0020;
    pub const SERVICE_RECORD: u16 = 0x0031;
    pub const PKEY_TABLE_RECORD: u16 = 0x0033;
    pub const PATH_RECORD: u16 = 0x0035;
    pub const MC_MEMBER_RECORD: u16 = 0x0038;
}

/// Methods beside those of all classes (IBA 1.4 table 188).
pub mod method {
    /// Asks for all records that match.
    pub const GET_TABLE: u8 = 0x12;
    /// Answers [`GET_TABLE`].
    pub const GET_TABLE_RESP: u8 = 0x92;
    /// Removes a record.
    pub const DELETE: u8 = 0x15;
    /// Answers [`DELETE`].
    pub const DELETE_RESP: u8 = 0x95;
}

/// Status of answers beside those of all classes (IBA 1.4 table 186).
pub mod status {
    /// More than the manager can hold or send.
    pub const NO_RESOURCES: u16 = 0x0100;
    /// The request says something that cannot be.
    pub const INVALID: u16 = 0x0200;
    /// No record matches.
    pub const NO_RECORDS: u16 = 0x0300;
    /// Several records match a request for one.
    pub const TOO_MANY_RECORDS: u16 = 0x0400;
    /// No port has the GID.
    pub const INVALID_GID: u16 = 0x0500;
    /// Components are missing.
    pub const INSUFFICIENT_COMPONENTS: u16 = 0x0600;
}

/// The class's own header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaHeader {
    /// Not 0 in requests of a manager.
    pub sm_key: u64,
    /// Bytes of a record in an answer of several, in words of 8.
    pub offset: u16,
    /// Which components of the record have a value, a bit each.
    pub components: u64,
}

impl SaHeader {
    const LEN: usize = DATA - Header::LEN - Rmpp::LEN;

    /// The header of a MAD.
    ///
    /// # Errors
    ///
    /// `Truncated`.
    pub fn parse(mad: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(mad);
        from.skip::<{ Header::LEN + Rmpp::LEN }>()?;
        let (sm_key, offset) = (from.u64()?, from.u16()?);
        from.skip::<2>()?;
        Ok(Self { sm_key, offset, components: from.u64()? })
    }

    /// The header as bytes, which stand behind the one of RMPP.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let out = &mut Writer::new(&mut bytes);
        out.u64(self.sm_key);
        out.u16(self.offset);
        out.skip::<2>();
        out.u64(self.components);
        bytes
    }
}

/// Components of a ServiceRecord (IBA 1.4 §15.2.5.14).
#[expect(missing_docs, reason = "named as the fields")]
pub mod service {
    pub const ID: u64 = 1;
    pub const GID: u64 = 1 << 1;
    pub const PKEY: u64 = 1 << 2;
    pub const LEASE: u64 = 1 << 4;
    pub const KEY: u64 = 1 << 5;
    pub const NAME: u64 = 1 << 6;
    /// What every request to register or to remove gives.
    pub const NAMES: u64 = ID | GID;
}

/// Components of [`PathRecord`] (IBA 1.4 §15.2.5.16).
#[expect(missing_docs, reason = "named as the fields")]
pub mod path {
    pub const SERVICE_ID: u64 = 3;
    pub const DGID: u64 = 1 << 2;
    pub const SGID: u64 = 1 << 3;
    pub const DLID: u64 = 1 << 4;
    pub const SLID: u64 = 1 << 5;
    pub const PKEY: u64 = 1 << 13;
    pub const SL: u64 = 1 << 15;
    pub const MTU_SELECTOR: u64 = 1 << 16;
    pub const MTU: u64 = 1 << 17;
    pub const RATE_SELECTOR: u64 = 1 << 18;
    pub const RATE: u64 = 1 << 19;
}

/// A path between two ports.
///
/// | bytes | field |
/// |---|---|
/// | 0..8 | service |
/// | 8..24, 24..40 | GIDs of destination and source |
/// | 40..42, 42..44 | LIDs of destination and source |
/// | 44..48 | raw traffic, flow label, hop limit |
/// | 48, 49 | traffic class; reversible, number of paths |
/// | 50..52, 52..54 | P_Key; QoS class, SL |
/// | 54, 55, 56 | MTU, rate, life time: a selector of 2 bits and a code |
/// | 57 | preference |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the table above")]
pub struct PathRecord {
    pub service_id: u64,
    pub dgid: Gid,
    pub sgid: Gid,
    pub dlid: u16,
    pub slid: u16,
    pub flow_and_hops: u32,
    pub traffic_class: u8,
    pub reversible_and_count: u8,
    pub pkey: u16,
    pub sl: u8,
    pub mtu: u8,
    pub rate: u8,
    pub life_time: u8,
    pub preference: u8,
}

/// The selector of a field that has exactly the value.
pub const EXACTLY: u8 = 2 << 6;

impl PathRecord {
    /// Bytes of the record.
    pub const LEN: usize = 64;
    /// The bit of [`PathRecord::reversible_and_count`] of a path that packets can take back.
    pub const REVERSIBLE: u8 = 0x80;

    /// Reads the record.
    ///
    /// # Errors
    ///
    /// `Truncated`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let service_id = from.u64()?;
        let (dgid, sgid) = (Gid(from.array()?), Gid(from.array()?));
        let (dlid, slid, flow_and_hops) = (from.u16()?, from.u16()?, from.u32()?);
        let [traffic_class, reversible_and_count] = from.array()?;
        let (pkey, class_and_sl) = (from.u16()?, from.u16()?);
        let [mtu, rate, life_time, preference] = from.array()?;
        Ok(Self {
            service_id,
            dgid,
            sgid,
            dlid,
            slid,
            flow_and_hops,
            traffic_class,
            reversible_and_count,
            pkey,
            sl: class_and_sl as u8 & 15,
            mtu,
            rate,
            life_time,
            preference,
        })
    }

    /// The record as bytes, with QoS class 0.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let out = &mut Writer::new(&mut bytes);
        out.u64(self.service_id);
        out.array(self.dgid.0);
        out.array(self.sgid.0);
        out.u16(self.dlid);
        out.u16(self.slid);
        out.u32(self.flow_and_hops);
        out.array([self.traffic_class, self.reversible_and_count]);
        out.u16(self.pkey);
        out.u16(u16::from(self.sl & 15));
        out.array([self.mtu, self.rate, self.life_time, self.preference]);
        bytes
    }
}

/// Components of [`McMemberRecord`] (IBA 1.4 §15.2.5.17).
#[expect(missing_docs, reason = "named as the fields")]
pub mod mc_member {
    pub const MGID: u64 = 1;
    pub const PORT_GID: u64 = 1 << 1;
    pub const QKEY: u64 = 1 << 2;
    pub const TRAFFIC_CLASS: u64 = 1 << 6;
    pub const PKEY: u64 = 1 << 7;
    pub const SL: u64 = 1 << 12;
    pub const FLOW_LABEL: u64 = 1 << 13;
    pub const JOIN_STATE: u64 = 1 << 16;
    /// What a request gives that makes a group.
    pub const CREATE: u64 = QKEY | TRAFFIC_CLASS | PKEY | SL | FLOW_LABEL;
    /// What every join and leave gives.
    pub const JOIN: u64 = MGID | PORT_GID | JOIN_STATE;
}

/// A port in a multicast group.
///
/// | bytes | field |
/// |---|---|
/// | 0..16, 16..32 | GIDs of the group and of the port |
/// | 32..36, 36..38 | Q_Key, multicast LID |
/// | 38, 39, 40..42 | MTU with selector, traffic class, P_Key |
/// | 42, 43 | rate and life time with selectors |
/// | 44..48 | SL (4 bits), flow label (20), hop limit (8) |
/// | 48 | scope (4 bits), join state (4): 1 full member, 2 non member, 4 only sends |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the table above")]
pub struct McMemberRecord {
    pub mgid: Gid,
    pub port_gid: Gid,
    pub qkey: u32,
    pub mlid: u16,
    pub mtu: u8,
    pub traffic_class: u8,
    pub pkey: u16,
    pub rate: u8,
    pub life_time: u8,
    pub sl_flow_hops: u32,
    pub scope: u8,
    pub join_state: u8,
}

impl McMemberRecord {
    /// Bytes of the record.
    pub const LEN: usize = 52;

    /// Reads the record.
    ///
    /// # Errors
    ///
    /// `Truncated`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Reader::new(bytes);
        let (mgid, port_gid) = (Gid(from.array()?), Gid(from.array()?));
        let (qkey, mlid) = (from.u32()?, from.u16()?);
        let [mtu, traffic_class] = from.array()?;
        let pkey = from.u16()?;
        let [rate, life_time] = from.array()?;
        let (sl_flow_hops, last) = (from.u32()?, from.u8()?);
        let (scope, join_state) = (last >> 4, last & 15);
        Ok(Self {
            mgid,
            port_gid,
            qkey,
            mlid,
            mtu,
            traffic_class,
            pkey,
            rate,
            life_time,
            sl_flow_hops,
            scope,
            join_state,
        })
    }

    /// The record as bytes.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let out = &mut Writer::new(&mut bytes);
        out.array(self.mgid.0);
        out.array(self.port_gid.0);
        out.u32(self.qkey);
        out.u16(self.mlid);
        out.array([self.mtu, self.traffic_class]);
        out.u16(self.pkey);
        out.array([self.rate, self.life_time]);
        out.u32(self.sl_flow_hops);
        out.array([self.scope << 4 | self.join_state & 15]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn records_come_back(bytes in proptest::collection::vec(any::<u8>(), PathRecord::LEN)) {
            let path = PathRecord::parse(&bytes).unwrap();
            prop_assert_eq!(PathRecord::parse(&path.emit()), Ok(path));
            let member = McMemberRecord::parse(&bytes).unwrap();
            prop_assert_eq!(&member.emit()[..49], &bytes[..49]);
        }
    }

    #[test]
    fn the_header_lies_between_the_one_of_rmpp_and_the_record() {
        let header = SaHeader { sm_key: 1, offset: 14, components: path::DLID };
        let mad = [&[0; 36][..], &header.emit()].concat();
        assert_eq!((mad.len(), SaHeader::parse(&mad)), (DATA, Ok(header)));
        assert_eq!(SaHeader::parse(&mad[..55]), Err(Malformed::Truncated));
    }
}
