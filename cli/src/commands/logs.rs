//! `logs`: one stream a worker, their lines interleaved as they come.
//!
//! Which workers there are is learnt from the job's events, so that with `-f` the log of a site that starts
//! late, or again, is printed too. An offset is kept for each stream: nothing comes twice, also not after
//! the server was away.

use crate::args::LogsArgs;
use crate::output::units::plain;
use crate::output::{Ending, Failure, Out};
use crate::server::{Server, refused};
use polder_api::user::{EventKind, Events, Job, Log};
use polder_api::{LONG_POLL_SECONDS, ProblemCode};
use polder_transport::client::{Client, ClientError, escape};
use polder_words::{JobId, Role, SiteName};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;

/// A pause before a question that failed is asked again.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct LogLine<'a> {
    job: JobId,
    site: &'a SiteName,
    role: Role,
    line: &'a str,
}

/// Whose log.
type Source = (SiteName, Role);

/// One log and what of it was printed.
#[derive(Default)]
struct Stream {
    after: u64,
    /// A line whose end has not come.
    rest: String,
}

enum News {
    Events(Result<Events, ClientError>),
    Log(Source, Result<Log, ClientError>),
}

async fn log_once(
    client: &Client,
    job: JobId,
    (site, role): &Source,
    after: u64,
    wait: u64,
) -> Result<Log, ClientError> {
    let site = escape(site.as_str());
    let path = format!("/v1/user/jobs/{job}/logs?site={site}&role={role}&after={after}&wait={wait}");
    client.get(&path).long_poll(Duration::from_secs(wait)).fetch().await
}

struct Reader<'a> {
    args: &'a LogsArgs,
    job: JobId,
    /// Width of the widest source so far, so that the lines stand below each other.
    width: usize,
    streams: BTreeMap<Source, Stream>,
    asked: JoinSet<News>,
}

pub(crate) async fn logs(args: &LogsArgs, out: &mut Out) -> Result<(), Ending> {
    let mut server = Server::connect(&args.connect).await?;
    let job = server.job(args.job.as_str()).await?;
    let mut reader = Reader { args, job: job.id, width: 0, streams: BTreeMap::new(), asked: JoinSet::new() };
    for worker in &job.workers {
        reader.add(server.client(), (worker.site.clone(), worker.role));
    }
    if args.follow {
        reader.ask_events(server.client(), 0, Duration::ZERO);
    } else if let Some(site) = args.site.as_ref().filter(|_| reader.streams.is_empty()) {
        out.note(&format!("job {} has no worker at {site}", job.id.short()));
    } else if reader.streams.is_empty() {
        out.note(&format!(
            "job {} has no workers yet; `polder show {}` says why",
            job.id.short(),
            job.id.short()
        ));
    }
    let told = async {
        while let Some(news) = reader.asked.join_next().await {
            let news = news.expect("questions do not panic and are not cancelled");
            reader.take(news, &mut server, out).await?;
        }
        Ok(())
    };
    tokio::select! {
        told = told => told,
        _ = tokio::signal::ctrl_c() => Err(Ending::Said(super::follow::INTERRUPTED)),
    }
}

impl Reader<'_> {
    fn add(&mut self, client: &Client, source: Source) {
        let wanted = self.args.site.as_ref().is_none_or(|site| *site == source.0)
            && self.args.role.is_none_or(|role| role == source.1);
        if wanted && !self.streams.contains_key(&source) {
            self.width = self.width.max(source.0.as_str().chars().count());
            self.streams.insert(source.clone(), Stream::default());
            self.ask_log(client, source, Duration::ZERO);
        }
    }

    fn ask_events(&mut self, client: &Client, after: u64, pause: Duration) {
        let (client, job) = (client.clone(), self.job);
        self.asked.spawn(async move {
            tokio::time::sleep(pause).await;
            let path = format!("/v1/user/jobs/{job}/events?after={after}&wait={LONG_POLL_SECONDS}");
            News::Events(client.get(&path).long_poll(Duration::from_secs(LONG_POLL_SECONDS)).fetch().await)
        });
    }

    fn ask_log(&mut self, client: &Client, source: Source, pause: Duration) {
        let (client, job) = (client.clone(), self.job);
        let after = self.streams.get(&source).map_or(0, |stream| stream.after);
        let wait = if self.args.follow { LONG_POLL_SECONDS } else { 0 };
        self.asked.spawn(async move {
            tokio::time::sleep(pause).await;
            let answer = log_once(&client, job, &source, after, wait).await;
            News::Log(source, answer)
        });
    }

    async fn take(&mut self, news: News, server: &mut Server, out: &mut Out) -> Result<(), Ending> {
        match news {
            News::Events(Ok(events)) => {
                for event in &events.events {
                    if let EventKind::Worker { worker } = &event.what {
                        self.add(server.client(), (worker.site.clone(), worker.role));
                    }
                }
                if !events.end {
                    self.ask_events(server.client(), events.next, Duration::ZERO);
                }
            }
            News::Events(Err(error)) => {
                self.weather(&error, server).await?;
                self.ask_events(server.client(), 0, PAUSE);
            }
            News::Log(source, Ok(log)) => {
                let more = !log.end && (self.args.follow || !log.text.is_empty());
                self.print(&source, &log, !more, out)?;
                if more {
                    self.ask_log(server.client(), source, Duration::ZERO);
                }
            }
            News::Log(source, Err(error)) => {
                self.weather(&error, server).await?;
                self.ask_log(server.client(), source, PAUSE);
            }
        }
        Ok(())
    }

    /// An error that may be asked again after; all others end the command.
    async fn weather(&self, error: &ClientError, server: &mut Server) -> Result<(), Ending> {
        let failure = refused(error);
        match failure.problem.code {
            ProblemCode::Unauthenticated if error.problem().is_some() => {
                server.renew().await?;
                Ok(())
            }
            ProblemCode::Unreachable | ProblemCode::Busy if self.args.follow => Ok(()),
            _ => Err(failure.into()),
        }
    }

    fn print(&mut self, source: &Source, log: &Log, last: bool, out: &mut Out) -> Result<(), Ending> {
        let (job, width, several) = (self.job, self.width, self.args.site.is_none());
        let Some(stream) = self.streams.get_mut(source) else {
            return Ok(());
        };
        stream.after = log.next;
        let text = std::mem::take(&mut stream.rest) + &log.text;
        let (whole, rest) = match text.rfind('\n') {
            _ if last => (text.as_str(), ""),
            Some(at) => text.split_at(at + 1),
            None => ("", text.as_str()),
        };
        stream.rest = rest.to_owned();
        for line in whole.lines() {
            let body = LogLine { job, site: &source.0, role: source.1, line };
            out.result(&body, |body| {
                let line = plain(body.line);
                if several { format!("{:width$} | {line}", body.site.as_str()) + "\n" } else { line + "\n" }
            })?;
        }
        Ok(())
    }
}

/// Writes what there is of every worker's log into a folder, a file each.
pub(crate) async fn save(server: &mut Server, job: &Job, dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::io(dir, "make the folder", &error))?;
    for worker in &job.workers {
        let (mut text, mut after) = (String::new(), 0);
        loop {
            let source = (worker.site.clone(), worker.role);
            let log = log_once(server.client(), job.id, &source, after, 0).await;
            let log = log.map_err(|error| refused(&error))?;
            text.push_str(&log.text);
            after = log.next;
            if log.end || log.text.is_empty() {
                break;
            }
        }
        let file = dir.join(format!("{}.log", worker.site));
        std::fs::write(&file, text).map_err(|error| Failure::io(&file, "write", &error))?;
    }
    Ok(())
}
