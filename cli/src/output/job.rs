//! Jobs as text.

use super::table::Table;
use super::units::{ago, metrics, plain, span, stamp};
use polder_api::user::{Failure, Job, Jobs, Worker};

/// `round 5 of 20`, `completed`, `queued: why`.
pub(crate) fn standing(job: &Job) -> String {
    let mut text = job.phase.to_string();
    if job.phase == polder_words::JobPhase::Running && job.total_rounds > 0 {
        text = format!("{text}, {} of {} rounds done", job.round, job.total_rounds);
    }
    if let Some(reason) = &job.reason {
        text = format!("{text}: {reason}");
    }
    text
}

fn rounds(job: &Job) -> String {
    if job.total_rounds == 0 { String::new() } else { format!("{}/{}", job.round, job.total_rounds) }
}

fn took(job: &Job, now: u64) -> String {
    match job.started {
        Some(started) => span(job.finished.unwrap_or(now).saturating_sub(started)),
        None => String::new(),
    }
}

/// `polder jobs`.
pub(crate) fn list(jobs: &Jobs, now: u64) -> String {
    if jobs.jobs.is_empty() {
        return "no jobs yet; `polder submit FOLDER` submits one\n".to_owned();
    }
    let mut table = Table::new(&["JOB", "NAME", "PHASE", "ROUND", "SUBMITTER", "SUBMITTED", "TOOK", "WHY"])
        .right(3)
        .right(6);
    for job in &jobs.jobs {
        table.row([
            job.id.short(),
            job.name.clone(),
            job.phase.to_string(),
            rounds(job),
            job.submitter.to_string(),
            ago(job.submitted, now),
            took(job, now),
            why(job),
        ]);
    }
    table.print()
}

fn why(job: &Job) -> String {
    match (&job.failure, &job.reason) {
        (Some(failure), _) => format!("{}: {}: {}", failure.site, failure.class, failure.cause),
        (None, Some(reason)) => reason.clone(),
        (None, None) => String::new(),
    }
}

/// `polder show`.
pub(crate) fn show(job: &Job, now: u64) -> String {
    let time = |at: u64| format!("{} ({})", stamp(at), ago(at, now));
    let mut table = Table::facts();
    table
        .row(["job", &job.id.to_string()])
        .row(["name", &job.name])
        .row(["study", job.study.as_str()])
        .row(["submitter", job.submitter.as_str()])
        .row(["phase", &standing(job)])
        .row(["priority", &job.priority]);
    if job.total_rounds > 0 {
        table.row(["rounds", &format!("{} of {}", job.round, job.total_rounds)]);
    }
    if !job.metrics.is_empty() {
        table.row(["metrics", &metrics(&job.metrics)]);
    }
    table.row(["submitted", &time(job.submitted)]);
    if let Some(started) = job.started {
        table.row(["started", &time(started)]);
    }
    if let Some(finished) = job.finished {
        table.row(["finished", &time(finished)]);
        if let Some(started) = job.started {
            table.row(["took", &span(finished.saturating_sub(started))]);
        }
    }
    let mut text = table.print();
    if let Some(failed) = &job.failure {
        text.push('\n');
        text.push_str(&failure(failed));
    }
    if !job.workers.is_empty() {
        text.push('\n');
        text.push_str(&workers(&job.workers, now));
    }
    text
}

/// Why a job failed, with the last lines of the log.
pub(crate) fn failure(failure: &Failure) -> String {
    let mut text = format!("failed at {}: {}: {}\n", failure.site, failure.class, plain(&failure.cause));
    if !failure.tail.trim().is_empty() {
        text.push_str("last lines of its log:\n");
        for line in plain(&failure.tail).trim_end().lines() {
            text.push_str("  | ");
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The beginning of a long name; `--json` has it whole.
fn short(text: &str) -> String {
    const MOST: usize = 40;
    if text.chars().count() <= MOST {
        text.to_owned()
    } else {
        text.chars().take(MOST - 1).chain(['…']).collect()
    }
}

/// Where files were put.
pub(crate) fn files<'a>(dir: &std::path::Path, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    format!("in {}: {}\n", dir.display(), names.join(", "))
}

fn workers(workers: &[Worker], now: u64) -> String {
    let mut table = Table::new(&["SITE", "ROLE", "ATTEMPT", "PHASE", "NATIVE", "WHY"]).right(2);
    for worker in workers {
        let phase = match worker.unknown_since {
            Some(since) => format!("{} (unknown since {})", worker.phase, ago(since, now)),
            None => worker.phase.to_string(),
        };
        table.row([
            worker.site.to_string(),
            worker.role.to_string(),
            worker.attempt.to_string(),
            phase,
            short(worker.native.as_deref().unwrap_or_default()),
            worker.reason.clone().unwrap_or_default(),
        ]);
    }
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Out, VERSION};
    use serde_json::json;

    pub(crate) fn sample(phase: &str) -> Job {
        serde_json::from_value(json!({
            "id": "3f2a0c11d2e3f405162738495a6b7c8d", "name": "breast-cancer", "study": "pathology",
            "submitter": "lead@org_a.com", "phase": phase, "round": 5, "total_rounds": 20,
            "metrics": {"accuracy": 0.953_216, "loss": 0.118_34},
            "workers": [
                {"site": "hospital-a", "role": "client", "attempt": 1, "phase": "running", "native": "pid 4711"},
                {"site": "university", "role": "client", "attempt": 2, "phase": "pending", "reason": "Priority",
                 "unknown_since": 1_700_000_100_000_u64},
            ],
            "submitted": 1_700_000_000_000_u64, "started": 1_700_000_002_000_u64, "priority": "normal",
        }))
        .expect("a job as the server sends it")
    }

    #[test]
    fn a_running_job() {
        insta::assert_snapshot!(show(&sample("running"), 1_700_000_120_000));
    }

    #[test]
    fn a_failed_job_says_where_why_and_the_last_lines() {
        let mut job = sample("failed");
        job.finished = Some(1_700_000_052_000);
        job.failure = Some(
            serde_json::from_value(json!({"site": "university", "class": "user_code", "cause": "exit 7",
                "tail": "Traceback (most recent call last):\nKeyError: 'age'\n"}))
            .expect("a failure as the server sends it"),
        );
        insta::assert_snapshot!(show(&job, 1_700_000_120_000));
    }

    #[test]
    fn lists() {
        let mut waiting = sample("queued");
        waiting.reason = Some("waiting for site university: 3 GPUs free of 8".to_owned());
        waiting.started = None;
        waiting.round = 0;
        let jobs = Jobs { jobs: vec![waiting, sample("running")] };
        insta::assert_snapshot!(list(&jobs, 1_700_000_120_000));
        insta::assert_snapshot!(list(&Jobs { jobs: vec![] }, 0));
    }

    #[test]
    fn json_is_versioned() {
        let text = Out::captured(true, |out| {
            let _ = out.result(&Jobs { jobs: vec![sample("running")] }, |_| String::new());
        });
        let value: serde_json::Value = serde_json::from_str(&text).expect("one document");
        assert_eq!(value["version"], VERSION);
        insta::assert_json_snapshot!(value);
    }
}
