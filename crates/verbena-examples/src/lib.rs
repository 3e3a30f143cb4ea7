//! What speaks `AsyncRead` and `AsyncWrite` speaks RDMA: HTTP by hyper, gRPC by tonic, TLS by
//! rustls. Nothing here knows of RDMA but for the type of the stream, and nothing needs a runtime.
//!
//! | file | what |
//! |---|---|
//! | `http` | a service and its client |
//! | `grpc` | the same of gRPC |
//! | `tls` | both ends of TLS, by certificates that are for examples only |
#![forbid(unsafe_code)]

pub mod grpc;
pub mod http;
pub mod tls;

/// Runs a function of a documentation test on simulated hosts, as `#[verbena::test]` before it
/// says. A documentation test has no `#[test]`: the attribute alone would leave the function out.
#[doc(hidden)]
#[macro_export]
macro_rules! simulate {
    (#[verbena::test $(($($args:tt)*))?]
    async fn $name:ident($($host:ident: Host),+) $(-> $output:ty)? $body:block) => {
        async fn $name($($host: Host),+) $(-> $output)? $body
        let (name, hosts) = (stringify!($name), [$(stringify!($host)),+]);
        let args = stringify!($($($args)*)?);
        verbena::sim::run_seeds(module_path!(), name, args, &hosts, |hosts| {
            let mut hosts = hosts.into_iter();
            $(let $host = hosts.next().expect("a host for each name");)+
            Box::pin(async move { verbena::sim::check($name($($host),+).await) })
        });
    };
}

/// Each page of the guide that has Rust code, and the crate's README: their blocks are
/// documentation tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../verbena/README.md")]
    struct Readme;
    #[doc = include_str!("../../../README.md")]
    struct Front;
    #[doc = include_str!("../../../guide/src/quick-start-rust.md")]
    struct QuickStartRust;
    #[doc = include_str!("../../../guide/src/simulation.md")]
    struct Simulation;
}
