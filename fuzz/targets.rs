//! What each fuzz target does with its input; `crates/core/tests/corpus.rs` does the same with the seeds.
//!
//! Nothing may panic, and what is accepted prints back and reads the same.

use polder_core::authz::Policy;
use polder_core::check::check_meta;
use polder_core::job::JobConfig;
use polder_core::launcher::SlurmSandbox;
use polder_core::meta::JobMeta;
use polder_core::parent::ParentConfig;
use polder_core::project::Project;
use polder_core::study_runtime::{Reading, StudyRuntimes};
use polder_core::value::{from_json, from_yaml, to_json, to_yaml};
use polder_words::Mode;

/// What a target does with its input.
type Target = fn(&[u8]);

/// Every target by name.
pub(crate) const TARGETS: [(&str, Target); 7] = [
    ("meta", meta),
    ("study_runtime", study_runtime),
    ("job_yaml", job_yaml),
    ("parent_yaml", parent_yaml),
    ("project", project),
    ("authorization", authorization),
    ("document", document),
];

/// `meta.json` and `meta.yml`, and what a site makes of them.
pub(crate) fn meta(data: &[u8]) {
    for file in ["meta.json", "meta.yml"] {
        let check = check_meta(data, file, "site-1", SlurmSandbox::Apptainer);
        assert!(from_json("check", check.to_json().as_bytes()).is_ok());
        if let Ok(meta) = JobMeta::parse(file, data) {
            assert!(check.accepted);
            assert_eq!(JobMeta::parse("meta.yml", meta.to_string().as_bytes()), Ok(meta));
        }
    }
}

/// `study_runtime.yaml` for every launcher.
pub(crate) fn study_runtime(data: &[u8]) {
    let files = |path: &str| match path {
        "pod.yaml" => Ok(b"kind: Pod\n".to_vec()),
        _ => Err("no such file".to_owned()),
    };
    for mode in Mode::ALL {
        let reading = Reading::new(*mode, &files);
        let parse = |bytes: &[u8]| {
            StudyRuntimes::parse("study_runtime.yaml", bytes, &reading).map(|read| read.studies)
        };
        if let Ok(read) = StudyRuntimes::parse("study_runtime.yaml", data, &reading) {
            let _ = to_json(&read.to_json());
            assert_eq!(parse(read.to_string().as_bytes()), Ok(read.studies));
        }
    }
}

/// `job.yaml`.
pub(crate) fn job_yaml(data: &[u8]) {
    if let Ok(job) = JobConfig::parse("job.yaml", data) {
        assert_eq!(JobConfig::parse("job.yaml", job.to_string().as_bytes()), Ok(job));
    }
}

/// `parent.yaml`.
pub(crate) fn parent_yaml(data: &[u8]) {
    if let Ok(config) = ParentConfig::parse("parent.yaml", data) {
        assert_eq!(ParentConfig::parse("parent.yaml", config.to_string().as_bytes()), Ok(config));
    }
}

/// `project.yml`.
pub(crate) fn project(data: &[u8]) {
    let same = |a: &Project, b: &Project| {
        // What was ignored is not printed.
        (&a.name, &a.server, &a.sites, &a.users, &a.studies)
            == (&b.name, &b.server, &b.sites, &b.users, &b.studies)
    };
    if let Ok(project) = Project::parse("project.yml", data) {
        let again = Project::parse("project.yml", project.to_string().as_bytes());
        assert!(again.is_ok_and(|again| same(&again, &project)));
    }
}

/// `authorization.json`.
pub(crate) fn authorization(data: &[u8]) {
    if let Ok(policy) = Policy::parse("authorization.json", data) {
        assert_eq!(Policy::parse("authorization.json", policy.to_string().as_bytes()), Ok(policy));
    }
}

/// Any YAML or JSON.
pub(crate) fn document(data: &[u8]) {
    if let Ok(value) = from_yaml("d.yaml", data) {
        let printed = to_yaml(&value);
        let again = from_yaml("d.yaml", printed.as_bytes()).map(|again| to_yaml(&again));
        assert_eq!(again, Ok(printed));
    }
    if let Ok(value) = from_json("d.json", data) {
        let printed = to_json(&value);
        assert_eq!(from_json("d.json", printed.as_bytes()).map(|again| to_json(&again)), Ok(printed));
    }
}
