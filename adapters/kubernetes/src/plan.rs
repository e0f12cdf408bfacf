//! From a launch and the site's settings to the pod: pure, so that what is printed is what is sent.
//!
//! Merged in this order, the later wins: the study's `pod_template`; what the study says typed (datasets, secrets,
//! variables), by name; what Polder owns. The pod waits until its Secret exists: `prepare` makes the pod, `start` the
//! Secret, which belongs to the pod and goes with it.
//!
//! Where things are in the pod:
//!
//! ```text
//! /polder/bin/polder-worker            copied there by the init container, so that any image works
//! /polder/handover/handover.json       from the Secret: a one-time token and how to reach the parent
//! <workspace>                          the job's folder, an emptyDir of limited size
//! /data/<study>/<dataset>              volume claims
//! ```

use crate::quantity;
use crate::template::{Source, Template, merge_by_name, take_list, typed};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polder_core::images::{Candidates, ImageError, choose};
use polder_core::launcher::K8sOptions;
use polder_core::parent::K8sLauncher;
use polder_core::study_runtime::{MountMode, NoFiles, Reading, StudyRuntime, StudyRuntimes, is_reserved_env};
use polder_core::value::{At, from_bytes};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{FailureClass, LaunchId, Mode, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Label of the launch's parts.
pub const LABEL_JOB: &str = "polder/job";
/// The site's name.
pub const LABEL_SITE: &str = "polder/site";
/// The study.
pub const LABEL_STUDY: &str = "polder/study";
/// `server` or `client`.
pub const LABEL_ROLE: &str = "polder/role";
/// 1 for the first try.
pub const LABEL_ATTEMPT: &str = "polder/attempt";
/// Common label of all pods and Secrets of Polder's workers, [`MANAGER`].
pub const LABEL_MANAGER: &str = "app.kubernetes.io/managed-by";
/// See [`LABEL_MANAGER`].
pub const MANAGER: &str = "polder";
/// How long a pod may wait for resources, in seconds; absent: for ever. Read by the watcher, which keeps nothing in memory.
pub const ANNOTATION_PENDING: &str = "polder/pending-timeout";
/// The main container.
pub const CONTAINER: &str = "polder-job";
/// The init container that brings the worker along.
pub const INIT_CONTAINER: &str = "polder-worker";
/// The key in the Secret and the file in the pod.
pub const HANDOVER: &str = "handover.json";

const BIN_DIR: &str = "/polder/bin";
const HANDOVER_DIR: &str = "/polder/handover";
const WORKER: &str = "/polder/bin/polder-worker";
/// The worker in the parent's image.
const WORKER_IN_IMAGE: &str = "/usr/libexec/polder/polder-worker";
/// Account of workers when the site says nothing. An image may name a user by name only, which no kubelet can tell from
/// root, so a number is given.
const USER: u32 = 65532;
const RUNTIME_FILE: &str = polder_core::study_runtime::FILE;
const META_FILE: &str = "meta";

/// What is printed by `polder plan`, stored in the ledger and sent: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct K8sPlan {
    /// The pod, complete.
    pub pod: Pod,
    /// The Secret `start` makes, without its data ([`HANDOVER`]) and without its owner (the pod, whose uid the cluster
    /// gives).
    pub secret: Secret,
    /// Longest wait for resources, in seconds; null: for ever; 0: none.
    pub pending_timeout: Option<serde_json::Number>,
}

