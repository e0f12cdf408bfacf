//! What a parent relies on: nothing twice, nothing lost, nothing of another study.

use polder_api::SignedOrder;
use polder_api::user::EventKind;
use polder_api::worker::RoundDone;
use polder_store::{
    Bound, DocumentStore, EnrolmentStore, Inserted, JobChange, JobStore, NewJob, RegistryStore, SessionRow,
    SessionStore, Sqlite, StoreError,
};
use polder_words::{BlobRef, Hash, JobId, JobPhase, LaunchId, Nonce, Role, SiteName, StudyName};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn study(name: &str) -> StudyName {
    StudyName::new(name).expect("a name")
}

fn new_job(id: u8, in_study: &str, holds: &[u8]) -> NewJob {
    NewJob {
        id: JobId([id; 16]),
        study: study(in_study),
        name: format!("job {id}"),
        submitter: "lead@org_a.com".parse().expect("a name"),
        submitter_org: "org_a".parse().expect("a name"),
        priority: "normal".to_owned(),
        signed: SignedOrder {
            order: format!("order {id}"),
            signature: String::new(),
            certificate: String::new(),
        },
        nonce: Nonce([id; 16]),
        nonce_expires: 100,
        total_rounds: 5,
        holds: holds.iter().map(|b| Hash([*b; 32])).collect(),
        state: serde_json::json!({"n": id}),
        submitted: 1000 + u64::from(id),
    }
}

fn round(round: u32) -> RoundDone {
    RoundDone {
        round,
        total_rounds: 5,
        metrics: BTreeMap::from([("accuracy".to_owned(), 0.5)]),
        sites: BTreeMap::new(),
        millis: 3,
    }
}

fn open() -> (tempfile::TempDir, Sqlite) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = Sqlite::open(dir.path()).expect("opens");
    (dir, store)
}

#[tokio::test]
async fn an_order_is_one_job_and_a_nonce_counts_once() {
    let (_dir, store) = open();
    assert_eq!(store.insert_job(new_job(1, "a", &[])).await.expect("stored"), Inserted::New);
    assert_eq!(store.insert_job(new_job(1, "a", &[])).await.expect("known"), Inserted::Same);
    let other = NewJob { nonce: Nonce([1; 16]), ..new_job(2, "a", &[]) };
    let error = store.insert_job(other).await.expect_err("the nonce was used");
    assert_eq!(error.to_string(), "an order with this nonce exists already");
    assert!(store.job(JobId([2; 16])).await.expect("reads").is_none());
    assert_eq!(store.events(JobId([1; 16]), 0, 10).await.expect("reads").len(), 1);
}

#[tokio::test]
async fn events_are_numbered_and_a_round_counts_once() {
    let (dir, store) = open();
    let id = JobId([1; 16]);
    store.insert_job(new_job(1, "a", &[])).await.expect("stored");
    let change = JobChange {
        phase: Some(JobPhase::Queued),
        reason: Some(Some("waiting".to_owned())),
        started: Some(7),
        ..JobChange::default()
    };
    let what = EventKind::Phase { phase: JobPhase::Queued, reason: None, failure: None };
    let events = store.change_job(id, change, vec![what], 2).await.expect("changed");
    assert_eq!(events[0].n, 2);
    assert_eq!(store.add_round(id, round(1), 3).await.expect("noted").map(|e| e.n), Some(3));
    assert!(store.add_round(id, round(1), 4).await.expect("known").is_none());
    assert!(store.add_round(id, round(2), 5).await.expect("noted").is_some());
    assert!(store.add_round(id, round(1), 6).await.expect("late").is_none());
    // Another process sees the same.
    drop(store);
    let store = Sqlite::open(dir.path()).expect("opens again");
    let (job, order) = store.live_jobs().await.expect("reads").remove(0);
    assert_eq!(
        (job.round, job.phase, job.started, job.state),
        (2, JobPhase::Queued, Some(7), serde_json::json!({"n": 1}))
    );
    assert_eq!((order.order.as_str(), job.reason.as_deref()), ("order 1", Some("waiting")));
    let after = store.events(id, 2, 10).await.expect("reads");
    assert_eq!(after.iter().map(|e| e.n).collect::<Vec<_>>(), [3, 4]);
    // The first start is the one that counts, and a reason can be taken away.
    let change = JobChange { reason: Some(None), started: Some(9), ..JobChange::default() };
    store.change_job(id, change, vec![], 7).await.expect("changed");
    let job = store.job(id).await.expect("reads").expect("there");
    assert_eq!((job.started, job.reason), (Some(7), None));
}

