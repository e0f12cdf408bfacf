//! The file written back, and the shape the contract prints.

use super::{Approval, ImagePolicy, Limits, StudyRuntime, StudyRuntimes};
use crate::export::Export;
use crate::value::{Data, Map, Value, to_yaml};
use std::fmt;

type Pairs = Vec<(&'static str, Value)>;

impl StudyRuntime {
    /// The shape of `polder check study-runtime --json`: FLARE's fields always, Polder's when they are set.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let text = Value::from;
        let study = || text(self.study.as_str());
        let datasets = self.datasets.iter().map(|dataset| {
            Value::map([
                ("dataset", text(dataset.name.as_str())),
                ("mode", text(dataset.mode.as_str())),
                ("source", text(dataset.source.as_str())),
                ("study", study()),
            ])
        });
        let secret_env = self.secret_env.iter().map(|secret| {
            Value::map([
                ("key", Value::from(secret.key.clone())),
                ("name", text(secret.name.as_str())),
                ("source", text(secret.source.as_str())),
            ])
        });
        let secret_mounts = self.secret_mounts.iter().map(|mount| {
            let items = mount.items.as_ref().map(|items| {
                Value::seq(
                    items.iter().map(|(key, path)| Value::seq([text(key.as_str()), text(path.as_str())])),
                )
            });
            Value::map([
                ("items", Value::from(items)),
                ("mount_path", text(mount.mount_path.as_str())),
                ("name", text(mount.name.as_str())),
                ("source", text(mount.source.as_str())),
                ("study", study()),
            ])
        });
        let mut out: Pairs = vec![
            ("container_image", Value::from(self.container_image.clone())),
            ("datasets", Value::seq(datasets)),
            ("docker_kwargs", Data::Map(self.docker_kwargs.clone()).into()),
            ("env", self.env_value()),
            ("pod_template", Value::from(self.pod_template.clone())),
            ("secret_env", Value::seq(secret_env)),
            ("secret_mounts", Value::seq(secret_mounts)),
            ("slurm", Data::Map(self.slurm.written.clone()).into()),
            ("study", study()),
        ];
        self.own_keys(&mut out);
        Value::map(out)
    }

    fn env_value(&self) -> Value {
        Value::map(self.env.iter().map(|(name, value)| (name, Value::from(value.as_str()))))
    }

    fn own_keys(&self, out: &mut Pairs) {
        if let Some(access) = &self.access {
            out.push(("access", access.to_value()));
        }
        if self.export != Export::default() {
            out.push(("export", self.export.to_value()));
        }
        if let Some(egress) = &self.egress {
            out.push(("egress", Value::seq(egress.iter().map(|place| Value::from(place.to_string())))));
        }
        if self.approval != Approval::default() {
            out.push(("approval", Value::from(self.approval.as_str())));
        }
        if self.images != ImagePolicy::default() {
            out.push(("images", self.images.to_value()));
        }
        if self.limits != Limits::default() {
            out.push(("limits", self.limits.to_value()));
        }
    }

    /// The study's entry of the file.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let text = Value::from;
        let mut out: Pairs = Vec::new();
        if let Some(image) = &self.container_image {
            out.push(("container", Value::map([("image", text(image.as_str()))])));
        }
        if let Some(pod) = &self.pod_template {
            out.push(("pod_template", Data::Map(pod.clone()).into()));
        }
        if !self.docker_kwargs.is_empty() {
            out.push(("docker_kwargs", Data::Map(self.docker_kwargs.clone()).into()));
        }
        if !self.datasets.is_empty() {
            let datasets = self.datasets.iter().map(|dataset| {
                let entry =
                    [("source", text(dataset.source.as_str())), ("mode", text(dataset.mode.as_str()))];
                (dataset.name.as_str(), Value::map(entry))
            });
            out.push(("datasets", Value::map(datasets)));
        }
        if !self.env.is_empty() {
            out.push(("env", self.env_value()));
        }
        if !self.secret_env.is_empty() {
            let secrets = self.secret_env.iter().map(|secret| {
                let mut entry = vec![("source", text(secret.source.as_str()))];
                entry.extend(secret.key.as_deref().map(|key| ("key", text(key))));
                (secret.name.as_str(), Value::map(entry))
            });
            out.push(("secret_env", Value::map(secrets)));
        }
        if !self.secret_mounts.is_empty() {
            let mounts = self.secret_mounts.iter().map(|mount| {
                let mut entry = vec![
                    ("source", text(mount.source.as_str())),
                    ("mount_path", text(mount.mount_path.as_str())),
                ];
                if let Some(items) = &mount.items {
                    let items = items.iter().map(|(key, path)| (key.as_str(), text(path.as_str())));
                    entry.push(("items", Value::map(items)));
                }
                (mount.name.as_str(), Value::map(entry))
            });
            out.push(("secret_mounts", Value::map(mounts)));
        }
        if !self.slurm.is_empty() {
            out.push(("slurm", Data::Map(self.slurm.written.clone()).into()));
        }
        self.own_keys(&mut out);
        Value::map(out)
    }
}

impl StudyRuntimes {
    /// What `polder check study-runtime --json` prints: the studies by name.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let studies: Map = self.studies.iter().map(|(name, s)| (name.as_str().into(), s.to_json())).collect();
        Data::Map(studies).into()
    }

    /// The file, pod templates written out.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let studies: Map =
            self.studies.iter().map(|(name, s)| (name.as_str().into(), s.to_value())).collect();
        Value::map([("format_version", Value::from(2u32)), ("studies", Data::Map(studies).into())])
    }
}

impl fmt::Display for StudyRuntimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_yaml(&self.to_value()))
    }
}
