//! Pods as the documents of a job and a site make them, by the function that `polder plan` and a launch use.

use polder_adapters::{Places, ask, plan, refusal_of};
use polder_core::meta::{JobMeta, Need};
use polder_core::parent::ParentConfig;
use polder_core::study_runtime::{NoFiles, StudyRuntimes};
use polder_core::value::{At, from_bytes};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{FailureClass, LaunchId, Role, StudyName};
use serde_json::{Map, Value, json};

/// The plan of a launch, from texts.
fn planned(launcher: &Value, meta: &Value, runtime: &str, site: &str, role: Role) -> Result<Plan, Refusal> {
    let parent =
        json!({"name": site, "server": "https://fl.example.org", "launcher": {"kubernetes": launcher}});
    let config =
        ParentConfig::parse("parent.yaml", parent.to_string().as_bytes()).map_err(|e| refusal_of(&e))?;
    let document = from_bytes("meta.json", meta.to_string().as_bytes()).map_err(|e| refusal_of(&e))?;
    let meta_read =
        JobMeta::read(&At::root("meta.json", &document), Need::Parts).map_err(|e| refusal_of(&e))?;
    let study = StudyName::new(meta["study"].as_str().unwrap_or("default")).expect("a name");
    let studies = StudyRuntimes::parse("study_runtime.yaml", runtime.as_bytes(), &config.reading(&NoFiles))
        .map_err(|e| refusal_of(&e))?;
    let runtime = studies.of("study_runtime.yaml", &study).0;
    let job = "6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6".parse().expect("an id");
    let text = json!({
        "id": LaunchId { job, site: site.parse().expect("a name"), role, attempt: 1 },
        "study": study, "run_dir": "/var/lib/polder/runs/x", "worker": "/usr/libexec/polder/polder-worker",
    });
    let mut want: Resolved = serde_json::from_value(text).expect("a launch");
    ask(&mut want, "meta.json", &meta_read, &runtime, &config)?;
    let places = Places {
        state: "/var/lib/polder".into(),
        kit: "/kit".into(),
        config: "/parent.yaml".into(),
        sockets: Vec::new(),
    };
    let plan = plan(&config, &places, &want, &Allotted::default())?;
    let back = polder_kubernetes::K8sPlan::from_plan(&plan).expect("it reads back from the ledger");
    assert_eq!(back.to_plan(), plan);
    Ok(plan)
}

/// A site's own or Polder's? `polder-` is Polder's.
fn not_ours(items: &Value) -> Vec<Value> {
    let ours =
        |item: &&Value| !item["name"].as_str().is_some_and(|name| name.to_lowercase().starts_with("polder"));
    items.as_array().map(|items| items.iter().filter(ours).cloned().collect()).unwrap_or_default()
}

/// The plan in the oracle's words.
fn reduced(plan: &Plan) -> Value {
    let spec = &plan.native["pod"]["spec"];
    let containers: Vec<Value> = spec["containers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|container| {
            let main = container["name"] == "polder-job";
            json!({
                "name": if main { Value::Null } else { container["name"].clone() },
                "main": main,
                "image": container["image"],
                "env": not_ours(&container["env"]),
                "resources": container["resources"],
                "study_mounts": not_ours(&container["volumeMounts"]),
            })
        })
        .collect();
    json!({
        "containers": containers,
        "restartPolicy": spec["restartPolicy"],
        "study_volumes": not_ours(&spec["volumes"]),
        "pending_timeout": plan.native["pending_timeout"],
    })
}

