//! Agents: what a program registers at a umad port to send requests and to receive those of others.
//! What is refused, and by which errno, is as the kernel's `ib_register_mad_agent` has it.

use serde::{Deserialize, Serialize};
use wire::mad::class;

/// Agents of an open port at most (IB_UMAD_MAX_AGENTS).
pub const MAX_AGENTS: usize = 32;
/// Class versions that the kernel has tables for (MAX_MGMT_VERSION).
const MAX_VERSION: u8 = 0x83;
/// Classes from here on are none, but for directed routes (MAX_MGMT_CLASS).
const MAX_CLASS: u8 = 80;

/// What a program asks to be registered as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// 0 for subnet management, 1 for all other classes.
    pub qpn: u32,
    /// The management class; 0 for an agent that only sends requests of any.
    pub class: u8,
    /// The version of the class.
    pub version: u8,
    /// The OUI, for classes that have one.
    pub oui: u32,
    /// The methods of requests that the agent takes, a bit each.
    pub methods: [u64; 2],
    /// The version of RMPP that the agent wants from the port: 0 or 1.
    pub rmpp_version: u8,
    /// Whether the agent sends and acknowledges RMPP segments itself.
    pub user_rmpp: bool,
    /// Whether the port keeps the memberships in multicast groups that the agent asks for, as the
    /// kernel does for rdma_cm: those of all programs together, until the last one ends.
    pub keeps_memberships: bool,
}

/// Why an agent is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// EINVAL: a value that is none.
    #[error("{0} is not allowed")]
    Field(&'static str),
    /// EINVAL: another agent of the port takes a method of the class.
    #[error("another agent takes a method of the class")]
    InUse,
    /// ENOMEM: the program has as many agents as there can be.
    #[error("an open port has {MAX_AGENTS} agents at most")]
    TooMany,
    /// EINVAL: the program has no such agent, or has no port open.
    #[error("there is no such agent")]
    Unknown,
}

impl Refusal {
    /// The errno of the system call.
    pub const fn errno(self) -> i32 {
        const ENOMEM: i32 = 12;
        const EINVAL: i32 = 22;
        match self {
            Self::TooMany => ENOMEM,
            Self::Field(_) | Self::InUse | Self::Unknown => EINVAL,
        }
    }
}

impl Registration {
    /// Whether the values are possible.
    ///
    /// # Errors
    ///
    /// The field that is not.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.qpn > 1 {
            return Err(Refusal::Field("the queue pair"));
        }
        if self.rmpp_version > 1 {
            return Err(Refusal::Field("the RMPP version"));
        }
        if self.class == 0 {
            return if self.user_rmpp { Err(Refusal::Field("RMPP without a class")) } else { Ok(()) };
        }
        if self.oui >> 24 != 0 {
            return Err(Refusal::Field("the OUI"));
        }
        if self.version >= MAX_VERSION {
            return Err(Refusal::Field("the class version"));
        }
        if self.class >= MAX_CLASS && self.class != class::SUBN_DIRECTED_ROUTE {
            return Err(Refusal::Field("the class"));
        }
        if class::has_oui(self.class) && self.oui == 0 {
            return Err(Refusal::Field("the OUI"));
        }
        if self.rmpp_version != 0 && !class::has_rmpp(self.class) {
            return Err(Refusal::Field("RMPP in this class"));
        }
        if class::is_smp(self.class) != (self.qpn == 0) {
            return Err(Refusal::Field("the queue pair of this class"));
        }
        Ok(())
    }

    /// Whether a request goes to this agent.
    pub(crate) fn takes(&self, class: u8, version: u8, method: u8, oui: u32) -> bool {
        let is_class = self.class == class && self.version == version;
        let is_oui = !class::has_oui(class) || self.oui == oui;
        is_class && is_oui && self.methods[usize::from(method >> 6 & 1)] >> (method & 63) & 1 != 0
    }

    /// Whether both would take a request of some method.
    pub(crate) fn collides(&self, other: &Self) -> bool {
        let same = self.class == other.class
            && self.version == other.version
            && (!class::has_oui(self.class) || self.oui == other.oui);
        same && self.methods.iter().zip(other.methods).any(|(one, two)| one & two != 0)
    }

    /// Whether the port segments and assembles long messages for the agent.
    pub(crate) const fn has_kernel_rmpp(&self) -> bool {
        self.rmpp_version == 1 && !self.user_rmpp
    }
}
