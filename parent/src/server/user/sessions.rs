//! Sessions: opened with a certificate for one study, ended by time, by the user, or with the membership.

use super::{caller, person, stored};
use crate::server::state::Server;
use crate::session::Token;
use polder_api::user::{OpenSession, Session};
use polder_api::{PROTOCOL, Problem, ProblemCode};
use polder_store::SessionRow;
use polder_transport::server::{Call, Response, json, no_content};
use std::sync::Arc;

/// How long a session lasts, seconds.
const LIFE: u64 = 12 * 3600;

/// `POST sessions`.
pub(super) async fn open(server: Arc<Server>, mut call: Call) -> Result<Response, Problem> {
    let (who, certificate) = person(&server, &call)?;
    let asked: OpenSession = call.json(4096).await?;
    if asked.protocol != PROTOCOL {
        return Err(Problem {
            at: Some("protocol".to_owned()),
            found: Some(asked.protocol.to_string()),
            allowed: Some(PROTOCOL.to_string()),
            ..Problem::new(ProblemCode::Invalid, "this client speaks another protocol than the server")
        });
    }
    if !server.registry.may_enter(&who, &asked.study) {
        server.note(
            "session_refused",
            &[("user", who.name.as_str().into()), ("study", asked.study.as_str().into())],
        );
        return Err(Problem::new(
            ProblemCode::NotFound,
            format!("study {} does not exist, or {} is not in it", asked.study, who.name),
        ));
    }
    let token = Token::new().map_err(|error| Problem::new(ProblemCode::Internal, error.to_string()))?;
    let now = server.now() / 1000;
    let expires = now + LIFE;
    let row = SessionRow {
        id: token.id.clone(),
        secret: token.secret,
        user: who.name.clone(),
        study: asked.study.clone(),
        certificate,
        expires,
    };
    server.store.put_session(row, now).await.map_err(|error| stored(&error))?;
    server.note(
        "session_opened",
        &[("user", who.name.as_str().into()), ("study", asked.study.as_str().into())],
    );
    Ok(json(&Session {
        token: token.text,
        federation: server.federation.clone(),
        study: asked.study,
        user: who.name,
        role: who.role.to_string(),
        expires,
    }))
}

/// `DELETE sessions`.
pub(super) async fn close(server: Arc<Server>, call: Call) -> Result<Response, Problem> {
    let caller = caller(&server, &call).await?;
    server.store.end_session(&caller.session).await.map_err(|error| stored(&error))?;
    server.note(
        "session_closed",
        &[("user", caller.who.name.as_str().into()), ("study", caller.study.as_str().into())],
    );
    Ok(no_content())
}
