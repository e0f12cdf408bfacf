//! Orders that are refused, each with one clear error and nothing left behind.

use super::*;
use polder_api::ProblemCode;
use polder_api::user::Jobs;

async fn nothing_is_there(user: &Client) {
    let jobs = said(user.get("/v1/user/jobs").fetch::<Jobs>().await).expect("may look").jobs;
    assert!(jobs.is_empty(), "{jobs:?}");
}

#[tokio::test]
async fn an_order_sent_twice_is_one_job() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let app = bed.app(&lead).await;
    let signed = bed.sign(LEAD, &bed.order(LEAD, &meta(1, &[]), app));
    let id = submit(&lead, &signed).await.expect("accepted");
    assert_eq!(submit(&lead, &signed).await.expect("known"), id);
    assert_eq!(said(lead.get("/v1/user/jobs").fetch::<Jobs>().await).expect("may look").jobs.len(), 1);
}

#[tokio::test]
async fn what_was_signed_counts() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let app = bed.app(&lead).await;
    let order = bed.order(LEAD, &meta(1, &[]), app);
    let good = bed.sign(LEAD, &order);
    let altered = SignedOrder {
        order: good.order.replace("\"min_clients\\\":1", "\"min_clients\\\":2"),
        ..good.clone()
    };
    assert_ne!(altered.order, good.order);
    let unsigned = SignedOrder { signature: String::new(), ..good.clone() };
    let by_other = bed.sign(OTHER_LEAD, &order);
    for (signed, part) in [
        (altered, "signature is not accepted"),
        (unsigned, "signature is not accepted"),
        (by_other, "not the caller's own"),
    ] {
        let refused = submit(&lead, &signed).await.expect_err(part);
        assert_eq!(refused.code, ProblemCode::Forbidden);
        assert!(refused.message.contains(part), "{refused}");
    }
    nothing_is_there(&lead).await;
}

#[tokio::test]
async fn an_order_is_for_this_study_these_sites_and_now() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let app = bed.app(&lead).await;
    let named = |sites: &[&str]| OrderSites::Named(sites.iter().map(|site| name(site)).collect());
    let two = json!({"deploy_map": {"app": ["server", "a", "b"]}, "min_clients": 2});
    let order = |meta: &Value| bed.order(LEAD, meta, app);
    let all = meta(1, &[]);
    let missing = BlobRef { root: Hash([1; 32]), size: 5 };
    let cases = [
        (Order { study: OTHER_STUDY.parse().expect("a name"), ..order(&all) }, "order.study"),
        (Order { federation: "other".to_owned(), ..order(&all) }, "order.federation"),
        (Order { expires: order(&all).issued - 1, ..order(&all) }, "order.expires"),
        (Order { expires: order(&all).issued + 100 * 86_400, ..order(&all) }, "order.expires"),
        (
            Order { issued: order(&all).issued + 3600, expires: order(&all).issued + 7200, ..order(&all) },
            "order.issued",
        ),
        (Order { version: 2, ..order(&all) }, "order.version"),
        (Order { sites: OrderSites::All, ..order(&two) }, "order.sites"),
        (Order { sites: named(&["a", "c"]), ..order(&two) }, "order.sites"),
        (Order { sites: named(&["a"]), ..order(&two) }, "order.sites"),
        (Order { sites: named(&[]), ..order(&all) }, "order.sites"),
        (
            Order { apps: BTreeMap::from([("app".parse().expect("a name"), missing)]), ..order(&all) },
            "order.apps",
        ),
        (
            Order { apps: BTreeMap::from([("else".parse().expect("a name"), app)]), ..order(&all) },
            "order.apps",
        ),
        (Order { meta: "{}".to_owned(), ..order(&all) }, "deploy_map"),
        (
            Order {
                meta: json!({"deploy_map": {"app": ["@ALL"]}, "min_client": 1}).to_string(),
                ..order(&all)
            },
            "min_client",
        ),
    ];
    for (order, at) in cases {
        let refused = submit(&lead, &bed.sign(LEAD, &order)).await.expect_err(at);
        assert_eq!(refused.at.as_deref(), Some(at), "{refused:?}");
        assert_eq!(refused.code, ProblemCode::Invalid, "{refused:?}");
    }
    let stranger = json!({"deploy_map": {"app": ["server", "a", "zz"]}});
    let order = Order { sites: named(&["a", "zz"]), ..order(&stranger) };
    let refused = submit(&lead, &bed.sign(LEAD, &order)).await.expect_err("no site of the study");
    assert_eq!(refused.message, "site zz is not in study pathology");
    nothing_is_there(&lead).await;
}

#[tokio::test]
async fn a_nonce_counts_once_and_an_order_may_name_fewer_sites() {
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let app = bed.app(&lead).await;
    let first = bed.order(LEAD, &meta(1, &[]), app);
    submit(&lead, &bed.sign(LEAD, &first)).await.expect("accepted");
    let again = Order { nonce: first.nonce, ..bed.order(LEAD, &meta(2, &[]), app) };
    let refused = submit(&lead, &bed.sign(LEAD, &again)).await.expect_err("used");
    assert_eq!(
        (refused.code, refused.message.as_str()),
        (ProblemCode::Conflict, "an order with this nonce exists already")
    );
    let two = json!({"deploy_map": {"app": ["server", "a", "b"]}});
    let fewer = Order { sites: OrderSites::Named(BTreeSet::from([name("a")])), ..bed.order(LEAD, &two, app) };
    submit(&lead, &bed.sign(LEAD, &fewer)).await.expect("some of them");
}

#[tokio::test]
async fn archives_that_break_a_rule_are_refused() {
    use std::io::Write;
    let bed = Bed::new().await;
    let lead = bed.login(LEAD, STUDY).await;
    let gzip = |bytes: &[u8]| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).expect("memory");
        out.finish().expect("memory")
    };
    let entry = |path: &str, kind: tar::EntryType| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    for (bytes, part) in [
        (gzip(&entry("../x", tar::EntryType::Regular)), "\"..\" in it"),
        (gzip(&entry("x", tar::EntryType::Symlink)), "a symbolic link"),
        (gzip(&entry("x", tar::EntryType::Char)), "a device"),
        (b"no archive".to_vec(), "not a readable .tar.gz"),
        (gzip(&entry("fine", tar::EntryType::Regular)), "the file is missing in the app's archive"),
    ] {
        let app = bed.upload_bytes(&lead, &bytes).await;
        let refused =
            submit(&lead, &bed.sign(LEAD, &bed.order(LEAD, &meta(1, &[]), app))).await.expect_err(part);
        assert!(refused.message.contains(part), "{refused}");
    }
    let app = bed.upload(&lead, &[("job.yaml", b"{trainer: {command: [a]}, round: 3}")]).await;
    let refused =
        submit(&lead, &bed.sign(LEAD, &bed.order(LEAD, &meta(1, &[]), app))).await.expect_err("unknown key");
    assert_eq!(
        (refused.file.as_deref(), refused.at.as_deref()),
        (Some("app/job.yaml"), Some("round")),
        "{refused:?}"
    );
    nothing_is_there(&lead).await;
}
