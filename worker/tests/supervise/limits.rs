//! Limits that the kernel enforces. Where it does not (no control group may be made), that is what is tested.

use crate::common::{One, Site, failed};
use polder_launch::{Launcher, Native};
use polder_words::FailureClass;
use std::fs;
use std::time::Duration;

fn enforced(one: &One, what: &str) -> bool {
    !one.launcher.facts().not_enforced.iter().any(|text| text.contains(what))
}

#[tokio::test]
async fn memory() {
    // Doubles a text until it is stopped, or holds a gigabyte.
    let script = "x=0123456789abcdef; while [ ${#x} -lt 1000000000 ]; do x=$x$x; done; echo too much";
    let mut one = One::new(&Site::new(script));
    one.want.memory = Some(64 << 20);
    if !enforced(&one, "memory") {
        let offer = one.launcher.offer().await.expect("an offer");
        assert!(offer.not_enforced.iter().any(|text| text.contains("memory")));
        return;
    }
    let exit = one.run().await;
    let (class, cause, _) = failed(&exit.outcome);
    assert_eq!(class, FailureClass::OutOfMemory, "{cause}");
    let record = one.exit_record();
    assert!(record.oom_kills >= 1);
    assert!(record.memory_peak.expect("a peak") <= 64 << 20);
    assert!(!one.log().contains("too much"));
}

#[tokio::test]
async fn memory_of_a_child_the_worker_survives() {
    // As a worker whose trainer takes too much: the kernel kills the child, the worker reports on it and ends.
    let script = "sh -c 'x=0123456789abcdef; while :; do x=$x$x; done'; echo trainer ended with $?; exit 1";
    let mut one = One::new(&Site::new(script));
    one.want.memory = Some(64 << 20);
    if !enforced(&one, "memory") {
        return;
    }
    let exit = one.run().await;
    let (class, cause, tail) = failed(&exit.outcome);
    assert_eq!(class, FailureClass::OutOfMemory, "{cause}");
    assert!(cause.contains("exit 1"), "{cause}");
    assert!(tail.contains("trainer ended with 137"), "{tail}");
}

#[tokio::test]
async fn processes() {
    let mut site = Site::new("for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; echo all");
    site.settings.pids = 5;
    let one = One::new(&site);
    if !enforced(&one, "number of processes") {
        return;
    }
    one.run().await;
    assert!(one.log().to_lowercase().contains("fork"), "{}", one.log());
}

#[tokio::test]
async fn cpu_time() {
    let mut one = One::new(&Site::new("echo up; sleep 1000"));
    one.want.cpus = Some(1);
    if !enforced(&one, "CPU time") {
        return;
    }
    one.start().await;
    one.until(|state| matches!(state, Native::Running { .. })).await;
    let running: polder_api::shim::Running =
        serde_json::from_slice(&fs::read(one.attempt().join("running.json")).expect("running.json"))
            .expect("readable");
    let read =
        |file: &str| running.cgroups.iter().find_map(|group| fs::read_to_string(group.join(file)).ok());
    let limit = read("cpu.cfs_quota_us").or_else(|| read("cpu.max")).expect("a limit");
    assert!(limit.starts_with("100000"), "{limit}");
    let members = read("cgroup.procs").expect("members");
    assert!(members.lines().any(|line| line == running.pid.to_string()), "{members}");
    one.end(Duration::ZERO).await;
    one.exit().await;
    for group in running.cgroups {
        assert!(!group.exists(), "{} is removed", group.display());
    }
}

#[tokio::test]
async fn a_flood_of_output_is_bounded() {
    // A quarter of a gigabyte in tests; the cap is the same for any amount.
    let mut site = Site::new("echo first; head -c 256M /dev/zero | tr '\\0' 'x'; echo; echo last");
    site.settings.log_bytes = 4 << 20;
    let one = One::new(&site);
    one.run().await;
    let log = one.attempt().join("worker.log");
    let size = fs::metadata(&log).expect("a log").len();
    assert!(size <= 4 << 20, "{size}");
    let text = fs::read(&log).expect("readable");
    assert!(text.starts_with(b"first\n"));
    assert!(text.ends_with(b"x\nlast\n"));
    let record = one.exit_record();
    let line = format!(
        "\n[polder: {} of {} bytes of output are left out here]\n",
        record.log_dropped, record.log_bytes
    );
    assert!(text.windows(line.len()).any(|window| window == line.as_bytes()));
    assert_eq!(record.log_bytes, (256 << 20) + 12);
    assert_eq!(one.launcher.tail(one.id(), 6).await.expect("a tail"), "\nlast\n");
}
