//! The private data of messages: in a request the RDMA IP CM header (annex A11), then what the
//! program says.

use std::net::IpAddr;

use wire::mad::IpCm;

use crate::event::Error;
use crate::parameters::PathRecord;

/// The private data of a REQ or SIDR_REQ: the RDMA IP CM header, then the program's. Between GIDs
/// that are no IP addresses there is no header (`AF_IB`).
pub(super) fn data_with_header<const N: usize>(
    path: &PathRecord,
    source_port: u16,
    program: &[u8],
) -> Result<[u8; N], Error> {
    if path.lids.is_some() && path.ips.is_none() {
        return data(program);
    }
    let header = IpCm { source: path.local_ip(), source_port, dest: path.remote_ip() };
    let mut data = [0; N];
    let (front, rest) = data.split_at_mut(IpCm::LEN);
    front.copy_from_slice(&header.emit());
    fill(rest, program)?;
    Ok(data)
}

/// The program's private data, filled up with zeros.
pub(super) fn data<const N: usize>(program: &[u8]) -> Result<[u8; N], Error> {
    let mut data = [0; N];
    fill(&mut data, program)?;
    Ok(data)
}

fn fill(room: &mut [u8], data: &[u8]) -> Result<(), Error> {
    let most = room.len();
    room.get_mut(..data.len()).ok_or(Error::PrivateData(data.len(), most))?.copy_from_slice(data);
    Ok(())
}

/// The IP addresses of a request between LIDs: its receiver's, then its sender's, as the header
/// before the private data says. Others are those of the packet.
pub(super) fn ips_of(way: &PathRecord, private_data: &[u8]) -> Option<[IpAddr; 2]> {
    let header = IpCm::parse(private_data).ok().filter(|_| way.lids.is_some())?;
    Some([header.dest, header.source])
}