/// Plans a launch. `job_images`: whether a job may bring its image here. The cluster hands out its devices itself.
///
/// # Errors
/// When a job's option, the study's runtime or its template is wrong, no image may run, or more is asked for than the
/// study may have.
pub fn plan(
    site: &K8sLauncher,
    job_images: bool,
    want: &Resolved,
    _with: &Allotted,
) -> Result<K8sPlan, Refusal> {
    let runtime = runtime(want)?;
    let options = options(want)?;
    let source = Source { study: &want.study };
    let mut template = Template::read(want.runtime.get("pod_template"), source)?;
    let image = image(site, job_images, &options, &runtime)?;
    let pending_timeout = match options.pending_timeout {
        Some(seconds) => seconds.map(number),
        None => site.pending_timeout.map(|span| number(span.as_secs_f64())),
    };
    let resources = resources(site, want, &options, &runtime)?;
    let (volumes, mounts) = study_mounts(&runtime);
    let name = pod_name(&want.id);

    let mut main = std::mem::take(&mut template.containers[template.main]);
    let mut env = study_env(&runtime);
    env.extend(options.python_path.as_ref().or(site.python_path.as_ref()).map(|python| {
        // What trainers are offered as their interpreter.
        json!({"name": "POLDER_PYTHON", "value": python})
    }));
    let mut env_before = take_list(&mut main, "env", "spec.containers[]", source)?;
    env_before.retain(|item| {
        !item.get("name").and_then(Value::as_str).is_some_and(|name| is_reserved_env(name, Mode::K8s))
    });
    let env = merge_by_name(env_before, env);
    let mounts = main_mounts(site, &mut main, mounts, source)?;
    let claims = main.get("resources").and_then(|resources| resources.get("claims")).cloned();
    for key in ["args", "command", "workingDir", "name", "image", "resources"] {
        main.shift_remove(key);
    }
    let mut container = Map::new();
    container.insert("name".into(), CONTAINER.into());
    container.insert("image".into(), image.into());
    container.insert("imagePullPolicy".into(), site.image_pull_policy.clone().into());
    let run = ["run", "--handover", &format!("{HANDOVER_DIR}/{HANDOVER}"), "--run-dir", &site.workspace];
    container.insert("command".into(), std::iter::once(WORKER).chain(run).collect());
    container.insert("workingDir".into(), site.workspace.clone().into());
    if !env.is_empty() {
        container.insert("env".into(), env.into());
    }
    let mut resources = resources;
    if let Some(claims) = claims {
        resources["claims"] = claims;
    }
    container.insert("resources".into(), resources);
    container.insert("volumeMounts".into(), mounts.into());
    // A study may want another policy than its site, and a looser or tighter context; Polder only has defaults for these.
    for (key, default) in [
        ("securityContext", container_security()),
        ("terminationMessagePolicy", "FallbackToLogsOnError".into()),
    ] {
        let given = main.shift_remove(key).filter(|value| !value.is_null());
        container.insert(key.into(), given.unwrap_or(default));
    }
    if let Some(policy) = main.shift_remove("imagePullPolicy").filter(|value| !value.is_null()) {
        container.insert("imagePullPolicy".into(), policy);
    }
    container.extend(main);

    let mut spec = std::mem::take(&mut template.spec);
    let volumes = pod_volumes(&mut spec, site, &options, volumes, &name, source)?;
    let pull: Vec<Value> = site.image_pull_secrets.iter().map(|name| json!({"name": name})).collect();
    let pull = merge_by_name(take_list(&mut spec, "imagePullSecrets", "spec", source)?, pull);
    let mut init = vec![init_container(site)];
    init.extend(take_list(&mut spec, "initContainers", "spec", source)?);
    let mut containers: Vec<Value> = template.containers.into_iter().map(Value::Object).collect();
    containers[template.main] = Value::Object(container);
    one_name_each(&init, &containers, source)?;

    let mut whole = Map::new();
    whole.insert("initContainers".into(), init.into());
    whole.insert("containers".into(), containers.into());
    whole.insert("volumes".into(), volumes.into());
    if !pull.is_empty() {
        whole.insert("imagePullSecrets".into(), pull.into());
    }
    whole.insert("restartPolicy".into(), "Never".into());
    whole.insert("automountServiceAccountToken".into(), false.into());
    let context = spec.shift_remove("securityContext").filter(|value| !value.is_null());
    let site_context = site.pod_security_context.as_ref().map(|map| {
        let value = polder_core::value::Data::Map(map.clone()).into();
        serde_json::from_str(&polder_core::value::to_json(&value)).expect("what core prints as JSON is JSON")
    });
    whole.insert("securityContext".into(), site_context.or(context).unwrap_or_else(pod_security));
    let deadline = [
        runtime.limits.time.map(|time| time.as_secs().max(1)),
        spec.shift_remove("activeDeadlineSeconds").and_then(|value| value.as_u64()),
    ];
    if let Some(seconds) = deadline.into_iter().flatten().min() {
        whole.insert("activeDeadlineSeconds".into(), seconds.into());
    }
    // Variables for every service of the namespace are none of a job's business.
    let links = spec.shift_remove("enableServiceLinks").filter(|value| !value.is_null());
    whole.insert("enableServiceLinks".into(), links.unwrap_or(Value::Bool(false)));
    for key in ["restartPolicy", "automountServiceAccountToken"] {
        spec.shift_remove(key);
    }
    whole.extend(spec);

    let mut metadata = template.metadata;
    let labels = labels(want);
    let mut all = match metadata.shift_remove("labels") {
        Some(Value::Object(labels)) => labels,
        _ => Map::new(),
    };
    all.retain(|key, _| !key.starts_with("polder/"));
    for (key, value) in &labels {
        all.shift_remove(key);
        all.insert(key.clone(), value.clone().into());
    }
    let mut annotations = match metadata.shift_remove("annotations") {
        Some(Value::Object(annotations)) => annotations,
        _ => Map::new(),
    };
    annotations.retain(|key, _| !key.starts_with("polder/"));
    if let Some(seconds) = &pending_timeout {
        annotations.insert(ANNOTATION_PENDING.into(), seconds.to_string().into());
    }
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": site.namespace, "labels": all, "annotations": annotations,
        },
        "spec": whole,
    });
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(site.namespace.clone()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        immutable: Some(true),
        ..Secret::default()
    };
    Ok(K8sPlan { pod: typed(&pod, source)?, secret, pending_timeout })
}

