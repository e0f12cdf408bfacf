//! Which waiting jobs may start, and why the others wait. A pure decision over a picture of the federation.
//!
//! A job starts as a gang: when the server, every mandatory site and at least `min_clients` sites can take it at
//! once; it then gets every site that can. Jobs are looked at by priority, then in the order they came. What one
//! takes the next does not see, so nothing is given twice within one decision. A smaller job behind a waiting one
//! may pass it; a job that has waited for long holds what it waits for, so that small jobs cannot starve it.

use crate::meta::Priority;
use polder_words::{JobId, SiteName};
use std::collections::{BTreeMap, BTreeSet};

/// Amounts a worker needs at a site; what is not asked for is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// GPUs.
    pub gpus: u64,
    /// CPUs.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
}

/// A job that waits.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// Which.
    pub job: JobId,
    /// How urgent.
    pub priority: Priority,
    /// Grows with submission; the smaller came first.
    pub order: u64,
    /// Client sites it goes to: those of `deploy_map`, or all of the study.
    pub sites: BTreeSet<SiteName>,
    /// Sites without which it does not run.
    pub min_clients: u32,
    /// Sites that must take part.
    pub mandatory: BTreeSet<SiteName>,
    /// What it needs at a site (`server` included); nothing where nothing is said.
    pub needs: BTreeMap<SiteName, Amounts>,
    /// Sites that refused it, and why; they will not be asked again.
    pub refused: BTreeMap<SiteName, String>,
    /// Sites not to be asked now, and why: they said busy a moment ago.
    pub resting: BTreeMap<SiteName, String>,
    /// Whether it has waited so long that it holds what it waits for.
    pub holds: bool,
}

/// An amount that is there and what of it is free; `None` where a scheduler of the site's hands it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// Not taken.
    pub free: u64,
    /// All there is.
    pub all: u64,
}

/// A site as the server sees it.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// Whether it is there.
    pub connected: bool,
    /// GPUs.
    pub gpus: Option<Stock>,
    /// CPUs.
    pub cpus: Option<Stock>,
    /// Bytes of memory.
    pub memory: Option<Stock>,
    /// Jobs it runs at once.
    pub jobs: Option<Stock>,
}

/// What becomes of a waiting job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It starts at these sites.
    Start {
        /// Clients, by name.
        sites: Vec<SiteName>,
    },
    /// It waits.
    Wait {
        /// In words.
        reason: String,
    },
    /// It can never run: too many sites have refused it.
    Impossible {
        /// In words.
        reason: String,
    },
}

/// Decides for every waiting job. `server` is the server's own place, `sites` every site of the federation.
#[must_use]
pub fn schedule(
    waiting: &[Waiting],
    server: &Site,
    sites: &BTreeMap<SiteName, Site>,
) -> Vec<(JobId, Decision)> {
    let mut picture = Picture { server: server.clone(), sites: sites.clone() };
    let mut queue: Vec<&Waiting> = waiting.iter().collect();
    queue.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.order, job.job));
    queue
        .into_iter()
        .map(|job| {
            let decision = decide(job, &picture);
            match &decision {
                Decision::Start { sites } => picture.take(job, sites.iter()),
                Decision::Wait { .. } if job.holds => picture.take(job, job.sites.iter()),
                Decision::Wait { .. } | Decision::Impossible { .. } => {}
            }
            (job.job, decision)
        })
        .collect()
}

/// What is left while the decision goes on.
struct Picture {
    server: Site,
    sites: BTreeMap<SiteName, Site>,
}

impl Picture {
    fn take<'a>(&mut self, job: &Waiting, sites: impl Iterator<Item = &'a SiteName>) {
        self.server.take(job.need(&SiteName::server()));
        for name in sites {
            if let Some(site) = self.sites.get_mut(name) {
                site.take(job.need(name));
            }
        }
    }
}

impl Waiting {
    fn need(&self, site: &SiteName) -> Amounts {
        self.needs.get(site).copied().unwrap_or_default()
    }
}

impl Site {
    fn take(&mut self, need: Amounts) {
        for (stock, amount) in [
            (&mut self.gpus, need.gpus),
            (&mut self.cpus, need.cpus),
            (&mut self.memory, need.memory),
            (&mut self.jobs, 1),
        ] {
            if let Some(stock) = stock {
                stock.free = stock.free.saturating_sub(amount);
            }
        }
    }

