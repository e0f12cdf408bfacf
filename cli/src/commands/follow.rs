//! Following a job to its end: `watch`, and `--wait` of `submit` and `clone`.
//!
//! Events are numbered and stored by the server, so that nothing is missed: after a lost connection or a
//! restart of the server the next question names the last event that was seen. Waiting never ends
//! because the server is away; Ctrl-C ends the waiting and says that the job goes on.

use crate::output::units::{metrics, number, plain, span};
use crate::output::{Ending, Out, job as text};
use crate::server::Server;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use polder_api::user::{Event, EventKind, Job, Worker};
use polder_words::{JobId, JobPhase, SiteName, WorkerPhase};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Exit code of a command that a person interrupted, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// One event as a program reads it.
#[derive(Serialize)]
pub(crate) struct EventLine<'a> {
    pub(crate) job: JobId,
    #[serde(flatten)]
    pub(crate) event: &'a Event,
}

/// Follows a job until it ends and prints its last state. Not completed is exit code 1.
pub(crate) async fn follow(server: &mut Server, job: JobId, out: &mut Out) -> Result<Job, Ending> {
    let short = job.short();
    let Some(last) = until_end(server, job, out).await? else {
        out.note(&format!(
            "no longer waiting; the job goes on: `polder watch {short}` follows it, `polder abort {short}` ends it"
        ));
        return Err(Ending::Said(INTERRUPTED));
    };
    out.result(&last, summary)?;
    if last.phase == JobPhase::Completed {
        out.note(&format!("`polder download {short}` fetches the model"));
        Ok(last)
    } else {
        out.note(&format!("`polder logs {short}` prints the logs, `polder show {short}` every worker"));
        Err(Ending::Said(1))
    }
}

/// Shows what happens to a job until it ends; nothing when a person interrupts.
pub(crate) async fn until_end(server: &mut Server, job: JobId, out: &mut Out) -> Result<Option<Job>, Ending> {
    let mut view = View::new(out);
    let ended = {
        let events = watch(server, job, out, &mut view);
        tokio::select! {
            ended = events => Some(ended),
            _ = tokio::signal::ctrl_c() => None,
        }
    };
    view.close();
    let Some(ended) = ended else { return Ok(None) };
    ended?;
    server
        .patiently(out, async |server| server.job(&job.to_string()).await)
        .await
        .map(Some)
        .map_err(Ending::from)
}

async fn watch(server: &mut Server, job: JobId, out: &mut Out, view: &mut View) -> Result<(), Ending> {
    let mut after = 0;
    loop {
        let seen = after;
        let news = server.patiently(out, async |server| server.events(&job, seen).await).await?;
        for event in &news.events {
            view.event(out, job, event)?;
        }
        after = news.next;
        // Workers may still be ending after the last phase; nobody who waits for the job waits for them.
        if news.end || news.events.iter().any(|event| is_last(&event.what)) {
            return Ok(());
        }
    }
}

/// Whether the job is over with this.
pub(crate) fn is_last(event: &EventKind) -> bool {
    matches!(event, EventKind::Phase { phase, .. } if phase.is_final())
}

/// How a job ended, for people.
pub(crate) fn summary(job: &Job) -> String {
    let took = match (job.started, job.finished) {
        (Some(started), Some(finished)) => format!(" in {}", span(finished.saturating_sub(started))),
        _ => String::new(),
    };
    let mut line = match job.phase {
        JobPhase::Completed => format!("completed {} of {} rounds{took}", job.round, job.total_rounds),
        phase => format!("{phase} after {} of {} rounds{took}", job.round, job.total_rounds),
    };
    if let Some(reason) = &job.reason {
        line = format!("{line}: {reason}");
    }
    if !job.metrics.is_empty() {
        line = format!("{line}; {}", metrics(&job.metrics));
    }
    line.push('\n');
    if let Some(failure) = &job.failure {
        line.push_str(&text::failure(failure));
    }
    line
}

/// One line of an event.
fn line(event: &EventKind) -> String {
    match event {
        EventKind::Phase { phase, reason, .. } => match reason {
            Some(reason) => format!("{phase}: {reason}"),
            None => phase.to_string(),
        },
        EventKind::Round { round, total_rounds, metrics: values, sites, millis } => {
            let mut line = format!("round {round} of {total_rounds}");
            for part in [metrics(values), by_site(values, sites)] {
                if !part.is_empty() {
                    line.push_str("  ");
                    line.push_str(&part);
                }
            }
            format!("{line}  {}", span(*millis))
        }
        EventKind::Worker { worker } => worker_line(worker),
    }
}

fn worker_line(worker: &Worker) -> String {
    let attempt = if worker.attempt > 1 { format!(" (attempt {})", worker.attempt) } else { String::new() };
    let reason = worker.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let unknown = if worker.unknown_since.is_some() { ", state unknown" } else { "" };
    format!("{} {}{attempt}{unknown}{reason}", worker.site, worker.phase)
}

