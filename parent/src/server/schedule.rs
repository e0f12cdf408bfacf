//! Which sites a job starts with: pure.

use polder_words::SiteName;
use std::collections::{BTreeMap, BTreeSet};

/// What a job needs.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    pub(super) min_clients: u32,
    pub(super) mandatory: &'a BTreeSet<SiteName>,
    /// `None`: every site of the study.
    pub(super) named: Option<&'a BTreeSet<SiteName>>,
}

/// A site as far as one job is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Ready,
    /// Its parent is not connected.
    Away,
    NotNow(String),
    Never(String),
}

/// What to do with the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Start(Vec<SiteName>),
    Wait(String),
    Never(String),
}

/// Smaller goes first.
pub(super) fn rank(priority: &str) -> u8 {
    match priority {
        "high" => 0,
        "low" => 2,
        _ => 1,
    }
}

/// Gang start: all that are ready, if every mandatory site and enough of the others are. A named site that is only
/// away is waited for no longer than the rest: `min_clients` says how many are enough.
pub(super) fn decide(job: &Waiting<'_>, places: &BTreeMap<SiteName, Place>) -> Decision {
    let least = usize::try_from(job.min_clients).unwrap_or(usize::MAX);
    let why = |place: Option<&Place>| match place {
        Some(Place::NotNow(why) | Place::Never(why)) => why.clone(),
        Some(Place::Away) => "its parent is not connected".to_owned(),
        Some(Place::Ready) => String::new(),
        None => "it is not a site of the study".to_owned(),
    };
    for site in job.mandatory {
        match places.get(site) {
            Some(Place::Ready | Place::Away | Place::NotNow(_)) => {}
            place => return Decision::Never(format!("site {site}, which is mandatory: {}", why(place))),
        }
    }
    let never = places.iter().filter(|(_, place)| matches!(place, Place::Never(_)));
    let possible = places.len() - never.clone().count();
    // With `@ALL` a site may still join the study.
    if possible < least
        && (job.named.is_some() || places.values().any(|place| matches!(place, Place::Never(_))))
    {
        let reasons: Vec<_> =
            never.map(|(site, place)| format!("site {site}: {}", why(Some(place)))).collect();
        return Decision::Never(format!(
            "{possible} sites can take it, {least} needed; {}",
            reasons.join("; ")
        ));
    }
    if let Some(site) = job.mandatory.iter().find(|site| places.get(*site) != Some(&Place::Ready)) {
        return Decision::Wait(format!("waiting for site {site}: {}", why(places.get(site))));
    }
    let ready: Vec<SiteName> =
        places.iter().filter(|(_, place)| **place == Place::Ready).map(|(site, _)| site.clone()).collect();
    if ready.len() >= least {
        return Decision::Start(ready);
    }
    let waits: Vec<_> = places
        .iter()
        .filter(|(_, place)| matches!(place, Place::Away | Place::NotNow(_)))
        .map(|(site, place)| format!("{site}: {}", why(Some(place))))
        .collect();
    if waits.is_empty() {
        return Decision::Wait(format!("waiting for sites: {} in the study, {least} needed", ready.len()));
    }
    let sites = if waits.len() == 1 { "site" } else { "sites" };
    Decision::Wait(format!("waiting for {sites} {}", waits.join("; ")))
}
