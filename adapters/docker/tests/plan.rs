//! What is planned: whole requests, and what nobody can change.

use polder_core::parent::Pull;
use polder_docker::plan::{Settings, TABLE, User, name, plan};
use polder_launch::launcher::DeviceId;
use polder_launch::{Allotted, Resolved};
use polder_words::{FailureClass, LaunchId, Role};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn settings() -> Settings {
    Settings {
        socket: "/var/run/docker.sock".into(),
        image: Some("site/default:1".into()),
        job_images: true,
        network: "none".into(),
        pull: Pull::Never,
        inventory: false,
        python_path: None,
        job_env: std::collections::BTreeMap::new(),
        kwargs: Map::new(),
        user: User { uid: 1000, gid: 1000 },
        hide: vec!["/srv/polder/state".into(), "/srv/polder/kit".into()],
        sockets: "/srv/polder/state/sock".into(),
        workspace: None,
    }
}

fn want(runtime: Value) -> Resolved {
    Resolved {
        files: polder_words::FileWay::Shared,
        id: LaunchId {
            job: "6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6".parse().expect("an id"),
            site: "hospital-a".parse().expect("a name"),
            role: Role::Client,
            attempt: 1,
        },
        study: "pathology".parse().expect("a name"),
        run_dir: "/srv/polder/state/runs/6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6-client".into(),
        worker: "/usr/libexec/polder/polder-worker".into(),
        gpus: 0,
        cpus: None,
        memory: None,
        options: Map::new(),
        runtime,
        pending_timeout_ms: None,
        max_restarts: 2,
    }
}

fn refusal(settings: &Settings, want: &Resolved) -> String {
    plan(settings, want, &Allotted::default()).expect_err("it is refused").to_string()
}

#[test]
fn the_smallest_request() {
    let plan = plan(&settings(), &want(json!({})), &Allotted::default()).expect("it can be");
    insta::assert_json_snapshot!(plan.to_plan());
}

#[test]
fn everything_a_study_and_a_job_may_ask_for() {
    let runtime = json!({
        "container": {"image": "study/train:2"},
        "docker_kwargs": {
            "ulimits": [{"name": "nofile", "soft": 1024, "hard": 4096}],
            "devices": ["/dev/infiniband/uverbs0"],
            "tmpfs": {"/scratch": "size=1g"},
            "log_config": {"type": "local", "config": {"max-size": "1m"}},
            "security_opt": ["label=type:polder_t"],
            "labels": {"ward": "3"},
            "mem_limit": "1g", "memswap_limit": "2g", "cpu_quota": 50000,
            "platform": "linux/amd64",
        },
        "datasets": {
            "slides": {"source": "/srv/slides", "mode": "ro"},
            "scratch": {"source": "/srv/scratch", "mode": "rw"},
        },
        "env": {"HF_HOME": "/data/pathology/scratch"},
        "secret_env": {"TOKEN": {"source": "file:/etc/polder/token"}},
        "secret_mounts": {"tls": {"source": "/etc/tls", "mount_path": "/run/tls"}},
    });
    let mut want = want(runtime);
    (want.gpus, want.cpus, want.memory) = (2, Some(4), Some(64 << 30));
    want.options = match json!({"image": "job/mine@sha256:00", "entrypoint": "/bin/tini -- ", "shm_size": "0.5gb", "num_of_gpus": 2})
    {
        Value::Object(map) => map,
        _ => unreachable!("it is a map"),
    };
    let with = Allotted { devices: vec![DeviceId("GPU-a".into()), DeviceId("GPU-c".into())] };
    insta::assert_json_snapshot!(plan(&settings(), &want, &with).expect("it can be").to_plan());
}