/// The study's runtime, read back from the launch.
fn runtime(want: &Resolved) -> Result<StudyRuntime, Refusal> {
    if want.runtime.is_null() {
        return Ok(StudyRuntime::empty(want.study.clone()));
    }
    // JSON is YAML; the pod template stays JSON and is read where it is merged.
    let mut entry = want.runtime.clone();
    if let Value::Object(entry) = &mut entry {
        entry.shift_remove("pod_template");
    }
    let document = json!({"format_version": 2, "studies": {(want.study.as_str()): entry}}).to_string();
    let reading = Reading::new(Mode::K8s, &NoFiles);
    let studies =
        StudyRuntimes::parse(RUNTIME_FILE, document.as_bytes(), &reading).map_err(|error| refusal(&error))?;
    Ok(studies.of(RUNTIME_FILE, &want.study).0)
}

fn options(want: &Resolved) -> Result<K8sOptions, Refusal> {
    let text = Value::Object(want.options.clone()).to_string();
    let value = from_bytes(META_FILE, text.as_bytes()).map_err(|error| refusal(&error))?;
    let place = format!("launcher_spec.{}.k8s", want.id.site);
    K8sOptions::read(&At::under(META_FILE, &place, &value)).map_err(|error| refusal(&error))
}

fn refusal(error: &polder_core::Error) -> Refusal {
    Refusal::new(FailureClass::Config, error.message()).at(
        error.file(),
        error.at(),
        error.found(),
        error.allowed(),
    )
}

fn image(
    site: &K8sLauncher,
    job_images: bool,
    options: &K8sOptions,
    runtime: &StudyRuntime,
) -> Result<String, Refusal> {
    let candidates = Candidates {
        job: options.image.as_deref(),
        job_may: job_images,
        study: runtime.container_image.as_deref(),
        site: site.image.as_deref(),
    };
    let refuse = |message: &str, at: &str, found: &str, allowed: &str| {
        let at = format!("studies.{}.{at}", runtime.study);
        Refusal::new(FailureClass::Image, message).at(RUNTIME_FILE, &at, found, allowed)
    };
    choose(&candidates, &runtime.images, runtime.study.as_str(), RUNTIME_FILE)
        .map(|chosen| chosen.image)
        .map_err(|error| match &error {
            ImageError::None { job, .. } => refuse(
                &format!("there is no image for the study's workers, and the job brings {job}"),
                "container.image",
                "none",
                "a reference, or launcher.kubernetes.image in parent.yaml",
            ),
            ImageError::NotAllowed { image, allowed, .. } => {
                refuse("does not let this image run", "images.allow", image, &allowed.join(", "))
            }
            ImageError::NoDigest { image, .. } => {
                refuse("requires a digest", "images.require_digest", image, "name@sha256:<64 digits>")
            }
            ImageError::Moved { image, .. } => {
                refuse(&error.to_string(), "images.pin", image, "the pinned image")
            }
        })
}

