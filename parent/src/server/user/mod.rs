//! The user API: what `polder_api::user` says.
//!
//! Every request but the opening of a session is looked at in this order: whose certificate, which session (bound
//! to that certificate and to one study), is the user still in the study, is the thing of this study, and only then
//! whether the user may. What is of another study does not exist.

mod jobs;
mod sessions;
mod studies;
mod submit;

use super::rights::Who;
use super::state::Server;
use polder_api::{Problem, ProblemCode};
use polder_transport::server::{Call, Router};
use polder_words::{Hash, StudyName};

/// The routes of the user API.
pub(super) fn routes(router: Router<Server>) -> Router<Server> {
    router
        .post("/v1/user/sessions", sessions::open)
        .delete("/v1/user/sessions", sessions::close)
        .post("/v1/user/uploads", submit::open_upload)
        .put("/v1/user/uploads/{root}", submit::upload)
        .put("/v1/user/uploads/{root}/tree", submit::begin_upload)
        .get("/v1/user/jobs", jobs::list)
        .post("/v1/user/jobs", submit::submit)
        .get("/v1/user/jobs/{job}", jobs::show)
        .delete("/v1/user/jobs/{job}", jobs::delete)
        .get("/v1/user/jobs/{job}/events", jobs::events)
        .get("/v1/user/jobs/{job}/logs", jobs::logs)
        .post("/v1/user/jobs/{job}/abort", jobs::abort)
        .get("/v1/user/jobs/{job}/order", jobs::order)
        .get("/v1/user/jobs/{job}/results", jobs::results)
        .get("/v1/user/jobs/{job}/blobs/{root}", jobs::read_blob)
        .get("/v1/user/jobs/{job}/blobs/{root}/tree", jobs::read_tree)
        .get("/v1/user/sites", studies::sites)
        .get("/v1/user/studies", studies::list)
        .post("/v1/user/studies", studies::change)
}

/// Somebody with a session.
struct Caller {
    who: Who,
    study: StudyName,
    /// The session's public half.
    session: String,
}

/// Who the certificate says it is, with its fingerprint.
fn person(server: &Server, call: &Call) -> Result<(Who, Hash), Problem> {
    let identity = call.peer.holder.participant();
    if let Some(identity) = identity {
        server.revoked.check(identity)?;
    }
    let user = identity.and_then(|identity| {
        let who = Who { name: identity.user()?.clone(), org: identity.org.clone(), role: identity.role()? };
        Some((who, identity.fingerprint))
    });
    user.ok_or_else(|| Problem::new(ProblemCode::Forbidden, "this path is for users"))
}

fn no_session() -> Problem {
    Problem::new(ProblemCode::Unauthenticated, "no session, or one that has ended: log in again")
}

/// The caller's session, checked.
async fn caller(server: &Server, call: &Call) -> Result<Caller, Problem> {
    let (who, fingerprint) = person(server, call)?;
    let token = call.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
    let (id, secret) = token.and_then(crate::session::split).ok_or_else(no_session)?;
    let session = server.store.session(id).await.map_err(|error| stored(&error))?.ok_or_else(no_session)?;
    let known = crate::session::is(secret, &session.secret)
        && session.certificate == fingerprint
        && session.user == who.name
        && server.now() / 1000 < session.expires;
    if !known {
        return Err(no_session());
    }
    if !server.registry.may_enter(&who, &session.study) {
        // The study is gone, or the user is no member any more.
        let _ = server.store.end_session(id).await;
        return Err(no_session());
    }
    Ok(Caller { who, study: session.study, session: session.id })
}

/// The store failed: that is ours, and nobody else's.
fn stored(error: &polder_store::StoreError) -> Problem {
    tracing::error!(%error, "the store failed");
    Problem::new(ProblemCode::Internal, "the server's database does not answer as it should")
}