/// The oracle's expectation as a typed pod prints it: amounts are text, a mount that may write says nothing, FLARE's own
/// mounts (workspace and startup kit) are not Polder's.
fn expected(expect: &Value) -> Value {
    let mut expect = expect.clone();
    if expect.get("pending_timeout").is_none() {
        expect["pending_timeout"] = Value::Null;
    }
    for container in expect["containers"].as_array_mut().expect("a list") {
        for amounts in ["limits", "requests"] {
            let amounts = container["resources"][amounts].as_object_mut().expect("a map");
            for amount in amounts.values_mut().filter(|amount| amount.is_number()) {
                *amount = amount.to_string().into();
            }
        }
        let mounts = container["study_mounts"].as_array_mut().expect("a list");
        mounts.retain(|mount| !["workspace-job", "startup-kit"].iter().any(|name| mount["name"] == *name));
    }
    expect
}

#[test]
fn pods_ask_for_what_flare_asked_for() {
    let text = include_str!("../../tests/oracles/launch_plans.json");
    let oracle: Value = serde_json::from_str(text).expect("JSON");
    let mut seen = 0;
    for case in oracle["cases"].as_array().expect("cases").iter().filter(|case| case["mode"] == "k8s") {
        seen += 1;
        let name = case["name"].as_str().expect("a name");
        let role = if case["side"] == "server" { Role::Server } else { Role::Client };
        let runtime = case["study_runtime_yaml"].as_str().unwrap_or("format_version: 2\nstudies: {}\n");
        let site = case["site"].as_str().expect("a site");
        let said = planned(&case["site_settings"], &case["job_meta"], runtime, site, role);
        if case["expect"]["refused"] == true {
            let refusal = said.expect_err(name);
            let place = refusal.place.as_ref().unwrap_or_else(|| panic!("{name}: {refusal} names no place"));
            assert!(!place.at.is_empty() && !place.allowed.is_empty(), "{name}: {refusal}");
        } else {
            let said = said.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            assert_eq!(reduced(&said), expected(&case["expect"]), "{name}");
        }
    }
    assert!(seen >= 11, "only {seen} cases");
}

const FULL: &str = "format_version: 2
studies:
  study-a:
    datasets: {ref: {source: pvc1, mode: ro}}
    env: {DB_HOST: h, HTTPS_PROXY: 'http://proxy:3128'}
    secret_env: {PW: {source: study-db, key: password}}
    secret_mounts: {ca: {source: study-ca, mount_path: /run/ca, items: {ca.crt: ca.crt}}}
    limits: {time: 2h, memory: 16Gi}
    pod_template:
      metadata: {labels: {team: imaging, polder/job: evil}, name: evil, ownerReferences: [{}]}
      spec:
        restartPolicy: Always
        automountServiceAccountToken: true
        serviceAccountName: fl-workers
        nodeSelector: {gpu: a100}
        tolerations: [{key: gpu, operator: Exists}]
        initContainers: [{name: warm, image: 'busybox:1', command: [warm-cache]}]
        volumes: [{name: cache, emptyDir: {sizeLimit: 1000000}}, {name: polder-bin, hostPath: {path: /}}]
        containers:
          - {name: proxy, image: 'proxy:2', resources: {limits: {cpu: 1}}}
          - name: polder_job
            image: template/image:9
            command: [evil]
            args: [evil]
            env: [{name: DB_HOST, value: template}, {name: POLDER_PYTHON, value: evil}, {name: KEPT, value: 'yes'}]
            volumeMounts: [{name: cache, mountPath: /cache}, {name: cache, mountPath: /data/study-a/ref}]
            resources: {limits: {cpu: 99, memory: 999Gi}}
";

fn meta(launcher: &Value) -> Value {
    json!({"study": "study-a", "launcher_spec": {"default": {"k8s": launcher}}})
}

#[test]
fn template_study_and_launcher_in_this_order() {
    let meta = json!({
        "study": "study-a",
        "launcher_spec": {"default": {"k8s": {"image": "repo/job:1", "python_path": "/venv/bin/python"}}},
        "resource_spec": {"@default": {"num_of_cpus": 4, "memory": "8192Mi", "num_of_gpus": 2}},
    });
    let site = json!({
        "namespace": "fl-workers", "image_pull_secrets": ["reg"], "gpu_resource": "nvidia.com/mig-1g.10gb",
        "parent_host": "polder.fl.svc", "worker_image": "registry.local/polder:1",
    });
    let plan = planned(&site, &meta, FULL, "hospital-a", Role::Client).expect("a plan");
    insta::assert_json_snapshot!(plan);
}

