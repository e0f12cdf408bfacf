//! The ledger over real processes, under a parent that is killed between any two steps.
//!
//! The parent is this test program, run again with a folder in `POLDER_TEST_PARENT`: it opens a ledger there, wants one
//! worker, waits until it runs, lets it end, and leaves when everything is settled.

use crate::common::{Site, file, gone, is_alive};
use async_trait::async_trait;
use polder_launch::{
    Handover, Host, LaunchError, Ledger, LedgerStore, Resolved, Row, Settings, StoreError, WantError,
};
use polder_words::{Outcome, Role, WorkerPhase};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

/// Each worker says that it began, with launch, pid and start time, where no parent writes; then it waits to be let go.
const SCRIPT: &str = "echo \"$POLDER_LAUNCH $$ $(cut -d' ' -f22 /proc/$$/stat)\" >> out/trace; \
                      while ! [ -e app/enough ]; do sleep 0.01; done";

/// Rows as files, each synced before it gets its name.
struct Folder(PathBuf);

#[async_trait]
impl LedgerStore for Folder {
    async fn load(&self) -> Result<Vec<(String, String)>, StoreError> {
        let entries = fs::read_dir(&self.0).map_err(|error| StoreError::new("load", error))?;
        let names = entries
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_none_or(|e| e != "part"));
        names
            .map(|path| {
                let text = fs::read_to_string(&path).map_err(|error| StoreError::new("load", error))?;
                Ok((path.file_name().expect("a name").to_string_lossy().into_owned(), text))
            })
            .collect()
    }

    async fn put(&self, key: &str, row: &str) -> Result<(), StoreError> {
        let path = self.0.join(key);
        let part = self.0.join(format!("{key}.part"));
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(row.as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, &path)?;
            File::open(&self.0)?.sync_all()
        };
        write().map_err(|error| StoreError::new("put", error))
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        fs::remove_file(self.0.join(key)).map_err(|error| StoreError::new("delete", error))
    }
}

struct Letters;

#[async_trait]
impl Host for Letters {
    async fn handover(&self, _want: &Resolved) -> Result<Handover, LaunchError> {
        Ok(Handover::new(b"{}".to_vec()))
    }
}

async fn ledger(site: &Site) -> Ledger {
    let rows = site.state().join("rows");
    fs::create_dir_all(&rows).expect("a folder");
    Ledger::open(Arc::new(Folder(rows)), site.launcher(), Arc::new(Letters), Settings::default())
        .await
        .expect("opens")
}

async fn until(ledger: &Ledger, so_far: impl Fn(&Row) -> bool) -> Row {
    let wait = async {
        let mut changes = ledger.changes();
        loop {
            changes.borrow_and_update();
            if let Some(row) = ledger.rows().into_iter().find(&so_far) {
                return row;
            }
            changes.changed().await.expect("the ledger lives");
        }
    };
    tokio::time::timeout(crate::common::PATIENCE, wait).await.expect("it comes that far")
}

/// What the parent does; a test of its own only when it is run as that.
#[tokio::test]
async fn as_the_parent() {
    let Some(dir) = std::env::var_os("POLDER_TEST_PARENT") else { return };
    let site = Site::at(Path::new(&dir), SCRIPT);
    let ledger = ledger(&site).await;
    let want = site.want(1);
    let enough = want.run_dir.join("app/enough");
    ledger.want(want).await.expect("wanted");
    until(&ledger, |row| row.phase() == WorkerPhase::Running || row.ended().is_some()).await;
    fs::write(enough, "").expect("written");
    until(&ledger, Row::is_settled).await;
}

fn parent(dir: &Path, crash_at: Option<u32>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["ledger::as_the_parent", "--exact", "--nocapture"]).env("POLDER_TEST_PARENT", dir);
    match crash_at {
        Some(n) => command.env("POLDER_CRASH_AT", n.to_string()),
        None => command.env_remove("POLDER_CRASH_AT"),
    };
    command.output().expect("the parent runs")
}

