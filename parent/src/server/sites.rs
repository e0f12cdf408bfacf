//! Sites as the server knows them: what is wanted of each, what each offers, whether it is there.
//!
//! A site is connected while a long poll of it is open, and for a little while after one was answered (it comes
//! back at once). A poll that broke off means that the site is gone: a parent that was killed does not
//! count as connected until a timeout says otherwise.

use super::state::Wanted;
use polder_api::site::Offer;
use polder_store::{SiteRow, Store};
use polder_transport::longpoll::Feed;
use polder_words::{Epoch, JobId, OrgName, SiteName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long after its last answer or word a site counts as connected without an open poll, milliseconds.
const COMES_BACK: u64 = 10 * 1000;

/// What a site said of itself; stored, so that a restarted server knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) org: OrgName,
    pub(super) version: String,
    pub(super) offer: Offer,
}

#[derive(Debug)]
struct Site {
    desired: Arc<Feed<JobId, Wanted>>,
    said: Option<Said>,
    /// Milliseconds since 1970.
    last_seen: Option<u64>,
    open: u32,
    /// The last poll broke off, and nothing was heard since.
    broken: bool,
    /// What the scheduler was told last.
    connected: bool,
    /// Jobs it is to let go of, and the change of its feed that says so: until it has read that, asking it for the
    /// same job again would look to it as if nothing had happened.
    releasing: BTreeMap<JobId, u64>,
}

/// A site as others see it.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) said: Option<Said>,
    pub(super) last_seen: Option<u64>,
    pub(super) connected: bool,
}

/// All sites.
#[derive(Debug)]
pub(super) struct Sites {
    epoch: Epoch,
    sites: Mutex<BTreeMap<SiteName, Site>>,
}

impl Site {
    fn is_connected(&self, now: u64) -> bool {
        self.open > 0
            || (!self.broken && self.last_seen.is_some_and(|seen| now < seen.saturating_add(COMES_BACK)))
    }
}

