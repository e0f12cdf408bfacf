//! What a job asks for at one site, made one launch. The same for a launch and for `polder plan`.

use polder_core::meta::JobMeta;
use polder_core::parent::ParentConfig;
use polder_core::resources::{View, slurm_resources};
use polder_core::study_runtime::StudyRuntime;
use polder_core::value::{Data, Int, Value, to_json};
use polder_launch::launcher::Place;
use polder_launch::{Refusal, Resolved};
use polder_words::{FailureClass, Mode};
use std::time::Duration;

/// Longest wait of a pod that may not wait for resources: its image and volumes still take their time.
const NO_WAIT_MS: u64 = 120_000;

/// Completes a launch with the amounts and options of a job and the study's runtime at its site.
///
/// # Errors
/// When the job's description contradicts itself or asks for more than the study may have here.
pub fn ask(
    launch: &mut Resolved,
    file: &str,
    meta: &JobMeta,
    runtime: &StudyRuntime,
    config: &ParentConfig,
) -> Result<(), Refusal> {
    let view =
        View { file, resource_spec: meta.resource_spec.value(), launcher_spec: meta.launcher_spec.value() };
    let site = launch.id.site.clone();
    let portable = view.portable(site.as_str()).map_err(|error| of(&error))?;
    let options = view.launcher(site.as_str(), config.mode()).map_err(|error| of(&error))?;
    let too_many = || Refusal {
        class: FailureClass::Resources,
        message: "more is asked for than any site has".to_owned(),
        place: None,
    };
    if let Some(gpus) = &portable.gpus {
        launch.gpus = gpus.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(too_many)?;
    }
    if let Some(cpus) = &portable.cpus {
        launch.cpus = Some(cpus.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(too_many)?);
    }
    if let Some(memory) = &portable.memory {
        launch.memory = Some(memory.bytes_u64().ok_or_else(too_many)?);
    }
    within_limits(launch, runtime)?;
    if config.mode() == Mode::Slurm {
        slurm_totals(launch, &view, runtime, config)?;
    }
    launch.options = match json(&Data::Map(options).into()) {
        serde_json::Value::Object(map) => map,
        _ => serde_json::Map::new(),
    };
    if config.mode() == Mode::Docker {
        // The one amount that a job may also state as an option of this launcher; the planner wants to know whether
        // it was stated at all, since zero takes away what the study would have.
        let option = launch.options.get("num_of_gpus").filter(|value| !value.is_null());
        if let Some(gpus) = option.and_then(serde_json::Value::as_u64) {
            launch.gpus = u32::try_from(gpus).map_err(|_| too_many())?;
            within_limits(launch, runtime)?;
        } else if portable.gpus.is_some() {
            launch.options.insert("num_of_gpus".to_owned(), launch.gpus.into());
        }
    }
    launch.runtime = json(&runtime.to_value());
    launch.max_restarts = config.max_restarts;
    launch.pending_timeout_ms = crate::pending_timeout_ms(&config.launcher);
    if config.mode() == Mode::K8s {
        if let Some(memory) = &portable.memory {
            // Kubernetes takes the amount as it is written.
            launch.options.entry("memory").or_insert_with(|| memory.as_str().into());
        }
        match launch.options.get("pending_timeout") {
            None => {}
            Some(serde_json::Value::Null) => launch.pending_timeout_ms = None,
            Some(seconds) => {
                let seconds = seconds.as_f64().and_then(|s| Duration::try_from_secs_f64(s).ok());
                launch.pending_timeout_ms = seconds.map(polder_launch::clock::millis);
            }
        }
        // 0 is about resources that are short, which the launcher says itself; a pod is never there at once.
        if launch.pending_timeout_ms == Some(0) {
            launch.pending_timeout_ms = Some(NO_WAIT_MS);
        }
    }
    Ok(())
}

/// What Slurm is asked for natively, over all nodes, is bounded by the study's limits, too; the total of GPUs is the
/// portable amount from here on.
fn slurm_totals(
    launch: &mut Resolved,
    view: &View<'_>,
    runtime: &StudyRuntime,
    config: &ParentConfig,
) -> Result<(), Refusal> {
    let sandbox = runtime.slurm.sandbox.unwrap_or(config.slurm_sandbox());
    let longest = crate::pending_timeout_ms(&config.launcher).unwrap_or(u64::MAX);
    let longest = Duration::from_millis(longest).as_secs_f64();
    let asked =
        slurm_resources(view, launch.id.site.as_str(), sandbox, longest).map_err(|error| of(&error))?;
    let total = |each: &Option<Int>| each.as_ref().map(|each| asked.nodes.times(each).as_u64());
    let small = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX);
    launch.gpus = total(&asked.gpus_per_node).map_or(launch.gpus, small);
    let mut all = launch.clone();
    all.cpus = total(&asked.cpus_per_node).map(small);
    let bytes = |mib: Option<u64>| mib.and_then(|mib| mib.checked_mul(1 << 20)).unwrap_or(u64::MAX);
    all.memory = total(&asked.mem_per_node).map(bytes);
    within_limits(&all, runtime)
}

