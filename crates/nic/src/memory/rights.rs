//! What a region, a window or a queue pair lets be done (ibv_reg_mr(3)).

/// Bits of `enum ibv_access_flags`.
#[expect(missing_docs, non_snake_case, reason = "the names are the header's; the module stands for a type")]
pub mod Access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
    pub const ZERO_BASED: u32 = 1 << 5;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const HUGETLB: u32 = 1 << 7;
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
    /// Bits from here up are hints that may be ignored (IBV_ACCESS_OPTIONAL_RANGE).
    pub const OPTIONAL: u32 = 0x3ff0_0000;
}

/// The rights in a set of [`Access`], as ibv_reg_mr(3) names them, without IBV_ACCESS_.
pub fn access_names(access: u32) -> impl Iterator<Item = &'static str> {
    const NAMES: [(u32, &str); 10] = [
        (Access::LOCAL_WRITE, "LOCAL_WRITE"),
        (Access::REMOTE_WRITE, "REMOTE_WRITE"),
        (Access::REMOTE_READ, "REMOTE_READ"),
        (Access::REMOTE_ATOMIC, "REMOTE_ATOMIC"),
        (Access::MW_BIND, "MW_BIND"),
        (Access::ZERO_BASED, "ZERO_BASED"),
        (Access::ON_DEMAND, "ON_DEMAND"),
        (Access::HUGETLB, "HUGETLB"),
        (Access::FLUSH_GLOBAL, "FLUSH_GLOBAL"),
        (Access::FLUSH_PERSISTENT, "FLUSH_PERSISTENT"),
    ];
    NAMES.into_iter().filter(move |(bit, _)| access & bit != 0).map(|(_, name)| name)
}

/// What the responder asks of a request beside rights, which the request fits or not whatever its
/// bytes are: bits of a [`Grant`](crate::peer_memory::Grant) that stand beside rights, where queue
/// pairs have none.
pub mod terms {
    use wire::Mtu;

    /// READs and atomics are answered: `max_dest_rd_atomic` is not 0 (IBA 1.4 §9.7.4.1).
    pub const RESOURCES: u32 = 1 << 11;
    /// All of them.
    pub const ALL: u32 = RESOURCES | 1 << 10 | 0xf0;

    /// Packets are cut by this path MTU, and by no other (IBA 1.4 §9.7.4.1).
    #[inline]
    pub const fn of_mtu(mtu: Mtu) -> u32 {
        match mtu {
            Mtu::M256 => 1 << 4,
            Mtu::M512 => 1 << 5,
            Mtu::M1024 => 1 << 6,
            Mtu::M2048 => 1 << 7,
            Mtu::M4096 => 1 << 10,
        }
    }
}