    /// Why the site cannot take a worker now.
    fn lacks(&self, need: Amounts) -> Option<String> {
        if !self.connected {
            return Some("not connected".to_owned());
        }
        let short = |stock: Option<Stock>, asked: u64| stock.filter(|stock| asked > stock.free);
        let count = |n: u64, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
        if let Some(jobs) = short(self.jobs, 1) {
            return Some(format!("{} at once, all taken", count(jobs.all, "job", "jobs")));
        }
        if let Some(gpus) = short(self.gpus, need.gpus) {
            return Some(format!(
                "{} free of {}, {} asked",
                count(gpus.free, "GPU", "GPUs"),
                gpus.all,
                need.gpus
            ));
        }
        if let Some(cpus) = short(self.cpus, need.cpus) {
            return Some(format!(
                "{} free of {}, {} asked",
                count(cpus.free, "CPU", "CPUs"),
                cpus.all,
                need.cpus
            ));
        }
        short(self.memory, need.memory).map(|memory| {
            format!("{} memory free of {}, {} asked", size(memory.free), size(memory.all), size(need.memory))
        })
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    if bytes >= GIB && (bytes.is_multiple_of(GIB) || bytes >= 10 * GIB) {
        format!("{} GiB", bytes / GIB)
    } else {
        format!("{} MiB", bytes / MIB)
    }
}

fn decide(job: &Waiting, picture: &Picture) -> Decision {
    if let Some(impossible) = impossible(job) {
        return Decision::Impossible { reason: impossible };
    }
    if let Some(why) = picture.server.lacks(job.need(&SiteName::server())) {
        return Decision::Wait { reason: format!("waiting for the server: {why}") };
    }
    let mut able = Vec::new();
    let mut unable: Vec<(&SiteName, String)> = Vec::new();
    let mut connected = 0usize;
    for name in job.sites.iter().filter(|name| !job.refused.contains_key(*name)) {
        let Some(site) = picture.sites.get(name) else {
            unable.push((name, "not connected".to_owned()));
            continue;
        };
        connected += usize::from(site.connected);
        let resting = job.resting.get(name).filter(|_| site.connected).cloned();
        match site.lacks(job.need(name)).or(resting) {
            None => able.push(name.clone()),
            Some(why) => unable.push((name, why)),
        }
    }
    let min = usize::try_from(job.min_clients).unwrap_or(usize::MAX);
    if let Some((name, why)) = unable.iter().find(|(name, _)| job.mandatory.contains(*name)) {
        return Decision::Wait { reason: format!("waiting for site {name}: {why}") };
    }
    if connected < min {
        let all = job.sites.len();
        return Decision::Wait {
            reason: format!("{connected} of {all} sites connected, min_clients is {}", job.min_clients),
        };
    }
    if able.len() < min {
        // What is connected and busy says more than what is away.
        unable.sort_by_key(|(_, why)| why == "not connected");
        let reason = match unable.as_slice() {
            [] => format!("{} sites, min_clients is {}", job.sites.len(), job.min_clients),
            [(name, why)] => format!("waiting for site {name}: {why}"),
            [(name, why), rest @ ..] => format!("waiting for site {name}: {why} (and {} more)", rest.len()),
        };
        return Decision::Wait { reason };
    }
    Decision::Start { sites: able }
}

/// Whether refusals have left too few sites.
fn impossible(job: &Waiting) -> Option<String> {
    if let Some((name, why)) = job.refused.iter().find(|(name, _)| job.mandatory.contains(*name)) {
        return Some(format!("site {name} is mandatory and refused: {why}"));
    }
    let refused: Vec<_> = job.refused.iter().filter(|(name, _)| job.sites.contains(*name)).collect();
    let left = job.sites.len() - refused.len();
    let (name, why) = refused.first()?;
    if left >= usize::try_from(job.min_clients).unwrap_or(usize::MAX) {
        return None;
    }
    let more = if refused.len() > 1 { format!(" (and {} more)", refused.len() - 1) } else { String::new() };
    Some(format!(
        "{left} of {} sites are left, min_clients is {}: site {name} refused: {why}{more}",
        job.sites.len(),
        job.min_clients
    ))
}

#[cfg(test)]
mod tests;
