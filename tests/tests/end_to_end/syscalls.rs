//! Seen from the kernel: a launch is on disk before the first byte of the native request.

use crate::helpers::adding;
use polder_tests::federation::Plan;
use polder_tests::programs::read_lossy;

/// One line of the trace: which call, and its text.
fn calls(text: &str) -> Vec<&str> {
    // `1234  fdatasync(9</…/polder.db-wal>) = 0`: a process number first; resumed calls count when they end.
    text.lines().filter_map(|line| line.split_once(' ').map(|(_, call)| call.trim_start())).collect()
}

#[test]
fn the_intent_is_synced_before_the_native_request() {
    let mut federation = Plan::sites(1).provision();
    federation.start("server", &[]);
    let trace = federation.root.join("strace");
    let file = trace.to_string_lossy().into_owned();
    let what = "trace=fsync,fdatasync,write,pwrite64,pwritev,openat,mkdir,mkdirat,clone,clone3,vfork,execve,unlink,unlinkat";
    federation.start_under("site-1", &["strace", "-f", "-y", "-s", "64", "-o", &file, "-e", what], &[]);
    for name in ["server", "site-1"] {
        federation.parent(name).wait_ready();
    }
    let folder = adding("traced", &[]).write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    assert_eq!(lead.wait(&job)["phase"], "completed");

    let text = read_lossy(&trace).expect("a trace");
    let calls = calls(&text);
    let position = |from: usize, wanted: &dyn Fn(&str) -> bool| {
        calls[from..].iter().position(|call| wanted(call)).map(|n| n + from)
    };
    // The first thing made for the launch outside of the database: the shim's request, or the shim itself.
    let native = position(0, &|call| call.contains("supervise")).expect("a shim is started");
    let written: Vec<usize> = (0..native)
        .filter(|n| calls[*n].starts_with("pwrite64(") && calls[*n].contains("polder.db-wal"))
        .collect();
    let last = *written.last().expect("the intent is written");
    let synced = position(last, &|call| {
        (call.starts_with("fdatasync(") || call.starts_with("fsync(")) && call.contains("polder.db-wal")
    });
    assert!(
        synced.is_some_and(|synced| synced < native),
        "not synced before the request:\n{}",
        calls[last..=native].join("\n")
    );
}
