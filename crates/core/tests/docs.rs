//! The examples of `docs/formats.md` are what they say.

use polder_core::job::JobConfig;
use polder_core::meta::JobMeta;
use polder_core::parent::ParentConfig;
use polder_core::project::Project;
use polder_core::study_runtime::{NoFiles, Reading, StudyRuntimes};
use polder_words::Mode;
use std::path::Path;

#[test]
fn every_example_is_accepted() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut seen = Vec::new();
    for block in text.split("```yaml ").skip(1) {
        let (kind, rest) = block.split_once('\n').expect("a kind of file");
        let example = rest.split("```").next().expect("an end").as_bytes();
        let error = match kind {
            "meta" => JobMeta::parse("meta.yml", example).err(),
            "job" => JobConfig::parse("job.yaml", example).err(),
            "parent" => ParentConfig::parse("parent.yaml", example).err(),
            "project" => Project::parse("project.yml", example).err(),
            "study_runtime" => {
                StudyRuntimes::parse("study_runtime.yaml", example, &Reading::new(Mode::Docker, &NoFiles))
                    .err()
            }
            _ => panic!("{kind} is not a kind of file"),
        };
        assert!(error.is_none(), "{kind}: {}", error.map(|e| e.to_string()).unwrap_or_default());
        seen.push(kind.to_owned());
    }
    assert_eq!(seen, ["meta", "job", "parent", "study_runtime", "project"]);
}

#[test]
fn the_error_that_is_shown_is_the_error_that_comes() {
    let text = "{\n\"deploy_map\": {\"app\": [\"@ALL\"]},\n\"resource_spec\": {\n\"hospital-a\": {\"memory\": \"8G\"}}}";
    let error = JobMeta::parse("meta.json", text.as_bytes()).expect_err("8G is none").to_string();
    let docs = include_str!("../../../docs/formats.md");
    assert!(docs.contains(&error), "{error}");
}
