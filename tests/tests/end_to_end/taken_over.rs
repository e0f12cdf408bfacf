//! A server that was taken over cannot make a site run what nobody signed for it.

use polder_api::Order;
use polder_api::site::Stand;
use polder_tests::federation::{Federation, LEAD, OTHER_LEAD, Plan};
use polder_tests::raw::{Entry, Raw, archive};
use polder_tests::villain::Villain;
use polder_words::{Hash, JobId};

fn id(text: &str) -> JobId {
    JobId::of_order(&Hash(*blake3::hash(text.as_bytes()).as_bytes()))
}

/// A federation whose site talks to the villain, and an order as its lead would sign it.
fn taken_over(archives: &[Vec<u8>]) -> (Federation, Villain, Raw) {
    let mut federation = Plan::sites(1).provision();
    let villain = Villain::listen(&federation.kit("localhost"), federation.port, archives);
    let lead = Raw::with_kit(&federation.kit(LEAD), jiff::Timestamp::now());
    federation.start("site-1", &[]);
    federation.parent("site-1").wait_ready();
    (federation, villain, lead)
}

fn order(lead: &Raw, app: &[u8]) -> Order {
    lead.order_by_hand("test-net", "pathology", app)
}

#[track_caller]
fn refused(stand: Stand, why: &str) {
    match stand {
        Stand::Refused { why: said, .. } => assert!(said.contains(why), "{said:?} does not say {why:?}"),
        other => panic!("not refused for {why:?}: {other:?}"),
    }
}

#[test]
fn a_site_believes_what_was_signed_and_nothing_else() {
    let app = archive(&[Entry::file("job.yaml", br#"{"trainer": {"command": ["true"]}}"#)]);
    let (federation, villain, lead) = taken_over(std::slice::from_ref(&app));
    let good = order(&lead, &app);
    let text = serde_json::to_string(&good).expect("an order prints");
    let signed = lead.sign(&text);

    // Changed by the server: study, sites, nonce. Under the id of the changed text, the signature gives it away.
    for (from, to) in [
        ("pathology", "cardiology"),
        ("\"all\"", "{\"named\":[\"site-1\"]}"),
        ("\"expires\":", "\"expires\":1"),
    ] {
        let mut altered = signed.clone();
        altered.order = altered.order.replacen(from, to, 1);
        assert_ne!(altered.order, text, "{from}");
        let job = id(&altered.order);
        villain.hand_out(job, altered);
        refused(villain.answer(job), "signed");
    }
    let mut nonce = good.clone();
    nonce.nonce.0[0] ^= 1;
    let mut altered = signed.clone();
    altered.order = serde_json::to_string(&nonce).expect("an order prints");
    let job = id(&altered.order);
    villain.hand_out(job, altered);
    refused(villain.answer(job), "signed");

    // Under another id.
    let other = JobId([9; 16]);
    villain.hand_out(other, signed.clone());
    refused(villain.answer(other), "handed out as job");

    // Signed by the server itself, by a lead in somebody else's name, by one who may not.
    let server = Raw::with_kit(&federation.kit("localhost"), jiff::Timestamp::now());
    let mut own = good.clone();
    own.nonce.0[1] ^= 1;
    let text_of_own = serde_json::to_string(&own).expect("an order prints");
    villain.hand_out(id(&text_of_own), server.sign(&text_of_own));
    refused(villain.answer(id(&text_of_own)), "no user");
    let foreign = Raw::with_kit(&federation.kit(OTHER_LEAD), jiff::Timestamp::now());
    own.nonce.0[2] ^= 1;
    let text_of_own = serde_json::to_string(&own).expect("an order prints");
    villain.hand_out(id(&text_of_own), foreign.sign(&text_of_own));
    refused(villain.answer(id(&text_of_own)), "submitter");

    // The genuine one is taken; its nonce in another order of the same signer is not.
    villain.hand_out(id(&text), signed);
    let stand = villain.answer(id(&text));
    assert!(matches!(stand, Stand::Reserved { .. }), "{stand:?}");
    let mut again = good;
    again.expires += 1;
    let text_again = serde_json::to_string(&again).expect("an order prints");
    villain.hand_out(id(&text_again), lead.sign(&text_again));
    refused(villain.answer(id(&text_again)), "nonce");
}

#[test]
fn a_site_checks_the_app_it_was_given() {
    let evil = archive(&[
        Entry::file("job.yaml", br#"{"trainer": {"command": ["true"]}}"#),
        Entry::file("../../../escaped", b"x"),
    ]);
    let (federation, villain, lead) = taken_over(std::slice::from_ref(&evil));
    let text = serde_json::to_string(&order(&lead, &evil)).expect("an order prints");
    villain.hand_out(id(&text), lead.sign(&text));
    refused(villain.answer(id(&text)), "..");
    assert!(!federation.root.join("escaped").exists());
    assert!(!federation.root.join("site-1/escaped").exists());
    // Nothing of the app stays, not even its archive.
    let left: Vec<_> = walk(&federation.root.join("site-1/state"))
        .into_iter()
        .filter(|path| path.to_string_lossy().contains(&id(&text).to_string()))
        .filter(|path| path.is_file())
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            all.extend(walk(&path));
        }
        all.push(path);
    }
    all
}
