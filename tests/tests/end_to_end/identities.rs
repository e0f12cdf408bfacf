//! Certificates that are not accepted: expired, of another federation, taken back, of a site nobody enrolled.

use jiff::{SignedDuration, Timestamp};
use polder_tests::federation::{Federation, LEAD, Plan, STUDY};
use polder_tests::raw::Raw;
use polder_transport::client::ClientError;
use polder_transport::identity::{Authority, Principal, PrivateKey};
use std::path::{Path, PathBuf};

/// The kit of a participant with another certificate and key, made by `authority` at a time.
fn forged(
    federation: &Federation,
    name: &str,
    who: &Principal,
    authority: &Authority,
    at: Timestamp,
) -> PathBuf {
    let kit = federation.kit(name);
    let copy = federation.root.join(format!("forged-{name}"));
    std::fs::create_dir(&copy).expect("a new folder");
    for file in ["ca.pem", "kit.json", "kit.sig"] {
        std::fs::copy(kit.join(file), copy.join(file)).expect("copied");
    }
    let key = PrivateKey::generate().expect("a key");
    let org = "org_a".parse().expect("a name");
    let certificate = authority.issue(who, &org, &[], &key.public(), at, 1).expect("issued");
    std::fs::write(copy.join("cert.pem"), certificate).expect("written");
    private(&copy.join("key.pem"), &key.to_pem());
    copy
}

fn private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("ours");
}

fn lead() -> Principal {
    Principal::User(LEAD.parse().expect("a name"), polder_words::UserRole::Lead)
}

/// What opening a session with a kit ends with.
#[track_caller]
fn refused(kit: &Path, at: Timestamp) -> String {
    let mut raw = Raw::with_kit(kit, at);
    match raw.open(STUDY) {
        Ok(session) => panic!("accepted: {session:?}"),
        Err(error @ ClientError::ClientRefused { .. }) => error.to_string(),
        Err(error) => panic!("refused, but not for its certificate: {error}"),
    }
}

#[test]
fn an_expired_certificate() {
    let federation = Plan::sites(1).start();
    let authority = Authority::open(&federation.root.join("fed/ca")).expect("the CA");
    let then = Timestamp::now() - SignedDuration::from_hours(72);
    let kit = forged(&federation, LEAD, &lead(), &authority, then);
    // An honest client notices by itself and says what to do.
    let said = std::process::Command::new(polder_tests::programs::program("polder"))
        .args(["jobs", "--study", STUDY, "--kit"])
        .arg(&kit)
        .output()
        .expect("it runs");
    assert_eq!(said.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&said.stderr).contains("expired"), "{said:?}");
    // One that does not is turned away by the server.
    let why = refused(&kit, then + SignedDuration::from_hours(1));
    assert!(why.contains("expired"), "{why}");
}

#[test]
fn a_certificate_of_another_federation() {
    let federation = Plan::sites(1).start();
    let stranger =
        Authority::create(&federation.root.join("other-ca"), "test-net", Timestamp::now()).expect("a CA");
    let kit = forged(&federation, LEAD, &lead(), &stranger, Timestamp::now());
    // The kit does not fit together, which an honest client says; a dishonest one brings a CA of its own.
    std::fs::write(kit.join("ca.pem"), stranger.trust().pem()).expect("written");
    let said = federation.lead().command(&["jobs"]).env("POLDER_KIT", &kit).output().expect("it runs");
    assert_ne!(said.status.code(), Some(0));
    assert_eq!(federation.lead().json(&["jobs"])["jobs"], serde_json::json!([]));
}

#[test]
fn a_certificate_that_was_taken_back() {
    let mut federation = Plan::sites(2).start();
    assert_eq!(federation.lead().json(&["jobs"])["jobs"], serde_json::json!([]));
    for who in [LEAD, "site-2"] {
        let said = polder_tests::programs::run(
            std::process::Command::new(polder_tests::programs::program("polder"))
                .args(["provision", "revoke", who, "--out", "fed", "--reason", "left"])
                .current_dir(&federation.root),
        );
        let _ = said.ok();
    }
    federation.parent_mut("server").kill();
    federation.parent_mut("server").restart();
    federation.parent("server").wait_ready();
    let said = federation.lead().polder(&["jobs"]).with_code(3);
    assert!(said.err.contains("revoked"), "{}", said.err);
    federation
        .parent("site-2")
        .log
        .wait(0, polder_tests::watch::LIMIT, |line| line.contains("revoked"))
        .expect("said");
}

#[test]
fn a_user_is_no_site_and_a_site_no_user() {
    let federation = Plan::sites(1).start();
    let mut site = Raw::with_kit(&federation.kit("site-1"), Timestamp::now());
    let problem = polder_tests::raw::refusal(site.open(STUDY).map(|session| session.token.len()));
    assert!(matches!(
        problem.code,
        polder_api::ProblemCode::Forbidden | polder_api::ProblemCode::Unauthenticated
    ));
    let user = Raw::with_kit(&federation.kit(LEAD), Timestamp::now());
    let problem = polder_tests::raw::refusal(user.get::<serde_json::Value>("/v1/site/desired?wait=0"));
    assert!(matches!(
        problem.code,
        polder_api::ProblemCode::Forbidden | polder_api::ProblemCode::Unauthenticated
    ));
}
