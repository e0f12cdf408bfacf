//! What a study says to Slurm.

use super::plus::account;
use super::read::slurm_path;
use crate::error::Result;
use crate::launcher::{SANDBOXES, SlurmSandbox};
use crate::parent::directive;
use crate::value::{At, Data, Map};

const KEYS: [&str; 12] = [
    "sandbox",
    "python_path",
    "setup",
    "partition",
    "account",
    "qos",
    "user",
    "partitions",
    "gres",
    "constraint",
    "reservation",
    "time",
];

/// Settings of a study for Slurm.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SlurmStudy {
    /// As it was written; what the contract prints.
    pub written: Map,
    /// Instead of the site's.
    pub sandbox: Option<SlurmSandbox>,
    /// The interpreter on the nodes.
    pub python_path: Option<String>,
    /// Lines of shell before the worker.
    pub setup: Option<String>,
    /// Instead of the site's.
    pub partition: Option<String>,
    /// Instead of the site's.
    pub account: Option<String>,
    /// Instead of the site's.
    pub qos: Option<String>,
    /// The account of the cluster that runs this study's workers.
    pub user: Option<String>,
    /// Partitions the launcher may choose among by expected start.
    pub partitions: Vec<String>,
    /// Generic resources beside GPUs.
    pub gres: Option<String>,
    /// Instead of the site's.
    pub constraint: Option<String>,
    /// Instead of the site's.
    pub reservation: Option<String>,
    /// The longest time of a worker, instead of the site's.
    pub time: Option<String>,
}

impl SlurmStudy {
    pub(super) fn read(at: &At<'_>) -> Result<Self> {
        let fields = at.fields(&KEYS)?;
        let value = |key: &str| fields.get(key).map(|at| value(&at)).transpose();
        let out = Self {
            written: at.map()?.clone(),
            sandbox: fields.get("sandbox").map(|at| at.word(&SANDBOXES)).transpose()?,
            python_path: fields.get("python_path").map(|at| slurm_path(&at, false)).transpose()?,
            setup: fields.get("setup").map(|at| setup(&at)).transpose()?,
            partition: value("partition")?,
            account: value("account")?,
            qos: value("qos")?,
            user: fields.get("user").map(|at| account(&at)).transpose()?,
            partitions: match fields.get("partitions") {
                None => Vec::new(),
                Some(at) => partitions(&at)?,
            },
            gres: value("gres")?,
            constraint: value("constraint")?,
            reservation: value("reservation")?,
            time: fields.get("time").map(|at| time(&at)).transpose()?,
        };
        match fields.get("partitions") {
            Some(at) if out.partition.is_some() => {
                Err(at.refuse("stands beside `partition`", "one of the two"))
            }
            _ => Ok(out),
        }
    }

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }
}

/// A value for `sbatch`, which is not empty.
fn value(at: &At<'_>) -> Result<String> {
    let text = directive(at)?;
    if text.contains(char::is_control) {
        return Err(at.refuse("holds a control character", "a value for sbatch"));
    }
    Ok(text)
}

fn setup(at: &At<'_>) -> Result<String> {
    let text = at.any_text()?;
    if text.contains('\0') {
        return Err(at.refuse("holds a NUL", "lines of shell"));
    }
    Ok(text.to_owned())
}

fn partitions(at: &At<'_>) -> Result<Vec<String>> {
    let items = at.seq()?;
    if items.is_empty() {
        return Err(at.refuse("is empty", "names of partitions"));
    }
    items
        .iter()
        .map(|item| {
            let text = value(item)?;
            if text.contains(',') {
                Err(item.refuse("holds a comma", "one partition an item"))
            } else {
                Ok(text)
            }
        })
        .collect()
}

/// A time limit nobody can misread.
fn time(at: &At<'_>) -> Result<String> {
    const ALLOWED: &str =
        "minutes (90), hours:minutes:seconds (12:00:00), or days-hours[:minutes[:seconds]] (2-12)";
    let text = match &at.value().data {
        Data::Int(int) => int.to_string(),
        Data::Text(text) => text.clone(),
        _ => return Err(at.refuse(&format!("is {}", at.value().kind()), ALLOWED)),
    };
    match slurm_time(&text) {
        Some(_) => Ok(text),
        None if text.matches(':').count() == 1 && !text.contains('-') => {
            Err(at.refuse("can be read as minutes and seconds or as hours and minutes", ALLOWED))
        }
        None => Err(at.refuse("is not a time limit", ALLOWED)),
    }
}

/// The seconds of a time limit: minutes, `h:mm:ss` or `d-h[:mm[:ss]]`. Slurm's `m:ss` is not read: people take it
/// for hours.
#[must_use]
pub fn slurm_time(text: &str) -> Option<u64> {
    let number = |part: &str| {
        let good = (1..=9).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        if good { part.parse::<u64>().ok() } else { None }
    };
    let sixty = |part: &str| number(part).filter(|n| *n < 60);
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let seconds = match (days, parts.as_slice()) {
        (None, [minutes]) => number(minutes)? * 60,
        (None, [hours, minutes, seconds]) => number(hours)? * 3600 + sixty(minutes)? * 60 + sixty(seconds)?,
        (Some(days), [hours]) => days * 86_400 + number(hours)? * 3600,
        (Some(days), [hours, minutes]) => days * 86_400 + number(hours)? * 3600 + sixty(minutes)? * 60,
        (Some(days), [hours, minutes, seconds]) => {
            days * 86_400 + number(hours)? * 3600 + sixty(minutes)? * 60 + sixty(seconds)?
        }
        _ => return None,
    };
    (seconds > 0).then_some(seconds)
}
