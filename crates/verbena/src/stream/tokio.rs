//! tokio's traits.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{RdmaStream, ReadHalf, WriteHalf};

macro_rules! reads {
    ($($stream:ty),*) => {$(
        impl AsyncRead for $stream {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                let this = self.get_mut();
                if to.remaining() == 0 {
                    return Poll::Ready(Ok(()));
                }
                let from = ready!(this.reading.poll_fill_buf(&this.core, cx))?;
                let n = from.len().min(to.remaining());
                to.put_slice(&from[..n]);
                this.reading.consume(&this.core, n);
                Poll::Ready(Ok(()))
            }
        }

        impl AsyncBufRead for $stream {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                let this = self.get_mut();
                this.reading.poll_fill_buf(&this.core, cx)
            }
            fn consume(self: Pin<&mut Self>, n: usize) {
                let this = self.get_mut();
                this.reading.consume(&this.core, n);
            }
        }
    )*};
}
reads!(RdmaStream, ReadHalf);

macro_rules! writes {
    ($($stream:ty),*) => {$(
        impl AsyncWrite for $stream {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
                self.poll_write_vectored(cx, &[IoSlice::new(from)])
            }
            fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
                let this = self.get_mut();
                this.writing.poll_write_vectored(&this.core, cx, bufs)
            }
            fn is_write_vectored(&self) -> bool {
                true
            }
            /// Nothing is kept back.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }
            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                let this = self.get_mut();
                this.writing.poll_shutdown(&this.core, cx)
            }
        }
    )*};
}
writes!(RdmaStream, WriteHalf);
