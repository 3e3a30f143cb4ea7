//! What a path of the connection manager says to a queue pair: its address vector and partition.

use nic::AddressVector;
use nic::device::Port;
use wire::{LidAddress, Pkey};

use crate::Error;

/// The address vector of a path from a port.
///
/// # Errors
///
/// `Value`: the port does not bear the path's source any more.
pub(crate) fn address_vector(port: &Port, path: &cm::PathRecord) -> Result<AddressVector, Error> {
    let source = path.local_ip();
    let sgid_index = match path.lids {
        Some(_) => port.gids.index_of_gid(path.local_gid).or(Some(0)),
        None => port.gids.index_of(source),
    };
    let sgid_index =
        sgid_index.ok_or(Error::address("the device does not bear the address any more", source))?;
    let lid = |end: usize| path.lids.map(|lids| lids[end]);
    let needs_grh = port.ib.as_ref().is_none_or(|ib| ib.grh_required) || path.hop_limit > 1;
    Ok(AddressVector {
        dgid: path.remote_gid,
        sgid_index,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.service_level,
        dlid: lid(1).map_or(0, LidAddress::lid),
        src_path_bits: match (lid(0), &port.ib) {
            (Some(ours), Some(ib)) => ib.path_bits(ours.lid()),
            _ => 0,
        },
        static_rate: path.packet_rate,
        is_global: needs_grh,
        port: 1,
    })
}

/// The index of a port's P_Key in the partition of another: that of a full member, else of a
/// limited one, as the kernel looks for it.
///
/// # Errors
///
/// `Value`: the port is no member of the partition.
pub(crate) fn pkey_index(port: &Port, pkey: Pkey) -> Result<u16, Error> {
    const FULL: u16 = 0x8000;
    let position = |wanted: u16| port.pkeys().iter().position(|own| own.0 == wanted);
    let found = position(pkey.0 | FULL).or_else(|| position(pkey.0 & !FULL));
    let index = found.and_then(|index| u16::try_from(index).ok());
    index.ok_or(Error::hex("the port is no member of the partition", pkey.0))
}
