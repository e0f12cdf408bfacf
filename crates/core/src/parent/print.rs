//! `parent.yaml` written back, defaults included.

use super::launcher::{
    Devices, DockerLauncher, IsolationRequired, K8sLauncher, LauncherConfig, ProcessLauncher, Pull,
    SlurmLauncher,
};
use super::{ParentConfig, WorkerPort};
use crate::time::print;
use crate::value::{Data, Value};
use indexmap::IndexMap;
use polder_words::Role;
use std::path::{Path, PathBuf};
use std::time::Duration;

type Pairs = Vec<(&'static str, Value)>;

impl ParentConfig {
    /// Writes it back.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let path = |path: &Path| Value::from(path.to_string_lossy().into_owned());
        let mut out: Pairs = vec![
            ("name", Value::from(self.name.as_str())),
            ("role", Value::from(if self.role == Role::Server { "server" } else { "site" })),
        ];
        put(&mut out, "server", self.server.as_ref().map(ToString::to_string));
        put(&mut out, "listen", self.listen.map(|listen| listen.to_string()));
        out.push(("kit", path(&self.kit)));
        out.push(("state", path(&self.state)));
        out.push(("study_runtime", path(&self.study_runtime)));
        out.push(("authorization", path(&self.authorization)));
        let (mode, settings) = match &self.launcher {
            LauncherConfig::Process(settings) => ("process", process(settings)),
            LauncherConfig::Docker(settings) => ("docker", docker(settings)),
            LauncherConfig::K8s(settings) => ("kubernetes", k8s(settings)),
            LauncherConfig::Slurm(settings) => ("slurm", slurm(settings)),
        };
        out.push(("launcher", Value::map([(mode, Value::map(settings))])));
        out.push(("job_images", Value::from(self.job_images)));
        out.push(("max_restarts", Value::from(self.max_restarts)));
        put(&mut out, "proxy", self.proxy.as_ref().map(super::ProxyUrl::to_text));
        out.push((
            "idle",
            Value::map([
                ("poll", Value::from(print(self.idle.poll))),
                ("heartbeat", Value::from(print(self.idle.heartbeat))),
                ("lost_after", Value::from(print(self.idle.lost_after))),
            ]),
        ));
        Value::map(out)
    }
}

fn put<T: Into<Value>>(out: &mut Pairs, key: &'static str, value: Option<T>) {
    if let Some(value) = value {
        out.push((key, value.into()));
    }
}

fn texts(items: &[String]) -> Value {
    Value::seq(items.iter().map(|item| Value::from(item.as_str())))
}

fn text_map(map: &IndexMap<String, String>) -> Value {
    Value::map(map.iter().map(|(key, value)| (key, Value::from(value.as_str()))))
}

fn devices(devices: &Devices) -> Value {
    match devices {
        Devices::Auto => Value::from("auto"),
        Devices::Ids(ids) => texts(ids),
    }
}

fn pending(pending: Option<Duration>) -> Value {
    Value::from(pending.map(print))
}

fn process(settings: &ProcessLauncher) -> Pairs {
    let mut out: Pairs = vec![("gpus", devices(&settings.gpus))];
    put(&mut out, "cpus", settings.cpus);
    put(&mut out, "memory", settings.memory.as_ref().map(|m| m.as_str()));
    put(&mut out, "user", settings.user.as_deref());
    out.push((
        "isolation_required",
        match settings.isolation_required {
            IsolationRequired::Always => Value::from(true),
            IsolationRequired::Never => Value::from(false),
            IsolationRequired::Byoc => Value::from("byoc"),
        },
    ));
    put(&mut out, "python_path", settings.python_path.as_deref());
    out.push(("forward_env", texts(&settings.forward_env)));
    out.push(("pending_timeout", Value::from(print(settings.pending_timeout))));
    let path = |path: &PathBuf| Value::from(path.display().to_string());
    put(&mut out, "worker", settings.worker.as_ref().map(path));
    for (key, paths) in [("read", &settings.read), ("write", &settings.write)] {
        if !paths.is_empty() {
            let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            out.push((key, texts(&paths)));
        }
    }
    put(&mut out, "cgroup", settings.cgroup.as_ref().map(path));
    if let Some(channel) = &settings.channel {
        worker_port(&mut out, channel);
    }
    out.push(("files", Value::from(settings.files.as_str())));
    out
}

