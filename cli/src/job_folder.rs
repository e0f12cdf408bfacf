//! A job's folder: found, read and checked, before anybody else sees it.
//!
//! ```text
//! my-job/
//!     meta.json | meta.yml | meta.yaml
//!     <app>/          one folder for each app that deploy_map names
//!         job.yaml
//!         ...
//! ```
//! The rules are `core`'s; what is added here is what only the submitter's disk can tell: whether the
//! folders and files that are named are there.

use crate::output::Failure;
use indexmap::IndexMap;
use polder_api::{Problem, ProblemCode};
use polder_core::job::JobConfig;
use polder_core::meta::{self, Deploy, JobMeta};
use polder_core::value::to_json;
use polder_words::{AppName, SiteName};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Largest meta that is accepted, as JSON text.
const META_MAX: usize = 256 * 1024;

/// A checked folder.
#[derive(Debug)]
pub(crate) struct JobFolder {
    /// The folder.
    pub(crate) dir: PathBuf,
    /// Its meta; always with a name.
    pub(crate) meta: JobMeta,
    /// Each app's `job.yaml`.
    pub(crate) apps: IndexMap<AppName, JobConfig>,
}

/// What core refuses, as the refusal people and programs see.
pub(crate) fn refused(error: &polder_core::Error) -> Failure {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let file = match error.line() {
        Some(line) => format!("{}:{line}", error.file()),
        None => error.file().to_owned(),
    };
    Problem {
        code: ProblemCode::Invalid,
        message: error.message().to_owned(),
        file: text(&file),
        at: text(error.at()),
        found: text(error.found()),
        allowed: text(error.allowed()),
    }
    .into()
}

/// Reads a file, or says which cannot be read.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::io(path, "read", &error))
}

impl JobFolder {
    /// Reads and checks a folder.
    pub(crate) fn open(dir: &Path) -> Result<Self, Failure> {
        let file = meta_file(dir)?;
        let mut meta = JobMeta::parse(&file.display().to_string(), &read_file(&file)?)
            .map_err(|error| refused(&error))?;
        if meta.name.is_none() {
            let name = fs::canonicalize(dir).ok().and_then(|dir| Some(dir.file_name()?.to_str()?.to_owned()));
            meta.name = Some(name.unwrap_or_else(|| "job".to_owned()));
        }
        let mut apps = IndexMap::new();
        for app in meta.deploy_map.keys() {
            apps.insert(app.clone(), read_app(dir, app, &file)?);
        }
        let folder = Self { dir: dir.to_owned(), meta, apps };
        let size = folder.meta_text().len();
        if size > META_MAX {
            return Err(Failure::new(ProblemCode::TooLarge, "is too large")
                .file(file.display().to_string())
                .found(format!("{size} bytes"), format!("at most {META_MAX} bytes as JSON")));
        }
        Ok(folder)
    }

    /// Sends the job to these sites only; apps that no site gets any more are left out.
    pub(crate) fn narrow(&mut self, sites: &[SiteName]) -> Result<(), Failure> {
        if let Some(planned) = self.meta.clients()
            && let Some(foreign) = sites.iter().find(|site| !planned.contains(site))
        {
            let names: Vec<&str> = planned.iter().map(SiteName::as_str).collect();
            return Err(Failure::new(ProblemCode::Invalid, "--site: deploy_map gives this site no app")
                .found(foreign.to_string(), names.join(", ")));
        }
        for deploy in self.meta.deploy_map.values_mut() {
            match deploy {
                Deploy::All => *deploy = Deploy::Sites([&[SiteName::server()], sites].concat()),
                Deploy::Sites(planned) => planned.retain(|site| site.is_server() || sites.contains(site)),
            }
        }
        self.meta.deploy_map.retain(|_, deploy| !matches!(deploy, Deploy::Sites(sites) if sites.is_empty()));
        // Fewer sites may be too few: the rules are asked again.
        self.meta = JobMeta::parse("meta.json, with --site", self.meta_text().as_bytes())
            .map_err(|error| refused(&error))?;
        let kept = &self.meta.deploy_map;
        self.apps.retain(|app, _| kept.contains_key(app));
        Ok(())
    }

    /// The display name.
    pub(crate) fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or("job")
    }

    /// The meta as the JSON text that is signed.
    pub(crate) fn meta_text(&self) -> String {
        to_json(&self.meta.to_value())
    }

    /// An app's folder.
    pub(crate) fn app_dir(&self, app: &AppName) -> PathBuf {
        self.dir.join(app.as_str())
    }
}