#[tokio::test]
async fn a_deleted_job_frees_what_nothing_else_holds() {
    let (_dir, store) = open();
    store.insert_job(new_job(1, "a", &[1, 2])).await.expect("stored");
    store.insert_job(new_job(2, "a", &[2, 3])).await.expect("stored");
    store.insert_job(new_job(3, "b", &[1])).await.expect("stored");
    let id = JobId([1; 16]);
    assert!(matches!(store.delete_job(id).await, Err(StoreError::Missing { .. })), "it lives");
    let result = BlobRef { root: Hash([9; 32]), size: 4 };
    let change = JobChange {
        phase: Some(JobPhase::Completed),
        results: BTreeMap::from([("model.safetensors".to_owned(), result)]),
        ..JobChange::default()
    };
    store.change_job(id, change, vec![], 1).await.expect("changed");
    assert_eq!(store.results(id).await.expect("reads")["model.safetensors"], result);
    assert!(store.held(&study("a")).await.expect("reads").contains(&result.root));
    let freed: BTreeSet<_> = store.delete_job(id).await.expect("deleted").into_iter().collect();
    assert_eq!(
        freed,
        BTreeSet::from([Hash([1; 32]), Hash([9; 32])]),
        "2 is held by another job of the study"
    );
    assert!(store.events(id, 0, 10).await.expect("reads").is_empty());
    assert!(store.insert_job(new_job(1, "a", &[])).await.is_err(), "its nonce is remembered");
    store.purge_nonces(101).await.expect("purged");
    assert_eq!(store.insert_job(new_job(1, "a", &[])).await.expect("expired long ago"), Inserted::New);
}

#[tokio::test]
async fn jobs_are_found_in_their_study_only() {
    let (_dir, store) = open();
    for (id, name) in [(0x11, "a"), (0x12, "a"), (0x13, "b")] {
        store.insert_job(new_job(id, name, &[])).await.expect("stored");
    }
    let find =
        async |name: &str, prefix: &str| store.find_jobs(&study(name), prefix).await.expect("reads").len();
    assert_eq!(find("a", "1").await, 2);
    assert_eq!(find("a", "1111").await, 1);
    assert_eq!(find("a", "1313").await, 0);
    assert_eq!(find("b", "1313").await, 1);
    assert_eq!(find("a", "%").await, 0);
    let listed = store.list_jobs(&study("a"), 10).await.expect("reads");
    assert_eq!(listed.iter().map(|job| job.id.0[0]).collect::<Vec<_>>(), [0x12, 0x11]);
}

#[tokio::test]
async fn a_token_belongs_to_its_first_key() {
    let (_dir, store) = open();
    let launch = LaunchId { job: JobId([1; 16]), site: SiteName::server(), role: Role::Server, attempt: 1 };
    let (key, other) = (Hash([1; 32]), Hash([2; 32]));
    let bind =
        async |key: Hash, text: &str| store.bind_key(&launch, key, text.to_owned()).await.expect("asks");
    assert_eq!(bind(key, "first").await, Bound::Refused);
    store.put_enrolment(&launch, Hash([7; 32])).await.expect("stored");
    store.put_enrolment(&launch, Hash([8; 32])).await.expect("not used yet");
    assert_eq!(bind(key, "first").await, Bound::First);
    assert!(store.put_enrolment(&launch, Hash([9; 32])).await.is_err(), "it is used");
    assert_eq!(bind(key, "second").await, Bound::Same("first".to_owned()));
    assert_eq!(bind(other, "third").await, Bound::Other);
    assert_eq!(bind(key, "fourth").await, Bound::Refused);
    let known = store.enrolment(&launch).await.expect("reads").expect("there");
    assert!(known.quarantined && known.token == Hash([8; 32]) && known.key == Some(key));
}

