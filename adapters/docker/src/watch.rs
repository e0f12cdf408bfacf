//! One events connection for all containers of a parent.
//!
//! ```text
//! connect -> GET events?since (polled first) -> list + inspect: Relisted -> event: inspect, Seen ... end: Down -.
//!    ^----------------------------- back-off 0.1 s to 5 s, then Up -----------------------------------------------'
//! ```
//! An event says only where to look; what is told is what `inspect` shows, so an event that comes twice, late or
//! not at all does no harm. A container that is removed by somebody else leaves nothing to inspect: then all is listed
//! again, and what is missing is asked for by the ledger.

use crate::drive::DockerLauncher;
use crate::plan::LABEL_LAUNCH;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt as _;
use polder_launch::{Down, Event};
use polder_words::LaunchId;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::Sender;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Events that are asked for again, in seconds: clocks of hosts differ, and seconds are cut off.
const OVERLAP: u64 = 2;

/// Nobody listens any more.
struct Deaf;

/// Watches until nobody listens; dropped to stop.
pub(crate) async fn watch(launcher: &DockerLauncher, out: &Sender<Event>) {
    let mut pause = FIRST_PAUSE;
    let mut down = false;
    loop {
        let (answered, why) = match session(launcher, out, &mut down).await {
            Ok(end) => end,
            Err(Deaf) => return,
        };
        if answered {
            pause = FIRST_PAUSE;
        }
        launcher.engine.forget().await;
        if !down {
            tracing::warn!(%why, "the engine does not answer");
            down = true;
            if out.send(Event::Down(why)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One connection, until it ends; whether it came about, and why it ended.
async fn session(
    launcher: &DockerLauncher,
    out: &Sender<Event>,
    down: &mut bool,
) -> Result<(bool, Down), Deaf> {
    let docker = match launcher.engine.get().await {
        Ok(docker) => docker,
        Err(why) => return Ok((false, why)),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let options = EventsOptionsBuilder::default()
        .since(&now.saturating_sub(OVERLAP).to_string())
        .filters(&launcher.filter())
        .build();
    let mut events = std::pin::pin!(docker.events(Some(options)));
    // Nothing is sent before it is polled, so the list is read beside the first events.
    let complete = {
        let list = launcher.relist(&docker);
        let mut list = std::pin::pin!(list);
        loop {
            tokio::select! {
                complete = &mut list => break complete,
                event = events.next() => match event {
                    // Whatever it is about is in the list, or is asked for again below.
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Ok((false, Down::now(format!("events: {error}")))),
                    None => return Ok((false, Down::now("the events ended"))),
                },
            }
        }
    };
    let complete = match complete {
        Ok(complete) => complete,
        Err(why) => return Ok((false, why)),
    };
    if std::mem::take(down) {
        tracing::info!("the engine answers again");
        out.send(Event::Up).await.map_err(|_| Deaf)?;
    }
    out.send(Event::Relisted { complete }).await.map_err(|_| Deaf)?;
    // What happened while the list was read may be in neither: once more, now that events are kept.
    let again = match launcher.relist(&docker).await {
        Ok(again) => again,
        Err(why) => return Ok((true, why)),
    };
    for sighting in again {
        out.send(Event::Seen(sighting)).await.map_err(|_| Deaf)?;
    }
    loop {
        let event = match events.next().await {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Ok((true, Down::now(format!("events: {error}")))),
            None => return Ok((true, Down::now("the events ended"))),
        };
        let Some(actor) = event.actor else { continue };
        let launch: Option<LaunchId> =
            actor.attributes.as_ref().and_then(|labels| labels.get(LABEL_LAUNCH)?.parse().ok());
        let (Some(launch), Some(container)) = (launch, actor.id) else { continue };
        let event = match event.action.as_deref().unwrap_or_default() {
            // `oom` alone ends nothing; `die` follows when it does.
            "create" | "start" | "die" | "pause" | "unpause" => {
                match launcher.sight(&docker, &container).await {
                    Ok(Some(sighting)) => Event::Seen(sighting),
                    Ok(None) => continue,
                    Err(why) => return Ok((true, why)),
                }
            }
            "destroy" | "remove" => {
                let ours = launcher.removing.lock().expect("no holder of this lock panics").remove(&launch);
                if ours {
                    continue;
                }
                match launcher.relist(&docker).await {
                    Ok(complete) => Event::Relisted { complete },
                    Err(why) => return Ok((true, why)),
                }
            }
            _ => continue,
        };
        out.send(event).await.map_err(|_| Deaf)?;
    }
}
