//! Handovers and enrolment: how a worker that was just started comes home.
//!
//! ```text
//! Desk (asked by the ledger before each prepare): run directory, one-time token; its hash on disk, then the handover
//! worker: key of its own --token, request--> check --> certificate --first key on disk--> answered
//!                                              |  the same key again: the same certificate
//!                                              '  another key: refused, quarantined, audited; the launch is ended
//! ```

use super::{Reach, RunDir, Workers, now_ms};
use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use polder_api::worker::{Enrol, Enrolled, Handover as Letter};
use polder_api::{PROTOCOL, Problem, ProblemCode};
use polder_launch::{Down, Handover, Host, LaunchError, Resolved};
use polder_store::{Bound, EnrolmentStore as _, Sqlite};
use polder_transport::identity::CertificateRequest;
use polder_words::{Hash, LaunchId};
use ring::rand::SecureRandom as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq as _;

/// How long a worker's certificate is valid. What ends it is the end of its launch, which is asked for at every
/// request; this only bounds what a forgotten one is good for.
const CERTIFICATE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Hands over what a launch needs.
pub(super) struct Desk {
    pub(super) runs: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) reach: Reach,
    pub(super) pin: Hash,
    pub(super) store: Arc<Sqlite>,
}

#[async_trait]
impl Host for Desk {
    async fn handover(&self, want: &Resolved) -> Result<Handover, LaunchError> {
        let not_sent = |why: String| LaunchError::NotSent(Down::now(why));
        let dir = RunDir::of(&self.runs, want.id.job, want.id.role);
        let attempt = want.id.attempt;
        let made = super::blocking(move || dir.prepare(Some(attempt))).await;
        made.map_err(|error| not_sent(format!("{error:#}")))?
            .map_err(|error| not_sent(format!("{}: {error}", want.run_dir.display())))?;
        let dial = self.reach.dial(&self.socket).await.map_err(|error| not_sent(format!("{error:#}")))?;
        let token = new_token().map_err(|error| not_sent(error.to_owned()))?;
        let hash = Hash(*blake3::hash(token.as_bytes()).as_bytes());
        self.store.put_enrolment(&want.id, hash).await.map_err(|error| not_sent(error.to_string()))?;
        let letter = Letter {
            protocol: PROTOCOL,
            launch: want.id.clone(),
            dial,
            pin: self.pin,
            token,
            run_dir: want.run_dir.display().to_string(),
            files: want.files,
        };
        let document = serde_json::to_vec(&letter).map_err(|error| not_sent(error.to_string()))?;
        Ok(Handover::new(document))
    }
}

fn new_token() -> Result<String, &'static str> {
    let mut bytes = [0; 32];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| "the system gives no random numbers")?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

impl Workers {
    /// Gives a worker its certificate.
    pub(super) async fn enrol(&self, ask: Enrol, from: &str) -> Result<Enrolled, Problem> {
        // Whoever does not have the token learns nothing, not even which launches there are.
        let refused = || Problem::new(ProblemCode::Unauthenticated, "launch or token is not known");
        let internal = |error: polder_store::StoreError| {
            tracing::error!(%error, "an enrolment cannot be looked up");
            Problem::new(ProblemCode::Internal, "the parent's database does not answer")
        };
        let launch = &ask.launch;
        let given = blake3::hash(ask.token.as_bytes());
        let known = self.inner.store.enrolment(launch).await.map_err(internal)?;
        let expected = known.as_ref().map_or(Hash([0; 32]), |known| known.token);
        let fits = bool::from(given.as_bytes().ct_eq(&expected.0)) && known.is_some();
        if !fits {
            self.audit("enrolment_refused", launch, &[("from", from.into()), ("why", "wrong token".into())]);
            // Guessing 256 bits is hopeless; this only keeps the audit log from being flooded.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return Err(refused());
        }
        if known.is_some_and(|known| known.quarantined) {
            self.audit("enrolment_refused", launch, &[("from", from.into()), ("why", "quarantined".into())]);
            return Err(quarantined(launch));
        }
        self.current(launch)?;
        let request = CertificateRequest::parse(&ask.request)
            .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
        let key = request.key.pin();
        let now = Timestamp::now();
        let until = now.checked_add(CERTIFICATE).unwrap_or(Timestamp::MAX);
        let certificate = self
            .inner
            .authority
            .issue(&ask.request, launch, now, until)
            .map_err(|error| Problem::new(ProblemCode::Invalid, error.to_string()))?;
        match self.inner.store.bind_key(launch, key, certificate.clone()).await.map_err(internal)? {
            Bound::First => {
                self.audit("enrolled", launch, &[("key", key.to_string().into()), ("from", from.into())]);
                Ok(Enrolled { certificate })
            }
            Bound::Same(certificate) => Ok(Enrolled { certificate }),
            Bound::Other => {
                tracing::error!(%launch, from, "an enrolment token came with a second key; the launch is quarantined");
                self.audit("quarantined", launch, &[("key", key.to_string().into()), ("from", from.into())]);
                self.seat(launch).with(launch.attempt, |notes| notes.key = None);
                let why = "quarantined: its one-time token came with a second key";
                if let Err(error) = self.inner.ledger.stop(launch.job, launch.role, why, Duration::ZERO).await
                {
                    tracing::error!(%launch, %error, "a quarantined launch cannot be ended");
                }
                self.poke(launch.job, launch.role);
                Err(quarantined(launch))
            }
            Bound::Refused => Err(quarantined(launch)),
        }
    }

    /// Whether this key is the one a launch is bound to; asked of the disk once, then remembered.
    pub(super) async fn is_bound(&self, launch: &LaunchId, key: Hash) -> Result<(), Problem> {
        let seat = self.seat(launch);
        if seat.with(launch.attempt, |notes| notes.key) == Some(key) {
            return Ok(());
        }
        let known = self.inner.store.enrolment(launch).await.map_err(|error| {
            tracing::error!(%error, "an enrolment cannot be looked up");
            Problem::new(ProblemCode::Internal, "the parent's database does not answer")
        })?;
        match known {
            Some(known) if known.quarantined => Err(quarantined(launch)),
            Some(known) if known.key == Some(key) => {
                seat.with(launch.attempt, |notes| notes.key = Some(key));
                Ok(())
            }
            _ => Err(Problem::new(
                ProblemCode::Unauthenticated,
                format!("{launch} is not enrolled with this key"),
            )),
        }
    }

    pub(super) fn audit(&self, what: &str, launch: &LaunchId, fields: &[(&str, serde_json::Value)]) {
        let mut all = vec![("launch", launch.to_string().into())];
        all.extend_from_slice(fields);
        if let Err(error) = self.inner.audit.write(now_ms(), what, &all) {
            tracing::error!(%error, what, "the audit log cannot be written");
        }
    }
}

fn quarantined(launch: &LaunchId) -> Problem {
    Problem::new(
        ProblemCode::Forbidden,
        format!("{launch} is quarantined: its token came with two different keys"),
    )
}
