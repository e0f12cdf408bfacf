//! What FLARE 2.9.0 made of job and study files, case by case (`tests/oracles/*.json` of the repository).

use polder_core::check::{check_meta, check_study_runtime};
use polder_core::launcher::SlurmSandbox;
use polder_core::scalars::{Memory, ShmSize};
use polder_core::value::{Value, from_json, from_yaml, to_json};
use polder_words::Mode;
use std::path::Path;

fn oracle(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracles").join(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    from_json(name, &bytes).unwrap_or_else(|error| panic!("{error}"))
}

fn items(value: &Value, key: &str) -> Vec<Value> {
    let polder_core::value::Data::Seq(items) = &value.get(key).expect(key).data else {
        panic!("{key} is a list")
    };
    items.clone()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_text).unwrap_or_else(|| panic!("{key} is text"))
}

/// Equal as JSON documents: the order of keys does not matter, `600` is `600.0`.
fn same(a: &Value, b: &Value) -> bool {
    use polder_core::value::Data;
    match (&a.data, &b.data) {
        (Data::Map(x), Data::Map(y)) => {
            x.len() == y.len() && x.iter().all(|(k, v)| y.get(k.as_str()).is_some_and(|w| same(v, w)))
        }
        (Data::Seq(x), Data::Seq(y)) => x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same(v, w)),
        (Data::Int(x), Data::Float(y)) | (Data::Float(y), Data::Int(x)) => (x.to_f64() - y).abs() == 0.0,
        (x, y) => x == y,
    }
}

#[test]
fn resources() {
    let mut wrong = Vec::new();
    let cases = items(&oracle("resources.json"), "cases");
    assert!(cases.len() >= 53);
    for case in &cases {
        let (name, expect) = (text(case, "name"), case.get("expect").expect("expect"));
        let meta = to_json(case.get("job_meta").expect("job_meta"));
        let sandbox = case.get("slurm_sandbox").and_then(Value::as_text).unwrap_or("none");
        let sandbox = SlurmSandbox::from_word(sandbox).expect("a sandbox");
        let check = check_meta(meta.as_bytes(), "meta.json", text(case, "site"), sandbox);
        let got = from_json("check", check.to_json().as_bytes()).expect("prints JSON");
        let misspelt = expect.get("misspelt_default").is_some_and(|m| to_json(m) != "[]");
        let accepted = expect.get("accepted_at_submission") == Some(&Value::from(true)) && !misspelt;
        if check.accepted != accepted {
            wrong.push(format!(
                "{name}: accepted {}: {:?}",
                check.accepted,
                check.error.map(|e| e.to_string())
            ));
        }
        for part in ["resolved", "admission", "portable", "launcher", "slurm_resources"] {
            let Some(wanted) = expect.get(part) else { continue };
            let found = got.get(part).expect(part);
            if !same(found, wanted) {
                wrong.push(format!("{name}: {part}\n  got  {}\n  want {}", to_json(found), to_json(wanted)));
            }
        }
        for (mode, block) in check_near_misses(case) {
            assert!(!check.accepted, "{name}: {mode} {block}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The keys FLARE warns about are those that are refused here.
fn check_near_misses(case: &Value) -> Vec<(String, String)> {
    let expect = case.get("expect").expect("expect");
    let Some(wanted) = expect.get("misspelt_default") else { return Vec::new() };
    let null = Value::default();
    let spec = case.get("job_meta").and_then(|m| m.get("launcher_spec")).unwrap_or(&null);
    let mut found = polder_core::resources::near_misses(spec);
    let polder_core::value::Data::Seq(wanted) = &wanted.data else { panic!("a list") };
    let mut wanted: Vec<String> = wanted.iter().filter_map(|w| w.as_text().map(str::to_owned)).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "{}", text(case, "name"));
    found.into_iter().map(|key| ("near miss".to_owned(), key)).collect()
}

#[test]
fn scalars() {
    let oracle = oracle("scalars.json");
    for case in items(&oracle, "memory") {
        let written = text(&case, "text");
        let memory = Memory::parse(written);
        let number = |key: &str| case.get(key).and_then(Value::as_int).cloned();
        assert_eq!(memory.as_ref().map(|m| m.mib().clone()), number("mib"), "{written:?}");
        assert_eq!(memory.as_ref().map(Memory::bytes), number("bytes"), "{written:?}");
    }
    for case in items(&oracle, "shm_size") {
        let literal = text(&case, "value");
        let size = ShmSize::of(&python_literal(literal));
        assert_eq!(Value::from(size.is_some()), *case.get("valid").expect("valid"), "{literal}");
        if let Some(bytes) = case.get("bytes").and_then(Value::as_int).and_then(|int| int.as_u64()) {
            assert_eq!(size.map(|size| size.bytes()), Some(bytes), "{literal}");
        }
    }
}

/// The few literals of Python in the file.
fn python_literal(text: &str) -> Value {
    match text {
        "True" => Value::from(true),
        "None" => Value::default(),
        _ => match text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            Some(inner) => Value::from(inner.replace("\\n", "\n")),
            None => from_yaml("literal", text.as_bytes()).expect("a number"),
        },
    }
}

#[test]
fn study_runtime() {
    let files = |path: &str| match path {
        "pod.yaml" => Ok(b"apiVersion: v1\nkind: Pod\nspec:\n  serviceAccountName: study-sa\n".to_vec()),
        "sub/pod2.yaml" => Ok(b"spec:\n  nodeSelector: {a: b}\n".to_vec()),
        "notpod.yaml" => Ok(b"kind: Deployment\n".to_vec()),
        "list.yaml" => Ok(b"- 1\n".to_vec()),
        "broken.yaml" => Ok(b"a: [1\n".to_vec()),
        "empty.yaml" => Ok(Vec::new()),
        _ => Err("no such file".to_owned()),
    };
    let mut wrong = Vec::new();
    let cases = items(&oracle("study_runtime.json"), "cases");
    assert!(cases.len() >= 100);
    for case in &cases {
        let name = text(case, "name");
        let yaml = match case.get("yaml_hex").and_then(Value::as_text) {
            Some(hex) => (0..hex.len() / 2)
                .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal"))
                .collect(),
            None => text(case, "yaml").as_bytes().to_vec(),
        };
        for mode in [Mode::Process, Mode::Docker, Mode::K8s, Mode::Slurm] {
            let expect = case.get("expect").and_then(|e| e.get(mode.as_str())).expect("a mode");
            let got = check_study_runtime(&yaml, "study_runtime.yaml", mode, &files);
            let wanted = if case.get("polder_refuses").is_some() { None } else { expect.get("ok") };
            match (&got, wanted) {
                (Err(_), None) => {}
                (Ok((found, _)), Some(wanted)) if same_studies(found, wanted) => {}
                (Ok((found, _)), _) => wrong.push(format!("{name} {mode}: got {}", to_json(found))),
                (Err(error), Some(_)) => wrong.push(format!("{name} {mode}: refused: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lists of datasets and secrets are in the order of the file.
fn same_studies(found: &Value, wanted: &Value) -> bool {
    same(found, wanted)
}
