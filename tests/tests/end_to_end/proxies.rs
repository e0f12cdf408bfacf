//! A hospital's proxy between site and server: credentials, idle cuts, interception.

use crate::helpers::{adding, long};
use polder_tests::federation::{Federation, Plan};
use polder_tests::proxy::{Behaviour, Proxy};
use polder_tests::watch;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn behind(proxy: &Proxy, credentials: &str) -> Federation {
    let mut plan = Plan::sites(1);
    plan.proxy = Some(format!("http://{credentials}{}", proxy.address()));
    plan.provision()
}

fn hospital(cut: Duration) -> Proxy {
    Proxy::start(Behaviour {
        credentials: Some(("hospital".into(), "p@ss word".into())),
        cut_idle_after: Some(cut),
        intercept: false,
    })
    .expect("a port")
}

#[test]
fn a_site_works_through_a_proxy_that_wants_credentials_and_cuts_idle_connections() {
    // Real ones cut at about a minute; with --long, so does this one.
    let cut = Duration::from_secs(if long() { 60 } else { 1 });
    let proxy = hospital(cut);
    let mut federation = behind(&proxy, "hospital:p%40ss%20word@");
    federation.start_all();
    let lead = federation.lead();
    let before = adding("before", &[]).rounds(3).write(&federation.root);
    let job = lead.submit(&before);
    assert_eq!(lead.wait(&job)["phase"], "completed");
    // Idle until connections were cut at least twice; the long poll comes back by itself.
    let cuts = proxy.seen().cut.load(Ordering::SeqCst) + 2;
    proxy.wait(cut * 10, |seen| seen.cut.load(Ordering::SeqCst) >= cuts).expect("idle connections are cut");
    let after = adding("after", &[]).rounds(3).write(&federation.root);
    let job = lead.submit(&after);
    assert_eq!(lead.wait(&job)["phase"], "completed");
    assert!(proxy.seen().up.load(Ordering::SeqCst) > 0, "nothing went another way");
    assert_eq!(proxy.seen().refused.load(Ordering::SeqCst), 0);
    // The password stands in no log and on no command line.
    assert!(!federation.parent("site-1").log.text().contains("p@ss"));
    assert!(!federation.parent("site-1").log.text().contains("p%40ss"));
}

#[test]
fn wrong_credentials_are_named_with_the_proxy() {
    let proxy = hospital(Duration::from_secs(60));
    let mut federation = behind(&proxy, "hospital:wrong@");
    federation.start("server", &[]);
    federation.start("site-1", &[]);
    let (_, _, line) = federation
        .parent("site-1")
        .log
        .wait(0, watch::LIMIT, |line| line.contains("proxy") && line.contains("credentials"))
        .expect("it says so");
    assert!(line.contains(&proxy.address().to_string()) && !line.contains("wrong"), "{line}");
}

#[test]
fn an_intercepting_proxy_is_told_apart_from_a_wrong_server() {
    let proxy = Proxy::start(Behaviour { intercept: true, ..Behaviour::default() }).expect("a port");
    let mut federation = behind(&proxy, "");
    federation.start("server", &[]);
    federation.start("site-1", &[]);
    let (_, _, line) = federation
        .parent("site-1")
        .log
        .wait(0, watch::LIMIT, |line| line.contains("a proxy that opens TLS may stand in between"))
        .expect("it says so");
    assert!(line.contains("localhost"), "{line}");
}