fn number(seconds: f64) -> serde_json::Number {
    // Whole seconds are printed as such.
    let whole = format!("{seconds:.0}").parse::<u64>().ok().filter(|whole| *whole as f64 == seconds);
    whole.map(Into::into).or_else(|| serde_json::Number::from_f64(seconds)).unwrap_or_else(|| 0.into())
}

/// Requests and limits of the main container: the same for portable amounts, apart where a job says so.
fn resources(
    site: &K8sLauncher,
    want: &Resolved,
    options: &K8sOptions,
    runtime: &StudyRuntime,
) -> Result<Value, Refusal> {
    let mut limits = BTreeMap::new();
    let mut requests = BTreeMap::new();
    let amounts = [
        (
            "cpu",
            options.cpu.clone().or(want.cpus.map(|n| n.to_string())),
            &options.cpu_request,
            "cpu_request",
        ),
        (
            "memory",
            options.memory.clone().or(want.memory.map(quantity::of_bytes)),
            &options.memory_request,
            "memory_request",
        ),
    ];
    for (name, limit, request, request_key) in amounts {
        let most = limit.as_ref().map(|text| amount(want, name, text)).transpose()?;
        if let Some(request) = request {
            let least = amount(want, request_key, request)?;
            if most.is_some_and(|most| least > most) {
                let place = format!("launcher_spec.{}.k8s.{request_key}", want.id.site);
                let message = "asks for more than the limit beside it";
                let allowed = format!("at most {}", limit.as_deref().unwrap_or_default());
                return Err(
                    Refusal::new(FailureClass::Config, message).at(META_FILE, &place, request, &allowed)
                );
            }
        }
        if let Some(request) = request.as_ref().or(limit.as_ref()) {
            requests.insert(name.to_owned(), request.clone());
        }
        if let Some(limit) = limit {
            limits.insert(name.to_owned(), limit);
        }
    }
    let storage = options.ephemeral_storage.as_ref().unwrap_or(&site.ephemeral_storage);
    amount(want, "ephemeral_storage", storage)?;
    let gpus = options.num_of_gpus.as_ref().map_or_else(|| want.gpus.to_string(), ToString::to_string);
    for map in [&mut limits, &mut requests] {
        map.insert("ephemeral-storage".to_owned(), storage.clone());
        if gpus != "0" {
            map.insert(site.gpu_resource.clone(), gpus.clone());
        }
    }
    let cap = &runtime.limits;
    let memory = cap.memory.as_ref().map(|memory| (memory.as_str().to_owned(), "memory"));
    let most = [
        cap.gpus.map(|n| (n.to_string(), site.gpu_resource.as_str(), "gpus")),
        cap.cpus.map(|n| (n.to_string(), "cpu", "cpus")),
        memory.map(|(text, name)| (text, name, name)),
    ];
    for (most, name, key) in most.into_iter().flatten() {
        // What has no limit may take everything, which is more than the study may have.
        let asked = limits.get(name).or_else(|| requests.get(name));
        if let Some(asked) = asked
            && quantity::units(asked) > quantity::units(&most)
        {
            let place = format!("studies.{}.limits.{key}", want.study);
            let message = "the job asks for more than the study may have at this site";
            return Err(Refusal::new(FailureClass::Policy, message).at(
                RUNTIME_FILE,
                &place,
                asked,
                &format!("at most {most}"),
            ));
        }
        // Set where a job sets none, so that the study's limit is one.
        if name != site.gpu_resource && !limits.contains_key(name) {
            limits.insert(name.to_owned(), most.clone());
            requests.entry(name.to_owned()).or_insert(most);
        }
    }
    Ok(json!({"limits": limits, "requests": requests}))
}

fn amount(want: &Resolved, key: &str, text: &str) -> Result<f64, Refusal> {
    quantity::units(text).ok_or_else(|| {
        let place = format!("launcher_spec.{}.k8s.{key}", want.id.site);
        Refusal::new(FailureClass::Config, "is not a quantity").at(META_FILE, &place, text, quantity::ALLOWED)
    })
}

fn study_env(runtime: &StudyRuntime) -> Vec<Value> {
    let plain = runtime.env.iter().map(|(name, value)| json!({"name": name, "value": value}));
    let secret = runtime.secret_env.iter().map(|secret| {
        let key = secret.key.as_deref().unwrap_or(&secret.name);
        json!({"name": secret.name, "valueFrom": {"secretKeyRef": {"name": secret.source, "key": key}}})
    });
    plain.chain(secret).collect()
}