#[tokio::test]
async fn the_registry_changes_from_the_version_that_was_read() {
    let (_dir, store) = open();
    assert!(store.registry().await.expect("reads").is_none());
    assert_eq!(store.put_registry(0, serde_json::json!({"a": 1})).await.expect("first"), 1);
    assert!(matches!(
        store.put_registry(0, serde_json::json!({})).await,
        Err(StoreError::Changed { now: 1, .. })
    ));
    assert_eq!(store.put_registry(1, serde_json::json!({"a": 2})).await.expect("next"), 2);
    assert_eq!(store.registry().await.expect("reads").expect("there").body, serde_json::json!({"a": 2}));
}

#[tokio::test]
async fn sessions_end_with_the_membership() {
    let (_dir, store) = open();
    let session = |id: &str, user: &str, name: &str, expires| SessionRow {
        id: id.to_owned(),
        secret: Hash([1; 32]),
        user: user.parse().expect("a name"),
        study: study(name),
        certificate: Hash([2; 32]),
        expires,
    };
    for row in [session("1", "u", "a", 50), session("2", "u", "b", 90), session("3", "v", "a", 90)] {
        store.put_session(row, 10).await.expect("stored");
    }
    store.put_session(session("4", "u", "a", 90), 60).await.expect("stored");
    assert!(store.session("1").await.expect("reads").is_none(), "it has expired");
    let user = "u".parse().expect("a name");
    assert_eq!(store.end_sessions(&user, Some(&study("a"))).await.expect("ended"), 1);
    assert!(store.session("4").await.expect("reads").is_none());
    assert_eq!(store.session("2").await.expect("reads"), Some(session("2", "u", "b", 90)));
    store.end_session("3").await.expect("ended");
    assert!(store.session("3").await.expect("reads").is_none());
}

#[tokio::test]
async fn documents_are_kept_by_kind() {
    let (_dir, store) = open();
    store.put_document("x", "k", 1.into()).await.expect("stored");
    store.put_document("x", "k", 2.into()).await.expect("stored");
    store.put_document("y", "k", 3.into()).await.expect("stored");
    assert_eq!(store.documents("x").await.expect("reads"), [("k".to_owned(), 2.into())]);
    store.remove_document("x", "k").await.expect("removed");
    assert_eq!(store.document("x", "k").await.expect("reads"), None);
    assert_eq!(store.document("y", "k").await.expect("reads"), Some(3.into()));
}

#[tokio::test]
async fn the_ledger_finds_its_rows_again() {
    use polder_launch::store::LedgerStore;
    let (dir, store) = open();
    store.put("a.client", "1").await.expect("written");
    store.put("b.server", "2").await.expect("written");
    store.put("a.client", "3").await.expect("written");
    store.delete("b.server").await.expect("removed");
    store.delete("c.client").await.expect("was not there");
    drop(store);
    let store = Sqlite::open(dir.path()).expect("opens again");
    assert_eq!(store.load().await.expect("reads"), [("a.client".to_owned(), "3".to_owned())]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever order rounds come in and however often: the job's round only grows, each round has one event at
    /// most, and numbers have no gap.
    #[test]
    fn rounds_only_grow(said in proptest::collection::vec(1_u32..8, 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (_dir, store) = open();
            let id = JobId([1; 16]);
            store.insert_job(new_job(1, "a", &[])).await.expect("stored");
            let mut highest = 0;
            for n in said {
                let event = store.add_round(id, round(n), 1).await.expect("noted");
                assert_eq!(event.is_some(), n > highest);
                highest = highest.max(n);
            }
            assert_eq!(store.job(id).await.expect("reads").expect("there").round, highest);
            let numbers: Vec<_> = store.events(id, 0, 99).await.expect("reads").iter().map(|e| e.n).collect();
            assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        });
    }
}
