//! An HTTP service by hyper, and its client, over any stream of bytes.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

/// `GET /` greets; `POST /echo` sends the body back; all else is 404.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/") => (StatusCode::OK, Bytes::from_static(b"hello over RDMA\n")),
        (&Method::POST, "/echo") => match request.into_body().collect().await {
            Ok(body) => (StatusCode::OK, body.to_bytes()),
            Err(_) => (StatusCode::BAD_REQUEST, Bytes::new()),
        },
        _ => (StatusCode::NOT_FOUND, Bytes::new()),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    Ok(response)
}

/// Serves one connection to its end.
///
/// # Errors
///
/// What the stream says, and requests that are none.
pub async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin) -> hyper::Result<()> {
    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await
}

/// A client's connection.
pub struct Client(SendRequest<Full<Bytes>>);

impl Client {
    /// Begins to speak HTTP; what drives the connection is a task of its own.
    ///
    /// # Errors
    ///
    /// What the stream says.
    pub async fn new(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> io::Result<Self> {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        verbena::spawn(connection)?;
        Ok(Self(sender))
    }

    /// Asks, and gives the status and the body of the answer.
    ///
    /// # Errors
    ///
    /// What the stream says, and answers that are none.
    pub async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> io::Result<(u16, Bytes)> {
        let request = Request::builder().method(method).uri(path).header("host", "server");
        let request = request.body(Full::new(body.into())).map_err(io::Error::other)?;
        let answer = self.0.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status().as_u16();
        Ok((status, answer.into_body().collect().await.map_err(io::Error::other)?.to_bytes()))
    }
}
