//! What the server refuses, each with one clear error and nothing left behind.

use polder_api::ProblemCode;
use polder_tests::federation::{Federation, LEAD, OTHER_LEAD, Plan, STUDY};
use polder_tests::raw::{Entry, Raw, archive, gzip, refusal};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const JOB: &[u8] = br#"{"trainer": {"command": ["true"]}}"#;

fn good() -> Vec<u8> {
    archive(&[Entry::file("job.yaml", JOB)])
}

fn lead(federation: &Federation) -> Raw {
    let mut raw = Raw::with_kit(&federation.kit(LEAD), jiff::Timestamp::now());
    raw.open(STUDY).expect("a session");
    raw
}

/// Every file beneath the parents' states but logs and databases, which grow on their own.
fn files(federation: &Federation) -> BTreeSet<PathBuf> {
    fn walk(folder: &Path, into: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("polder.db") || name == "audit.jsonl" {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&path, into);
            } else {
                into.insert(path);
            }
        }
    }
    let mut all = BTreeSet::new();
    for parent in std::iter::once("server").chain(federation.sites().iter().map(String::as_str)) {
        walk(&federation.root.join(parent).join("state"), &mut all);
    }
    all
}

#[test]
fn orders_that_are_not_what_was_signed() {
    let federation = Plan::sites(1).start();
    let raw = lead(&federation);
    let app = raw.upload(&good()).expect("uploaded");
    let before = files(&federation);
    let order = raw.order(app);
    let text = serde_json::to_string(&order).expect("an order prints");

    let mut altered = raw.sign(&text);
    altered.order = altered.order.replace("\"raw\\\"", "\"war\\\"");
    assert_ne!(altered.order, text);
    let problem = refusal(raw.submit_signed(altered));
    assert_eq!(problem.code, ProblemCode::Forbidden, "{problem:?}");
    assert!(problem.message.contains("signature"), "{problem:?}");

    let mut unsigned = raw.sign(&text);
    unsigned.signature = String::new();
    assert!(refusal(raw.submit_signed(unsigned)).message.contains("signature"));

    // Signed by somebody else of the federation, as if by the lead.
    let other = Raw::with_kit(&federation.kit(OTHER_LEAD), jiff::Timestamp::now());
    let problem = refusal(raw.submit_signed(other.sign(&text)));
    assert_eq!(problem.code, ProblemCode::Forbidden, "{problem:?}");

    for (what, change) in [
        (
            "study",
            Box::new(|o: &mut polder_api::Order| o.study = "cardiology".parse().expect("a name"))
                as Box<dyn Fn(&mut polder_api::Order)>,
        ),
        ("federation", Box::new(|o| "another-net".clone_into(&mut o.federation))),
        ("submitter", Box::new(|o| o.submitter = OTHER_LEAD.parse().expect("a name"))),
        ("expire", Box::new(|o| (o.issued, o.expires) = (1_000_000, 1_000_001))),
        ("version", Box::new(|o| o.version = 7)),
    ] {
        let mut wrong = order.clone();
        change(&mut wrong);
        let problem = refusal(raw.submit(&wrong));
        assert!(format!("{problem:?}").contains(what), "{what}: {problem:?}");
    }
    assert_eq!(files(&federation), before, "nothing was left behind");
    assert_eq!(federation.lead().json(&["jobs"])["jobs"], serde_json::json!([]));

    // And the good one is taken, once: the same order again is the same job, its nonce in another order is none.
    let job = raw.submit(&order).expect("taken");
    assert_eq!(raw.submit_signed(raw.sign(&text)).expect("the same"), job);
    let mut again = order;
    again.expires += 1;
    let problem = refusal(raw.submit(&again));
    assert!(problem.message.contains("nonce"), "{problem:?}");
    assert_eq!(federation.lead().json(&["jobs"])["jobs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn archives_that_would_harm() {
    let federation = Plan::sites(1).start();
    let raw = lead(&federation);
    let before = files(&federation);
    let many: Vec<String> = (0..1_000_000).map(|n| format!("f{n}")).collect();
    let million: Vec<Entry<'_>> = many.iter().map(|name| Entry::file(name, b"")).collect();
    // A GiB of zeros is a MiB here; and one that only claims to be 7 GiB.
    let zeros = Entry { name: "zeros", kind: b'0', link: "", content: b"" };
    let bomb = |claimed: u64, real: usize| {
        let mut bytes = zeros.header_claiming(claimed).to_vec();
        bytes.resize(512 + real, 0);
        gzip(&bytes)
    };
    let job = Entry::file("job.yaml", JOB);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("..", archive(&[job, Entry::file("../outside", b"x")])),
        ("/etc/polder", archive(&[job, Entry::file("/etc/polder", b"x")])),
        ("link", archive(&[job, Entry::odd("link", b'2', "/etc/passwd")])),
        ("link", archive(&[job, Entry::odd("hard", b'1', "job.yaml")])),
        ("device", archive(&[job, Entry::odd("device", b'3', "")])),
        ("fifo", archive(&[job, Entry::odd("fifo", b'6', "")])),
        ("files", archive(&million)),
        ("bytes", bomb(8 << 30, 1 << 20)),
        ("bytes", bomb(3 << 30, 1 << 30)),
        ("gzip", b"this is no archive".to_vec()),
        ("job.yaml", archive(&[Entry::file("train.py", b"")])),
        (
            "rounds",
            archive(&[Entry::file("job.yaml", br#"{"rounds": 0, "trainer": {"command": ["true"]}}"#)]),
        ),
        (
            "unknown",
            archive(&[Entry::file("job.yaml", br#"{"round": 1, "trainer": {"command": ["true"]}}"#)]),
        ),
    ];
    let peak = federation.parent("server").process().memory().expect("it runs").peak;
    for (n, (what, bytes)) in cases.iter().enumerate() {
        let app = raw.upload(bytes).expect("bytes are bytes");
        let problem = refusal(raw.submit(&raw.order(app)));
        let said = format!("{problem:?}").to_lowercase();
        assert!(said.contains(what), "case {n}: {what} is not in {problem:?}");
    }
    let now = federation.parent("server").process().memory().expect("it runs").peak;
    assert!(now < peak + 16 * 1024, "the server grew from {peak} to {now} KiB");
    assert_eq!(federation.lead().json(&["jobs"])["jobs"], serde_json::json!([]));
    let left: Vec<_> = files(&federation).difference(&before).cloned().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn two_parents_on_one_state_folder() {
    let mut federation = Plan::sites(1).start();
    for name in ["server", "site-1"] {
        let config = federation.root.join(name).join("parent.yaml");
        let said = polder_tests::programs::run(
            std::process::Command::new(polder_tests::programs::program("polder-parent"))
                .arg("--config")
                .arg(&config),
        );
        assert_eq!(said.code, Some(1), "{said:?}");
        let holder = federation.parent(name).process().pid;
        let state = federation.parent(name).state();
        let named = format!("{}: another parent (pid {holder})", state.display());
        assert!(said.err.contains(&named), "{}", said.err);
    }
    // The first ones are unharmed, and a state folder is free again once its parent is dead.
    federation.parent_mut("site-1").kill();
    federation.parent_mut("site-1").restart();
    federation.parent("site-1").wait_ready();
    assert_eq!(federation.lead().json(&["sites"])["sites"][0]["name"], "site-1");
}

#[test]
fn an_unknown_key_in_any_file() {
    let federation = Plan::sites(1).provision();
    let root = &federation.root;
    let site = root.join("site-1");
    let with_key = |path: &Path, key: &str| {
        let text = std::fs::read_to_string(path).expect("a file");
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("written as JSON");
        value[key] = serde_json::json!(1);
        std::fs::write(path, value.to_string()).expect("written");
        text
    };
    let parent = || {
        polder_tests::programs::run(
            std::process::Command::new(polder_tests::programs::program("polder-parent"))
                .arg("--config")
                .arg(site.join("parent.yaml")),
        )
    };
    let was = with_key(&site.join("parent.yaml"), "sevrer");
    let said = parent().with_code(1);
    assert!(said.err.contains("parent.yaml") && said.err.contains("sevrer"), "{}", said.err);
    std::fs::write(site.join("parent.yaml"), was).expect("written");

    let was = with_key(&root.join("project.yml"), "participant");
    let said = polder_tests::programs::run(
        std::process::Command::new(polder_tests::programs::program("polder"))
            .args(["provision", "project.yml", "--out", "fed", "--json"])
            .current_dir(root),
    )
    .with_code(1);
    let error = &said.json()["error"];
    assert!(error["file"].as_str().is_some_and(|file| file.contains("project.yml")), "{error}");
    assert_eq!(error["found"], "participant", "{error}");
    std::fs::write(root.join("project.yml"), was).expect("written");

    with_key(&site.join("local/study_runtime.yaml"), "study");
    let file = site.join("local/study_runtime.yaml");
    let said = federation
        .lead()
        .polder(&["check", "study-runtime", &file.to_string_lossy(), "--mode", "process", "--json"])
        .with_code(1);
    assert!(said.json()["error"]["at"].as_str().is_some_and(|at| at.contains("study")), "{}", said.out);
}
