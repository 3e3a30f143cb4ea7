//! A gRPC service by tonic, and its client, over any stream of bytes. What `tonic-build` would
//! write from
//!
//! ```proto
//! package example;
//! message Text { string text = 1; }
//! message Word { string word = 1; uint32 at = 2; }
//! message Count { uint32 words = 1; uint64 bytes = 2; }
//! service Words {
//!   rpc Total(Text) returns (Count);
//!   rpc Split(Text) returns (stream Word);
//! }
//! ```
//!
//! is written down here, so that the build needs no protoc.

use std::convert::Infallible;
use std::future::Future;
use std::io;

use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::http::uri::PathAndQuery;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::codegen::tokio_stream;
use tonic::codegen::{BoxFuture, BoxStream, Context, Poll, Service};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

/// What is asked about.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Text {
    /// Words with spaces between them.
    #[prost(string, tag = "1")]
    pub text: String,
}

/// A word of the text.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Word {
    /// Without spaces.
    #[prost(string, tag = "1")]
    pub word: String,
    /// The word's number, from 0.
    #[prost(uint32, tag = "2")]
    pub at: u32,
}

/// How much there is of it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Count {
    /// Words.
    #[prost(uint32, tag = "1")]
    pub words: u32,
    /// Bytes, spaces included.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
}

const TOTAL: &str = "/example.Words/Total";
const SPLIT: &str = "/example.Words/Split";

// ---- the service ----

struct Total;
struct Split;

impl Service<tonic::Request<Text>> for Total {
    type Response = tonic::Response<Count>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async move {
            let Text { text } = request.into_inner();
            if text.is_empty() {
                return Err(Status::invalid_argument("there is no text"));
            }
            let words = text.split_whitespace().count() as u32;
            Ok(tonic::Response::new(Count { words, bytes: text.len() as u64 }))
        })
    }
}

impl Service<tonic::Request<Text>> for Split {
    type Response = tonic::Response<BoxStream<Word>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }
    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async move {
            let Text { text } = request.into_inner();
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            let words = (0..).zip(words).map(|(at, word)| Ok(Word { word, at }));
            Ok(tonic::Response::new(Box::pin(tokio_stream::iter(words)) as BoxStream<Word>))
        })
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        TOTAL => tonic::server::Grpc::new(ProstCodec::default()).unary(Total, request).await,
        SPLIT => tonic::server::Grpc::new(ProstCodec::default()).server_streaming(Split, request).await,
        path => Status::new(Code::Unimplemented, format!("there is no {path}")).into_http(),
    })
}

/// Serves one connection to its end.
///
/// # Errors
///
/// What the stream says, and what is no HTTP/2.
pub async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) -> hyper::Result<()> {
    http2::Builder::new(Tasks).serve_connection(TokioIo::new(stream), service_fn(answer)).await
}

/// Tasks of whatever runs: of a simulated host, or threads.
#[derive(Clone)]
struct Tasks;

impl<F: Future<Output: Send + 'static> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        // Where there is no thread for it, it is dropped, and its request is reset.
        _ = verbena::spawn(task);
    }
}

// ---- the client ----

/// A client's connection.
pub struct Client(tonic::client::Grpc<Channel>);

/// HTTP/2 as tonic wants it.
struct Channel(SendRequest<Body>);

impl Service<Request<Body>> for Channel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<Response<Incoming>, hyper::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(cx)
    }
    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

impl Client {
    /// Begins to speak HTTP/2; what drives the connection is a task of its own.
    ///
    /// # Errors
    ///
    /// What the stream says.
    pub async fn new(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Self> {
        let (sender, connection) = hyper::client::conn::http2::handshake(Tasks, TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        verbena::spawn(connection)?;
        let origin = Uri::from_static("http://server");
        Ok(Self(tonic::client::Grpc::with_origin(Channel(sender), origin)))
    }

    /// Words and bytes of a text.
    ///
    /// # Errors
    ///
    /// What the service answers: `InvalidArgument` for no text. `Unavailable` where the stream has
    /// ended.
    pub async fn total(&mut self, text: &str) -> Result<Count, Status> {
        self.ready().await?;
        let request = tonic::Request::new(Text { text: text.to_owned() });
        let path = PathAndQuery::from_static(TOTAL);
        Ok(self.0.unary(request, path, ProstCodec::default()).await?.into_inner())
    }

    /// The text's words, one after the other.
    ///
    /// # Errors
    ///
    /// Likewise.
    pub async fn split(&mut self, text: &str) -> Result<Streaming<Word>, Status> {
        self.ready().await?;
        let request = tonic::Request::new(Text { text: text.to_owned() });
        let path = PathAndQuery::from_static(SPLIT);
        Ok(self.0.server_streaming(request, path, ProstCodec::default()).await?.into_inner())
    }

    /// What the service does not know.
    ///
    /// # Errors
    ///
    /// `Unimplemented`.
    pub async fn unknown(&mut self) -> Result<Count, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static("/example.Words/Other");
        let request = tonic::Request::new(Text::default());
        Ok(self.0.unary(request, path, ProstCodec::default()).await?.into_inner())
    }

    async fn ready(&mut self) -> Result<(), Status> {
        self.0.ready().await.map_err(|e| Status::unavailable(e.to_string()))
    }
}
