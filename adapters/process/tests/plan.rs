//! The native request, printed.

use polder_api::shim::{Account, Cgroups};
use polder_launch::{Allotted, DeviceId, Resolved};
use polder_process::plan::{ProcessPlan, plan};
use polder_process::{Facts, Settings};
use polder_words::{Isolation, LaunchId, Role, SiteName, StudyName};

fn facts() -> Facts {
    Facts {
        root: false,
        isolation: Isolation::Landlock,
        account: None,
        cgroups: Cgroups::default(),
        not_enforced: Vec::new(),
        unmet: None,
        cpus: 8,
        memory: 32 << 30,
        architecture: "x86_64".into(),
        programs: vec!["/srv/conda".into()],
        forward: vec!["PATH".into(), "LANG".into()],
    }
}

fn settings() -> Settings {
    let mut settings = Settings::new("/var/lib/polder/runs".into());
    settings.hide = vec!["/var/lib/polder".into(), "/etc/polder/kit".into()];
    settings.sockets = vec!["/var/lib/polder/worker.sock".into()];
    settings
}

fn want() -> Resolved {
    let job = "0123456789abcdef0123456789abcdef".parse().expect("an id");
    Resolved {
        id: LaunchId {
            job,
            site: SiteName::new("hospital-a").expect("a name"),
            role: Role::Client,
            attempt: 2,
        },
        study: StudyName::new("pathology").expect("a name"),
        run_dir: format!("/var/lib/polder/runs/{job}-client").into(),
        worker: "/usr/libexec/polder/polder-worker".into(),
        files: polder_words::FileWay::Shared,
        gpus: 1,
        cpus: Some(4),
        memory: Some(16 << 30),
        options: serde_json::Map::new(),
        runtime: serde_json::Value::Null,
        pending_timeout_ms: None,
        max_restarts: 2,
    }
}

#[test]
fn with_a_gpu_under_landlock() {
    let with = Allotted { devices: vec![DeviceId("GPU-1a2b".into())] };
    let planned = plan(&settings(), &facts(), &want(), &with).expect("a plan");
    assert_eq!(
        ProcessPlan::from_plan(&planned.to_plan()),
        Ok(planned.clone()),
        "it reads back from the ledger"
    );
    insta::assert_json_snapshot!(planned.to_plan());
}

#[test]
fn with_an_account_of_its_own() {
    let account = Some(Account { uid: 990, gid: 990 });
    let facts = Facts { root: true, isolation: Isolation::OwnUid, account, ..facts() };
    let want = Resolved { gpus: 0, cpus: None, memory: None, ..want() };
    insta::assert_json_snapshot!(
        plan(&settings(), &facts, &want, &Allotted::default()).expect("a plan").to_plan()
    );
}

#[test]
fn what_a_job_may_not_set() {
    let mut want = want();
    want.options.insert("num_of_gpus".into(), 1.into());
    plan(&settings(), &facts(), &want, &Allotted::default()).expect("older jobs say amounts there");
    want.options.insert("image".into(), "x".into());
    let refusal = plan(&settings(), &facts(), &want, &Allotted::default()).expect_err("refused");
    assert_eq!(
        refusal.to_string(),
        "meta: launcher_spec.hospital-a.process.image: a job may set no such option of the process launcher; found \
         image; allowed: num_of_gpus, num_of_cpus, memory, mem_per_gpu_in_GiB"
    );
}

#[test]
fn files_over_the_channel_are_refused_rather_than_lost() {
    let want = Resolved { files: polder_words::FileWay::Channel, ..want() };
    let refusal = plan(&settings(), &facts(), &want, &Allotted::default()).expect_err("refused").to_string();
    assert!(refusal.contains("launcher.process.files") && refusal.contains("allowed: shared"), "{refusal}");
}
