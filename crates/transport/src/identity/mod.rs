//! Who is who: the project CA, the certificates and kits it gives out, and the signatures made with them.
//!
//! ```text
//! project CA (ca/, kept by the operator of the federation)
//!   |- server  CN=<name> O=<org> OU=server       serverAuth and clientAuth, names and addresses as SAN
//!   |- site    CN=<name> O=<org> OU=site         clientAuth
//!   '- user    CN=<name> O=<org> OU=user/<role>  clientAuth
//! worker CA (one per parent, local, see [`worker`])
//!   |- the parent's worker listener              serverAuth
//!   '- worker  CN=<launch id> OU=worker          clientAuth, as short as the job
//! ```
//! Certificates come straight from their CA: there are no intermediates, and none are accepted. Nothing
//! in here looks at a clock; whoever checks a certificate says for which time.

pub mod authority;
pub(crate) mod files;
pub mod key;
pub mod kit;
pub mod provision;
pub mod request;
pub mod revocation;
pub mod trust;
pub mod worker;

pub use authority::{Authority, AuthorityError};
pub use files::FileError;
pub use key::{KeyError, PrivateKey, PublicKey, Signature};
pub use kit::{Kit, KitError, KitInfo};
pub use provision::{Participant, ProjectPlan, ProvisionError, Provisioned, provision};
pub use request::{CertificateRequest, RequestError};
pub use revocation::{RevocationError, RevocationList, Revocations, Revoked};
pub use trust::{IdentityError, Trust};
pub use worker::{WorkerAuthority, WorkerAuthorityError, WorkerCertificate, WorkerKey};

use jiff::Timestamp;
use polder_words::{OrgName, SiteName, UserName, UserRole};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// What kind of participant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The federation's server.
    Server,
    /// A site.
    Site,
    /// A person.
    User,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Server => "server",
            Self::Site => "site",
            Self::User => "user",
        })
    }
}

/// A participant of the federation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// The server, by its name in `project.yml`.
    Server(SiteName),
    /// A site.
    Site(SiteName),
    /// A person and what they may do.
    User(UserName, UserRole),
}

impl Principal {
    /// Server, site or user.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Server(_) => Kind::Server,
            Self::Site(_) => Kind::Site,
            Self::User(..) => Kind::User,
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Server(name) | Self::Site(name) => name.as_str(),
            Self::User(name, _) => name.as_str(),
        }
    }

    /// A user's role.
    #[must_use]
    pub fn role(&self) -> Option<UserRole> {
        match self {
            Self::User(_, role) => Some(*role),
            _ => None,
        }
    }

    fn unit(&self) -> String {
        match self {
            Self::User(_, role) => format!("user/{role}"),
            _ => self.kind().to_string(),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.name())
    }
}

/// A certificate's number, in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Serial(Box<str>);

/// A text is no serial number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a certificate serial number: 2 to 40 lower-case hexadecimal digits")]
pub struct SerialError(String);

impl Serial {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        use fmt::Write as _;
        let mut text = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text.into())
    }

    /// The digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Serial {
    type Err = SerialError;
    fn from_str(text: &str) -> Result<Self, SerialError> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits && (2..=40).contains(&text.len()) {
            Ok(Self(text.into()))
        } else {
            Err(SerialError(text.chars().take(80).collect()))
        }
    }
}

impl TryFrom<String> for Serial {
    type Error = SerialError;
    fn try_from(text: String) -> Result<Self, SerialError> {
        text.parse()
    }
}

impl From<Serial> for String {
    fn from(serial: Serial) -> Self {
        serial.0.into()
    }
}

/// What a certificate says about its holder. Only [`Trust::check`] makes one that may be believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Who.
    pub principal: Principal,
    /// Of which organisation.
    pub org: OrgName,
    /// The certificate's number, for revocation.
    pub serial: Serial,
    /// Until when it is valid.
    pub not_after: Timestamp,
    /// BLAKE3 of the whole certificate (DER).
    pub fingerprint: polder_words::Hash,
}