fn trace(site: &Site) -> Vec<String> {
    let path = site.want(1).run_dir.join("out/trace");
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn killed_at_every_step_it_starts_nothing_twice_and_loses_nothing() {
    let mut places = BTreeSet::new();
    for n in 1..100 {
        let dir = tempfile::tempdir().expect("a folder");
        let site = Site::at(dir.path(), SCRIPT);
        let first = parent(dir.path(), Some(n));
        let said = String::from_utf8_lossy(&first.stderr).into_owned();
        let crashed = first.status.signal() == Some(9);
        assert!(crashed || first.status.success(), "{n}: {first:?}");
        places.extend(
            said.lines()
                .find(|line| line.starts_with("POLDER_CRASH_AT"))
                .map(|line| line.split_once(": ").expect("a place").1.to_owned()),
        );

        let second = parent(dir.path(), None);
        assert!(second.status.success(), "{n}: {second:?}");
        let trace = trace(&site);
        assert_eq!(trace.len(), 1, "{n}, {said}: one worker, {trace:?}");
        let row =
            fs::read_dir(site.state().join("rows")).expect("rows").next().expect("a row").expect("an entry");
        let row: Row =
            serde_json::from_str(&fs::read_to_string(row.path()).expect("readable")).expect("a row");
        assert_eq!((row.ended(), row.restarts), (Some(&Outcome::Completed), 0), "{n}, {said}");
        assert!(trace[0].starts_with(&format!("{} ", row.id())), "{n}: {trace:?} and {}", row.id());
        let pid: u32 = trace[0].split(' ').nth(1).expect("a pid").parse().expect("a pid");
        assert!(!is_alive(pid));
        for attempt in 1..=row.id().attempt {
            let claim = row.want.run_dir.join(format!("attempts/{attempt}/shim.json"));
            assert!(!claim.exists() || attempt < row.id().attempt, "{n}: it is cleaned up");
        }
        if !crashed {
            assert!(n > 12, "{n} steps only");
            assert_eq!(places.len(), 4, "{places:?}");
            return;
        }
    }
    panic!("it goes on for ever");
}

#[tokio::test]
async fn killed_workers_are_started_again_and_gpus_are_exclusive() {
    let mut site = Site::new(SCRIPT);
    site.settings.gpus = polder_process::Gpus::Ids(vec!["GPU-a".into(), "GPU-b".into()]);
    let ledger = ledger(&site).await;
    let gpu = |job| Resolved { gpus: 1, ..site.want(job) };
    let devices = [
        ledger.want(gpu(1)).await.expect("wanted").lease.devices,
        ledger.want(gpu(2)).await.expect("wanted").lease.devices,
    ];
    assert_ne!(devices[0], devices[1]);
    assert!(matches!(ledger.want(gpu(3)).await, Err(WantError::Short(short)) if short.free == 0));
    let row =
        until(&ledger, |row| row.id().job == site.want(1).id.job && row.phase() == WorkerPhase::Running)
            .await;
    assert_eq!(row.plan.native["env"]["CUDA_VISIBLE_DEVICES"], devices[0][0].0);

    let out = site.want(1).run_dir.join("out/trace");
    let pid: u32 = file(&out).await.split(' ').nth(1).expect("a pid").parse().expect("a pid");
    let process = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("killed");
    gone(pid).await;
    let again = |row: &Row| row.id().attempt == 2 && row.phase() == WorkerPhase::Running;
    let row = until(&ledger, again).await;
    assert_eq!(row.lease.devices, devices[0], "it keeps its GPU");

    // Whoever waits is still refused, until one has ended.
    assert!(ledger.want(gpu(3)).await.is_err());
    fs::write(site.want(1).run_dir.join("app/enough"), "").expect("written");
    until(&ledger, |row| row.id().attempt == 2 && row.is_settled()).await;
    assert_eq!(ledger.want(gpu(3)).await.expect("wanted").lease.devices, devices[0]);
    for job in [2, 3] {
        ledger
            .stop(site.want(job).id.job, Role::Client, "the test is over", Duration::ZERO)
            .await
            .expect("taken");
        until(&ledger, |row| row.id().job == site.want(job).id.job && row.is_settled()).await;
    }
}