/// The amounts a study may have at a site.
fn within_limits(launch: &Resolved, runtime: &StudyRuntime) -> Result<(), Refusal> {
    let limits = &runtime.limits;
    let most = limits.memory.as_ref().and_then(|memory| memory.bytes_u64());
    let asked = [
        ("gpus", Some(u64::from(launch.gpus)), limits.gpus.map(u64::from)),
        ("cpus", launch.cpus.map(u64::from), limits.cpus.map(u64::from)),
        ("memory", launch.memory, most),
    ];
    for (what, asked, most) in asked {
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            return Err(Refusal {
                class: FailureClass::Policy,
                message: "the job asks for more than the study may have at this site".to_owned(),
                place: Some(Box::new(Place {
                    file: "study_runtime.yaml".to_owned(),
                    at: format!("studies.{}.limits.{what}", runtime.study),
                    found: asked.to_string(),
                    allowed: format!("at most {most}"),
                })),
            });
        }
    }
    Ok(())
}

/// A document's error as a refusal.
#[must_use]
pub fn of(error: &polder_core::Error) -> Refusal {
    Refusal {
        class: FailureClass::Config,
        message: error.message().to_owned(),
        place: Some(Box::new(Place {
            file: error.file().to_owned(),
            at: error.at().to_owned(),
            found: error.found().to_owned(),
            allowed: error.allowed().to_owned(),
        })),
    }
}

fn json(value: &Value) -> serde_json::Value {
    serde_json::from_str(&to_json(value)).expect("what core prints as JSON is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use polder_core::study_runtime::{NoFiles, Reading, StudyRuntimes};
    use polder_words::{LaunchId, Role};

    fn asked(meta: &str, runtime: &str) -> Result<Resolved, Refusal> {
        let config = b"name: uni\nserver: https://s\nlauncher: {process: {}}\nmax_restarts: 5\n";
        let config = ParentConfig::parse("parent.yaml", config).expect("it is good");
        let meta = JobMeta::parse("meta.json", meta.as_bytes()).expect("it is good");
        let study = "a".parse().expect("a name");
        let studies =
            StudyRuntimes::parse("s.yaml", runtime.as_bytes(), &Reading::new(Mode::Process, &NoFiles));
        let runtime = studies.expect("it is good").of("s.yaml", &study).0;
        let id = LaunchId {
            job: "3f2a0c11d2e3f405162738495a6b7c8d".parse().expect("an id"),
            site: "uni".parse().expect("a name"),
            role: Role::Client,
            attempt: 1,
        };
        let mut launch = Resolved {
            id,
            study,
            run_dir: "/r".into(),
            worker: "/w".into(),
            files: polder_words::FileWay::Shared,
            gpus: 0,
            cpus: None,
            memory: None,
            options: serde_json::Map::new(),
            runtime: serde_json::Value::Null,
            pending_timeout_ms: None,
            max_restarts: 0,
        };
        ask(&mut launch, "meta.json", &meta, &runtime, &config).map(|()| launch)
    }

    const META: &str = r#"{"deploy_map": {"app": ["@ALL"]},
        "resource_spec": {"@default": {"num_of_gpus": 1, "memory": "1Gi"}, "uni": {"num_of_gpus": 2, "num_of_cpus": 4}}}"#;

    #[test]
    fn amounts_options_and_runtime_of_one_site() {
        let launch = asked(META, "format_version: 2\nstudies: {a: {env: {X: 1}}}\n").expect("it may");
        assert_eq!((launch.gpus, launch.cpus, launch.memory), (2, Some(4), Some(1 << 30)));
        assert_eq!((launch.max_restarts, launch.pending_timeout_ms), (5, Some(60_000)));
        assert_eq!(launch.runtime["env"]["X"], "1");
    }

    #[test]
    fn a_study_has_limits() {
        let refusal =
            asked(META, "format_version: 2\nstudies: {a: {limits: {gpus: 1}}}\n").expect_err("too many");
        assert_eq!(refusal.class, FailureClass::Policy);
        let place = refusal.place.as_ref().expect("it names one");
        assert_eq!((place.at.as_str(), place.found.as_str()), ("studies.a.limits.gpus", "2"));
    }
}