impl Identity {
    /// Server, site or user.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.principal.kind()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.principal.name()
    }

    /// A user's role.
    #[must_use]
    pub fn role(&self) -> Option<UserRole> {
        self.principal.role()
    }

    /// The site's name, when it is a site.
    #[must_use]
    pub fn site(&self) -> Option<&SiteName> {
        match &self.principal {
            Principal::Site(name) => Some(name),
            _ => None,
        }
    }

    /// The user's name, when it is a user.
    #[must_use]
    pub fn user(&self) -> Option<&UserName> {
        match &self.principal {
            Principal::User(name, _) => Some(name),
            _ => None,
        }
    }

    /// Reads what a certificate says, without asking whether it is genuine.
    ///
    /// # Errors
    /// When it is no certificate or its subject is not one of the forms above.
    pub fn from_der(der: &[u8]) -> Result<Self, IdentityError> {
        let certificate = parse(der)?;
        let subject = Subject::of(&certificate)?;
        let malformed = |what: String| IdentityError::Subject { found: subject.to_string(), why: what };
        let name = |error: polder_words::NameError| malformed(error.to_string());
        let principal = match subject.unit.split_once('/') {
            None if subject.unit == "server" => {
                Principal::Server(SiteName::new(&subject.name).map_err(name)?)
            }
            None if subject.unit == "site" => Principal::Site(SiteName::new(&subject.name).map_err(name)?),
            Some(("user", role)) => {
                Principal::User(UserName::new(&subject.name).map_err(name)?, role.parse().map_err(name)?)
            }
            _ => return Err(malformed("OU is not server, site or user/<role>".to_owned())),
        };
        Ok(Self {
            principal,
            org: OrgName::new(subject.org.as_deref().unwrap_or_default()).map_err(name)?,
            serial: Serial::from_bytes(certificate.raw_serial()),
            not_after: not_after(&certificate)?,
            fingerprint: polder_words::Hash(*blake3::hash(der).as_bytes()),
        })
    }
}

pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, IdentityError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err(IdentityError::Malformed("bytes follow the certificate".to_owned())),
        Err(error) => Err(IdentityError::Malformed(error.to_string())),
    }
}

pub(crate) fn not_after(certificate: &X509Certificate<'_>) -> Result<Timestamp, IdentityError> {
    Timestamp::from_second(certificate.validity().not_after.timestamp())
        .map_err(|error| IdentityError::Malformed(error.to_string()))
}

/// The parts of a subject that Polder's certificates have.
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) org: Option<String>,
    pub(crate) unit: String,
}

impl Subject {
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Result<Self, IdentityError> {
        let subject = certificate.subject();
        let shown = || subject.to_string().chars().take(300).collect::<String>();
        // Exactly one of each: of two names, different readers would believe different ones.
        let mut name = None;
        let mut org = None;
        let mut unit = None;
        for attribute in subject.iter_attributes() {
            use x509_parser::oid_registry as oid;
            let slot = if *attribute.attr_type() == oid::OID_X509_COMMON_NAME {
                &mut name
            } else if *attribute.attr_type() == oid::OID_X509_ORGANIZATION_NAME {
                &mut org
            } else if *attribute.attr_type() == oid::OID_X509_ORGANIZATIONAL_UNIT {
                &mut unit
            } else {
                continue;
            };
            let text = attribute.as_str().map_err(|error| IdentityError::Malformed(error.to_string()))?;
            if slot.replace(text.to_owned()).is_some() {
                return Err(IdentityError::Subject {
                    found: shown(),
                    why: "a part stands in it twice".to_owned(),
                });
            }
        }
        match (name, unit) {
            (Some(name), Some(unit)) => Ok(Self { name, org, unit }),
            _ => Err(IdentityError::Subject { found: shown(), why: "it lacks CN or OU".to_owned() }),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CN={}", self.name)?;
        if let Some(org) = &self.org {
            write!(f, ", O={org}")?;
        }
        write!(f, ", OU={}", self.unit)
    }
}
