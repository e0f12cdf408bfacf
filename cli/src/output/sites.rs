//! Sites and studies as text.

use super::table::Table;
use super::units::{ago, bytes, count};
use polder_api::site::{Amount, Offer};
use polder_api::user::{Sites, Studies, Study};

fn amount(amount: Option<Amount>, show: impl Fn(u64) -> String) -> String {
    amount.map_or_else(String::new, |amount| format!("{} of {}", show(amount.free), show(amount.all)))
}

fn remarks(offer: &Offer, now: u64) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(down) = &offer.down {
        remarks.push(format!(
            "its {} backend does not answer, {}: {}",
            offer.mode,
            ago(down.since, now),
            down.why
        ));
    }
    if !offer.not_enforced.is_empty() {
        remarks.push(format!("not enforced: {}", offer.not_enforced.join(", ")));
    }
    remarks
}

/// `polder sites`.
pub(crate) fn sites(sites: &Sites, now: u64) -> String {
    if sites.sites.is_empty() {
        return "no site takes part in this study; `polder study add-site` adds one\n".to_owned();
    }
    let headings = [
        "SITE",
        "ORG",
        "STATE",
        "LAUNCHES",
        "ISOLATION",
        "GPUS FREE",
        "CPUS FREE",
        "MEMORY FREE",
        "RUNNING",
        "VERSION",
    ];
    let mut table = Table::new(&headings).right(8);
    let mut notes = String::new();
    for site in &sites.sites {
        let state = match (site.connected, site.last_seen) {
            (true, _) => "connected".to_owned(),
            (false, Some(at)) => format!("away, seen {}", ago(at, now)),
            (false, None) => "never seen".to_owned(),
        };
        let offer = site.offer.as_ref();
        table.row([
            site.name.to_string(),
            site.org.to_string(),
            state,
            site.mode.map_or_else(String::new, |mode| mode.to_string()),
            site.isolation.map_or_else(String::new, |isolation| isolation.to_string()),
            amount(offer.and_then(|offer| offer.gpus), |n| n.to_string()),
            amount(offer.and_then(|offer| offer.cpus), |n| n.to_string()),
            amount(offer.and_then(|offer| offer.memory_mib), |n| bytes(n << 20)),
            site.running.to_string(),
            site.version.clone().unwrap_or_default(),
        ]);
        for remark in offer.map(|offer| remarks(offer, now)).unwrap_or_default() {
            notes.push_str(&format!("{}: {remark}\n", site.name));
        }
    }
    let table = table.print();
    if notes.is_empty() { table } else { format!("{table}\n{notes}") }
}

fn members(study: &Study) -> String {
    study.users.iter().map(|user| user.as_str()).collect::<Vec<_>>().join(", ")
}

fn site_names(study: &Study) -> String {
    study
        .site_orgs
        .iter()
        .flat_map(|(org, sites)| sites.iter().map(move |site| format!("{org}/{site}")))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `polder study list`.
pub(crate) fn studies(studies: &Studies) -> String {
    if studies.studies.is_empty() {
        return "no study that you may see; `polder study register` adds one\n".to_owned();
    }
    let mut table = Table::new(&["STUDY", "SITES", "USERS"]);
    for study in &studies.studies {
        table.row([study.name.to_string(), site_names(study), members(study)]);
    }
    table.print()
}

/// `polder study show` and the answer to a change.
pub(crate) fn study(study: &Study) -> String {
    let sites: usize = study.site_orgs.values().map(Vec::len).sum();
    let mut table = Table::facts();
    table.row(["study", study.name.as_str()]).row(["version", &study.version.to_string()]);
    table.row(["sites", &format!("{}: {}", count(sites, "site"), site_names(study))]);
    table.row(["users", &format!("{}: {}", count(study.users.len(), "user"), members(study))]);
    table.print()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_each_site_offers() {
        let list: Sites = serde_json::from_value(json!({"sites": [
            {"name": "hospital-a", "org": "org_a", "connected": true, "mode": "process", "isolation": "landlock",
             "offer": {"mode": "process", "architectures": ["x86_64"], "isolation": "landlock",
                       "not_enforced": ["memory: no cgroup may be made here"],
                       "gpus": {"free": 1, "all": 2}, "cpus": {"free": 6, "all": 8},
                       "memory_mib": {"free": 30720, "all": 32768}},
             "version": "0.1.0", "running": 1},
            {"name": "uni", "org": "org_b", "connected": false, "last_seen": 1_700_000_000_000_u64, "running": 0},
        ]}))
        .expect("sites as the server sends them");
        insta::assert_snapshot!(sites(&list, 1_700_000_300_000));
    }

    #[test]
    fn studies_and_their_members() {
        let one: Study = serde_json::from_value(json!({"name": "pathology",
            "site_orgs": {"org_a": ["hospital-a"], "org_b": ["uni"]}, "users": ["lead@org_a.com"], "version": 3}))
        .expect("a study as the server sends it");
        insta::assert_snapshot!(study(&one));
        insta::assert_snapshot!(studies(&Studies { studies: vec![one] }));
    }
}
