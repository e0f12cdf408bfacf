use super::*;
use crate::value::{Value, to_json, to_yaml};
use proptest::prelude::*;

fn read(mode: Mode, text: &str) -> std::result::Result<StudyRuntimes, String> {
    let files = |path: &str| match path {
        "pod.yaml" => Ok(b"kind: Pod\nspec: {nodeName: n}\n".to_vec()),
        _ => Err("no such file".to_owned()),
    };
    StudyRuntimes::parse("study_runtime.yaml", text.as_bytes(), &Reading::new(mode, &files))
        .map_err(|error| error.to_string())
}

fn study(mode: Mode, entry: &str) -> std::result::Result<StudyRuntime, String> {
    let read = read(mode, &format!("format_version: 2\nstudies:\n  a: {entry}\n"))?;
    Ok(read.studies[0].clone())
}

#[test]
fn polders_own_keys() {
    let entry = "{access: {users: [ana], groups: [lung-team]}, \
        export: {logs: none, metrics: [loss], max_bytes: 1000}, egress: ['proxy.example.org:3128', '[::1]:80'], \
        approval: by_hash, images: {allow: ['reg.example.org/*'], require_digest: true}, \
        limits: {gpus: 8, cpus: 64, memory: 1Ti, time: 12h, jobs: 2}}";
    for mode in [Mode::Process, Mode::Docker, Mode::K8s, Mode::Slurm] {
        let runtime = study(mode, entry).expect("every mode");
        assert_eq!(runtime.approval, Approval::ByHash);
        assert_eq!(runtime.limits.jobs, Some(2));
        assert_eq!(runtime.egress.as_ref().map(|e| e[1].to_string()), Some("[::1]:80".into()));
        assert!(to_json(&runtime.to_json()).contains(r#""access":{"users":["ana"],"groups":["lung-team"]}"#));
    }
    let slurm = study(
        Mode::Slurm,
        "{slurm: {sandbox: spank, user: fl-lung, partitions: [gpu, big], gres: 'shard:2', constraint: a100, \
         reservation: r1, time: 1-12, setup: module load x}}",
    )
    .expect("Slurm")
    .slurm;
    assert_eq!((slurm.sandbox, slurm.partitions.len()), (Some(SlurmSandbox::Spank), 2));
    assert_eq!(slurm_time(slurm.time.as_deref().expect("time")), Some(36 * 3600));
}

#[test]
fn secrets_from_files_need_no_key_and_no_warning() {
    let entry = "{secret_env: {PW: {source: 'file:/etc/secrets/pw'}}}";
    for mode in [Mode::Process, Mode::Docker, Mode::Slurm] {
        let read = read(mode, &format!("format_version: 2\nstudies:\n  a: {entry}\n")).expect("a file");
        assert_eq!(read.studies[0].secret_env[0].file(), Some("/etc/secrets/pw"));
        assert!(read.warnings.is_empty());
    }
    let plain = read(Mode::Slurm, "format_version: 2\nstudies: {a: {secret_env: {PW: {source: SRC}}}}\n");
    assert!(plain.expect("accepted").warnings[0].contains("studies.a.secret_env.PW"));
    assert!(study(Mode::K8s, entry).expect_err("pods").contains("which pods do not see"));
}

#[test]
fn refusals_name_place_value_and_rule() {
    for (mode, entry, part) in [
        (
            Mode::Process,
            "{secret_evn: {}}",
            "studies.a.secret_evn: is an unknown key; is `secret_env` meant?",
        ),
        (Mode::Process, "{env: {POLDER_X: 1}}", "studies.a.env.POLDER_X: is under a name reserved"),
        (Mode::Docker, "{env: {NVFL_X: 1}}", "is under a name reserved"),
        (Mode::Process, "{env: {X: off}}", "studies.a.env.X: must be quoted"),
        (Mode::Process, "{env: {X: [1]}}", "studies.a.env.X: is a list; found [1]"),
        (Mode::Docker, "{docker_kwargs: {volumes: []}}", "docker_kwargs.volumes: is set by the launcher"),
        (Mode::Docker, "{docker_kwargs: {shm_sise: 1g}}", "is `shm_size` meant?"),
        (Mode::Docker, "{secret_mounts: {t: {source: /s, mount_path: /proc/x}}}", "is the system's"),
        (
            Mode::Docker,
            "{secret_mounts: {t: {source: /s, mount_path: /a/../b}}}",
            "is not a place of its own",
        ),
        (Mode::Docker, "{slurm: {}}", "studies.a.slurm: is only for Slurm"),
        (
            Mode::Slurm,
            "{slurm: {time: '1:00'}}",
            "can be read as minutes and seconds or as hours and minutes",
        ),
        (Mode::Slurm, "{slurm: {user: root}}", "is not an account"),
        (Mode::Slurm, "{slurm: {partition: a, partitions: [b]}}", "stands beside `partition`"),
        (Mode::Slurm, "{container: {image: 'reg/x:1'}}", "container.image: is not an absolute path"),
        (Mode::K8s, "{pod_template: ../pod.yaml}", "is not below the folder of the file"),
        (Mode::K8s, "{pod_template: none.yaml}", "cannot be read: no such file"),
        (Mode::K8s, "{egress: ['x:0']}", "egress[0]: is not a place to reach"),
        (Mode::K8s, "{access: {users: ['-x']}}", "is not an account"),
        (Mode::K8s, "{export: {logs: all}}", "allowed: none, class_only, tail, full"),
        (Mode::K8s, "{images: {allow: ['a b']}}", "is not a pattern of images"),
    ] {
        let error = study(mode, entry).expect_err(entry);
        assert!(error.contains(part), "{entry}: {error}");
    }
}

#[test]
fn a_site_whose_pyxis_pulls_may_name_a_reference() {
    let text = "format_version: 2\nstudies: {a: {container: {image: 'docker://reg.example.org#x:1'}}}\n";
    let reading = Reading { pyxis_pulls: true, ..Reading::new(Mode::Slurm, &NoFiles) };
    assert!(StudyRuntimes::parse("s", text.as_bytes(), &reading).is_ok());
    assert!(read(Mode::Slurm, text).is_err());
}

#[test]
fn what_a_launcher_cannot_give_is_said() {
    let data = study(Mode::Process, "{datasets: {d: {source: /d, mode: ro}}}").expect("readable");
    let check = |runtime: &StudyRuntime, mode, sandbox| {
        runtime.check_launch("f", mode, sandbox).map_err(|error| error.to_string())
    };
    assert_eq!(
        check(&data, Mode::Process, SlurmSandbox::None),
        Err("f: studies.a.datasets: cannot be given: the process launcher has no mounts of its own; \
             allowed: another launcher or sandbox, or none of it"
            .into())
    );
    assert!(check(&data, Mode::Slurm, SlurmSandbox::None).is_err());
    assert_eq!(check(&data, Mode::Slurm, SlurmSandbox::Spank), Ok(()));
    assert_eq!(check(&data, Mode::Docker, SlurmSandbox::None), Ok(()));
    let image =
        study(Mode::Slurm, "{container: {image: /i.sif}, slurm: {sandbox: spank}}").expect("readable");
    assert!(check(&image, Mode::Slurm, SlurmSandbox::Apptainer).is_err(), "the study's sandbox counts");
}

#[test]
fn a_study_that_is_not_listed_gets_nothing_and_a_warning() {
    let read = read(Mode::Docker, "format_version: 2\nstudies: {a: {}}\n").expect("read");
    let other = StudyName::new("b").expect("study");
    let (runtime, warning) = read.of("local/study_runtime.yaml", &other);
    assert_eq!(runtime, StudyRuntime::empty(other));
    assert!(warning.expect("said").contains("no entry for study b"));
}

/// A study with some of the keys, good and bad values mixed.
fn any_entry() -> impl Strategy<Value = Value> {
    let text = |texts: &'static [&'static str]| prop::sample::select(texts).prop_map(Value::from);
    let path = || text(&["/a", "/a/b c", "/x:y", "rel", "/é"]);
    let one = |key: &'static str, value: BoxedStrategy<Value>| {
        value.prop_map(move |value| Value::map([(key, value)])).boxed()
    };
    let pair = |a: &'static str, x: BoxedStrategy<Value>, b: &'static str, y: BoxedStrategy<Value>| {
        (x, y).prop_map(move |(x, y)| Value::map([(a, x), (b, y)])).boxed()
    };
    let named = |inner: BoxedStrategy<Value>| {
        prop::collection::vec((prop::sample::select(vec!["t", "u-1", "A"]), inner), 0..3)
            .prop_map(Value::map)
            .boxed()
    };
    let scalar = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        (-1e20..1e20f64).prop_map(Value::from),
        ".{1,8}".prop_map(Value::from),
    ];
    let env = prop::collection::vec(("[A-Z_][A-Z0-9]{0,4}|UID|a b", scalar), 0..4).prop_map(Value::map);
    let keys: Vec<(&'static str, BoxedStrategy<Value>)> = vec![
        ("container", one("image", path().boxed())),
        ("pod_template", prop_oneof![text(&["pod.yaml", "./pod.yaml"]), env.clone()].boxed()),
        ("docker_kwargs", pair("shm_size", path().boxed(), "labels", env.clone().boxed())),
        ("datasets", named(pair("source", path().boxed(), "mode", text(&["ro", "rw", "RO"]).boxed()))),
        ("env", env.boxed()),
        (
            "secret_env",
            named(pair("source", text(&["SRC", "file:/s/x", "a-b"]).boxed(), "key", text(&["k"]).boxed())),
        ),
        (
            "secret_mounts",
            named(pair("source", path().boxed(), "mount_path", text(&["/run/a", "/run/b/"]).boxed())),
        ),
        (
            "slurm",
            pair(
                "sandbox",
                text(&["none", "spank", "pyxis"]).boxed(),
                "time",
                text(&["90", "1-2", "12:00:00"]).boxed(),
            ),
        ),
        ("access", one("users", text(&["ana", "b.c@d"]).prop_map(|u| Value::seq([u])).boxed())),
        ("export", one("logs", text(&["none", "class_only", "tail", "full"]).boxed())),
        ("egress", text(&["a.b:1", "*.x:443", "[::1]:2"]).prop_map(|e| Value::seq([e])).boxed()),
        ("approval", text(&["none", "by_hash", "manual"]).boxed()),
        (
            "images",
            pair(
                "allow",
                text(&["a/*"]).prop_map(|p| Value::seq([p])).boxed(),
                "pin",
                any::<bool>().prop_map(Value::from).boxed(),
            ),
        ),
        ("limits", pair("memory", text(&["1Gi", "5Ti"]).boxed(), "time", text(&["90s", "36h"]).boxed())),
    ];
    let count = keys.len();
    let values: Vec<BoxedStrategy<(&'static str, Value)>> =
        keys.into_iter().map(|(key, value)| value.prop_map(move |value| (key, value)).boxed()).collect();
    (values, prop::collection::vec(prop::bool::weighted(0.3), count)).prop_map(|(values, on)| {
        Value::map(values.into_iter().zip(on).filter(|(_, on)| *on).map(|(pair, _)| pair))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn what_is_accepted_prints_back(entry in any_entry(), mode in prop::sample::select(Mode::ALL)) {
        let document = Value::map([("format_version", Value::from(2u32)), ("studies", Value::map([("a", entry)]))]);
        if let Ok(first) = read(mode, &to_yaml(&document)) {
            let printed = first.to_string();
            let again = read(mode, &printed).map_err(|error| TestCaseError::fail(format!("{error}\n{printed}")))?;
            prop_assert_eq!(again.studies, first.studies);
        }
    }

    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(?s).{0,64}", mode in prop::sample::select(Mode::ALL)) {
        let _ = StudyRuntimes::parse("s", &bytes, &Reading::new(mode, &NoFiles));
        let _ = read(mode, &text);
        let _ = (Egress::parse(&text), slurm_time(&text));
    }
}
