//! The scripts that CI and people call.

use std::path::Path;
use std::process::Command;

fn scripts_test(arguments: &[&str]) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let out = Command::new(root.join("scripts/test")).args(arguments).output().expect("it starts");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn a_part_that_is_not_there_is_a_usage_error_that_lists_what_is() {
    let (code, said) = scripts_test(&["--only", "nonsense"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no part `nonsense`") && said.contains("parts: unit process"), "{said}");
}
