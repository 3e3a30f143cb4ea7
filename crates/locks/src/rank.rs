//! The order of all locks.

// Where a lock of yours goes: after every lock that is held while it is taken, before every lock
// that is taken while it is held. If there is no such place, one of the two calls has to let go
// first.

macro_rules! ranks {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What a lock guards, and its place in the order: a thread that holds one takes only those
        /// further down.
        ///
        /// | group | why there |
        /// |---|---|
        /// | the C functions | they look up what a program names, then call everything else. Those under which nothing is called come last |
        /// | the process | the calls that make or end the instance may need anything of it. It stands among the C functions' locks: opening a device makes it |
        /// | receiving | a packet is dispatched under the token of the socket that brought it, so that packets keep their order |
        /// | connections | the connection manager's outputs move queue pairs and push events; nothing of a queue pair calls it |
        /// | the adapter | what a queue pair needs while it is locked comes after it: receives, then completions, then events |
        /// | the system | sockets and netlink: asked by all above, and calling none of them. The reactor is last, as every call that opens or closes a descriptor tells it |
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Rank {
            $($(#[$doc])+ $name,)+
        }

        impl Rank {
            /// All of them, the first to be taken first.
            pub const ALL: &[Rank] = &[$(Rank::$name,)+];
        }
    };
}

ranks! {
    /// The C functions: a connection manager's event is taken from its channel, and counted as
    /// handed out. Held while its identifier is made or brought up to date, which may open a
    /// device.
    HandingOutCmEvents,
    /// The C functions: the devices that the connection manager's functions have opened. Held while
    /// one is opened.
    OpenedDevices,
    /// The Rust crate: the provider over it, held while that is made.
    Provider,
    /// The process: its one instance, held while that is made.
    Instance,
    /// The process: what it has added to the counters below /sys/class/infiniband. Held while more
    /// is added, for which each of its queue pairs is looked at.
    PortCounters,
    /// The process: the engine thread's handle.
    Engine,
    /// The C functions: the list of devices. Held while it is made from the instance's.
    DeviceList,
    /// The Rust crate: the devices in use.
    UsedDevices,
    /// The Rust crate: a device's default domain, held while it is made.
    DefaultPd,
    /// The Rust crate: the registrations of a piece of memory, held while one is made.
    Registrations,
    /// The Rust crate: what a byte stream has received, and may send.
    Stream,
    /// The Rust crate: the queue pairs whose completions come to one queue. Held while these are
    /// taken to their queue pairs.
    SharedCompletions,
    /// The Rust crate: the operations of a queue pair that are under way, and the messages that
    /// came.
    Operations,
    /// The Rust crate: what has come to the receive queue of an XRC domain, and the tasks that wait
    /// for it or for an event of a device.
    Awaited,
    /// The Rust crate: the receives of a shared queue that are posted. Held while one is.
    SharedReceives,
    /// The Rust crate: what a connection or listener has come to.
    ConnectionState,
    /// librpma in Rust: the operations whose completions a queue gives.
    PostedCompletions,
    /// The Rust crate: the buffers of a pool that are free.
    FreeBuffers,
    /// The Rust crate over the system's libraries: an event is taken from the connection manager's
    /// channel, and given to its identifier.
    SystemEvents,
    /// The Rust crate over the system's libraries: identifiers by the addresses of their C objects.
    SystemIds,
    /// The Rust crate over the system's libraries: an identifier's C object. Held while the
    /// connection manager is called with it.
    SystemCall,
    /// The Rust crate over the system's libraries: what an identifier has come to.
    SystemId,
    /// The Rust crate over the system's libraries: events of an identifier that the program has not
    /// looked at.
    SystemInbox,
    /// The Rust crate over the system's libraries: a completion queue's C objects. Held while they
    /// are used, so that no thread destroys them.
    SystemCq,
    /// The Rust crate over the system's libraries: a queue pair's C object. Held while it is used,
    /// so that no thread destroys it.
    SystemQp,
    /// The Rust crate over the system's libraries: a shared receive queue's C object, likewise;
    /// also while a queue pair is made with it.
    SystemSrq,
    /// The Rust crate over the system's libraries: windows, and registrations that they may be
    /// bound to, by their numbers. Held while one is bound.
    SystemNames,
    /// The Rust crate over the system's libraries: a memory window's C object.
    SystemWindow,
    /// The Rust crate over the system's libraries: the address handles that a queue pair knows.
    SystemHandles,
    /// The Rust crate over the system's libraries: the devices that are known.
    SystemDevices,
    /// The Rust crate over the system's libraries: the objects that descriptors are for.
    SystemReactor,
    /// The C functions: C objects of one kind by their addresses. Held while one is looked at, so
    /// that it is not freed.
    Objects,
    /// The C functions: what a program does, for `verbena run --check`. Queue pairs are looked at
    /// meanwhile.
    Checked,
    /// The C functions: what such an object keeps alive.
    Kept,
    /// The C functions: a completion event is taken from its channel, and counted as handed out.
    /// The channel is looked at meanwhile.
    HandingOutCompletionEvents,
    /// The C functions: an asynchronous event is taken from its context, and counted as handed out.
    /// The call that destroys a completion queue holds this and the one above.
    HandingOutAsyncEvents,
    /// The C functions: events about an object that the program has not acknowledged.
    Unacked,
    /// The C functions: rdma_cm identifiers by the addresses of their C objects. Also taken when
    /// the last share of one is dropped.
    CmIds,
    /// The C functions: what one of them keeps for its calls: its channel, parameters for requests,
    /// resolved addresses.
    CmId,
    /// The C functions: event channels by the addresses of their C objects.
    EventChannels,
    /// The C functions: what the handles of protection domains and device memory name.
    Handles,
    /// The C functions: which value of flow counters goes where.
    CounterPoints,
    /// The C functions: rsockets by their descriptors, and sets of epoll that have them.
    Rsockets,
    /// The C functions: an rsocket. Held while its queue pair and its identifier are used.
    Rsocket,
    /// The C functions: a set of epoll that has rsockets.
    RsocketSet,

    /// Receiving: a socket's receive token, held while what was read is dispatched.
    ReceiveToken,
    /// Receiving: the buffer of a socket that takes in whole frames, likewise.
    FrameReceiver,
    /// Receiving: a ring's receive token. Held, too, while what was read is dispatched; a socket's
    /// may be held when it is taken.
    RingToken,

    /// Connections: the connection manager of all devices: its connections, listeners, resolutions.
    ConnectionManager,
    /// Connections: the streams of iWARP devices.
    Streams,
    /// Connections: the list of all identifiers.
    Identifiers,
    /// Connections: an rdma_cm identifier.
    Identifier,
    /// Connections: what unsolicited traffic has been granted.
    Unsolicited,
    /// Connections: the interfaces, as the environment told of them last.
    KnownInterfaces,

    /// The adapter: XRC domains by their files.
    XrcDomains,
    /// The adapter: multicast groups and their members. Held while the group's socket is opened.
    MulticastGroups,
    /// The adapter: flow rules. Held while frames begin to be received.
    FlowRules,
    /// The adapter: a queue pair.
    Qp,
    /// The adapter: a work queue of an indirection table.
    WorkQueue,
    /// The adapter: queue pairs by their numbers.
    Qps,
    /// The adapter: shared receive queues by their numbers: those of an XRC domain, and the numbers
    /// that a device has given out.
    Srqs,
    /// The adapter: the tags of a shared receive queue.
    TagList,
    /// The adapter: a shared receive queue.
    Srq,
    /// The adapter: a completion queue.
    Cq,
    /// The adapter: binding and invalidating of memory windows.
    Binding,
    /// The adapter: which queue pair uses a region without being counted.
    LockPinned,
    /// The adapter: the free slots of the table of memory regions.
    FreeSlots,
    /// The adapter: the regions whose small pages may become large.
    LargePages,
    /// The adapter: congestion windows by their destinations.
    CongestionWindows,
    /// The adapter: what befell queue pairs that are gone.
    Mishaps,
    /// The adapter: what the streams of queue pairs that are gone have carried.
    Carried,
    /// The adapter: the pace of a port.
    Pace,
    /// The adapter: queue pairs that hold an ACK back.
    DelayedAcks,
    /// The adapter: queue pairs that wait for their turn.
    RunQueue,
    /// The adapter: timers of queue pairs.
    Timers,
    /// The adapter: completion queues that hold an event back.
    ModeratedCqs,
    /// The adapter: the event queues that are told what concerns a device.
    Listeners,
    /// The adapter: objects that it lists for observers.
    Listed,
    /// The adapter: completion channels, event channels and asynchronous events: what a program
    /// fetches.
    EventQueue,
    /// The adapter: what waits until no lock is held.
    DeferredWork,
    /// The Rust crate: tasks of a simulation that are awake.
    Woken,
    /// The Rust crate: which tasks sleep until when.
    Sleepers,
    /// The adapter: numbers of queue pairs and communication ids. Held while a block of them is
    /// claimed.
    NumberBlocks,

    /// The system: what a fault holds up of a stream, or has lost.
    FaultyStream,
    /// The system: what has passed on the paths of queue pairs. Held while one of them is added.
    Meters,
    /// The system: work of a storage until a thread takes it.
    Storage,
    /// The system: which callers wait for which neighbour.
    Neighbours,
    /// The system: the socket for notifications about interfaces.
    InterfaceChanges,
    /// The system: routes and neighbours that were asked for.
    Routes,
    /// The system: the socket for questions to the kernel, held until the answer is there.
    NetlinkRequests,
    /// The system: the interfaces as they are now.
    Interfaces,
    /// The system: the list of sockets that receive.
    RxSockets,
    /// The system: whether the engine is told of a socket's packets.
    Armed,
    /// The system: the rings by which packets go to other processes. Held while one is offered.
    TxRings,
    /// The system: such a ring.
    TxRing,
    /// The system: buffers of a neighbour that are mapped here.
    TheirBuffers,
    /// The system: the list of rings by which packets come.
    RxRings,
    /// The system: the regions that other processes reach, while one is exported or revoked.
    Exportable,
    /// The system: the tables of exported regions. Held while a region is exported to a process.
    ExportTables,
    /// The system: the page by which another process knows this one.
    IdentityPage,
    /// The system: the sockets for whole frames.
    FrameSockets,
    /// The system: the processes that bear names we use.
    NameOwners,
    /// The system: a spare socket to connect to the next of them.
    SpareSocket,
    /// The system: the processes that are connected to a name of ours.
    Connections,
    /// The system: the sockets that send.
    TxSockets,
    /// The system: what the engine waits for.
    Reactor,
    /// The system: random bytes that no caller has had.
    Random,
    /// The system: the buffers that neighbours may map.
    Buffers,
    /// The system: the neighbours that were given such a buffer.
    BufferGiven,
    /// The system: packets that a fault holds up, and what faults remember.
    HeldPackets,
    /// The system: how far a captured stream was shown. Held while a segment of it is.
    ShownStream,
    /// The system: packets that wait for the collector of a capture.
    Capture,
}
