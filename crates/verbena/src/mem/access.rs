//! What may be done to memory that peers reach: rights of a registration ([`Access`]), and which of
//! them a kind of memory may have at most ([`Rights`]).

/// Rights of `enum ibv_access_flags`, for memory that peers reach. Combined with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Peers may do nothing.
    pub const NONE: Self = Self(0);
    /// Peers may READ.
    pub const REMOTE_READ: Self = Self(nic::Access::REMOTE_READ);
    /// Peers may WRITE and ATOMIC WRITE.
    pub const REMOTE_WRITE: Self = Self(nic::Access::REMOTE_WRITE);
    /// Peers may CAS and FETCH ADD.
    pub const REMOTE_ATOMIC: Self = Self(nic::Access::REMOTE_ATOMIC);
    /// Peers may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(nic::Access::FLUSH_GLOBAL);
    /// Peers may FLUSH to persistence: only memory of [`Memory::open`](crate::Memory::open) and
    /// [`Memory::map_file`](crate::Memory::map_file).
    pub const FLUSH_PERSISTENT: Self = Self(nic::Access::FLUSH_PERSISTENT);

    pub(super) const ALL: Self = Self(
        nic::Access::REMOTE_READ
            | nic::Access::REMOTE_WRITE
            | nic::Access::REMOTE_ATOMIC
            | nic::Access::FLUSH_GLOBAL
            | nic::Access::FLUSH_PERSISTENT,
    );

    /// Whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// The rights of both.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    pub(super) const fn bits(self) -> u32 {
        self.0
    }
    pub(super) const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// The bits to register with: an adapter that writes for peers writes locally (ibv_reg_mr(3)).
    pub(crate) const fn registered(self) -> u32 {
        let changes = nic::Access::REMOTE_WRITE | nic::Access::REMOTE_ATOMIC;
        if self.0 & changes == 0 { self.0 } else { self.0 | nic::Access::LOCAL_WRITE }
    }
}

impl std::ops::BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The rights that peers and this process have to a [`Memory`](crate::Memory).
pub trait Rights: sealed::Sealed + Send + Sync + 'static {
    /// The rights that a registration may have at most.
    const MAX: Access;
    /// What a registration for our own operations has: bits of `enum ibv_access_flags`.
    #[doc(hidden)]
    const LOCAL: u32;
}

/// Peers may read; the content never changes.
#[derive(Debug)]
pub enum RemoteRead {}

/// Peers may write.
#[derive(Debug)]
pub enum RemoteWrite {}

/// Not the processor's: memory of a device, a dma-buf.
#[derive(Debug)]
pub enum Opaque {}

impl sealed::Sealed for RemoteRead {}
impl sealed::Sealed for RemoteWrite {}
impl sealed::Sealed for Opaque {}

impl Rights for RemoteRead {
    const MAX: Access = Access::REMOTE_READ;
    const LOCAL: u32 = 0;
}

impl Rights for RemoteWrite {
    const MAX: Access = Access::ALL;
    const LOCAL: u32 = nic::Access::LOCAL_WRITE;
}

impl Rights for Opaque {
    const MAX: Access = Access::ALL;
    const LOCAL: u32 = nic::Access::LOCAL_WRITE;
}

/// Data without pointers, padding or forbidden bit patterns: any type that derives zerocopy's
/// traits. They are those of zerocopy 0.8, and a new incompatible version of zerocopy comes only
/// with one of this crate ([versions](../guide/versions.html)).
///
/// ```
/// use verbena::Plain;
/// use zerocopy::{FromBytes, Immutable, IntoBytes};
///
/// #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
/// #[repr(C)]
/// struct Row {
///     key: u64,
///     value: [u8; 24],
/// }
///
/// fn is_plain<T: Plain>() {}
/// is_plain::<Row>();
/// ```
#[diagnostic::on_unimplemented(note = "derive zerocopy's FromBytes, IntoBytes, Immutable and KnownLayout")]
pub trait Plain: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Send + 'static {}
impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Send + 'static> Plain for T {}
