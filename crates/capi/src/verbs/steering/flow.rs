//! Flow steering (ibv_create_flow(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use nic::steering::flow::{Flow, FlowId, FlowKind, Masked, Spec};
use rdma_core_abi::verbs::{self as v, ibv_counters, ibv_flow, ibv_flow_attr, ibv_flow_spec_hdr, ibv_qp};

use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::qp::object::Qp;
use crate::verbs::steering::counters;

/// Most specifications of a rule, as the kernel has it.
const MAX_SPECS: u8 = 10;

/// A rule as C sees it, and what it stands for.
#[repr(C)]
struct Rule {
    c: UnsafeCell<ibv_flow>,
    id: FlowId,
    device: Arc<nic::Device>,
    instance: Arc<Instance>,
}

/// ibv_create_flow(3), through the context's table: the frames that match go to a raw packet queue
/// pair. errno: EINVAL for other queue pairs and for what the man page does not allow, EOPNOTSUPP
/// for specifications and flags that are not built, EPERM without CAP_NET_RAW, ENOMEM at the limit.
pub(crate) unsafe extern "C" fn create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    ffi_guard::or_null(|| {
        // SAFETY: a queue pair of ours, by the man page's contract.
        let ours = unsafe { Qp::of(qp) };
        ours.instance.check()?;
        // SAFETY: the caller's attributes with the specifications after them, by the man page's
        // contract.
        let (flow, counters) = unsafe { convert(attr)? };
        // SAFETY: the caller's counters, or NULL.
        let counter = unsafe { counters::of(counters) };
        let id = ours.nic.steer_counted(flow, counter)?;
        let c = ibv_flow {
            comp_mask: 0,
            // SAFETY: as above.
            context: unsafe { (*qp).context },
            handle: ours.nic.qpn().get(),
        };
        let device = ours.nic.device().clone();
        let rule = Rule { c: c.into(), id, device, instance: ours.instance.clone() };
        Ok(Box::into_raw(Box::new(rule)).cast())
    })
}

/// `ibv_destroy_flow`, ibv_create_flow(3), through the context's table.
pub(crate) unsafe extern "C" fn destroy_flow(flow: *mut ibv_flow) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: made by `Box::into_raw` in `create_flow`, and no thread uses it any more, by the
        // man page's contract.
        let rule = unsafe { Box::from_raw(flow.cast::<Rule>()) };
        if rule.instance.is_ours() {
            rule.device.remove_flow(rule.id);
        }
        Ok(())
    })
}

/// The rule, and the counters that one of its specifications may name.
///
/// # Safety
///
/// Attributes as ibv_create_flow(3) describes them, with so many specifications after them.
unsafe fn convert(attr: *const ibv_flow_attr) -> Result<(Flow, *mut ibv_counters), Errno> {
    let invalid = Errno(libc::EINVAL);
    // SAFETY: as the caller says.
    let head = unsafe { attr.read_unaligned() };
    if head.comp_mask != 0 || head.port != 1 || head.num_of_specs > MAX_SPECS {
        return Err(invalid);
    }
    let known = v::IBV_FLOW_ATTR_FLAGS_DONT_TRAP | v::IBV_FLOW_ATTR_FLAGS_EGRESS;
    if head.flags & !known != 0 {
        return Err(invalid);
    }
    if head.flags & v::IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let mut flow = Flow {
        kind: FlowKind::from_code(head.type_).ok_or(invalid)?,
        priority: head.priority,
        specs: Vec::new(),
        drop: false,
        dont_trap: head.flags & v::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0,
    };
    // SAFETY: as the caller says.
    let mut at = unsafe { attr.add(1).cast::<u8>() };
    let mut counters: *mut ibv_counters = null_mut();
    for _ in 0..head.num_of_specs {
        // SAFETY: as the caller says; each begins with its type and size.
        unsafe {
            let hdr = at.cast::<ibv_flow_spec_hdr>().read_unaligned();
            match spec(at, hdr)? {
                Part::Header(spec) => flow.specs.push(spec),
                Part::Drop => flow.drop = true,
                // One set of counters a rule.
                Part::Count(named) if named.is_null() || !counters.is_null() => return Err(invalid),
                Part::Count(named) => counters = named,
            }
            at = at.add(hdr.size.into());
        }
    }
    Ok((flow, counters))
}

