//! Sessions, studies and rights, as somebody with a certificate of the federation meets them.

use super::*;
use polder_api::ProblemCode;
use polder_api::user::{Jobs, Sites, Studies, Study, StudyChange};

fn code<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ProblemCode {
    answer.expect_err("must be refused").code
}

#[tokio::test]
async fn a_session_belongs_to_one_certificate_and_one_study() {
    let bed = Bed::new().await;
    let session = bed.session(LEAD, STUDY).await.expect("a member");
    assert_eq!((session.role.as_str(), session.federation.as_str()), ("lead", "net"));
    let list = async |client: Client| said(client.get("/v1/user/jobs").fetch::<Jobs>().await);
    let with =
        |name: &str, token: &str| bed.client(name).with_header("authorization", &format!("Bearer {token}"));
    assert!(list(with(LEAD, &session.token)).await.expect("may look").jobs.is_empty());
    // Of another person, without one, with a wrong secret, with half of it.
    assert_eq!(code(list(with(OTHER_LEAD, &session.token)).await), ProblemCode::Unauthenticated);
    assert_eq!(code(list(bed.client(LEAD)).await), ProblemCode::Unauthenticated);
    let (id, secret) = session.token.split_once('.').expect("two halves");
    let flipped = if secret.starts_with('0') { '1' } else { '0' };
    assert_eq!(
        code(list(with(LEAD, &format!("{id}.{flipped}{}", &secret[1..]))).await),
        ProblemCode::Unauthenticated
    );
    assert_eq!(code(list(with(LEAD, id)).await), ProblemCode::Unauthenticated);
    // A study one is not in is as one that does not exist.
    let foreign = bed.session(LEAD, OTHER_STUDY).await.expect_err("no member");
    let absent = bed.session(LEAD, "nothing").await.expect_err("no study");
    assert_eq!(foreign.code, ProblemCode::NotFound);
    assert_eq!(foreign.message.replace(OTHER_STUDY, "X"), absent.message.replace("nothing", "X"));
    // A site is no user, and a user no site.
    assert_eq!(code(bed.session("a", STUDY).await), ProblemCode::Forbidden);
    let hello = bed.client(LEAD).get("/v1/site/desired").fetch::<Desired>().await;
    assert_eq!(code(said(hello)), ProblemCode::Forbidden);
    // Ended by its owner.
    let mine = with(LEAD, &session.token);
    said(mine.delete("/v1/user/sessions").done().await).expect("ends");
    assert_eq!(code(list(mine).await), ProblemCode::Unauthenticated);
}

#[tokio::test]
async fn a_session_ends_with_the_membership() {
    let bed = Bed::new().await;
    let admin = bed.login(ADMIN, STUDY).await;
    let member = bed.login(MEMBER, STUDY).await;
    let change = |change: StudyChange| {
        let ask = admin.post("/v1/user/studies").json(&change);
        async move { said(ask.fetch::<Study>().await) }
    };
    let study = STUDY.parse().expect("a name");
    let left = change(StudyChange::RemoveUser { study, user: user(MEMBER) }).await.expect("an admin may");
    assert_eq!(left.users, [user(LEAD)]);
    assert_eq!(code(said(member.get("/v1/user/jobs").fetch::<Jobs>().await)), ProblemCode::Unauthenticated);
    assert_eq!(code(bed.session(MEMBER, STUDY).await), ProblemCode::NotFound);
    // The old token is not good again when the member comes back.
    let study = STUDY.parse().expect("a name");
    change(StudyChange::AddUser { study, user: user(MEMBER) }).await.expect("an admin may");
    assert_eq!(code(said(member.get("/v1/user/jobs").fetch::<Jobs>().await)), ProblemCode::Unauthenticated);
    bed.login(MEMBER, STUDY).await;
}

