//! From a container's state to a worker's, and from the engine's words to a class. Pure.

use crate::drive::time;
use bollard::models::{ContainerState, ContainerStateStatusEnum};
use polder_launch::{Exit, Native, Refusal};
use polder_words::{FailureClass, Outcome};

/// What a state means.
pub(crate) fn state_of(state: &ContainerState) -> Native {
    use ContainerStateStatusEnum as Status;
    let said = state.error.as_deref().unwrap_or_default();
    match state.status {
        // A start that was refused leaves it so, with the reason.
        Some(Status::CREATED) | None if !said.is_empty() => exited(state, start_refused(said).outcome()),
        Some(Status::CREATED) => Native::Waiting,
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING) => {
            Native::Running { since: time(state.started_at.as_deref()) }
        }
        _ => exited(state, ended(state.exit_code.unwrap_or(-1), state.oom_killed == Some(true), said)),
    }
}

fn exited(state: &ContainerState, outcome: Outcome) -> Native {
    // A container that never ran ended in the year 1, as the engine has it.
    let at = state.finished_at.as_deref().filter(|at| !at.starts_with("0001-"));
    Native::Exited(Exit { outcome, at: time(at) })
}

/// How a worker ended. An exit code is the worker's program's: the job's own failure is what the worker reports itself.
pub(crate) fn ended(code: i64, oom: bool, said: &str) -> Outcome {
    let number = code - 128;
    let signal = SIGNALS.iter().find(|(n, _)| *n == number).map(|(n, name)| format!("signal {n} ({name})"));
    if oom {
        let how = signal.unwrap_or_else(|| format!("exit {code}"));
        let text = if code == 137 {
            format!("OOMKilled: the container reached its memory limit ({how})")
        } else {
            format!("OOMKilled: a process of the container was killed at its memory limit ({how})")
        };
        return Outcome::failed(FailureClass::OutOfMemory, text);
    }
    if !said.is_empty() {
        return start_refused(said).outcome();
    }
    match (code, signal) {
        (0, _) => Outcome::Completed,
        // Rootless engines, Podman and control groups version 2 do not always say so.
        (137, Some(signal)) => {
            Outcome::failed(FailureClass::Infrastructure, format!("{signal}; perhaps out of memory"))
        }
        (_, Some(signal)) => Outcome::failed(FailureClass::Infrastructure, signal),
        (code, None) => Outcome::failed(FailureClass::Infrastructure, format!("exit {code}")),
    }
}

const SIGNALS: [(i64, &str); 9] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (4, "ILL"),
    (6, "ABRT"),
    (7, "BUS"),
    (9, "KILL"),
    (11, "SEGV"),
    (15, "TERM"),
];

/// Why the engine did not start a container: its own words, and what they are about.
pub(crate) fn start_refused(message: &str) -> Refusal {
    let lower = message.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let class =
        if has(&["gathering device information", "could not select device driver", "nvidia-container"]) {
            FailureClass::Resources
        } else if has(&["bind source path", "mounting", "mount "]) && !has(&["exec:"]) {
            FailureClass::Config
        } else if has(&[
            "executable file not found",
            "exec:",
            "no such file or directory",
            "permission denied",
        ]) {
            FailureClass::Image
        } else {
            FailureClass::Infrastructure
        };
    Refusal::new(class, format!("the engine did not start it: {}", message.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_apart() {
        let said = |code, oom, text| match ended(code, oom, text) {
            Outcome::Completed => "completed".to_owned(),
            Outcome::Failed { class, cause, .. } => format!("{class}: {cause}"),
        };
        let all = [
            (0, false, ""),
            (7, false, ""),
            (137, false, ""),
            (143, false, ""),
            (137, true, ""),
            (9, true, ""),
        ];
        insta::assert_snapshot!(all.map(|(code, oom, text)| said(code, oom, text)).join("\n"), @r"
        completed
        infrastructure: exit 7
        infrastructure: signal 9 (KILL); perhaps out of memory
        infrastructure: signal 15 (TERM)
        out_of_memory: OOMKilled: the container reached its memory limit (signal 9 (KILL))
        out_of_memory: OOMKilled: a process of the container was killed at its memory limit (exit 9)
        ");
    }
}
