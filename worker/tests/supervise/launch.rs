//! Preparing, starting, finding and watching.

use crate::common::{One, Site, failed, file, is_alive};
use polder_launch::{Fate, Launcher, Native};
use polder_words::{FailureClass, Outcome};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_worker_runs_only_after_it_was_started() {
    let one = One::new(&Site::new("echo here > out/ran; echo hello"));
    let native = one.prepare().await.expect("prepared");
    assert!(
        matches!(one.fate().await, Fate::Seen(seen) if seen.state == Native::Waiting && seen.native == native)
    );
    assert!(!one.out("ran").exists(), "it waits");
    one.launcher.start(one.id(), &native).await.expect("started");
    one.launcher.start(one.id(), &native).await.expect("again is a no-op");
    assert_eq!(one.exit().await.outcome, Outcome::Completed);
    assert_eq!(fs::read_to_string(one.out("ran")).expect("it ran"), "here\n");
    assert_eq!(one.log(), "hello\n");
}

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let exit = One::new(&Site::new("echo first; echo last words; exit 7")).run().await;
    let (class, cause, tail) = failed(&exit.outcome);
    assert_eq!((class, cause, tail), (FailureClass::Infrastructure, "exit 7", "first\nlast words\n"));
    let exit = One::new(&Site::new("kill -SEGV $$")).run().await;
    assert_eq!(failed(&exit.outcome).1, "signal 11 (SEGV)");
}

#[tokio::test]
async fn a_worker_that_cannot_run_is_a_matter_of_configuration() {
    let mut one = One::new(&Site::new(""));
    one.want.worker = "/nowhere/polder-worker".into();
    let exit = one.run().await;
    let (class, cause, _) = failed(&exit.outcome);
    assert_eq!(class, FailureClass::Config);
    assert!(cause.contains("cannot run /nowhere/polder-worker"), "{cause}");
}

#[tokio::test]
async fn the_shim_outlives_a_parent_and_is_found_by_the_next() {
    let site = Site::new("echo $$ > out/pid; read line < state/more; exit 3");
    let one = One::new(&site);
    fs::create_dir_all(one.want.run_dir.join("state")).expect("a folder");
    let more = one.want.run_dir.join("state/more");
    rustix::fs::mkfifoat(rustix::fs::CWD, &more, 0o600.into()).expect("a fifo");
    one.start().await;
    let pid: u32 = file(&one.out("pid")).await.trim().parse().expect("a pid");
    let before = one.until(|state| matches!(state, Native::Running { .. })).await;

    // Another launcher over the same folders: what a restarted parent has.
    let next = One { dir: one.dir.clone(), launcher: site.launcher(), want: one.want.clone() };
    assert_eq!(next.fate().await, Fate::Seen(before));
    assert!(is_alive(pid));
    fs::write(more, "go on\n").expect("written");
    assert_eq!(failed(&next.exit().await.outcome).1, "exit 3");
}

#[tokio::test]
async fn an_end_is_noticed_within_milliseconds() {
    let one = One::new(&Site::new("echo $$ > out/pid; sleep 1000"));
    one.start().await;
    let pid = file(&one.out("pid")).await;
    let waiting = tokio::spawn(async move { (one.exit().await, Instant::now()) });
    // The watcher is up once it has run; it has nothing to do until the kill.
    tokio::task::yield_now().await;
    let killed = Instant::now();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    let (exit, at) = waiting.await.expect("it ended");
    assert_eq!(failed(&exit.outcome).1, "signal 9 (KILL)");
    // Generous for a loaded machine; by hand it is 3 ms.
    assert!(at - killed < Duration::from_millis(500), "{:?}", at - killed);
}

#[tokio::test]
async fn the_secret_is_the_workers_and_goes_with_it() {
    let one = One::new(&Site::new("cat attempts/1/handover.json > out/copy"));
    one.run().await;
    let handover = one.attempt().join("handover.json");
    assert_eq!(fs::metadata(&handover).expect("there").permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(one.out("copy")).expect("it could read it").contains("s3cret"));
    let plan = serde_json::to_string(&one.plan()).expect("JSON");
    assert!(!plan.contains("s3cret"));
    one.launcher.remove(one.id()).await.expect("removed");
    one.launcher.remove(one.id()).await.expect("again is a no-op");
    assert!(!handover.exists());
    assert!(one.attempt().join("worker.log").exists(), "the log stays with the run directory");
    assert_eq!(one.launcher.tail(one.id(), 100).await.expect("a tail"), "");
}

#[tokio::test]
async fn a_launch_is_prepared_once_whoever_asks() {
    let one = One::new(&Site::new("echo x >> out/ran"));
    one.prepare().await.expect("prepared");
    let again = one.prepare().await.expect_err("there is a shim already");
    assert!(matches!(&again, polder_launch::LaunchError::Unclear(_)), "{again}");
    let Fate::Seen(seen) = one.fate().await else { panic!("it is there") };
    one.launcher.start(one.id(), &seen.native).await.expect("started");
    one.exit().await;
    assert_eq!(fs::read_to_string(one.out("ran")).expect("it ran"), "x\n");
}

#[tokio::test]
async fn what_was_never_prepared_is_gone_and_stays_gone() {
    let one = One::new(&Site::new("echo x >> out/ran"));
    assert!(matches!(one.fate().await, Fate::Gone(_)), "nobody was ever asked");

    // A parent that was killed after it wrote the order and before its shim came: it is fenced off.
    let order = one.attempt().join("supervise.json");
    let ready = One::new(&Site::new("true"));
    ready.prepare().await.expect("prepared");
    fs::create_dir_all(one.attempt()).expect("a folder");
    fs::copy(ready.attempt().join("supervise.json"), &order).expect("an order");
    assert!(matches!(one.fate().await, Fate::Gone(_)));
    let late = std::process::Command::new(env!("CARGO_BIN_EXE_polder-worker"))
        .args(["supervise", "--dir"])
        .arg(one.attempt())
        .output()
        .expect("it runs");
    assert!(!late.status.success(), "the late shim finds the attempt taken");
    assert!(matches!(one.fate().await, Fate::Gone(_)));
    ready.end(Duration::ZERO).await;
    ready.exit().await;
}

#[tokio::test]
async fn nothing_of_the_parent_is_inherited() {
    use std::io::Write;
    // Held open without close-on-exec, as a shell's redirection would be.
    let mut held = tempfile::tempfile().expect("a file");
    writeln!(held, "the parent's").expect("written");
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).expect("inheritable");
    let one = One::new(&Site::new("ls -l /proc/self/fd > out/fds"));
    one.run().await;
    let fds = fs::read_to_string(one.out("fds")).expect("listed");
    assert!(fds.contains("/dev/null") && fds.contains("pipe:"), "{fds}");
    assert!(!fds.contains("deleted"), "{fds}");
}

#[tokio::test]
async fn prepare_and_start_are_fast() {
    let site = Site::new("true");
    let (mut best, mut running) = (Duration::MAX, Duration::MAX);
    for job in 1..=10 {
        let one = One { dir: site.dir.clone(), launcher: site.launcher(), want: site.want(job) };
        let begun = Instant::now();
        one.start().await;
        best = best.min(begun.elapsed());
        one.until(|state| matches!(state, Native::Running { .. } | Native::Exited(_))).await;
        running = running.min(begun.elapsed());
        one.exit().await;
    }
    println!("prepare and start: {best:?}, until it runs: {running:?}");
    // Of a program without optimisation on a shared machine; the promise of 15 ms is for a release.
    assert!(best < Duration::from_millis(60), "{best:?}");
}
