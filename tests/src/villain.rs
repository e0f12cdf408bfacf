//! A server that was taken over: it has the server's real kit and hands sites orders as it pleases.
//!
//! It shows what a site believes by itself: every answer of the site to an assignment is kept, to be waited for.

use polder_api::site::{Ack, Assignment, Desired, Goal, Observation, Observed, Stand, Welcome};
use polder_api::{BlobRef, PROTOCOL, Problem, ProblemCode, SignedOrder};
use polder_transport::blob::serve_blob;
use polder_transport::identity::{Kit, RevocationList, Revocations};
use polder_transport::server::{Call, Limits, Listener, Response, Router, json, serve};
use polder_transport::tls::Acceptor;
use polder_words::{Epoch, Hash, JobId};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

/// The server.
#[derive(Debug)]
pub struct Villain {
    state: Arc<State>,
    _stop: oneshot::Sender<()>,
}

#[derive(Debug)]
struct State {
    federation: String,
    orders: Mutex<Vec<(JobId, SignedOrder)>>,
    archives: BTreeMap<Hash, Vec<u8>>,
    seen: Mutex<Vec<Observation>>,
    news: Condvar,
    more: Notify,
}

const EPOCH: Epoch = Epoch([7; 8]);

impl Villain {
    /// Listens on the federation's port with the server's kit, serving these archives.
    ///
    /// # Panics
    /// When the kit or port cannot be used.
    #[must_use]
    pub fn listen(kit: &Path, port: u16, archives: &[Vec<u8>]) -> Self {
        let kit = Kit::open(kit, jiff::Timestamp::now()).expect("the server's kit");
        let state = Arc::new(State {
            federation: kit.info().federation.clone(),
            orders: Mutex::default(),
            archives: archives.iter().map(|a| (Hash(*blake3::hash(a).as_bytes()), a.clone())).collect(),
            seen: Mutex::default(),
            news: Condvar::new(),
            more: Notify::new(),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Arc::clone(&state);
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = Listener::tcp(&format!("127.0.0.1:{port}")).await.expect("the port is free");
                let revocations = Arc::new(Revocations::new(&RevocationList::empty()));
                let acceptor = Acceptor::participants(&kit, revocations).expect("a good kit");
                let token = CancellationToken::new();
                ready.send(()).expect("somebody waits");
                tokio::select! {
                    () = serve(listener, acceptor, Arc::new(routes(serving)), Limits::default(), token) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().expect("it listens");
        Self { state, _stop: stop }
    }

    /// Hands every site one more order, under a job id of choice.
    pub fn hand_out(&self, job: JobId, order: SignedOrder) {
        self.state.orders.lock().unwrap_or_else(PoisonError::into_inner).push((job, order));
        self.state.more.notify_waiters();
    }

    /// Waits until a site said something final about a job: reserved, busy or refused.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    #[track_caller]
    pub fn answer(&self, job: JobId) -> Stand {
        let end = Instant::now() + Duration::from_secs(30);
        let mut seen = self.state.seen.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let stand = seen.iter().rev().find(|o| o.job == job).map(|o| o.stand.clone());
            if let Some(stand) = stand.filter(|stand| !matches!(stand, Stand::Preparing)) {
                return stand;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no answer about {job}: {seen:?}");
            seen = self.state.news.wait_timeout(seen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn routes(state: Arc<State>) -> Router<State> {
    Router::new(state)
        .post("/v1/site/hello", |state, mut call: Call| async move {
            let _: polder_api::site::Hello = call.json(1 << 20).await?;
            let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
            Ok(json(&Welcome {
                protocol: PROTOCOL,
                version: "villain".to_owned(),
                federation: state.federation.clone(),
                epoch: EPOCH,
                now,
            }))
        })
        .get("/v1/site/desired", |state, call: Call| async move { desired(&state, &call).await })
        .post("/v1/site/observed", |state, mut call: Call| async move {
            let observed: Observed = call.json(1 << 20).await?;
            state.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(observed.jobs);
            state.news.notify_all();
            Ok(json(&Ack { epoch: EPOCH }))
        })
        .get("/v1/site/jobs/{job}/blobs/{root}", |state, call: Call| async move {
            let root: Hash = call.param("root")?;
            let bytes = state
                .archives
                .get(&root)
                .ok_or_else(|| Problem::new(ProblemCode::NotFound, "no such blob"))?;
            let blob = BlobRef { root, size: bytes.len() as u64 };
            let file = tempfile::tempfile().and_then(|mut file| {
                file.write_all(bytes)?;
                Ok(file)
            });
            serve_blob(call.headers(), file.expect("a temporary file"), &blob)
        })
}

/// The cursor is the number of orders handed out.
async fn desired(state: &State, call: &Call) -> Result<Response, Problem> {
    let after: Option<String> = call.query("after")?;
    let wait: u64 = call.query("wait")?.unwrap_or(0);
    let after: Option<usize> = after.and_then(|text| text.rsplit_once(':')?.1.parse().ok());
    let end = tokio::time::Instant::now() + Duration::from_secs(wait);
    loop {
        let more = state.more.notified();
        let orders = state.orders.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if after.is_none_or(|after| after < orders.len()) || tokio::time::Instant::now() >= end {
            let assignments =
                orders[after.unwrap_or(0).min(orders.len())..].iter().map(|(job, order)| Assignment {
                    job: *job,
                    goal: Goal::Reserve,
                    order: Some(order.clone()),
                    task: None,
                    tasks_unknown: false,
                });
            return Ok(json(&Desired {
                cursor: format!("{EPOCH}:{}", orders.len()),
                snapshot: after.is_none(),
                assignments: assignments.collect(),
                forgotten: Vec::new(),
            }));
        }
        // Woken or not, the orders are looked at again.
        let _ = tokio::time::timeout_at(end, more).await;
    }
}
