//! TLS 1.3 by rustls. The certificates of `certificates/` are for examples: the server's key is
//! public.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const CA: &[u8] = include_bytes!("../certificates/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../certificates/server.pem");
const KEY: &[u8] = include_bytes!("../certificates/server.key");

/// The server's end over a stream.
///
/// # Errors
///
/// What the stream says, and where the client does not agree.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
) -> io::Result<tokio_rustls::server::TlsStream<S>> {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(KEY).map_err(io::Error::other)?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
    TlsAcceptor::from(Arc::new(config.map_err(io::Error::other)?)).accept(stream).await
}

/// The client's end; the server must prove that it is `name`.
///
/// # Errors
///
/// What the stream says, and where the server is not the one that it should be.
pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    name: &str,
) -> io::Result<tokio_rustls::client::TlsStream<S>> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(CA).map_err(io::Error::other)?;
    roots.add(ca).map_err(io::Error::other)?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}
