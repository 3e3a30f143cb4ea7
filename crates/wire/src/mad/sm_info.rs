//! SMInfo (IBA 1.4 §14.2.5.13): what a subnet manager says of itself.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8, 8..16 | GUID of its port, SM_Key |
//! | 16..20 | a count that grows while it is alive |
//! | 20 | priority, state |

use super::smp::Data;
use crate::Malformed;
use crate::bytes::{Reader, Writer};

/// The state of a subnet manager (IBA 1.4 §14.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SmState {
    /// A master has switched it off.
    #[default]
    NotActive = 0,
    /// Looks which other managers there are.
    Discovering = 1,
    /// Watches the master.
    Standby = 2,
    /// Configures the subnet.
    Master = 3,
}

/// What a subnet manager says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmInfo {
    /// The GUID of its port.
    pub guid: u64,
    /// The key by which managers trust each other.
    pub sm_key: u64,
    /// Grows while the manager is alive.
    pub activity: u32,
    /// 0 to 15; the highest is the master.
    pub priority: u8,
    /// The state.
    pub state: SmState,
}

impl SmInfo {
    /// The modifiers of a Set (IBA 1.4 table 160): a master hands its task over.
    pub const HANDOVER: u32 = 1;
    /// A manager has taken the task.
    pub const ACKNOWLEDGE: u32 = 2;
    /// A master switches a standby off.
    pub const DISABLE: u32 = 3;
    /// A master switches it on again.
    pub const STANDBY: u32 = 4;
    /// A master has it look again which managers there are.
    pub const DISCOVER: u32 = 5;

    /// Reads the attribute.
    ///
    /// # Errors
    ///
    /// `Field` for a state that is none.
    pub fn parse(data: &Data) -> Result<Self, Malformed> {
        let from = &mut Reader::new(data);
        let (guid, sm_key, activity, last) = (from.u64()?, from.u64()?, from.u32()?, from.u8()?);
        let state = match last & 15 {
            0 => SmState::NotActive,
            1 => SmState::Discovering,
            2 => SmState::Standby,
            3 => SmState::Master,
            _ => return Err(Malformed::Field("SM state")),
        };
        Ok(Self { guid, sm_key, activity, priority: last >> 4, state })
    }

    /// The attribute as bytes.
    pub fn emit(&self) -> Data {
        let mut data = [0; 64];
        let out = &mut Writer::new(&mut data);
        out.u64(self.guid);
        out.u64(self.sm_key);
        out.u32(self.activity);
        out.array([self.priority << 4 | self.state as u8]);
        data
    }
}