#[test]
fn each_setting_has_one_row_and_the_unknown_none() {
    let mut names: Vec<_> = TABLE.iter().map(|(name, ..)| *name).collect();
    assert!(names.is_sorted(), "the table is in the order of the names");
    names.dedup();
    assert_eq!(names.len(), TABLE.len());
    for known in polder_core::study_runtime::DOCKER_SETTINGS {
        assert!(names.contains(&known), "{known} has no row");
    }
    let text = refusal(&settings(), &want(json!({"docker_kwargs": {"no_such": 1}})));
    assert!(
        text.contains("studies.pathology.docker_kwargs.no_such") && text.contains("blkio_weight"),
        "{text}"
    );
}

#[test]
fn what_would_undo_the_isolation_is_refused_with_its_place() {
    for (kwargs, word) in [
        (json!({"privileged": true}), "allowed: false"),
        (json!({"read_only": false}), "allowed: true"),
        (json!({"restart_policy": {"Name": "always"}}), "Name: \"no\""),
        (json!({"cap_add": ["SYS_ADMIN"]}), "IPC_LOCK"),
        (json!({"security_opt": ["seccomp=unconfined"]}), "seccomp=PROFILE"),
        (json!({"security_opt": ["no-new-privileges:false"]}), "label="),
        (json!({"pid_mode": "host"}), "its own processes"),
        (json!({"ipc_mode": "container:other"}), "private"),
        (json!({"network_mode": "host"}), "launcher.docker.network"),
        (json!({"volumes_from": ["x"]}), "datasets"),
        (json!({"devices": ["/etc/passwd"]}), "/dev/x"),
        (json!({"tmpfs": {"/polder/run": ""}}), "/polder"),
        (json!({"log_config": {"type": "syslog"}}), "json-file"),
        (json!({"labels": {"polder.launch": "x"}}), "polder."),
    ] {
        let text = refusal(&settings(), &want(json!({"docker_kwargs": kwargs.clone()})));
        assert!(text.contains(word) && text.contains("study_runtime.yaml"), "{kwargs}: {text}");
    }
}

#[test]
fn neither_the_engine_nor_the_parent_is_a_dataset() {
    for source in
        ["/", "/var/run", "/var/run/docker.sock", "/run/../var/run", "/srv/polder", "/srv/polder/state/runs"]
    {
        let runtime = json!({"datasets": {"d": {"source": source, "mode": "ro"}}});
        let text = refusal(&settings(), &want(runtime));
        assert!(text.contains("would show a worker"), "{source}: {text}");
    }
}

#[test]
fn a_count_of_gpus_is_refused_where_they_have_ids() {
    let runtime = json!({"docker_kwargs": {"device_requests": [{"count": -1, "capabilities": [["gpu"]]}]}});
    let planned = plan(&settings(), &want(runtime.clone()), &Allotted::default()).expect("no inventory");
    assert_eq!(planned.create["HostConfig"]["DeviceRequests"][0]["Count"], -1);
    let text = refusal(&Settings { inventory: true, ..settings() }, &want(runtime));
    assert!(text.contains("hands out by id"), "{text}");
}

#[test]
fn limits_of_a_study_hold_where_nobody_asks_and_where_too_much_is_set() {
    for kwargs in
        [json!({}), json!({"mem_limit": "1t", "nano_cpus": 64_000_000_000_u64, "memswap_limit": -1})]
    {
        let runtime = json!({"limits": {"cpus": 2, "memory": "4Gi"}, "docker_kwargs": kwargs.clone()});
        let planned = plan(&settings(), &want(runtime), &Allotted::default());
        let Ok(planned) = planned else {
            // No swap without end either.
            assert_eq!(kwargs["memswap_limit"], -1);
            continue;
        };
        let host = &planned.create["HostConfig"];
        assert_eq!((&host["NanoCpus"], &host["Memory"]), (&json!(2_000_000_000_u64), &json!(4_u64 << 30)));
        assert_eq!(host["MemorySwap"], host["Memory"]);
    }
}

