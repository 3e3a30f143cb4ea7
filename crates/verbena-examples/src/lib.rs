//! What speaks `AsyncRead` and `AsyncWrite` speaks RDMA: HTTP by hyper, gRPC by tonic, TLS by rustls. Nothing here knows of RDMA but for the type of the stream, and
//! nothing needs a runtime.
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
