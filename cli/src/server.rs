//! The user API, asked as a member of one study.
//!
//! A session is opened with the kit's certificate and remembered; when the server no longer knows it, a new
//! one is opened once and the question asked again. Errors come out as a [`Failure`] that says whose turn it is.

use crate::args::Connect;
use crate::commands::submit::Packed;
use crate::output::{Failure, Out};
use crate::state::{Login, State};
use jiff::Timestamp;
use polder_api::user::{
    Events, Job, Jobs, OpenSession, OpenUpload, Results, Session, Sites, Studies, Study, StudyChange, Submit,
    Submitted,
};
use polder_api::{LONG_POLL_SECONDS, PROTOCOL, ProblemCode, SignedOrder};
use polder_transport::blob::{self, BlobError, Transfer};
use polder_transport::client::{Ask, Client, ClientError, Dialer, Proxy, escape};
use polder_transport::identity::{Kind, Kit};
use polder_words::{BlobRef, JobId, StudyName};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A session this close to its end is opened anew, in seconds.
const MARGIN: u64 = 60;
/// Pauses between two tries while the server is away.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// The server, seen by one user in one study.
pub(crate) struct Server {
    login: Login,
    state: Option<State>,
    kit: Kit,
    anonymous: Client,
    session: Session,
    client: Client,
}

/// Seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// Milliseconds since 1970.
pub(crate) fn now_millis() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Kit and study as the command line, the environment and the last login say, in this order.
pub(crate) fn whoami(connect: &Connect, state: &State) -> Result<Login, Failure> {
    let last = state.login()?;
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let kit = connect
        .kit
        .clone()
        .or_else(|| variable("POLDER_KIT").map(PathBuf::from))
        .or_else(|| last.as_ref().map(|login| login.kit.clone()))
        .ok_or_else(|| {
            Failure::new(ProblemCode::Unauthenticated, "not logged in, and no kit is named")
                .hint("`polder login --study STUDY --kit DIR` logs you in; the operator gives you the kit")
        })?;
    // Absolute, so that it means the same from wherever the next command is typed.
    let kit = std::path::absolute(&kit).map_err(|error| Failure::io(&kit, "find", &error))?;
    let study = match (&connect.study, variable("POLDER_STUDY"), last) {
        (Some(study), ..) => study.clone(),
        (None, Some(study), _) => StudyName::new(&study.to_string_lossy())
            .map_err(|error| Failure::new(ProblemCode::Usage, format!("POLDER_STUDY: {error}")))?,
        (None, None, Some(last)) if last.kit == kit => last.study,
        _ => {
            return Err(Failure::new(ProblemCode::Usage, "no study is named")
                .hint("name it with `--study STUDY`, or once with `polder login --study STUDY`"));
        }
    };
    Ok(Login { kit, study })
}

impl Server {
    /// Connects as the command line, the environment and the last login say.
    pub(crate) async fn connect(connect: &Connect) -> Result<Self, Failure> {
        let state = State::find()?;
        let login = whoami(connect, &state)?;
        Self::open(login, Some(state)).await
    }

    /// Connects with a kit and study; remembers the session where there is a state folder.
    pub(crate) async fn open(login: Login, state: Option<State>) -> Result<Self, Failure> {
        let kit = open_kit(&login)?;
        let anonymous = dial(&kit)?;
        let stored = match &state {
            Some(state) => state.session(&login)?,
            None => None,
        };
        let fits = |session: &Session| {
            session.expires > now_seconds() + MARGIN
                && session.study == login.study
                && session.federation == kit.info().federation
                && session.user.as_str() == kit.info().name
        };
        let session = match stored.filter(fits) {
            Some(session) => session,
            None => new_session(&anonymous, &login, state.as_ref()).await?,
        };
        let client = with_session(&anonymous, &session);
        Ok(Self { login, state, kit, anonymous, session, client })
    }

    /// A session opened now, whatever was stored.
    pub(crate) async fn renew(&mut self) -> Result<&Session, Failure> {
        self.session = new_session(&self.anonymous, &self.login, self.state.as_ref()).await?;
        self.client = with_session(&self.anonymous, &self.session);
        Ok(&self.session)
    }

    /// The session.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// The user's kit.
    pub(crate) fn kit(&self) -> &Kit {
        &self.kit
    }

