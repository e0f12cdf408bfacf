//! Provisioning: from a plan of the federation to a CA and one kit a participant.
//!
//! ```text
//! OUT/ca/            the project CA, for the operator alone
//! OUT/kits/NAME/     a kit each, to be brought to its owner
//! ```
//! Incremental: a participant that has a kit keeps it byte for byte; only new ones are added. Each kit
//! is made under a temporary name and renamed, so that one that is there is whole.

use super::authority::{Authority, AuthorityError, days_after};
use super::files::{self, FileError};
use super::key::{DOMAIN_KIT, KeyError, PrivateKey};
use super::kit::{KitError, KitInfo};
use super::request::{CertificateRequest, RequestError};
use super::{Identity, IdentityError, Kind, Principal};
use crate::endpoint::Endpoint;
use jiff::Timestamp;
use polder_words::OrgName;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Days a participant's certificate is valid when the plan does not say.
pub const DEFAULT_DAYS: u32 = 3 * 365;

/// Who takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Participant {
    /// Name, kind and role.
    pub principal: Principal,
    /// Organisation.
    pub org: OrgName,
    /// The server's DNS names and addresses beside the one in its URL.
    pub hosts: Vec<String>,
    /// A certificate request in PEM, when the participant made its key itself.
    pub request: Option<String>,
}

/// The federation, as far as identities go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectPlan {
    /// Its name.
    pub federation: String,
    /// Where participants find the server.
    pub server: Endpoint,
    /// Days a certificate is valid.
    pub days: u32,
    /// Everybody; exactly one is the server.
    pub participants: Vec<Participant>,
}

/// What provisioning did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provisioned {
    /// Kits that were made.
    pub added: Vec<Principal>,
    /// Kits that were there and stay as they are.
    pub kept: Vec<Principal>,
    /// What the plan says now and a kept kit says otherwise, and what soon expires, in words.
    pub differing: Vec<String>,
}

/// Why provisioning stopped. What was made before stays; running it again goes on.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The CA.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A kit that is there.
    #[error(transparent)]
    Kit(#[from] KitError),
    /// A certificate request.
    #[error("{principal}: {source}")]
    Request {
        /// Whose.
        principal: Principal,
        /// What is wrong.
        #[source]
        source: RequestError,
    },
    /// Two participants share a name.
    #[error(
        "the name {0:?} stands twice among the participants; names are unique across servers, sites and users"
    )]
    Twice(String),
    /// Not exactly one server.
    #[error("{0} participants are servers; exactly one is allowed")]
    Servers(usize),
}

/// Makes the CA, when there is none, and a kit for every participant that has none.
///
/// # Errors
/// Says what stopped it; see [`ProvisionError`].
pub fn provision(project: &ProjectPlan, out: &Path, now: Timestamp) -> Result<Provisioned, ProvisionError> {
    let servers = project.participants.iter().filter(|p| p.principal.kind() == Kind::Server).count();
    if servers != 1 {
        return Err(ProvisionError::Servers(servers));
    }
    // Kits are directories: two names that differ in case only would be one on some file systems.
    let mut names = BTreeSet::new();
    for participant in &project.participants {
        if !names.insert(participant.principal.name().to_ascii_lowercase()) {
            return Err(ProvisionError::Twice(participant.principal.name().to_owned()));
        }
    }
    files::private_dir(out)?;
    let kits = out.join("kits");
    files::private_dir(&kits)?;
    let authority = Authority::open_or_create(&out.join("ca"), &project.federation, now)?;
    let mut done = Provisioned::default();
    for participant in &project.participants {
        let dir = kits.join(participant.principal.name());
        let wanted =
            KitInfo::new(&project.federation, &participant.principal, &participant.org, &project.server);
        if dir.exists() {
            let (found, _) = KitInfo::read(&dir.join("kit.json"))?;
            done.differing.extend(differences(&found, &wanted, &dir));
            done.differing.extend(expiring(&dir, now)?);
            done.kept.push(participant.principal.clone());
        } else {
            make_kit(&authority, project, participant, &wanted, &dir, now)?;
            done.added.push(participant.principal.clone());
        }
    }
    Ok(done)
}