fn meta_file(dir: &Path) -> Result<PathBuf, Failure> {
    if !dir.is_dir() {
        return Err(Failure::new(ProblemCode::Invalid, "is not a folder")
            .file(dir.display().to_string())
            .hint("a job is a folder with meta.json and one folder per app"));
    }
    let found: Vec<PathBuf> =
        meta::FILES.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(Failure::new(ProblemCode::Invalid, "the folder has no meta file")
            .file(dir.display().to_string())
            .found("none", format!("one of {}", meta::FILES.join(", ")))),
        several => {
            let names: Vec<String> = several
                .iter()
                .filter_map(|path| path.file_name())
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            Err(Failure::new(ProblemCode::Invalid, "the folder has several meta files")
                .file(dir.display().to_string())
                .found(names.join(", "), "exactly one"))
        }
    }
}

fn read_app(dir: &Path, app: &AppName, meta_file: &Path) -> Result<JobConfig, Failure> {
    let folder = dir.join(app.as_str());
    if !folder.is_dir() {
        let mut failure = Failure::new(ProblemCode::Invalid, "names an app that has no folder in the job")
            .file(meta_file.display().to_string())
            .found(app.to_string(), format!("the folders of {}", dir.display()));
        failure.problem.at = Some(format!("deploy_map.{app}"));
        return Err(failure);
    }
    let file = folder.join(polder_core::job::FILE);
    let bytes = match fs::read(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Failure::new(ProblemCode::Invalid, "the app has no job.yaml")
                .file(folder.display().to_string())
                .hint("job.yaml says the workflow, how many rounds, and the trainer's command"));
        }
        Err(error) => return Err(Failure::io(&file, "read", &error)),
        Ok(bytes) => bytes,
    };
    let name = file.display().to_string();
    let config = JobConfig::parse(&name, &bytes).map_err(|error| refused(&error))?;
    if let Some(model) = config.initial_model.as_ref().filter(|model| !folder.join(model).is_file()) {
        let mut failure = Failure::new(ProblemCode::Invalid, "names a file that is not in the app folder")
            .file(name)
            .found(model.clone(), format!("a file in {}", folder.display()));
        failure.problem.at = Some("initial_model".to_owned());
        return Err(failure);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().expect("beneath the folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        dir
    }

    fn refusal(files: &[(&str, &str)]) -> String {
        let dir = folder(files);
        let failure = JobFolder::open(dir.path()).expect_err("it must be refused");
        failure.sentence().replace(&dir.path().display().to_string(), "JOB")
    }

    const META: &str = r#"{"name": "n", "deploy_map": {"app": ["@ALL"]}}"#;
    const JOB: &str = "rounds: 2\ntrainer: {command: [./train]}\n";

    #[test]
    fn a_good_folder() {
        let dir = folder(&[("meta.yml", "deploy_map: {app: ['@ALL']}\n"), ("app/job.yaml", JOB)]);
        let job = JobFolder::open(dir.path()).expect("it is good");
        assert_eq!(job.name(), dir.path().file_name().expect("a name").to_str().expect("text"));
        assert_eq!(job.apps[0].rounds, 2);
        let text = job.meta_text();
        assert_eq!(JobMeta::parse("meta", text.as_bytes()).expect("it reads back"), job.meta);
    }

    #[test]
    fn a_job_may_go_to_some_of_its_sites() {
        let site = |name: &str| SiteName::new(name).expect("a name");
        let open = |meta: &str| {
            let dir = folder(&[("meta.json", meta), ("a/job.yaml", JOB), ("b/job.yaml", JOB)]);
            JobFolder::open(dir.path()).expect("it is good")
        };
        let mut job = open(r#"{"name": "n", "deploy_map": {"a": ["server", "s1"], "b": ["s2", "s3"]}}"#);
        job.narrow(&[site("s1")]).expect("it has an app");
        assert_eq!(job.meta.clients(), Some(vec![site("s1")]));
        assert_eq!(job.apps.keys().map(AppName::as_str).collect::<Vec<_>>(), ["a"]);
        let mut job = open(r#"{"name": "n", "deploy_map": {"a": ["@ALL"]}}"#);
        job.narrow(&[site("s1"), site("s2")]).expect("all sites have the app");
        assert_eq!(job.meta.clients(), Some(vec![site("s1"), site("s2")]));
        let refusals = [
            (r#"{"deploy_map": {"a": ["server", "s1"]}}"#, "s9", "deploy_map gives this site no app"),
            (r#"{"deploy_map": {"a": ["server", "s1", "s2"]}, "min_clients": 2}"#, "s1", "min_clients"),
        ];
        for (meta, name, expected) in refusals {
            let said = open(meta).narrow(&[site(name)]).expect_err(name).sentence();
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let refusals = [
            refusal(&[]),
            refusal(&[("meta.json", META), ("meta.yml", META)]),
            refusal(&[("meta.json", META)]),
            refusal(&[("meta.json", META), ("app/x", "")]),
            refusal(&[("meta.json", META), ("app/job.yaml", "rounds: 0\ntrainer: {command: [x]}\n")]),
            refusal(&[
                ("meta.json", META),
                ("app/job.yaml", "initial_model: init.safetensors\ntrainer: {command: [x]}\n"),
            ]),
        ];
        insta::assert_snapshot!(refusals.join("\n"));
    }
}