/// `(hospital-a 0.95, uni 0.93)`: the first of the shared metrics, site by site.
fn by_site(values: &BTreeMap<String, f64>, sites: &BTreeMap<SiteName, BTreeMap<String, f64>>) -> String {
    let Some(name) = values.keys().next() else {
        return String::new();
    };
    let parts: Vec<String> = sites
        .iter()
        .filter_map(|(site, own)| own.get(name).map(|value| format!("{site} {}", number(*value))))
        .collect();
    if parts.is_empty() { String::new() } else { format!("({})", parts.join(", ")) }
}

/// What moves on the screen.
enum View {
    /// A bar, for a person who looks.
    Bar { bar: ProgressBar, phase: String, metrics: String, workers: BTreeMap<String, String> },
    /// A line an event, for a person who reads a file later.
    Lines,
    /// A document an event.
    Json,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well formed").progress_chars("━╾─")
}

impl View {
    fn new(out: &Out) -> Self {
        if out.is_json() {
            return Self::Json;
        }
        if !out.is_live() {
            return Self::Lines;
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {prefix}  {msg}"));
        bar.enable_steady_tick(Duration::from_millis(120));
        Self::Bar { bar, phase: String::new(), metrics: String::new(), workers: BTreeMap::new() }
    }

    fn event(&mut self, out: &mut Out, job: JobId, event: &Event) -> Result<(), Ending> {
        match self {
            Self::Json => out.result(&EventLine { job, event }, |_| String::new()),
            Self::Lines => {
                out.note(&plain(&line(&event.what)));
                Ok(())
            }
            Self::Bar { bar, phase, metrics: shown, workers } => {
                match &event.what {
                    EventKind::Phase { phase: now, reason, .. } => {
                        bar.set_prefix(now.to_string());
                        *phase = reason.clone().unwrap_or_default();
                    }
                    EventKind::Round { round, total_rounds, metrics: values, sites, .. } => {
                        // Before the first round nobody knows how many there will be.
                        if bar.position() == 0 {
                            bar.set_style(style("{spinner} {prefix} {bar:30} {pos}/{len}  {msg}"));
                        }
                        bar.set_length(u64::from(*total_rounds));
                        bar.set_position(u64::from(*round));
                        *shown = format!("{} {}", metrics(values), by_site(values, sites));
                        phase.clear();
                    }
                    EventKind::Worker { worker } => {
                        let key = format!("{} {}", worker.site, worker.role);
                        // Who simply runs needs no words; who waits, fails or starts again does.
                        if worker.phase == WorkerPhase::Running
                            && worker.attempt == 1
                            && worker.unknown_since.is_none()
                        {
                            workers.remove(&key);
                        } else {
                            workers.insert(key, worker_line(worker));
                        }
                    }
                }
                bar.set_message(plain(&message(phase, shown, workers)));
                Ok(())
            }
        }
    }

    fn close(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

fn message(phase: &str, metrics: &str, workers: &BTreeMap<String, String>) -> String {
    let mut parts: Vec<&str> = Vec::new();
    parts.extend([phase, metrics.trim()].into_iter().filter(|part| !part.is_empty()));
    let mut text = parts.join("  ");
    for worker in workers.values() {
        text.push_str("\n    ");
        text.push_str(worker);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(value: serde_json::Value) -> Event {
        serde_json::from_value(value).expect("an event as the server sends it")
    }

    #[test]
    fn a_line_says_what_happened() {
        let events = [
            json!({"n": 1, "at": 0, "event": "phase", "phase": "queued", "reason": "waiting for site uni: 3 GPUs free of 8"}),
            json!({"n": 2, "at": 0, "event": "worker", "worker": {"site": "uni", "role": "client", "attempt": 2,
                "phase": "pending", "reason": "Priority"}}),
            json!({"n": 3, "at": 0, "event": "round", "round": 5, "total_rounds": 20, "millis": 180,
                "metrics": {"accuracy": 0.9532, "loss": 0.118},
                "sites": {"hospital-a": {"accuracy": 0.95}, "uni": {"accuracy": 0.93}}}),
            json!({"n": 4, "at": 0, "event": "phase", "phase": "completed"}),
        ];
        let lines: Vec<String> = events.map(|value| line(&event(value).what)).to_vec();
        insta::assert_snapshot!(lines.join("\n"), @r"
        queued: waiting for site uni: 3 GPUs free of 8
        uni pending (attempt 2): Priority
        round 5 of 20  accuracy 0.9532  loss 0.1180  (hospital-a 0.9500, uni 0.9300)  180 ms
        completed
        ");
    }

    #[test]
    fn an_event_is_a_document() {
        let event = event(json!({"n": 1, "at": 7, "event": "phase", "phase": "running"}));
        let text = Out::captured(true, |out| {
            let job = "3f2a0c11d2e3f405162738495a6b7c8d".parse().expect("an id");
            View::Json.event(out, job, &event).expect("printed");
        });
        assert_eq!(
            text,
            "{\"version\":1,\"job\":\"3f2a0c11d2e3f405162738495a6b7c8d\",\"n\":1,\"at\":7,\"event\":\"phase\",\"phase\":\"running\"}\n"
        );
    }
}
