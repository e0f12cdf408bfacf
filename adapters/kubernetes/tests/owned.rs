//! What Polder owns in a pod stays Polder's under any template.

use polder_core::parent::{LauncherConfig, ParentConfig};
use polder_kubernetes::plan::{launch_of, plan, pod_name};
use polder_launch::{Allotted, Resolved};
use polder_words::LaunchId;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u8>().prop_map(Value::from),
        "[a-z/_-]{0,8}".prop_map(Value::from),
    ]
}

/// Names that Polder, studies or nobody has.
fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "polder_job",
        "nvflare_job",
        "polder-job",
        "polder-worker",
        "polder-bin",
        "polder-work",
        "polder-handover",
        "POLDER_PYTHON",
        "NVFLARE_X",
        "A",
        "other",
        "/polder",
        "/polder/bin",
        "/var/tmp/polder",
        "/data/s/d",
        "/x",
    ])
}

fn entry() -> impl Strategy<Value = Value> {
    (names(), names(), names())
        .prop_map(|(name, path, value)| json!({"name": name, "mountPath": path, "value": value}))
}

fn mounts() -> impl Strategy<Value = Value> {
    prop::collection::vec((names(), names()).prop_map(|(n, p)| json!({"name": n, "mountPath": p})), 0..4)
        .prop_map(Value::from)
}

fn container() -> impl Strategy<Value = Value> {
    let env =
        prop::collection::vec((names(), names()).prop_map(|(n, v)| json!({"name": n, "value": v})), 0..4);
    (prop::option::of(names()), env, mounts(), scalar()).prop_map(|(name, env, mounts, odd)| {
        let mut map = Map::from_iter([
            ("image".to_owned(), json!("template:1")),
            ("command".to_owned(), json!(["evil"])),
            ("args".to_owned(), json!(["evil"])),
            ("workingDir".to_owned(), json!("/evil")),
            ("env".to_owned(), env.into()),
            ("volumeMounts".to_owned(), mounts),
            ("tty".to_owned(), odd),
        ]);
        if let Some(name) = name {
            map.insert("name".to_owned(), name.into());
        }
        Value::Object(map)
    })
}

fn template() -> impl Strategy<Value = Value> {
    let volumes =
        prop::collection::vec(names().prop_map(|n| json!({"name": n, "hostPath": {"path": "/"}})), 0..4);
    let containers = prop_oneof![
        3 => prop::collection::vec(container(), 0..3).prop_map(Value::from),
        1 => scalar(),
        1 => entry(),
    ];
    (containers, volumes, scalar(), scalar(), any::<bool>()).prop_map(
        |(containers, volumes, odd, other, token)| {
            json!({
                "metadata": {
                    "name": "evil", "namespace": "kube-system", "finalizers": ["a/b"],
                    "labels": {"polder/job": "evil", "app.kubernetes.io/managed-by": "evil", "team": "x"},
                    "annotations": {"polder/pending-timeout": "9", "x": "y"},
                },
                "spec": {
                    "containers": containers, "volumes": volumes, "restartPolicy": "Always",
                    "automountServiceAccountToken": token, "activeDeadlineSeconds": 999_999,
                    "hostname": odd, "initContainers": other,
                },
            })
        },
    )
}

fn want(template: &Value) -> Resolved {
    let id = "6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6.Uni_A.x.client.3";
    let text = json!({
        "id": id, "study": "s", "run_dir": "/r", "worker": "/w", "options": {"image": "job:1"}, "cpus": 2,
        "runtime": {
            "datasets": {"d": {"source": "pvc", "mode": "ro"}}, "env": {"A": "study"}, "limits": {"time": "1h"},
            "pod_template": template,
        },
    });
    serde_json::from_value(text).expect("a launch")
}

proptest! {
    #[test]
    fn whatever_a_template_says(template in template()) {
        let config = ParentConfig::parse("p", b"name: a\nserver: https://s\nlauncher: {kubernetes: {namespace: fl}}\n");
        let LauncherConfig::K8s(site) = config.expect("it is good").launcher else { panic!("kubernetes") };
        let want = want(&template);
        // A refusal is a good answer too; a pod that is not Polder's is none.
        let Ok(plan) = plan(&site, true, &want, &Allotted::default()) else { return Ok(()) };
        let metadata = &plan.pod.metadata;
        prop_assert_eq!(metadata.name.clone(), Some(pod_name(&want.id)));
        prop_assert_eq!(&metadata.name, &plan.secret.metadata.name);
        prop_assert_eq!(metadata.namespace.as_deref(), Some("fl"));
        prop_assert_eq!(metadata.finalizers.as_ref(), None);
        let labels = metadata.labels.as_ref().expect("labels");
        prop_assert_eq!(launch_of(labels), Some(want.id));
        prop_assert_eq!(labels["team"].as_str(), "x");
        prop_assert_eq!(metadata.annotations.as_ref().expect("some")["polder/pending-timeout"].as_str(), "120");
        let spec = plan.pod.spec.expect("a spec");
        prop_assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        prop_assert_eq!(spec.automount_service_account_token, Some(false));
        prop_assert_eq!(spec.active_deadline_seconds, Some(3600));
        let mains: Vec<_> = spec.containers.iter().filter(|c| c.name == "polder-job").collect();
        prop_assert_eq!(mains.len(), 1);
        let main = mains[0];
        prop_assert_eq!(main.image.as_deref(), Some("job:1"));
        prop_assert_eq!(main.command.as_ref().expect("one")[0].as_str(), "/polder/bin/polder-worker");
        prop_assert_eq!(main.args.as_ref(), None);
        let env = main.env.as_ref().expect("some");
        let a: Vec<_> = env.iter().filter(|e| e.name == "A").collect();
        prop_assert!(a.len() == 1 && a[0].value.as_deref() == Some("study"));
        prop_assert!(!env.iter().any(|e| e.name.starts_with("POLDER_") || e.name.starts_with("NVFLARE_")));
        let mounts = main.volume_mounts.as_ref().expect("some");
        for (path, volume) in [
            ("/polder/bin", "polder-bin"), ("/polder/handover", "polder-handover"), ("/var/tmp/polder", "polder-work"),
        ] {
            let there: Vec<_> = mounts.iter().filter(|m| m.mount_path == path).collect();
            prop_assert!(there.len() == 1 && there[0].name == volume, "{path}: {there:?}");
        }
        let data: Vec<_> = mounts.iter().filter(|m| m.mount_path == "/data/s/d").collect();
        prop_assert!(data.len() == 1 && data[0].read_only == Some(true));
        let volumes = spec.volumes.as_ref().expect("some");
        for name in ["polder-bin", "polder-work"] {
            let there: Vec<_> = volumes.iter().filter(|v| v.name == name).collect();
            prop_assert!(there.len() == 1 && there[0].empty_dir.is_some(), "{name}");
        }
        let init = spec.init_containers.as_ref().expect("some");
        prop_assert_eq!(init[0].name.as_str(), "polder-worker");
    }

    #[test]
    fn names_are_kubernetes_names(site in "[A-Za-z0-9][A-Za-z0-9_.-]{0,60}[A-Za-z0-9]", attempt in 1u32..100_000) {
        prop_assume!(!site.contains(".."));
        let id = format!("6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6.{site}.server.{attempt}");
        let id: LaunchId = id.parse().expect("an id");
        let name = pod_name(&id);
        prop_assert!(name.len() <= 63, "{name}");
        prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
        prop_assert!(!name.ends_with('-') && !name.contains("--fl"));
    }
}
