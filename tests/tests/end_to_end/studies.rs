//! A study sees itself and nothing else.

use crate::helpers::adding;
use polder_tests::federation::{MEMBER, OTHER_LEAD, OTHER_STUDY, Plan, STUDY};

#[test]
fn jobs_of_another_study_look_absent() {
    let federation = Plan::sites(1).start();
    let folder = adding("ours", &[]).write(&federation.root);
    let lead = federation.lead();
    let job = lead.submit(&folder);
    assert_eq!(lead.wait(&job)["phase"], "completed");

    let other = federation.user(OTHER_LEAD, OTHER_STUDY);
    assert_eq!(other.json(&["jobs"])["jobs"], serde_json::json!([]));
    let out = federation.root.join("stolen").to_string_lossy().into_owned();
    let absent = other.polder(&["show", "0123456789abcdef0123456789abcdef"]).with_code(1).err;
    for command in [
        vec!["show", &job],
        vec!["watch", &job],
        vec!["logs", &job],
        vec!["abort", &job],
        vec!["delete", &job],
        vec!["clone", &job],
        vec!["download", &job, "--out", &out],
    ] {
        let said = other.polder(&command).with_code(1);
        assert!(said.err.contains("not found") || said.err.contains("no job"), "{said:?}");
        // Word for word what is said of a job that never was.
        assert_eq!(
            said.err.replace(&job, "ID").replace(&job[..8], "ID"),
            absent.replace("0123456789abcdef0123456789abcdef", "ID").replace("01234567", "ID")
        );
    }
    // Nor does a session of a study one is not in come about.
    let said = federation.user(OTHER_LEAD, STUDY).polder(&["jobs"]).with_code(1);
    assert!(said.err.contains(STUDY), "{said:?}");
    assert!(!std::path::Path::new(&out).exists());
    // It is still there for those whose it is.
    assert_eq!(lead.json(&["show", &job])["phase"], "completed");
}

#[test]
fn a_member_may_look_and_not_submit() {
    let federation = Plan::sites(1).start();
    let folder = adding("ours", &[]).write(&federation.root);
    let member = federation.user(MEMBER, STUDY);
    let said = member.polder(&["submit", &folder.to_string_lossy()]).with_code(3);
    assert!(said.err.contains("submit_job"), "{said:?}");
    assert_eq!(member.json(&["jobs"])["jobs"], serde_json::json!([]));
    let job = federation.lead().submit(&folder);
    assert_eq!(member.wait(&job)["phase"], "completed");
}
