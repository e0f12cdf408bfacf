//! The study's runtime, as `Resolved` carries it (`StudyRuntime::to_value` of core).

use polder_core::scalars::Memory;
use polder_core::study_runtime::ImagePolicy;
use polder_launch::{Refusal, Resolved};
use polder_words::FailureClass;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Study {
    #[serde(skip)]
    pub(super) name: String,
    pub(super) container: Option<Container>,
    pub(super) docker_kwargs: Map<String, Value>,
    pub(super) datasets: indexed::Ordered<Dataset>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) secret_env: BTreeMap<String, Value>,
    pub(super) secret_mounts: indexed::Ordered<SecretMount>,
    pub(super) egress: Option<Vec<String>>,
    pub(super) images: Images,
    pub(super) limits: Limits,
}

#[derive(Debug, Deserialize)]
pub(super) struct Container {
    pub(super) image: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Dataset {
    pub(super) source: String,
    pub(super) mode: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct SecretMount {
    pub(super) source: String,
    pub(super) mount_path: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Images {
    allow: Option<Vec<String>>,
    require_digest: bool,
    pin: bool,
}

impl Images {
    pub(super) fn policy(&self) -> ImagePolicy {
        ImagePolicy { allow: self.allow.clone(), require_digest: self.require_digest, pin: self.pin }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Limits {
    pub(super) cpus: Option<u32>,
    memory: Option<String>,
}

impl Study {
    pub(super) fn of(want: &Resolved) -> Result<Self, Refusal> {
        let mut study = match &want.runtime {
            Value::Null => Self::default(),
            runtime => Self::deserialize(runtime).map_err(|error| {
                let text = format!("the runtime of study {} cannot be read: {error}", want.study);
                Refusal::new(FailureClass::Config, text)
            })?,
        };
        study.name = want.study.to_string();
        Ok(study)
    }

    /// The most memory a worker of the study may have, bytes.
    pub(super) fn memory(&self) -> Option<u64> {
        self.limits.memory.as_deref().and_then(Memory::parse).and_then(|memory| memory.bytes_u64())
    }
}

/// Maps in the order of the document.
pub(super) mod indexed {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;
    use serde_json::{Map, Value};

    #[derive(Debug)]
    pub(in crate::plan) struct Ordered<T>(Vec<(String, T)>);

    impl<T> Default for Ordered<T> {
        fn default() -> Self {
            Self(Vec::new())
        }
    }

    impl<'a, T> IntoIterator for &'a Ordered<T> {
        type Item = &'a (String, T);
        type IntoIter = std::slice::Iter<'a, (String, T)>;
        fn into_iter(self) -> Self::IntoIter {
            self.0.iter()
        }
    }

    impl<'de, T: DeserializeOwned> Deserialize<'de> for Ordered<T> {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let map = Map::<String, Value>::deserialize(deserializer)?;
            map.into_iter()
                .map(|(name, value)| match serde_json::from_value(value) {
                    Ok(value) => Ok((name, value)),
                    Err(error) => Err(serde::de::Error::custom(format!("{name}: {error}"))),
                })
                .collect::<Result<_, _>>()
                .map(Self)
        }
    }
}
