//! The batch script of a launch.
//!
//! Everything that is not the site's own `setup` reaches the shell in single quotes, by one function, [`quote`]; a
//! study's variables are arguments of `env` and never the shell's own, so that a `PATH`, `IFS` or `PPID` of a study
//! changes nothing of the script. The script holds no secret: the worker has a one-time token in its handover file, and
//! asks its parent for the rest.
//!
//! ```text
//! refuse a restart -> setup -> env ... [srun ...] [rank script] [apptainer exec ...] worker run --handover FILE
//!                                                     \ ranks > 0: additional_node_command, in the app's folder
//! at every end: exit record beside the log, renamed into place
//! ```

use crate::plan::{Descriptor, Mount, attempt_dir};
use indexmap::IndexMap;
use polder_core::launcher::SlurmSandbox;
use polder_launch::Resolved;
use std::fmt::Write as _;

/// Where the worker program is inside a container.
pub const HOME: &str = "/polder";
/// The nodes' resolver, which containers get read-only.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Output of the script inside an attempt's folder.
pub const OUTPUT: &str = "worker.log";
/// What the script leaves when it ends, inside an attempt's folder.
pub const EXIT: &str = "slurm-exit.json";
/// What the script leaves when it begins, inside an attempt's folder.
pub const START: &str = "slurm-start.json";
/// The script's own ends, apart from the worker's: refused to run a second time.
pub const RESTARTED: i32 = 97;
/// The step is not inside the study: no plugin, or another one.
pub const OUTSIDE: i32 = 98;
/// A program of the node is missing.
pub const MISSING: i32 = 99;

/// Variables by which Slurm and drivers say which devices a task has.
const GPU_VARIABLES: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
];

/// What `srun` inside the job would take for options of its own, from an allocation around the parent or from the
/// way the job was submitted.
const NOT_INHERITED: [&str; 14] = [
    "SLURM_EXPORT_ENV",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPU_BIND",
    "SLURM_GPU_FREQ",
    "SLURM_CPUS_PER_GPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_TRES_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_NODELIST_EXCLUDE",
];

/// Facts of a job that workers in containers see, too.
const JOB_VARIABLES: [&str; 6] = [
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_NODELIST",
    "SLURM_PROCID",
    "SLURM_NODEID",
    "SLURM_CPUS_PER_TASK",
];

/// The contract of several nodes, under Polder's names and FLARE's.
const RANK: [&str; 5] = ["NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RUN_ID"];

/// What a script is made of.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The launch.
    pub want: &'a Resolved,
    /// How the worker is closed off.
    pub sandbox: SlurmSandbox,
    /// Of Apptainer and Pyxis.
    pub image: Option<&'a str>,
    /// The run directory.
    pub run_dir: &'a str,
    /// The worker program on the host.
    pub worker: &'a str,
    /// Amounts.
    pub descriptor: &'a Descriptor,
    /// The study's mounts.
    pub mounts: &'a [Mount],
    /// The study's variables.
    pub env: &'a IndexMap<String, String>,
    /// Names of variables that came with the job.
    pub forward_env: &'a [String],
    /// Lines of the site's.
    pub setup: &'a str,
    /// The interpreter on the nodes.
    pub python: Option<&'a str>,
    /// Of ranks above 0.
    pub node_command: &'a [String],
    /// For the first node of several.
    pub ports: (u16, u16),
    /// Where programs of the nodes are.
    pub executables: &'a IndexMap<String, String>,
}