#[test]
fn what_is_refused_and_where() {
    let empty = "format_version: 2\nstudies: {}\n";
    let template = |text: &str| format!("format_version: 2\nstudies:\n  study-a: {{pod_template: {text}}}\n");
    let image = json!({"image": "a:1"});
    let with = |key: &str, value: Value| {
        let mut options = Map::from_iter([("image".to_owned(), json!("a:1"))]);
        options.insert(key.to_owned(), value);
        Value::Object(options)
    };
    for (options, runtime, at) in [
        (json!({}), empty.to_owned(), "studies.study-a.container.image"),
        (with("cpu", json!("four")), empty.to_owned(), "launcher_spec.hospital-a.k8s.cpu"),
        (with("memory", json!("8GB")), empty.to_owned(), "launcher_spec.hospital-a.k8s.memory"),
        (with("cpu_request", json!("-1")), empty.to_owned(), "launcher_spec.hospital-a.k8s.cpu_request"),
        (with("namespace", json!("kube-system")), empty.to_owned(), "launcher_spec.hospital-a.k8s"),
        (with("num_of_gpus", json!(true)), empty.to_owned(), "launcher_spec.hospital-a.k8s.num_of_gpus"),
        (
            image.clone(),
            template("{spec: {nodeselector: {a: b}}}"),
            "studies.study-a.pod_template.spec.nodeselector",
        ),
        (
            image.clone(),
            template("{spec: {containers: [{name: a, image: b}, {name: c, image: d}]}}"),
            "studies.study-a.pod_template.spec.containers",
        ),
        (
            image.clone(),
            template("{spec: {containers: [{name: polder_job}, {name: nvflare_job, image: d}]}}"),
            "studies.study-a.pod_template.spec.containers",
        ),
        (image.clone(), template("{spec: {volumes: {a: b}}}"), "studies.study-a.pod_template.spec.volumes"),
        (
            image,
            template("{spec: {containers: [{volumeMounts: [{name: v, mountPath: /polder/bin/x}]}]}}"),
            "studies.study-a",
        ),
        (
            with("cpu", json!("9")),
            "format_version: 2\nstudies: {study-a: {limits: {cpus: 8}}}\n".to_owned(),
            "studies.study-a.limits.cpus",
        ),
        (
            with("num_of_gpus", json!(3)),
            "format_version: 2\nstudies: {study-a: {limits: {gpus: 2}}}\n".to_owned(),
            "studies.study-a.limits.gpus",
        ),
    ] {
        let refusal = planned(&json!({}), &meta(&options), &runtime, "hospital-a", Role::Client)
            .expect_err(&format!("{options} {runtime}"));
        let place = refusal.place.as_ref().unwrap_or_else(|| panic!("{refusal} names no place"));
        assert!(place.at.starts_with(at), "{options} {runtime}: {refusal}");
    }
}

#[test]
fn a_request_above_its_limit_and_one_above_the_studys_are_told_apart() {
    let said = |options: Value, runtime: &str| {
        planned(&json!({}), &meta(&options), runtime, "a", Role::Client).expect_err("refused").class
    };
    let study = "format_version: 2\nstudies: {study-a: {limits: {memory: 4Gi}}}\n";
    let above = json!({"image": "a:1", "cpu": "500m", "cpu_request": 1});
    assert_eq!(said(above, "format_version: 2\nstudies: {}\n"), FailureClass::Config);
    assert_eq!(said(json!({"image": "a:1", "memory": "5G"}), study), FailureClass::Policy);
    assert_eq!(said(json!({"image": "a:1", "memory_request": "5G"}), study), FailureClass::Policy);
}
