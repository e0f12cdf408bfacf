//! What a worker cannot reach.

use crate::common::{One, Site};
use polder_launch::Launcher;
use polder_words::Isolation;
use std::fs;

/// Tries to read, change and find out what is the parent's, and says so; then does what it may.
fn script(site: &Site) -> String {
    let state = site.state().display().to_string();
    format!(
        "cat {state}/polder.db && echo READ; echo x > {state}/new && echo WROTE; ls {state} && echo LISTED; \
         cat /proc/$PARENT/environ > /dev/null && echo SPIED; kill -0 $PARENT && echo SIGNALLED; \
         echo x > app/train.py && echo CHANGED; cat app/train.py > out/copy && cat in/model > out/model && \
         echo mine > state/checkpoint && echo t > $TMPDIR/t && echo x > /dev/null && echo DONE; id -u > out/uid; \
         grep -E '^(NoNewPrivs|CapEff|Groups)' /proc/self/status > out/status"
    )
}

fn site(isolation: Isolation) -> Site {
    let mut site = Site::new("");
    fs::write(site.state().join("polder.db"), "the parent's").expect("a file");
    site.settings.isolation = Some(isolation);
    let script = script(&site).replace("$PARENT", &std::process::id().to_string());
    site.settings.worker_args = Some(vec!["-c".into(), script]);
    let want = site.want(1);
    for (name, text) in [("app/train.py", "train"), ("in/model", "weights")] {
        fs::create_dir_all(want.run_dir.join(name).parent().expect("a folder")).expect("folders");
        fs::write(want.run_dir.join(name), text).expect("a file");
    }
    site
}

async fn stays_out(one: &One) -> String {
    let exit = one.run().await;
    let log = one.log();
    assert_eq!(exit.outcome, polder_words::Outcome::Completed, "{log}");
    for word in ["READ", "WROTE", "LISTED", "SPIED", "SIGNALLED", "CHANGED"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
    assert!(log.contains("DONE"), "{log}");
    assert_eq!(fs::read_to_string(one.out("copy")).expect("copied"), "train");
    assert_eq!(fs::read_to_string(one.out("model")).expect("copied"), "weights");
    let status = fs::read_to_string(one.out("status")).expect("status");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    status
}

#[tokio::test]
async fn landlock() {
    let site = site(Isolation::Landlock);
    let one = One::new(&site);
    stays_out(&one).await;
    assert_eq!(one.launcher.offer().await.expect("an offer").isolation, Isolation::Landlock);
    assert_eq!(one.exit_record().isolation, Isolation::Landlock);
}

#[tokio::test]
async fn an_account_of_its_own() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut site = site(Isolation::OwnUid);
    site.settings.isolation = None;
    site.settings.user = Some("64001:64001".into());
    let one = One::new(&site);
    assert_eq!(one.launcher.offer().await.expect("an offer").isolation, Isolation::OwnUid);
    let status = stays_out(&one).await;
    assert!(status.contains("Groups:\t \n") || status.contains("Groups:\t\n"), "{status:?}");
    assert_eq!(fs::read_to_string(one.out("uid")).expect("uid"), "64001\n");
    // What the parent adds later can be read, too.
    let one = One {
        want: polder_launch::Resolved {
            id: polder_words::LaunchId { attempt: 2, ..one.want.id.clone() },
            ..one.want.clone()
        },
        ..one
    };
    let late = one.want.run_dir.join("in/model");
    fs::remove_file(&late).expect("removed");
    fs::write(&late, "weights").expect("a file");
    stays_out(&one).await;
}

#[tokio::test]
async fn a_program_the_account_cannot_reach_runs_nevertheless() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // As a parent's own build in somebody's home folder: the worker is the shim's program, run by descriptor.
    let mut site = Site::new("");
    let home = site.state().parent().expect("a folder").join("home");
    fs::create_dir(&home).expect("a folder");
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("closed");
    let program = home.join("polder-worker");
    fs::copy(env!("CARGO_BIN_EXE_polder-worker"), &program).expect("copied");
    site.settings.user = Some("64001".into());
    site.settings.shim = None;
    site.settings.worker_args = Some(vec!["--version".into()]);
    let mut one = One::new(&site);
    one.want.worker = program;
    assert_eq!(one.run().await.outcome, polder_words::Outcome::Completed, "{}", one.log());
    assert!(one.log().starts_with("polder-worker "), "{}", one.log());
}

#[tokio::test]
async fn a_namespace_of_its_own() {
    let mut site = site(Isolation::UserNamespace);
    // Same account, so signals and environment are as open as the account is; only files are hidden.
    let script = script(&site).replace("$PARENT", "1");
    let script = script.replace("echo x > app/train.py && echo CHANGED;", "");
    site.settings.worker_args = Some(vec!["-c".into(), script]);
    let one = One::new(&site);
    let exit = one.run().await;
    let log = one.log();
    if let polder_words::Outcome::Failed { cause, .. } = &exit.outcome
        && cause.contains("user namespace: unshare")
    {
        return;
    }
    assert!(!log.contains("READ") && log.contains("DONE"), "{log}");
    assert!(!site.state().join("new").exists());
    assert_eq!(fs::read_to_string(one.out("copy")).expect("copied"), "train");
}

#[tokio::test]
async fn a_site_that_names_an_account_it_cannot_use_launches_nothing() {
    let mut site = Site::new("true");
    site.settings.user = Some("no-such-account".into());
    let one = One::new(&site);
    let refusal = one.launcher.plan(&one.want, &polder_launch::Allotted::default()).expect_err("refused");
    assert!(refusal.to_string().contains("no-such-account"), "{refusal}");
    let checks = one.launcher.preflight().await;
    assert!(checks.iter().any(|check| !check.ok && check.text.contains("no-such-account")));
}