/// A word for the shell that is this text and nothing else, whatever it holds.
#[must_use]
pub fn quote(text: &str) -> String {
    let plain = |b: u8| {
        b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-' | b'=' | b':' | b',' | b'@' | b'+')
    };
    // `~` and `=` mean something at the beginning of a word; a `-` is fine where a command takes it as an argument.
    if !text.is_empty() && text.bytes().all(plain) && !text.starts_with('=') {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn words<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// The script.
#[must_use]
pub fn render(parts: &Parts<'_>) -> String {
    let mut out = String::new();
    head(parts, &mut out);
    setup(parts, &mut out);
    inside_study(parts, &mut out);
    environment(parts, &mut out);
    command(parts, &mut out);
    out
}

/// Appends a line; writing to a `String` cannot fail.
macro_rules! line {
    ($out:expr, $($text:tt)*) => {{
        let _ = writeln!($out, $($text)*);
    }};
}

fn head(parts: &Parts<'_>, out: &mut String) {
    let attempt = attempt_dir(parts.want);
    let attempt = quote(&attempt.display().to_string());
    line!(out, "#!/bin/bash");
    line!(
        out,
        "# Polder: launch {}, study {}. `polder plan` prints this script.",
        parts.want.id,
        parts.want.study
    );
    line!(out, "if [[ ${{SLURM_RESTART_COUNT:-0}} != 0 ]]; then");
    line!(out, "  echo 'polder: Slurm started this job again; a launch runs once, so it ends here' >&2");
    line!(out, "  exit {RESTARTED}");
    line!(out, "fi");
    line!(out, "umask 077");
    line!(out, "export PATH=\"${{PATH:-/usr/local/bin:/usr/bin:/bin}}\"");
    line!(out, "unset {}", NOT_INHERITED.join(" "));
    line!(out, "polder_attempt={attempt}");
    line!(out, "polder_stage=setup");
    // One line, written beside and renamed: whoever reads it sees it whole.
    line!(out, "polder_note() {{");
    line!(
        out,
        "  printf '{{\"format\":1,\"job\":\"%s\",\"node\":\"%s\",\"stage\":\"%s\",\"code\":%d,\"at\":%d}}\\n' \\"
    );
    line!(
        out,
        "    \"${{SLURM_JOB_ID:-}}\" \"${{SLURMD_NODENAME:-}}\" \"$polder_stage\" \"$2\" \"$(date +%s)\" \\"
    );
    line!(
        out,
        "    >\"$polder_attempt/$1.part\" && mv -f -- \"$polder_attempt/$1.part\" \"$polder_attempt/$1\""
    );
    line!(out, "}}");
    line!(out, "polder_end() {{");
    line!(out, "  local code=$?");
    line!(out, "  trap - EXIT");
    line!(out, "  polder_note {EXIT} \"$code\"");
    line!(out, "  exit \"$code\"");
    line!(out, "}}");
    line!(out, "trap polder_end EXIT");
    line!(out, "polder_note {START} 0");
}

fn setup(parts: &Parts<'_>, out: &mut String) {
    if !parts.setup.is_empty() {
        line!(out, "# Of this site: setup.");
        line!(out, "set -e");
        line!(out, "{}", parts.setup.trim_end_matches('\n'));
        line!(out, "set +e");
    }
    if let Some((folder, _)) = parts.python.and_then(|python| python.rsplit_once('/')) {
        let folder = if folder.is_empty() { "/" } else { folder };
        line!(out, "export PATH={}:\"$PATH\"", quote(folder));
    }
}

/// A job that was submitted without the plugin's option, or ran into a node without the plugin, would see the host.
fn inside_study(parts: &Parts<'_>, out: &mut String) {
    if parts.sandbox != SlurmSandbox::Spank {
        return;
    }
    let study = quote(parts.want.study.as_str());
    line!(out, "if [[ ${{POLDER_STUDY:-}} != {study} ]]; then");
    line!(out, "  echo 'polder: this step is not inside the study: the plugin did not take it in' >&2");
    line!(out, "  exit {OUTSIDE}");
    line!(out, "fi");
    for mount in parts.mounts {
        let destination = quote(&mount.destination);
        line!(out, "if [[ ! -e {destination} ]]; then");
        line!(out, "  printf 'polder: the study has no %s on this node\\n' {destination} >&2");
        line!(out, "  exit {OUTSIDE}");
        line!(out, "fi");
    }
}

fn several(parts: &Parts<'_>) -> bool {
    parts.descriptor.nodes > 1
}

/// Whether the nodes beside the first have a command. Without one the worker runs on the first node alone and its trainer
/// starts what it likes on the others.
fn ranked(parts: &Parts<'_>) -> bool {
    several(parts) && !parts.node_command.is_empty()
}

fn environment(parts: &Parts<'_>, out: &mut String) {
    let tmp = quote(&format!("{}/tmp", parts.run_dir));
    let id = quote(&parts.want.id.to_string());
    line!(out, "polder_stage=worker");
    line!(out, "export POLDER_LAUNCH={id} HOME={tmp} TMPDIR={tmp}");
    if let Some(python) = parts.python {
        line!(out, "export POLDER_PYTHON={}", quote(python));
    }
    if !several(parts) {
        return;
    }
    let (first, last) = parts.ports;
    let count = u32::from(last) - u32::from(first) + 1;
    line!(
        out,
        "[[ ${{SLURM_JOB_ID:-}} =~ ^[0-9]+$ ]] || {{ echo 'polder: no job number' >&2; exit {OUTSIDE}; }}"
    );
    // The script runs on the first node, where rank 0 is, too.
    line!(out, "export POLDER_NNODES={} POLDER_MASTER_ADDR=\"${{HOSTNAME:?}}\"", parts.descriptor.nodes);
    line!(out, "export POLDER_MASTER_PORT=$(({first} + 10#$SLURM_JOB_ID % {count}))");
    line!(out, "export POLDER_RUN_ID={id}");
    line!(out, "export MASTER_ADDR=\"$POLDER_MASTER_ADDR\" MASTER_PORT=\"$POLDER_MASTER_PORT\"");
    for name in RANK.iter().filter(|name| **name != "NODE_RANK") {
        line!(out, "export NVFL_{name}=\"$POLDER_{name}\"");
    }
}

fn command(parts: &Parts<'_>, out: &mut String) {
    let apptainer = parts.sandbox == SlurmSandbox::Apptainer;
    let pyxis = parts.sandbox == SlurmSandbox::Pyxis;
    if apptainer {
        tool(parts, "apptainer", out);
    }
    if pyxis || ranked(parts) {
        tool(parts, "srun", out);
    }
    let prefix = if apptainer { "APPTAINERENV_" } else { "" };
    let env: Vec<String> = parts.env.iter().map(|(name, value)| format!("{prefix}{name}={value}")).collect();
    if ranked(parts) {
        line!(out, "polder_rank={}", quote(&rank_script(parts)));
    } else if apptainer {
        out.push_str(&mirror(parts));
    }
    let mut line = Vec::new();
    if !env.is_empty() {
        line.push("/usr/bin/env".to_owned());
        line.push(words(&env));
    }
    if pyxis || ranked(parts) {
        line.push("\"$polder_srun\"".to_owned());
        line.push(words(srun(parts)));
    }
    if ranked(parts) {
        // A container need not have bash; the host of a job script has.
        line.push(if pyxis { "/bin/sh" } else { "/bin/bash" }.to_owned());
        line.push("-c \"$polder_rank\" polder".to_owned());
        if pyxis {
            // To rank 0 alone: no other rank gets the credential.
            line.push(format!("<{}", quote(&handover(parts))));
        }
    } else {
        if apptainer {
            line.push("\"$polder_apptainer\"".to_owned());
            line.push(words(apptainer_exec(parts, true)));
        }
        line.push(words(worker(parts)));
    }
    line!(out, "{}", line.join(" "));
}

fn tool(parts: &Parts<'_>, name: &str, out: &mut String) {
    let program = parts.executables.get(name).map_or(name, String::as_str);
    let quoted = quote(program);
    line!(out, "polder_{name}=$(type -P -- {quoted}) || {{");
    line!(out, "  printf 'polder: no %s on this node\\n' {quoted} >&2");
    line!(out, "  exit {MISSING}");
    line!(out, "}}");
    line!(out, "export polder_{name}");
}

fn handover(parts: &Parts<'_>) -> String {
    format!("{}/handover.json", attempt_dir(parts.want).display())
}

/// The worker's own command, where it runs.
fn worker(parts: &Parts<'_>) -> [String; 4] {
    let contained = parts.sandbox.is_container();
    let program = if contained { format!("{HOME}/polder-worker") } else { parts.worker.to_owned() };
    let piped = parts.sandbox == SlurmSandbox::Pyxis && ranked(parts);
    let handover = if piped { "/dev/stdin".to_owned() } else { handover(parts) };
    [program, "run".to_owned(), "--handover".to_owned(), handover]
}

fn srun(parts: &Parts<'_>) -> Vec<String> {
    let nodes = parts.descriptor.nodes;
    let mut out = vec![
        format!("--nodes={nodes}"),
        format!("--ntasks={nodes}"),
        "--ntasks-per-node=1".to_owned(),
        "--kill-on-bad-exit=1".to_owned(),
        "--wait=0".to_owned(),
    ];
    if ranked(parts) {
        out.push("--label".to_owned());
    }
    // A step does not take it from its job since 22.05.
    out.extend(parts.descriptor.cpus_per_task.map(|cpus| format!("--cpus-per-task={cpus}")));
    if parts.sandbox == SlurmSandbox::Pyxis {
        if ranked(parts) {
            out.push("--input=0".to_owned());
        }
        out.extend(pyxis(parts));
    }
    out
}

fn pyxis(parts: &Parts<'_>) -> Vec<String> {
    let mut mounts: Vec<String> = own_binds(parts, !ranked(parts))
        .chain(
            parts.mounts.iter().map(|mount| format!("{}:{}:{}", mount.source, mount.destination, mount.mode)),
        )
        .collect();
    mounts.push(format!("{RESOLV_CONF}:{RESOLV_CONF}:ro"));
    let mut names: Vec<String> = parts.env.keys().cloned().collect();
    names.extend(parts.forward_env.iter().cloned());
    names.extend(own_names(parts));
    vec![
        format!("--container-image={}", parts.image.unwrap_or_default()),
        "--container-readonly".to_owned(),
        "--no-container-mount-home".to_owned(),
        "--no-container-entrypoint".to_owned(),
        format!("--container-workdir={}", parts.run_dir),
        format!("--container-mounts={}", mounts.join(",")),
        format!("--container-env={}", names.join(",")),
    ]
}

/// Names of what the script and Slurm themselves set and a worker in a container sees.
fn own_names(parts: &Parts<'_>) -> Vec<String> {
    let mut out: Vec<String> = ["POLDER_LAUNCH", "HOME", "TMPDIR"].map(str::to_owned).to_vec();
    if parts.python.is_some() {
        out.push("POLDER_PYTHON".to_owned());
    }
    if several(parts) {
        out.extend(RANK.iter().flat_map(|name| [format!("POLDER_{name}"), format!("NVFL_{name}")]));
        out.extend(["MASTER_ADDR", "MASTER_PORT"].map(str::to_owned));
    }
    out.extend(JOB_VARIABLES.map(str::to_owned));
    out.extend(GPU_VARIABLES.map(str::to_owned));
    out
}

/// The run directory as a worker may use it. Ranks beside the first have no attempts folder, where the handover is.
fn own_binds<'a>(parts: &'a Parts<'a>, credential: bool) -> impl Iterator<Item = String> + 'a {
    let run = parts.run_dir;
    let folders = [("app", "ro"), ("in", "ro"), ("out", "rw"), ("state", "rw"), ("tmp", "rw")];
    let own = folders.into_iter().map(move |(name, mode)| format!("{run}/{name}:{run}/{name}:{mode}"));
    let attempt = attempt_dir(parts.want).display().to_string();
    let credential = credential.then(|| format!("{attempt}:{attempt}:ro"));
    own.chain(credential).chain([format!("{}:{HOME}/polder-worker:ro", parts.worker)])
}

fn apptainer_exec(parts: &Parts<'_>, credential: bool) -> Vec<String> {
    let mut out: Vec<String> =
        ["exec", "--userns", "--containall", "--no-eval", "--no-privs", "--no-mount", "bind-paths,hostfs"]
            .map(str::to_owned)
            .to_vec();
    let mut bind = |text: String| out.extend(["--bind".to_owned(), text]);
    own_binds(parts, credential).for_each(&mut bind);
    for mount in parts.mounts {
        bind(format!("{}:{}:{}", mount.source, mount.destination, mount.mode));
    }
    bind(format!("{RESOLV_CONF}:{RESOLV_CONF}:ro"));
    let folder = if credential { parts.run_dir.to_owned() } else { format!("{}/app", parts.run_dir) };
    out.extend(["--pwd".to_owned(), folder]);
    if parts.descriptor.gres.as_deref().is_some_and(|gres| gres.starts_with("gpu:")) {
        out.push("--nv".to_owned());
    }
    out.push(parts.image.unwrap_or_default().to_owned());
    out
}

/// A container is entered with nothing of the node's environment; what a worker needs of it goes in under its name.
fn mirror(parts: &Parts<'_>) -> String {
    // Apptainer keeps HOME to itself.
    let names = parts.forward_env.iter().cloned().chain(own_names(parts)).filter(|name| name != "HOME");
    let mut out = String::new();
    for name in names {
        line!(out, "[ -z \"${{{name}+x}}\" ] || export APPTAINERENV_{name}=\"${name}\"");
    }
    out
}

/// What every rank begins with, on its node (Pyxis: in its container). Plain POSIX shell.
fn rank_script(parts: &Parts<'_>) -> String {
    let mut out = String::new();
    line!(out, "export POLDER_NODE_RANK=\"${{SLURM_PROCID:?}}\" NVFL_NODE_RANK=\"$SLURM_PROCID\"");
    let apptainer = parts.sandbox == SlurmSandbox::Apptainer;
    if apptainer {
        out.push_str(&mirror(parts));
    }
    let exec = |credential: bool, command: String| match apptainer {
        true => format!("exec \"$polder_apptainer\" {} {command}", words(apptainer_exec(parts, credential))),
        false => format!("exec {command}"),
    };
    line!(out, "if [ \"$SLURM_PROCID\" = 0 ]; then");
    line!(out, "  {}", exec(true, words(worker(parts))));
    line!(out, "fi");
    if !apptainer {
        line!(out, "cd {}/app || exit 1", quote(parts.run_dir));
    }
    line!(out, "{}", exec(false, words(parts.node_command)));
    out
}