/// Volumes of datasets and secrets, and where the main container has them.
fn study_mounts(runtime: &StudyRuntime) -> (Vec<Value>, Vec<Value>) {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    let study = &runtime.study;
    for dataset in &runtime.datasets {
        let name = volume_name(&format!("data-{study}-{}", dataset.name));
        let read_only = dataset.mode == MountMode::Ro;
        mounts.push(json!({"name": name, "mountPath": dataset.destination(study), "readOnly": read_only}));
        volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": dataset.source}}));
    }
    for secret in &runtime.secret_mounts {
        let name = volume_name(&format!("secret-{study}-{}", secret.name));
        mounts.push(json!({"name": name, "mountPath": secret.mount_path, "readOnly": true}));
        let mut volume = json!({"secretName": secret.source});
        if let Some(items) = &secret.items {
            volume["items"] = items.iter().map(|(key, path)| json!({"key": key, "path": path})).collect();
        }
        volumes.push(json!({"name": name, "secret": volume}));
    }
    (volumes, mounts)
}

/// Mounts of the main container: the template's, the study's, Polder's. What would hide Polder's is refused.
fn main_mounts(
    site: &K8sLauncher,
    main: &mut Map<String, Value>,
    study: Vec<Value>,
    source: Source<'_>,
) -> Result<Vec<Value>, Refusal> {
    let ours = vec![
        json!({"name": "polder-work", "mountPath": site.workspace}),
        json!({"name": "polder-bin", "mountPath": BIN_DIR, "readOnly": true}),
        json!({"name": "polder-handover", "mountPath": HANDOVER_DIR, "readOnly": true}),
    ];
    let path = |mount: &Value| {
        let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        path.trim_end_matches('/').to_owned()
    };
    let taken: Vec<String> = study.iter().chain(&ours).map(path).collect();
    let mut before = take_list(main, "volumeMounts", "spec.containers[]", source)?;
    before.retain(|mount| !taken.contains(&path(mount)));
    for mount in before.iter().chain(&study) {
        let path = path(mount);
        let inside = |folder: &str| path == folder || path.starts_with(&format!("{folder}/"));
        if inside("/polder") || path == site.workspace.trim_end_matches('/') {
            let message = "is where the launcher mounts its own";
            let at = format!("studies.{}", source.study);
            return Err(Refusal::new(FailureClass::Config, message).at(
                RUNTIME_FILE,
                &at,
                &path,
                &format!("mount paths outside /polder and other than {}", site.workspace),
            ));
        }
    }
    Ok(merge_by_name(merge_by_name(before, study), ours))
}

fn pod_volumes(
    spec: &mut Map<String, Value>,
    site: &K8sLauncher,
    options: &K8sOptions,
    study: Vec<Value>,
    name: &str,
    source: Source<'_>,
) -> Result<Vec<Value>, Refusal> {
    let storage = options.ephemeral_storage.as_ref().unwrap_or(&site.ephemeral_storage);
    let ours = vec![
        json!({"name": "polder-work", "emptyDir": {"sizeLimit": storage}}),
        json!({"name": "polder-bin", "emptyDir": {"sizeLimit": "128Mi"}}),
        json!({
            "name": "polder-handover",
            "secret": {"secretName": name, "items": [{"key": HANDOVER, "path": HANDOVER}], "optional": false},
        }),
    ];
    let before = take_list(spec, "volumes", "spec", source)?;
    Ok(merge_by_name(merge_by_name(before, study), ours))
}

/// Copies the worker out of the parent's own image, so that a job's image needs nothing of Polder.
fn init_container(site: &K8sLauncher) -> Value {
    json!({
        "name": INIT_CONTAINER,
        "image": site.worker_image,
        "imagePullPolicy": site.image_pull_policy,
        "command": [WORKER_IN_IMAGE, "install", WORKER],
        "resources": {
            "limits": {"cpu": "1", "memory": "64Mi"},
            "requests": {"cpu": "10m", "memory": "64Mi"},
        },
        "securityContext": container_security(),
        "volumeMounts": [{"name": "polder-bin", "mountPath": BIN_DIR}],
    })
}