impl Sites {
    /// Those that were ever heard of; none is connected yet.
    pub(super) async fn open(store: &dyn Store, epoch: Epoch) -> polder_store::Result<Self> {
        let sites = Self { epoch, sites: Mutex::default() };
        for row in store.sites().await? {
            match serde_json::from_value(row.body) {
                Ok(said) => {
                    let mut all = sites.lock();
                    let site = sites.entry(&mut all, &row.name);
                    site.said = Some(said);
                    site.last_seen = Some(row.last_seen);
                    site.broken = true;
                }
                Err(error) => {
                    tracing::warn!(site = %row.name, %error, "what a site said is not readable any more");
                }
            }
        }
        Ok(sites)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SiteName, Site>> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry<'a>(&self, all: &'a mut BTreeMap<SiteName, Site>, name: &SiteName) -> &'a mut Site {
        all.entry(name.clone()).or_insert_with(|| Site {
            desired: Arc::new(Feed::new(self.epoch)),
            said: None,
            last_seen: None,
            open: 0,
            broken: false,
            connected: false,
            releasing: BTreeMap::new(),
        })
    }

    /// What is wanted of a site.
    pub(super) fn desired(&self, name: &SiteName) -> Arc<Feed<JobId, Wanted>> {
        Arc::clone(&self.entry(&mut self.lock(), name).desired)
    }

    /// A job is no longer wanted of a site.
    pub(super) fn let_go(&self, name: &SiteName, job: &JobId) {
        let mut all = self.lock();
        let site = self.entry(&mut all, name);
        if site.desired.remove(job) {
            site.releasing.insert(*job, site.desired.cursor().n);
        }
    }

    /// A site has read its feed up to a change; says whether it was waited for.
    pub(super) fn has_read(&self, name: &SiteName, n: u64) -> bool {
        let mut all = self.lock();
        let site = self.entry(&mut all, name);
        let before = site.releasing.len();
        site.releasing.retain(|_, change| *change > n);
        site.releasing.len() < before
    }

    /// Sites that have not yet read that they are to let go of a job.
    pub(super) fn releasing(&self, job: &JobId) -> Vec<SiteName> {
        let all = self.lock();
        all.iter()
            .filter(|(_, site)| site.releasing.contains_key(job))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// A site spoke, perhaps of itself; gives what is to be stored when that changed.
    pub(super) fn heard(&self, name: &SiteName, said: Option<Said>, now: u64) -> Option<SiteRow> {
        let mut all = self.lock();
        let site = self.entry(&mut all, name);
        site.last_seen = Some(now);
        site.broken = false;
        let said = said.filter(|said| site.said.as_ref() != Some(said))?;
        site.said = Some(said.clone());
        let body = serde_json::to_value(said).unwrap_or_default();
        Some(SiteRow { name: name.clone(), last_seen: now, body })
    }

    /// What a site said of itself last.
    pub(super) fn said(&self, name: &SiteName) -> Option<Said> {
        self.lock().get(name)?.said.clone()
    }

    /// A poll of a site is open.
    pub(super) fn poll_opened(&self, name: &SiteName, now: u64) {
        let mut all = self.lock();
        let site = self.entry(&mut all, name);
        site.open += 1;
        site.last_seen = Some(now);
        site.broken = false;
    }

    /// A poll ended: answered, or broken off.
    pub(super) fn poll_ended(&self, name: &SiteName, answered: bool, now: u64) {
        let mut all = self.lock();
        let site = self.entry(&mut all, name);
        site.open = site.open.saturating_sub(1);
        if answered {
            site.last_seen = Some(now);
        } else if site.open == 0 {
            site.broken = true;
        }
    }

    /// Sites whose connection changed since this was last asked, and when the next may change by time alone.
    pub(super) fn changes(&self, now: u64) -> (Vec<(SiteName, bool)>, Option<u64>) {
        let mut changed = Vec::new();
        let mut next: Option<u64> = None;
        for (name, site) in self.lock().iter_mut() {
            let connected = site.is_connected(now);
            if connected != site.connected {
                site.connected = connected;
                changed.push((name.clone(), connected));
            }
            if connected && site.open == 0 {
                let at = site.last_seen.unwrap_or(now).saturating_add(COMES_BACK);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        (changed, next)
    }

    /// All sites as others see them.
    pub(super) fn all(&self, now: u64) -> BTreeMap<SiteName, View> {
        let view = |site: &Site| View {
            said: site.said.clone(),
            last_seen: site.last_seen,
            connected: site.is_connected(now),
        };
        self.lock().iter().map(|(name, site)| (name.clone(), view(site))).collect()
    }

    /// Organisations of the sites that came.
    pub(super) fn orgs(&self) -> BTreeMap<SiteName, OrgName> {
        let all = self.lock();
        all.iter().filter_map(|(name, site)| Some((name.clone(), site.said.as_ref()?.org.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_broken_poll_is_a_gone_site_and_an_answered_one_is_not() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let store = polder_store::Sqlite::open(dir.path()).expect("opens");
        let sites = Sites::open(&store, Epoch([1; 8])).await.expect("reads");
        let site = SiteName::new("a").expect("a name");
        let connected = |now| sites.all(now)[&site].connected;
        sites.poll_opened(&site, 0);
        assert!(connected(1_000_000));
        sites.poll_ended(&site, true, 25_000);
        assert!(connected(26_000), "it comes back at once");
        assert!(!connected(25_000 + COMES_BACK), "it did not come back");
        sites.poll_opened(&site, 50_000);
        assert_eq!(sites.changes(50_000).0, [(site.clone(), true)]);
        sites.poll_ended(&site, false, 50_001);
        assert!(!connected(50_002), "its connection broke");
        assert_eq!(sites.changes(50_003).0, [(site.clone(), false)]);
        sites.heard(&site, None, 50_004);
        assert!(connected(50_005), "it spoke again");
    }
}