fn differences(found: &KitInfo, wanted: &KitInfo, dir: &Path) -> Vec<String> {
    let role = |info: &KitInfo| info.role.map_or_else(|| "none".to_owned(), |role| role.to_string());
    [
        ("federation", found.federation.clone(), wanted.federation.clone()),
        ("kind", found.kind.to_string(), wanted.kind.to_string()),
        ("organisation", found.org.to_string(), wanted.org.to_string()),
        ("role", role(found), role(wanted)),
        ("server", found.server.to_string(), wanted.server.to_string()),
    ]
    .into_iter()
    .filter(|(_, found, wanted)| found != wanted)
    .map(|(what, found, wanted)| {
        format!(
            "{}: {what} is {found} in its kit and {wanted} in the project; remove {} to issue it anew",
            wanted_name(dir),
            dir.display()
        )
    })
    .collect()
}

/// Days before its end in which a certificate is spoken of.
const WARN_DAYS: u32 = 30;

fn expiring(dir: &Path, now: Timestamp) -> Result<Option<String>, ProvisionError> {
    let path = dir.join("cert.pem");
    let not_after = CertificateDer::from_pem_slice(files::read(&path)?.as_bytes())
        .map_err(|error| IdentityError::Malformed(format!("{error:?}")))
        .and_then(|der| Identity::from_der(&der))
        .map_err(|source| KitError::Certificate { path, source })?
        .not_after;
    let name = wanted_name(dir);
    Ok((not_after < days_after(now, WARN_DAYS)).then(|| {
        format!(
            "{name}: its certificate is valid until {not_after}; remove {} to issue it anew",
            dir.display()
        )
    }))
}

fn wanted_name(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn make_kit(
    authority: &Authority,
    project: &ProjectPlan,
    participant: &Participant,
    info: &KitInfo,
    dir: &Path,
    now: Timestamp,
) -> Result<(), ProvisionError> {
    let principal = &participant.principal;
    let request_error = |source| ProvisionError::Request { principal: principal.clone(), source };
    let (public, key) = match &participant.request {
        Some(text) => {
            let request = CertificateRequest::parse(text).map_err(request_error)?;
            request.check_name(principal.name()).map_err(request_error)?;
            (request.key, None)
        }
        None => {
            let key = PrivateKey::generate()?;
            (key.public(), Some(key))
        }
    };
    let mut hosts = participant.hosts.clone();
    if principal.kind() == Kind::Server && !hosts.contains(&project.server.host) {
        hosts.insert(0, project.server.host.clone());
    }
    let certificate = authority.issue(principal, &participant.org, &hosts, &public, now, project.days)?;
    let temporary: PathBuf = dir.with_file_name(format!(".{}.new", wanted_name(dir)));
    if temporary.exists() {
        std::fs::remove_dir_all(&temporary).map_err(files::failed(&temporary, "remove"))?;
    }
    files::private_dir(&temporary)?;
    let text = info.to_json();
    let signature = authority.sign(DOMAIN_KIT, text.as_bytes())?;
    files::write(&temporary.join("ca.pem"), authority.trust().pem().as_bytes(), 0o644)?;
    files::write(&temporary.join("cert.pem"), certificate.as_bytes(), 0o644)?;
    if let Some(key) = key {
        files::write(&temporary.join("key.pem"), key.to_pem().as_bytes(), 0o600)?;
    }
    files::write(&temporary.join("kit.json"), text.as_bytes(), 0o644)?;
    files::write(&temporary.join("kit.sig"), format!("{signature}\n").as_bytes(), 0o644)?;
    if principal.kind() == Kind::Server {
        files::write(&temporary.join("revoked.json"), authority.revoked_signed()?.as_bytes(), 0o644)?;
    }
    std::fs::rename(&temporary, dir).map_err(files::failed(dir, "rename into place"))?;
    files::sync_dir(dir.parent().unwrap_or(Path::new(".")))?;
    Ok(())
}
