//! Bodies of requests and responses: nothing, bytes, or a stream.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// What a body may fail with.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body of either direction.
pub struct Body(Inner);

enum Inner {
    Empty,
    Full(Bytes),
    Stream { body: Pin<Box<dyn HttpBody<Data = Bytes, Error = BodyError> + Send>>, length: Option<u64> },
    Incoming(Incoming),
}

impl Body {
    /// No bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self(Inner::Empty)
    }

    /// These bytes.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self(if bytes.is_empty() { Inner::Empty } else { Inner::Full(bytes) })
    }

    /// A stream of pieces; with a length it is sent with `content-length`, else chunked.
    pub fn stream<S, E>(length: Option<u64>, stream: S) -> Self
    where
        S: Stream<Item = Result<Bytes, E>> + Send + 'static,
        E: Into<BodyError>,
    {
        let frames = stream.map(|piece| piece.map(Frame::data).map_err(Into::into));
        Self(Inner::Stream { body: Box::pin(StreamBody::new(frames)), length })
    }

    /// Another kind of body.
    pub fn wrap<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BodyError>,
    {
        let length = body.size_hint().exact();
        Self(Inner::Stream { body: Box::pin(body.map_err(Into::into)), length })
    }

    /// A second body with the same bytes, where that costs nothing: not of a stream.
    #[must_use]
    pub fn again(&self) -> Option<Self> {
        match &self.0 {
            Inner::Empty => Some(Self::empty()),
            Inner::Full(bytes) => Some(Self(Inner::Full(bytes.clone()))),
            _ => None,
        }
    }

    /// How many bytes are to come, where that is known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        self.size_hint().exact()
    }

    /// The next piece; `None` at the end. Each must come within `idle`.
    ///
    /// # Errors
    /// When the connection fails or nothing comes in time.
    pub async fn piece(&mut self, idle: Duration) -> Result<Option<Bytes>, ReadError> {
        loop {
            match tokio::time::timeout(idle, self.frame()).await {
                Err(_) => return Err(ReadError::Idle(idle)),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(ReadError::Broken(error)),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body, if it is not larger than `limit` and comes within `within`.
    ///
    /// # Errors
    /// When it is larger, late or broken off.
    pub async fn whole(mut self, limit: usize, within: Duration) -> Result<Bytes, ReadError> {
        if let Inner::Full(bytes) = &self.0 {
            return if bytes.len() > limit { Err(ReadError::TooLarge { limit }) } else { Ok(bytes.clone()) };
        }
        if self.length().is_some_and(|length| length > limit as u64) {
            return Err(ReadError::TooLarge { limit });
        }
        let collect = async {
            let Some(first) = self.piece(within).await? else { return Ok(Bytes::new()) };
            if first.len() > limit {
                return Err(ReadError::TooLarge { limit });
            }
            // Most bodies are one piece: no copy then.
            let Some(second) = self.piece(within).await? else { return Ok(first) };
            let mut all = BytesMut::with_capacity(first.len() + second.len());
            all.extend_from_slice(&first);
            let mut next = Some(second);
            while let Some(piece) = next {
                if all.len() + piece.len() > limit {
                    return Err(ReadError::TooLarge { limit });
                }
                all.extend_from_slice(&piece);
                next = self.piece(within).await?;
            }
            Ok(all.freeze())
        };
        tokio::time::timeout(within, collect).await.unwrap_or(Err(ReadError::Idle(within)))
    }
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Larger than allowed.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// What is allowed.
        limit: usize,
    },
    /// Nothing came for too long.
    #[error("the body did not come within {} s", .0.as_secs_f64())]
    Idle(Duration),
    /// The connection failed in the middle.
    #[error("the body broke off: {0}")]
    Broken(#[source] BodyError),
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self(Inner::Incoming(body))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Inner::Empty => Poll::Ready(None),
            Inner::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Inner::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Inner::Stream { body, .. } => body.as_mut().poll_frame(cx),
            Inner::Incoming(body) => {
                Pin::new(body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Empty => true,
            Inner::Full(_) => false,
            Inner::Stream { body, .. } => body.is_end_stream(),
            Inner::Incoming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Empty => SizeHint::with_exact(0),
            Inner::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Inner::Stream { length: Some(length), .. } => SizeHint::with_exact(*length),
            Inner::Stream { body, .. } => body.size_hint(),
            Inner::Incoming(body) => body.size_hint(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.length() {
            Some(length) => write!(f, "Body({length} bytes)"),
            None => f.write_str("Body(stream)"),
        }
    }
}