#[test]
fn egress_is_nothing_or_a_refusal() {
    let settings = Settings { network: "lan".into(), ..settings() };
    let network = |runtime| {
        let planned = plan(&settings, &want(runtime), &Allotted::default()).expect("it can be");
        planned.create["HostConfig"]["NetworkMode"].clone()
    };
    assert_eq!(network(json!({})), "lan");
    assert_eq!(network(json!({"egress": []})), "none");
    let text = refusal(&settings, &want(json!({"egress": ["pypi.org:443"]})));
    assert!(text.contains("studies.pathology.egress") && text.contains("pypi.org:443"), "{text}");
}

#[test]
fn no_image_names_the_file_to_edit() {
    let settings = Settings { image: None, ..settings() };
    let refusal = plan(&settings, &want(json!({})), &Allotted::default()).expect_err("no image");
    assert_eq!(refusal.class, FailureClass::Image);
    assert!(refusal.to_string().starts_with("local/study_runtime.yaml: studies.pathology.container.image: "));
}

#[test]
fn a_name_is_one_the_engine_takes() {
    assert_eq!(name(&want(json!({})).id), "hospital-a-6f1e2c3a0b1d4c5e8f90a1b2c3d4e5f6-client-1");
}

#[test]
fn a_parent_in_a_container_names_paths_of_the_host() {
    let workspace = Some(("/srv/polder/state".into(), "/host/state".into()));
    let planned = plan(&Settings { workspace, ..settings() }, &want(json!({})), &Allotted::default());
    let planned = planned.expect("it can be");
    let mounts = planned.create["HostConfig"]["Mounts"].to_string();
    assert!(mounts.contains("/host/state/sock") && !mounts.contains("/srv/polder/state"), "{mounts}");
}

/// Any JSON, small.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(vec![
            "host",
            "none",
            "always",
            "no",
            "ALL",
            "SYS_ADMIN",
            "IPC_LOCK",
            "/var/run/docker.sock:/s",
            "512m",
            "seccomp=unconfined",
            "label=disable",
            "/dev/sda",
            "0:0",
            "",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        let keys = prop::sample::select(vec!["Name", "Type", "Config", "Count", "Path", "a", "/tmp"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..3).prop_map(|pairs| pairs
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

proptest! {
    #[test]
    fn what_polder_sets_nobody_changes(
        study in prop::collection::vec((prop::sample::select(TABLE.iter().map(|row| row.0).collect::<Vec<_>>()), json_value()), 0..3),
        site in prop::collection::vec((prop::sample::select(TABLE.iter().map(|row| row.0).collect::<Vec<_>>()), json_value()), 0..2),
    ) {
        let map = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>();
        let settings = Settings { kwargs: map(site), ..settings() };
        let want = want(json!({"docker_kwargs": map(study)}));
        let Ok(plan) = plan(&settings, &want, &Allotted::default()) else { return Ok(()) };
        let (create, host) = (&plan.create, &plan.create["HostConfig"]);
        prop_assert_eq!(&host["CapDrop"], &json!(["ALL"]));
        prop_assert!(host["SecurityOpt"].as_array().expect("a list").contains(&json!("no-new-privileges")));
        prop_assert!(!host["SecurityOpt"].to_string().contains("unconfined"));
        prop_assert_eq!(&host["ReadonlyRootfs"], &json!(true));
        prop_assert_eq!(&host["RestartPolicy"], &json!({"Name": "no"}));
        prop_assert_eq!(&host["AutoRemove"], &json!(false));
        prop_assert_eq!(&host["NetworkMode"], "none");
        prop_assert_eq!(&create["User"], "1000:1000");
        prop_assert_eq!(&create["Cmd"][0], "/polder/worker");
        prop_assert!(host["PidsLimit"].as_i64().expect("a number") > 0);
        for absent in ["Binds", "Privileged", "VolumesFrom", "PidMode", "UsernsMode", "PortBindings", "Links"] {
            prop_assert!(host.get(absent).is_none(), "{}", absent);
        }
        prop_assert!(!host["CapAdd"].to_string().contains("SYS_ADMIN"));
        prop_assert!(!host["Mounts"].to_string().contains("docker.sock"));
    }
}