    /// The client, with the session in it.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Asks; an ended session is opened anew, once.
    async fn ask<T>(&mut self, ask: impl Fn(&Client) -> Ask<'_>) -> Result<T, Failure>
    where
        T: DeserializeOwned,
    {
        match ask(&self.client).fetch().await {
            Err(error) if is_ended(&error) => {
                self.renew().await?;
                ask(&self.client).fetch().await.map_err(|error| refused(&error))
            }
            answer => answer.map_err(|error| refused(&error)),
        }
    }

    async fn tell(&mut self, ask: impl Fn(&Client) -> Ask<'_>) -> Result<(), Failure> {
        match ask(&self.client).done().await {
            Err(error) if is_ended(&error) => {
                self.renew().await?;
                ask(&self.client).done().await.map_err(|error| refused(&error))
            }
            answer => answer.map_err(|error| refused(&error)),
        }
    }

    /// Asks until the server answers: says once that it is away, and once that it is back.
    pub(crate) async fn patiently<T>(
        &mut self,
        out: &mut Out,
        mut ask: impl AsyncFnMut(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut tries = 0;
        loop {
            match ask(self).await {
                Err(failure)
                    if matches!(failure.problem.code, ProblemCode::Unreachable | ProblemCode::Busy) =>
                {
                    // The first try may have met the moment of a restart: nobody needs to know.
                    if tries == 2 {
                        out.note(&format!("{}; waiting for it", failure.sentence()));
                    }
                    let pause = PAUSES.get(tries).or(PAUSES.last()).expect("there are pauses");
                    tokio::time::sleep(*pause).await;
                    tries += 1;
                }
                answer => {
                    if tries > 2 && answer.is_ok() {
                        out.note("the server answers again");
                    }
                    return answer;
                }
            }
        }
    }

    /// Ends the session at the server.
    pub(crate) async fn end_session(&mut self) -> Result<(), Failure> {
        self.client.delete("/v1/user/sessions").done().await.map_err(|error| refused(&error))
    }

    /// The study's jobs.
    pub(crate) async fn jobs(&mut self) -> Result<Jobs, Failure> {
        self.ask(|client| client.get("/v1/user/jobs")).await
    }

    /// One job, by id or its beginning.
    pub(crate) async fn job(&mut self, id: &str) -> Result<Job, Failure> {
        self.ask(|client| client.get(&format!("/v1/user/jobs/{}", escape(id)))).await
    }

    /// Events after a number; waits for one.
    pub(crate) async fn events(&mut self, job: &JobId, after: u64) -> Result<Events, Failure> {
        let path = format!("/v1/user/jobs/{job}/events?after={after}&wait={LONG_POLL_SECONDS}");
        self.ask(|client| client.get(&path).long_poll(Duration::from_secs(LONG_POLL_SECONDS))).await
    }

    /// Ends a job.
    pub(crate) async fn abort(&mut self, job: &JobId) -> Result<(), Failure> {
        self.tell(|client| client.post(&format!("/v1/user/jobs/{job}/abort")).idempotent()).await
    }

    /// Removes a job.
    pub(crate) async fn delete(&mut self, job: &JobId) -> Result<(), Failure> {
        self.tell(|client| client.delete(&format!("/v1/user/jobs/{job}"))).await
    }

    /// A job's signed order.
    pub(crate) async fn order(&mut self, job: &JobId) -> Result<SignedOrder, Failure> {
        self.ask(|client| client.get(&format!("/v1/user/jobs/{job}/order"))).await
    }

    /// What a job left.
    pub(crate) async fn results(&mut self, job: &JobId) -> Result<Results, Failure> {
        self.ask(|client| client.get(&format!("/v1/user/jobs/{job}/results"))).await
    }

    /// Uploads an archive, unless the server has it.
    pub(crate) async fn upload(&mut self, packed: &Packed, how: &Transfer) -> Result<(), Failure> {
        let open = OpenUpload { blob: packed.tree.blob() };
        self.tell(|client| client.post("/v1/user/uploads").json(&open).idempotent()).await?;
        let file = packed.file.path();
        blob::upload(&self.client, "/v1/user/uploads", file, &packed.tree, how).await.map_err(moved)
    }

    /// Downloads a file a job left; verified, and going on where it was cut.
    pub(crate) async fn download(
        &mut self,
        job: &JobId,
        blob: BlobRef,
        path: &Path,
        how: &Transfer,
    ) -> Result<(), Failure> {
        let prefix = format!("/v1/user/jobs/{job}/blobs");
        blob::download(&self.client, &prefix, blob, path, how).await.map_err(moved)
    }

    /// Submits; the same order twice is the same job.
    pub(crate) async fn submit(&mut self, submit: &Submit) -> Result<Submitted, Failure> {
        self.ask(|client| client.post("/v1/user/jobs").json(submit).idempotent()).await
    }

    /// The study's sites.
    pub(crate) async fn sites(&mut self) -> Result<Sites, Failure> {
        self.ask(|client| client.get("/v1/user/sites")).await
    }

    /// The studies.
    pub(crate) async fn studies(&mut self) -> Result<Studies, Failure> {
        self.ask(|client| client.get("/v1/user/studies")).await
    }

    /// Changes the registry.
    pub(crate) async fn change(&mut self, change: &StudyChange) -> Result<Study, Failure> {
        self.ask(|client| client.post("/v1/user/studies").json(change)).await
    }
}

fn open_kit(login: &Login) -> Result<Kit, Failure> {
    Kit::open_as(&login.kit, Kind::User, Timestamp::now()).map_err(|error| {
        Failure::new(ProblemCode::Unauthenticated, error.to_string())
            .hint("a kit is a folder `polder provision` made; name yours with `--kit DIR`")
    })
}

fn dial(kit: &Kit) -> Result<Client, Failure> {
    let dialer =
        Dialer::federation(kit).map_err(|error| Failure::new(ProblemCode::Internal, error.to_string()))?;
    Ok(Client::new(dialer.proxy(proxy(&kit.info().server.host)?)))
}

/// The proxy the environment names, unless it says not to use one for this host.
fn proxy(host: &str) -> Result<Option<Proxy>, Failure> {
    let variable = |names: [&'static str; 3]| {
        names.into_iter().find_map(|name| {
            std::env::var(name).ok().filter(|value| !value.trim().is_empty()).map(|value| (name, value))
        })
    };
    let Some((name, value)) = variable(["POLDER_PROXY", "HTTPS_PROXY", "https_proxy"]) else {
        return Ok(None);
    };
    let exempt =
        variable(["POLDER_NO_PROXY", "NO_PROXY", "no_proxy"]).map_or_else(String::new, |(_, value)| value);
    if name != "POLDER_PROXY" && is_exempt(host, &exempt) {
        return Ok(None);
    }
    let proxy = Proxy::parse(value.trim())
        .map_err(|error| Failure::new(ProblemCode::Usage, format!("{name}: {error}")))?;
    Ok(Some(proxy))
}

/// Whether a host is this machine or in a `NO_PROXY` list.
fn is_exempt(host: &str, list: &str) -> bool {
    let loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    loopback
        || list.split(',').map(|item| item.trim().trim_start_matches('.')).any(|item| {
            item == "*" || (!item.is_empty() && (host == item || host.ends_with(&format!(".{item}"))))
        })
}

async fn new_session(client: &Client, login: &Login, state: Option<&State>) -> Result<Session, Failure> {
    let open = OpenSession { study: login.study.clone(), protocol: PROTOCOL };
    let session: Session = client
        .post("/v1/user/sessions")
        .json(&open)
        .idempotent()
        .fetch()
        .await
        .map_err(|error| refused(&error))?;
    if let Some(state) = state {
        state.set_session(login, &session)?;
    }
    Ok(session)
}

fn with_session(client: &Client, session: &Session) -> Client {
    client.clone().with_header("authorization", &format!("Bearer {}", session.token))
}

fn is_ended(error: &ClientError) -> bool {
    error.problem().is_some_and(|problem| problem.code == ProblemCode::Unauthenticated)
}

/// What an error of the client means for a person.
pub(crate) fn refused(error: &ClientError) -> Failure {
    if let Some(problem) = error.problem() {
        return Failure::from(problem.clone());
    }
    let text = error.to_string();
    match error {
        ClientError::ClientRefused { .. } => Failure::new(ProblemCode::Unauthenticated, text)
            .hint("ask the operator of the federation for a new kit"),
        ClientError::Protocol { .. } | ClientError::Request { .. } => {
            Failure::new(ProblemCode::Internal, text)
        }
        ClientError::ServerRefused { .. } | ClientError::Handshake { .. } => {
            Failure::new(ProblemCode::Unreachable, text)
        }
        ClientError::Proxy { .. } => Failure::new(ProblemCode::Unreachable, text)
            .hint("the proxy is the one POLDER_PROXY or HTTPS_PROXY names"),
        _ => Failure::new(ProblemCode::Unreachable, text).hint(
            "nothing was lost; try again when the server is up, its address stands in kit.json of your kit",
        ),
    }
}

/// What a blob that is not moved means for a person.
fn moved(error: BlobError) -> Failure {
    match error {
        BlobError::Client(error) => refused(&error),
        BlobError::Body(_) => Failure::new(ProblemCode::Unreachable, error.to_string()),
        other => Failure::new(ProblemCode::Invalid, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::is_exempt;

    #[test]
    fn proxies_are_not_asked_for_what_is_near() {
        assert!(is_exempt("127.0.0.1", ""));
        assert!(is_exempt("fl.example.org", "other, .example.org"));
        assert!(!is_exempt("badexample.org", "example.org"));
        assert!(!is_exempt("fl.example.org", ""));
    }
}
