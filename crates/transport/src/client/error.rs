//! What may go wrong for who asks, told apart by what a person would do about it.

use crate::body::ReadError;
use crate::tls::Refused;
use polder_api::Problem;
use rustls::AlertDescription;
use std::error::Error as StdError;
use std::io;
use std::time::Duration;

/// Why a request has no (good) answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there: not resolved, refused, no route, no socket.
    #[error("cannot reach {to}: {source}")]
    Unreachable {
        /// Where.
        to: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// This side does not accept the other's certificate.
    #[error("refused to talk to {to}: {why}{}", intercepted(why))]
    ServerRefused {
        /// Where.
        to: String,
        /// What is wrong with the certificate.
        #[source]
        why: Refused,
    },
    /// The other side does not accept this side's certificate.
    #[error("{to} refuses this certificate: {}", alert_words(*.alert))]
    ClientRefused {
        /// Where.
        to: String,
        /// What it answered.
        alert: AlertDescription,
    },
    /// The handshake failed otherwise; often it is no TLS port.
    #[error("TLS with {to} failed: {why}")]
    Handshake {
        /// Where.
        to: String,
        /// What happened.
        why: String,
    },
    /// The proxy is the trouble.
    #[error("proxy {proxy}: {why}")]
    Proxy {
        /// Its address, without credentials.
        proxy: String,
        /// What is wrong.
        #[source]
        why: ProxyProblem,
    },
    /// An answer that is not 2xx.
    #[error("{problem}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server says.
        problem: Box<Problem>,
    },
    /// The connection ended before the answer; whether the request arrived is not known.
    #[error("the connection to {to} broke before an answer: {why}")]
    Broken {
        /// Where.
        to: String,
        /// What happened.
        why: String,
    },
    /// No answer in time.
    #[error("{to} did not answer within {} s", .after.as_secs_f64())]
    TimedOut {
        /// Where.
        to: String,
        /// How long was waited.
        after: Duration,
    },
    /// The answer's body could not be read.
    #[error("answer of {to}: {source}")]
    Body {
        /// Where.
        to: String,
        /// What happened.
        #[source]
        source: ReadError,
    },
    /// The answer is not what it should be.
    #[error("answer of {to}: {why}")]
    Protocol {
        /// Where.
        to: String,
        /// What is wrong.
        why: String,
    },
    /// The request cannot be sent as it is.
    #[error("request {path:?}: {why}")]
    Request {
        /// Its path.
        path: String,
        /// What is wrong.
        why: String,
    },
}

/// What a proxy may say or fail to say.
#[derive(Debug, thiserror::Error)]
pub enum ProxyProblem {
    /// Nobody is there.
    #[error("cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// It wants credentials.
    #[error("wants credentials (407); give them as http://USER:PASSWORD@HOST:PORT")]
    NoCredentials,
    /// It does not take these.
    #[error("does not accept the credentials of user {0:?} (407)")]
    BadCredentials(String),
    /// It will not connect there.
    #[error("will not connect to {to}: {status} {reason}")]
    Refused {
        /// Where.
        to: String,
        /// The HTTP status.
        status: u16,
        /// Its words.
        reason: String,
    },
    /// It does not speak HTTP.
    #[error("does not answer like an HTTP proxy: {0}")]
    NotAProxy(String),
    /// It does not answer.
    #[error("did not answer CONNECT within {} s", .0.as_secs())]
    TimedOut(Duration),
}

impl ClientError {
    /// Whether trying again later may help without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::TimedOut { .. } | Self::Body { .. } => {
                true
            }
            Self::Proxy { why, .. } => matches!(
                why,
                ProxyProblem::Unreachable(_)
                    | ProxyProblem::TimedOut(_)
                    | ProxyProblem::Refused { status: 500..=599, .. }
            ),
            Self::Status { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// What the server answered, if it answered.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Status { problem, .. } => Some(problem),
            _ => None,
        }
    }
}

fn intercepted(why: &Refused) -> &'static str {
    match why {
        Refused::Identity(crate::identity::IdentityError::Foreign { .. }) | Refused::NotPinned { .. } => {
            "; a proxy that opens TLS may stand in between, or this is another federation's server"
        }
        _ => "",
    }
}

fn alert_words(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRevoked => "it is revoked".to_owned(),
        AlertDescription::CertificateExpired => "it is expired".to_owned(),
        AlertDescription::UnknownCA => "it is not of the CA of that federation".to_owned(),
        AlertDescription::CertificateRequired => "none was shown and one is required".to_owned(),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate => "it is of a form that is not accepted".to_owned(),
        other => format!("{other:?}"),
    }
}

/// Finds a cause of a type in an error, also where it is wrapped in I/O errors (whose `source` skips it).
pub(super) fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        if let Some(inner) = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            let inner: &(dyn StdError + 'static) = inner;
            if let Some(found) = find::<T>(inner) {
                return Some(found);
            }
        }
        at = error.source();
    }
    None
}

/// What an error on a TLS stream means.
pub(super) fn of_tls(to: &str, error: &(dyn StdError + 'static)) -> Option<ClientError> {
    let to = to.to_owned();
    match find::<rustls::Error>(error)? {
        rustls::Error::AlertReceived(alert) if is_about_certificates(*alert) => {
            Some(ClientError::ClientRefused { to, alert: *alert })
        }
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) => {
            match other.0.downcast_ref::<Refused>() {
                Some(why) => Some(ClientError::ServerRefused { to, why: why.clone() }),
                None => Some(ClientError::Handshake { to, why: other.to_string() }),
            }
        }
        other => Some(ClientError::Handshake { to, why: other.to_string() }),
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError
    )
}