/// As the `restricted` Pod Security Standard wants it of containers.
fn container_security() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

/// As the `restricted` Pod Security Standard wants it of pods. No `fsGroup`: it would hand a dataset's files over.
fn pod_security() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn one_name_each(init: &[Value], containers: &[Value], source: Source<'_>) -> Result<(), Refusal> {
    let mut names = Vec::new();
    for (n, container) in init.iter().chain(containers).enumerate() {
        let Some(name) = container.get("name").and_then(Value::as_str) else {
            // Kubernetes would refuse it too; here the place is known.
            let place = if n < init.len() { "spec.initContainers" } else { "spec.containers" };
            return Err(source.refuse(
                place,
                "",
                "has a container without a name",
                "a name for each container",
            ));
        };
        if names.contains(&name) {
            return Err(source.refuse(
                "spec.containers",
                name,
                "has two containers of one name",
                "other names than polder-job and polder-worker, each once",
            ));
        }
        names.push(name);
    }
    Ok(())
}

fn labels(want: &Resolved) -> BTreeMap<String, String> {
    let id = &want.id;
    BTreeMap::from([
        (LABEL_MANAGER.to_owned(), MANAGER.to_owned()),
        ("app.kubernetes.io/name".to_owned(), "polder-worker".to_owned()),
        (LABEL_JOB.to_owned(), id.job.to_string()),
        (LABEL_SITE.to_owned(), id.site.to_string()),
        (LABEL_STUDY.to_owned(), want.study.to_string()),
        (LABEL_ROLE.to_owned(), id.role.to_string()),
        (LABEL_ATTEMPT.to_owned(), id.attempt.to_string()),
    ])
}

/// The launch a pod's labels name; `None` when they name none.
#[must_use]
pub fn launch_of(labels: &BTreeMap<String, String>) -> Option<LaunchId> {
    let get = |key: &str| labels.get(key).map(String::as_str);
    Some(LaunchId {
        job: get(LABEL_JOB)?.parse().ok()?,
        site: get(LABEL_SITE)?.parse().ok()?,
        role: [Role::Server, Role::Client]
            .into_iter()
            .find(|role| get(LABEL_ROLE) == Some(&role.to_string()))?,
        attempt: get(LABEL_ATTEMPT)?.parse().ok()?,
    })
}

/// The name of a launch's pod and of its Secret: readable, at most 63 characters, another for each launch.
#[must_use]
pub fn pod_name(id: &LaunchId) -> String {
    let site: String = plain(id.site.as_str()).chars().take(20).collect();
    let job: String = id.job.to_string().chars().take(12).collect();
    let hash = hash8(&id.to_string());
    let site = site.trim_end_matches('-');
    let site = if site.is_empty() { "site" } else { site };
    format!("fl-{site}-{job}-{}-{}-{hash}", id.role, id.attempt)
}

/// A volume's name: readable, followed by a hash of everything, as FLARE names them.
fn volume_name(whole: &str) -> String {
    let hash = hash8(whole);
    let text: String = plain(whole).chars().take(63 - hash.len() - 1).collect();
    format!("{}-{hash}", text.trim_end_matches('-'))
}

/// What Kubernetes takes in a name, the rest left out.
fn plain(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let text: String =
        text.chars().filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-').collect();
    text.trim_matches('-').to_owned()
}

fn hash8(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

impl K8sPlan {
    /// As the ledger has it.
    #[must_use]
    pub fn to_plan(&self) -> Plan {
        let value = serde_json::to_value(self).expect("a plan is plain data with text keys");
        let Value::Object(native) = value else { unreachable!("a struct is an object") };
        Plan { mode: Mode::K8s, native }
    }

    /// Back from the ledger.
    ///
    /// # Errors
    /// When it is no plan of this adapter.
    pub fn from_plan(plan: &Plan) -> Result<Self, Refusal> {
        let wrong = |text: String| Refusal::new(FailureClass::Infrastructure, text);
        if plan.mode != Mode::K8s {
            return Err(wrong(format!("a plan for {} reached the Kubernetes launcher", plan.mode)));
        }
        serde_json::from_value(Value::Object(plan.native.clone()))
            .map_err(|error| wrong(format!("a plan that cannot be read: {error}")))
    }
}