fn worker_port(out: &mut Pairs, channel: &WorkerPort) {
    put(out, "parent_host", channel.host.as_deref());
    out.push(("internal_port", Value::from(u32::from(channel.port))));
    put(out, "internal_listen", channel.listen.map(|listen| listen.to_string()));
}

fn docker(settings: &DockerLauncher) -> Pairs {
    let mut out: Pairs = vec![("socket", Value::from(settings.socket.as_str()))];
    put(&mut out, "image", settings.image.as_deref());
    out.push(("network", Value::from(settings.network.as_str())));
    out.push((
        "pull",
        Value::from(match settings.pull {
            Pull::Never => "never",
            Pull::Missing => "missing",
            Pull::Always => "always",
        }),
    ));
    out.push(("pending_timeout", pending(settings.pending_timeout)));
    out.push(("gpus", devices(&settings.gpus)));
    put(&mut out, "cpus", settings.cpus);
    put(&mut out, "memory", settings.memory.as_ref().map(|m| m.as_str()));
    put(&mut out, "python_path", settings.python_path.as_deref());
    out.push(("job_env", text_map(&settings.job_env)));
    out.push(("job_container_kwargs", Data::Map(settings.job_container_kwargs.clone()).into()));
    put(&mut out, "workspace", settings.workspace.as_deref());
    put(&mut out, "user", settings.user.map(|(uid, gid)| format!("{uid}:{gid}")));
    put(&mut out, "worker", settings.worker.as_ref().map(|path| path.display().to_string()));
    if let Some(channel) = &settings.channel {
        worker_port(&mut out, channel);
    }
    out
}

fn k8s(settings: &K8sLauncher) -> Pairs {
    let mut out: Pairs = vec![("namespace", Value::from(settings.namespace.as_str()))];
    put(&mut out, "kubeconfig", settings.kubeconfig.as_deref());
    put(&mut out, "context", settings.context.as_deref());
    put(&mut out, "image", settings.image.as_deref());
    out.push(("image_pull_policy", Value::from(settings.image_pull_policy.as_str())));
    out.push(("image_pull_secrets", texts(&settings.image_pull_secrets)));
    out.push(("pending_timeout", pending(settings.pending_timeout)));
    out.push(("ephemeral_storage", Value::from(settings.ephemeral_storage.as_str())));
    put(&mut out, "pod_security_context", settings.pod_security_context.clone());
    put(&mut out, "python_path", settings.python_path.as_deref());
    out.push(("workspace", Value::from(settings.workspace.as_str())));
    worker_port(&mut out, &settings.channel);
    out.push(("gpu_resource", Value::from(settings.gpu_resource.as_str())));
    out.push(("worker_image", Value::from(settings.worker_image.as_str())));
    out
}

fn slurm(settings: &SlurmLauncher) -> Pairs {
    let mut out: Pairs = vec![("sandbox", Value::from(settings.sandbox.as_str()))];
    put(&mut out, "image", settings.image.as_deref());
    for (key, value) in &settings.directives {
        if let Some(key) = super::launcher::DIRECTIVES.iter().find(|known| *known == key) {
            out.push((key, Value::from(value.as_str())));
        }
    }
    out.push(("setup", Value::from(settings.setup.as_str())));
    put(&mut out, "python_path", settings.python_path.as_deref());
    out.push(("executables", text_map(&settings.executables)));
    out.push(("forward_env", texts(&settings.forward_env)));
    worker_port(&mut out, &settings.channel);
    out.push(("submit_timeout", Value::from(print(settings.submit_timeout))));
    out.push(("query_timeout", Value::from(print(settings.query_timeout))));
    out.push(("cancel_timeout", Value::from(print(settings.cancel_timeout))));
    out.push(("poll_interval", Value::from(print(settings.poll_interval))));
    out.push(("pending_timeout", Value::from(print(settings.pending_timeout))));
    let (first, last) = settings.multi_node_port_range;
    out.push(("multi_node_port_range", Value::from(format!("{first}-{last}"))));
    put(&mut out, "workspace", settings.workspace.as_deref());
    out.push(("gpu_types", texts(&settings.gpu_types)));
    out.push(("pyxis_pulls", Value::from(settings.pyxis_pulls)));
    out
}