#[tokio::test]
async fn the_registry_is_run_time_state() {
    let mut bed = Bed::new().await;
    let admin = bed.login(ADMIN, STUDY).await;
    let change = async |client: &Client, change: StudyChange| {
        said(client.post("/v1/user/studies").json(&change).fetch::<Study>().await)
    };
    let study: polder_words::StudyName = "cardiology".parse().expect("a name");
    let org = |text: &str| text.parse::<polder_words::OrgName>().expect("a name");
    let register = StudyChange::Register {
        study: study.clone(),
        site_orgs: BTreeMap::from([(org("org_a"), vec![name("a")])]),
        users: vec![user(LEAD)],
    };
    assert_eq!(change(&admin, register.clone()).await.expect("new").version, 1);
    assert_eq!(code(change(&admin, register.clone()).await), ProblemCode::Conflict);
    let wrong = StudyChange::AddSite { study: study.clone(), org: org("org_a"), site: name("b") };
    let refused = change(&admin, wrong).await.expect_err("another organisation's");
    assert!(refused.message.contains("belongs to org_b"), "{refused}");
    let add = StudyChange::AddSite { study: study.clone(), org: org("org_b"), site: name("b") };
    assert_eq!(change(&admin, add).await.expect("joins").version, 2);
    let lead = bed.login(LEAD, "cardiology").await;
    assert_eq!(code(change(&lead, register).await), ProblemCode::Forbidden);
    let list = said(lead.get("/v1/user/studies").fetch::<Studies>().await).expect("may look");
    let names: Vec<_> = list.studies.iter().map(|study| study.name.as_str()).collect();
    assert_eq!(names, ["cardiology", STUDY], "not those of others");
    let sites = said(lead.get("/v1/user/sites").fetch::<Sites>().await).expect("may look");
    assert_eq!(sites.sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    // What was changed is there after a restart, and project.yml does not undo it.
    bed.restart().await;
    bed.login(LEAD, "cardiology").await;
    let admin = bed.login(ADMIN, STUDY).await;
    change(&admin, StudyChange::Remove { study }).await.expect("it has no jobs");
    assert_eq!(code(bed.session(LEAD, "cardiology").await), ProblemCode::NotFound);
}

#[tokio::test]
async fn jobs_of_another_study_look_absent() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let id = bed.submit(&lead, &meta(1, &[])).await.expect("accepted");
    let other = bed.login(OTHER_LEAD, OTHER_STUDY).await;
    let absent = format!("{:032x}", 7);
    for path in ["", "/events", "/logs?site=a", "/order", "/results"] {
        let foreign = said(other.get(&format!("/v1/user/jobs/{id}{path}")).fetch::<Value>().await);
        let nothing = said(other.get(&format!("/v1/user/jobs/{absent}{path}")).fetch::<Value>().await);
        let (foreign, nothing) = (foreign.expect_err("absent"), nothing.expect_err("absent"));
        assert_eq!(foreign.code, ProblemCode::NotFound);
        assert_eq!(foreign.message.replace(&id.to_string(), "X"), nothing.message.replace(&absent, "X"));
    }
    for ask in
        [other.post(&format!("/v1/user/jobs/{id}/abort")), other.delete(&format!("/v1/user/jobs/{id}"))]
    {
        assert_eq!(code(said(ask.done().await)), ProblemCode::NotFound);
    }
    assert_eq!(
        code(said(other.get(&format!("/v1/user/jobs/{}", id.short())).fetch::<Job>().await)),
        ProblemCode::NotFound
    );
    assert_eq!(
        said(lead.get(&format!("/v1/user/jobs/{}", id.short())).fetch::<Job>().await).expect("its own").id,
        id
    );
    // A member may look and nothing else.
    let member = bed.login(MEMBER, STUDY).await;
    bed.job(&member, id).await;
    let refused = said(member.post(&format!("/v1/user/jobs/{id}/abort")).done().await).expect_err("may not");
    assert_eq!(
        refused.message,
        format!("{MEMBER} may not manage_job: the rule is member.manage_job: none (nothing is said)")
    );
    assert_eq!(
        code(said(member.get(&format!("/v1/user/jobs/{id}/order")).fetch::<Value>().await)),
        ProblemCode::Forbidden
    );
}

#[tokio::test]
async fn a_policy_of_the_operator_is_read_again() {
    let bed = Bed::new().await;
    let member = bed.login(MEMBER, STUDY).await;
    let list = async || said(member.get("/v1/user/sites").fetch::<Sites>().await);
    list().await.expect("members may look by default");
    let policy = json!({"format_version": "1.0", "permissions": {"member": "none"}});
    std::fs::write(bed.state().join("authorization.json"), policy.to_string()).expect("written");
    assert_eq!(code(list().await), ProblemCode::Forbidden);
    std::fs::write(bed.state().join("authorization.json"), "{ nonsense").expect("written");
    assert_eq!(code(list().await), ProblemCode::Forbidden);
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_on_an_open_connection() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let list = async || lead.get("/v1/user/jobs").fetch::<Jobs>().await;
    list().await.expect("may look");
    let ca = bed.dir.path().join("fed/ca");
    let authority = polder_transport::identity::Authority::open(&ca).expect("the project CA");
    authority.revoke(LEAD, "left", jiff::Timestamp::now()).expect("revoked");
    std::fs::copy(ca.join("revoked.json"), bed.dir.path().join("fed/kits/localhost/revoked.json"))
        .expect("copied");
    let refused = said(list().await).expect_err("revoked");
    assert!(refused.message.contains("is revoked"), "{refused}");
    assert!(bed.client(LEAD).get("/v1/user/jobs").fetch::<Jobs>().await.is_err(), "nor on a new one");
}
