//! The pod template of a study: what the site wants of every worker's pod, as far as Polder does not own it.
//!
//! The template is the site's word, so it is merged and not judged; but a key that a pod does not have is refused,
//! since a slip that is dropped unseen (`nodeselector`) runs a worker where it should not.

use k8s_openapi::api::core::v1::Pod;
use polder_launch::Refusal;
use polder_words::{FailureClass, StudyName};
use serde::Deserialize as _;
use serde_json::{Map, Value};

/// Names a template gives its main container, when it has several.
pub const MAIN: [&str; 2] = ["polder_job", "nvflare_job"];

/// Where a refusal points to.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The study whose template it is.
    pub study: &'a StudyName,
}

impl Source<'_> {
    /// A refusal about a place in the template, a path such as `spec.containers`.
    #[must_use]
    pub fn refuse(&self, path: &str, found: &str, message: &str, allowed: &str) -> Refusal {
        let at = format!("studies.{}.pod_template.{path}", self.study);
        let at = at.trim_end_matches('.');
        Refusal::new(FailureClass::Config, message).at(polder_core::study_runtime::FILE, at, found, allowed)
    }
}

/// A template taken apart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Template {
    /// Labels and annotations; names and the like are not a template's to give.
    pub metadata: Map<String, Value>,
    /// The pod's `spec` without its containers.
    pub spec: Map<String, Value>,
    /// All containers in order, the main one among them.
    pub containers: Vec<Map<String, Value>>,
    /// Which of `containers` is the main one.
    pub main: usize,
}

impl Template {
    /// Reads a template; absent is one that says nothing.
    ///
    /// # Errors
    /// When it is no pod, or has several containers and not exactly one called [`MAIN`].
    pub fn read(template: Option<&Value>, source: Source<'_>) -> Result<Self, Refusal> {
        let Some(template) = template else {
            return Ok(Self { containers: vec![Map::new()], ..Self::default() });
        };
        let mut template = template.clone();
        quantities(&mut template);
        let whole = object(Some(&template), "", source)?;
        for key in whole.keys() {
            if !["apiVersion", "kind", "metadata", "spec", "status"].contains(&key.as_str()) {
                return Err(source.refuse(key, "", "is nothing a pod has", "metadata, spec"));
            }
        }
        let mut metadata = object(whole.get("metadata"), "metadata", source)?;
        metadata.retain(|key, _| key == "labels" || key == "annotations");
        let mut spec = object(whole.get("spec"), "spec", source)?;
        let containers = match spec.shift_remove("containers") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(containers)) => containers,
            Some(other) => {
                return Err(source.refuse(
                    "spec.containers",
                    kind(&other),
                    "is not a list",
                    "a list of containers",
                ));
            }
        };
        let mut containers = containers
            .iter()
            .enumerate()
            .map(|(n, container)| object(Some(container), &format!("spec.containers[{n}]"), source))
            .collect::<Result<Vec<_>, _>>()?;
        let main = match containers.len() {
            0 => {
                containers.push(Map::new());
                0
            }
            1 => 0,
            several => {
                let is_main = |c: &Map<String, Value>| {
                    c.get("name").and_then(Value::as_str).is_some_and(|name| MAIN.contains(&name))
                };
                let mains: Vec<usize> = (0..several).filter(|n| is_main(&containers[*n])).collect();
                let [main] = mains.as_slice() else {
                    return Err(source.refuse(
                        "spec.containers",
                        &format!("{several} containers, {} of them called so", mains.len()),
                        "do not say which is the job's",
                        "exactly one of several containers called polder_job or nvflare_job",
                    ));
                };
                *main
            }
        };
        Ok(Self { metadata, spec, containers, main })
    }
}

/// A map at a path; null and absent are an empty one.
fn object(value: Option<&Value>, path: &str, source: Source<'_>) -> Result<Map<String, Value>, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(other) => Err(source.refuse(path, kind(other), "is not a map", "a map")),
    }
}

/// Takes a list out of a map; null and absent are an empty one.
///
/// # Errors
/// When it is something else, or holds what is no map.
pub fn take_list(
    map: &mut Map<String, Value>,
    key: &str,
    path: &str,
    source: Source<'_>,
) -> Result<Vec<Value>, Refusal> {
    match map.shift_remove(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                object(Some(item), &format!("{path}.{key}[{n}]"), source)?;
            }
            Ok(items)
        }
        Some(other) => {
            Err(source.refuse(&format!("{path}.{key}"), kind(&other), "is not a list", "a list of maps"))
        }
    }
}

/// The entries of a template, those of the same name replaced by `ours` where they stand, the rest of `ours` behind.
#[must_use]
pub fn merge_by_name(template: Vec<Value>, ours: Vec<Value>) -> Vec<Value> {
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let mut ours: Vec<Option<Value>> = ours.into_iter().map(Some).collect();
    let mut out = Vec::with_capacity(template.len() + ours.len());
    for item in template {
        let wanted = name(&item);
        let same = |o: &&mut Option<Value>| o.as_ref().is_some_and(|o| wanted.is_some() && name(o) == wanted);
        match ours.iter_mut().find(same) {
            Some(own) => out.extend(own.take()),
            // A second entry of a name that was replaced already is dropped with it.
            None if wanted.is_some() && out.iter().any(|o| name(o) == wanted) => {}
            None => out.push(item),
        }
    }
    out.extend(ours.into_iter().flatten());
    out
}

/// Amounts may be numbers in YAML; the API's own type is text.
fn quantities(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(quantities),
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), &mut *value) {
                    ("limits" | "requests" | "overhead", Value::Object(amounts)) => {
                        for amount in amounts.values_mut().filter(|amount| amount.is_number()) {
                            *amount = Value::String(amount.to_string());
                        }
                    }
                    ("sizeLimit" | "divisor", amount) if amount.is_number() => {
                        *amount = Value::String(amount.to_string());
                    }
                    (_, value) => quantities(value),
                }
            }
        }
        _ => {}
    }
}

/// The typed pod, if every key of the document means something in it.
///
/// # Errors
/// With the place and what is wrong there.
pub fn typed(pod: &Value, source: Source<'_>) -> Result<Pod, Refusal> {
    let typed: Pod = Pod::deserialize(pod).map_err(|error| {
        source.refuse("", "", &format!("does not make a pod: {error}"), "the fields of a pod")
    })?;
    let back = serde_json::to_value(&typed).expect("a pod is plain data with text keys");
    if let Some(path) = lost(pod, &back, "") {
        return Err(source.refuse(
            &path,
            "",
            "is no field of a pod in the API versions this program knows",
            "the fields of a pod",
        ));
    }
    Ok(typed)
}

/// The first key of `from` that is not in `to`.
fn lost(from: &Value, to: &Value, path: &str) -> Option<String> {
    match (from, to) {
        (Value::Object(from), Value::Object(to)) => {
            from.iter().filter(|(_, value)| !is_empty(value)).find_map(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match to.get(key) {
                    Some(there) => lost(value, there, &path),
                    None => Some(path),
                }
            })
        }
        (Value::Array(from), Value::Array(to)) => from
            .iter()
            .zip(to)
            .enumerate()
            .find_map(|(n, (from, to))| lost(from, to, &format!("{path}[{n}]"))),
        _ => None,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.values().all(is_empty),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
