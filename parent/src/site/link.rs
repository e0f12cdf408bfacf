//! The wire to the server: kept for ever, whatever happens on it.
//!
//! ```text
//! (away) --hello--> (connected): desired, long poll after long poll  ||  observed, whenever something is dirty
//!    ^                  |
//!    '---- any error, with a growing and jittered pause
//! ```

use super::{Site, lock};
use polder_api::PROTOCOL;
use polder_api::site::{Ack, Desired, Hello, Observation, Observed, Offer, Welcome};
use polder_transport::client::ClientError;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Clocks further apart than this are told to the operator, in milliseconds.
const SKEW: u64 = 60_000;

/// Keeps the link until the parent stops.
pub(super) async fn keep(site: &Arc<Site>) {
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let met = tokio::select! {
            () = site.stop.cancelled() => return,
            met = meet(site) => met,
        };
        let error = match met {
            Ok(welcome) => {
                if !said.is_empty() {
                    tracing::info!(server = %welcome.version, "connected to the server");
                }
                said.clear();
                pause = FIRST_PAUSE;
                tokio::select! {
                    () = site.stop.cancelled() => return,
                    error = follow(site) => error,
                    error = observe(site) => error,
                }
            }
            Err(error) => error,
        };
        let text = error.to_string();
        if text != said {
            tracing::warn!("the server is away: {text}");
            said = text;
        }
        tokio::select! {
            () = site.stop.cancelled() => return,
            () = tokio::time::sleep(jittered(pause)) => {}
        }
        // What will not heal by itself is not asked for twenty times a second.
        let least = if error.is_transient() { FIRST_PAUSE } else { Duration::from_secs(1) };
        pause = (pause * 2).max(least).min(LONGEST_PAUSE);
    }
}

/// Between three and five quarters of it, so that sixty sites do not come back in step.
fn jittered(pause: Duration) -> Duration {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    pause.mul_f64(0.75 + f64::from(nanos % 1000) / 2000.0)
}

async fn meet(site: &Arc<Site>) -> Result<Welcome, ClientError> {
    let hello = Hello {
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: site.epoch,
        offer: site.offer(),
    };
    let welcome: Welcome = site.client.post("/v1/site/hello").json(&hello).idempotent().fetch().await?;
    let now = crate::time::now_ms();
    let skew = now.abs_diff(welcome.now);
    if skew > SKEW {
        tracing::warn!("this clock and the server's are {} s apart", skew / 1000);
    }
    // What was being said when the link broke may not have been heard.
    site.tell_everything();
    let known = *site.server.borrow();
    if known != Some(welcome.epoch) {
        site.server.send_replace(Some(welcome.epoch));
    }
    Ok(welcome)
}

/// Reads what is wanted, again and again.
async fn follow(site: &Arc<Site>) -> ClientError {
    let mut cursor: Option<String> = None;
    let wait = site.config.idle.poll;
    loop {
        let path = match &cursor {
            Some(cursor) => format!("/v1/site/desired?after={cursor}&wait={}", wait.as_secs()),
            None => "/v1/site/desired?wait=0".to_owned(),
        };
        let desired: Desired = match site.client.get(&path).long_poll(wait).fetch().await {
            Ok(desired) => desired,
            Err(error) => return error,
        };
        cursor = Some(desired.cursor);
        site.desire(desired.assignments, desired.forgotten, desired.snapshot);
    }
}

/// Says what is seen, whenever that changed.
async fn observe(site: &Arc<Site>) -> ClientError {
    let mut changes = site.workers().changes();
    let mut offered: Option<Offer> = None;
    loop {
        changes.borrow_and_update();
        let offer = site.offer();
        let dirty: BTreeSet<_> = std::mem::take(&mut *lock(&site.dirty));
        let jobs: Vec<Observation> = dirty
            .iter()
            .filter_map(|job| site.stand(*job).map(|stand| Observation { job: *job, stand }))
            .collect();
        // The first time too: the offer may have changed since it was said in `hello`.
        let news = offered.as_ref() != Some(&offer);
        if news || !jobs.is_empty() {
            let observed = Observed { epoch: site.epoch, jobs, offer: news.then(|| offer.clone()) };
            let told: Result<Ack, _> =
                site.client.post("/v1/site/observed").json(&observed).idempotent().fetch().await;
            match told {
                Ok(ack) => {
                    let known = *site.server.borrow();
                    if known.is_some_and(|known| known != ack.epoch) {
                        site.server.send_replace(Some(ack.epoch));
                        site.tell_everything();
                    }
                }
                Err(error) => {
                    lock(&site.dirty).extend(dirty);
                    return error;
                }
            }
        }
        offered = Some(offer);
        tokio::select! {
            () = site.news.notified() => {}
            changed = changes.changed() => if changed.is_err() { std::future::pending::<()>().await },
        }
    }
}