/// What a specification says.
enum Part {
    /// A header that frames must have.
    Header(Spec),
    /// Drop them.
    Drop,
    /// Count them.
    Count(*mut ibv_counters),
}

/// One specification.
///
/// # Safety
///
/// A specification of the type and size that its header says.
unsafe fn spec(at: *const u8, hdr: ibv_flow_spec_hdr) -> Result<Part, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        match hdr.type_ {
            v::IBV_FLOW_SPEC_ACTION_DROP => {
                read::<v::ibv_flow_spec_action_drop>(at, hdr.size)?;
                Ok(Part::Drop)
            }
            v::IBV_FLOW_SPEC_ACTION_COUNT => {
                let s: v::ibv_flow_spec_counter_action = read(at, hdr.size)?;
                Ok(Part::Count(s.counters))
            }
            _ => Ok(Part::Header(header(at, hdr)?)),
        }
    }
}

/// Reads a structure whose size the header has to say.
///
/// # Safety
///
/// As many bytes as that.
unsafe fn read<T: Copy>(at: *const u8, size: u16) -> Result<T, Errno> {
    if usize::from(size) != size_of::<T>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: as the caller says.
    Ok(unsafe { at.cast::<T>().read_unaligned() })
}

/// Values and mask of one field of a specification.
macro_rules! masked {
    ($s:ident.$field:ident) => {
        Masked { value: $s.val.$field, mask: $s.mask.$field }
    };
    ($s:ident.$field:ident as bytes) => {
        Masked { value: $s.val.$field.to_ne_bytes(), mask: $s.mask.$field.to_ne_bytes() }
    };
}

/// The specification of a header. EOPNOTSUPP for one that is not built.
///
/// # Safety
///
/// A specification of the type and size that its header says.
unsafe fn header(at: *const u8, hdr: ibv_flow_spec_hdr) -> Result<Spec, Errno> {
    let any = Masked { value: [0], mask: [0] };
    // SAFETY: as the caller says.
    let spec = unsafe {
        match hdr.type_ {
            v::IBV_FLOW_SPEC_ETH => {
                let s: v::ibv_flow_spec_eth = read(at, hdr.size)?;
                Spec::Eth {
                    dest: masked!(s.dst_mac),
                    source: masked!(s.src_mac),
                    ether_type: masked!(s.ether_type as bytes),
                    vlan_tag: masked!(s.vlan_tag as bytes),
                }
            }
            v::IBV_FLOW_SPEC_IPV4 => {
                let s: v::ibv_flow_spec_ipv4 = read(at, hdr.size)?;
                let (source, dest) = (masked!(s.src_ip as bytes), masked!(s.dst_ip as bytes));
                Spec::Ipv4 { source, dest, proto: any, tos: any, ttl: any, flags: any }
            }
            v::IBV_FLOW_SPEC_IPV4_EXT => {
                let s: v::ibv_flow_spec_ipv4_ext = read(at, hdr.size)?;
                Spec::Ipv4 {
                    source: masked!(s.src_ip as bytes),
                    dest: masked!(s.dst_ip as bytes),
                    proto: masked!(s.proto as bytes),
                    tos: masked!(s.tos as bytes),
                    ttl: masked!(s.ttl as bytes),
                    flags: masked!(s.flags as bytes),
                }
            }
            v::IBV_FLOW_SPEC_IPV6 => {
                let s: v::ibv_flow_spec_ipv6 = read(at, hdr.size)?;
                Spec::Ipv6 {
                    source: masked!(s.src_ip),
                    dest: masked!(s.dst_ip),
                    flow_label: masked!(s.flow_label as bytes),
                    next_header: masked!(s.next_hdr as bytes),
                    traffic_class: masked!(s.traffic_class as bytes),
                    hop_limit: masked!(s.hop_limit as bytes),
                }
            }
            v::IBV_FLOW_SPEC_TCP | v::IBV_FLOW_SPEC_UDP => {
                let s: v::ibv_flow_spec_tcp_udp = read(at, hdr.size)?;
                let (source, dest) = (masked!(s.src_port as bytes), masked!(s.dst_port as bytes));
                if hdr.type_ == v::IBV_FLOW_SPEC_TCP {
                    Spec::Tcp { source, dest }
                } else {
                    Spec::Udp { source, dest }
                }
            }
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        }
    };
    Ok(spec)
}
