//! `login` and `logout`.

use crate::args::{LoginArgs, LogoutArgs};
use crate::output::units::stamp;
use crate::output::{Ending, Out};
use crate::server::{Server, whoami};
use crate::state::State;
use polder_words::{StudyName, UserName};
use serde::Serialize;

/// A session without its token: that is nobody's to read.
#[derive(Serialize)]
struct LoggedIn<'a> {
    federation: &'a str,
    study: &'a StudyName,
    user: &'a UserName,
    role: &'a str,
    expires: u64,
}

pub(crate) async fn login(args: &LoginArgs, out: &mut Out) -> Result<(), Ending> {
    let state = State::find()?;
    let login = whoami(&args.connect, &state)?;
    // A login proves that kit, server and membership are well now, so a stored session does not do.
    state.clear_session(&login)?;
    let server = Server::open(login.clone(), Some(state.clone())).await?;
    state.set_login(&login)?;
    let session = server.session();
    let shown = LoggedIn {
        federation: &session.federation,
        study: &session.study,
        user: &session.user,
        role: &session.role,
        expires: session.expires,
    };
    out.result(&shown, |shown| {
        format!(
            "logged in to study {} of {} as {} ({}) until {}",
            shown.study,
            shown.federation,
            shown.user,
            shown.role,
            stamp(shown.expires.saturating_mul(1000))
        )
    })?;
    out.note("`polder sites` shows who takes part, `polder submit FOLDER --wait` trains");
    Ok(())
}

#[derive(Serialize)]
struct LoggedOut<'a> {
    study: &'a StudyName,
    logged_out: bool,
}

pub(crate) async fn logout(args: &LogoutArgs, out: &mut Out) -> Result<(), Ending> {
    let state = State::find()?;
    let login = whoami(&args.connect, &state)?;
    if state.session(&login)?.is_some() {
        let ended = match Server::open(login.clone(), Some(state.clone())).await {
            Ok(mut server) => server.end_session().await,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = ended {
            // What is on this machine goes all the same; the session expires by itself.
            out.note(&format!("the server was not told: {}", failure.sentence()));
        }
    }
    state.clear_session(&login)?;
    if state.login()?.is_some_and(|last| last == login) {
        state.clear_login()?;
    }
    out.result(&LoggedOut { study: &login.study, logged_out: true }, |shown| {
        format!("logged out of study {}", shown.study)
    })
}
