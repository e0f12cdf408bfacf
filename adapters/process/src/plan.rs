//! The native request of a launch: pure, from what is wanted, what is set aside and what the host can do.

use crate::facts::{Facts, PRIVATE, SYSTEM};
use crate::settings::Settings;
use polder_api::rundir;
use polder_api::shim::{Account, Fence, Limits, LogCap};
use polder_launch::{Allotted, Plan, Refusal, Resolved};
use polder_words::{FailureClass, FileWay, Isolation, LaunchId, Mode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is printed by `polder plan`, stored in the ledger and sent: nothing else is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessPlan {
    /// The launch; the control group is called after it.
    pub name: String,
    /// Program and arguments, nothing expanded.
    pub command: Vec<String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// Its folder for this attempt.
    pub attempt: PathBuf,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Variables it gets as the parent has them.
    pub forward_env: Vec<String>,
    /// GPUs, exclusively.
    pub gpus: Vec<String>,
    /// How much it may use.
    pub limits: Limits,
    /// Its account, when it is another than the parent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// What keeps it from the parent's files.
    pub fence: Fence,
    /// How much of its own output is kept.
    pub log: LogCap,
    /// The program that stays beside it.
    pub shim: PathBuf,
}

/// Devices every worker may use; none of them shows anything of the host.
const DEVICES: [&str; 9] = [
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/shm",
    "/dev/ptmx",
    "/dev/pts",
];

/// Devices of GPUs and what goes with them, for workers that were given some.
const GPU_DEVICES: [&str; 8] = [
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
    "/dev/nvidia-caps",
    "/dev/dri",
    "/dev/kfd",
    "/dev/infiniband",
];

/// Most GPUs of one host whose device files are opened.
const GPU_FILES: usize = 16;

/// What an older job's `process` block may say: amounts, which were taken out of it already.
const AMOUNTS: [&str; 4] = ["num_of_gpus", "num_of_cpus", "memory", "mem_per_gpu_in_GiB"];

/// Plans a launch.
///
/// # Errors
/// When this site cannot do it, with the setting to change.
pub fn plan(
    settings: &Settings,
    facts: &Facts,
    want: &Resolved,
    with: &Allotted,
) -> Result<ProcessPlan, Refusal> {
    if let Some(unmet) = &facts.unmet {
        return Err(Refusal::new(FailureClass::Config, unmet.clone()).at(
            "parent.yaml",
            "launcher.process",
            "",
            "an account other than the parent's, and a parent that runs as root to switch to it",
        ));
    }
    for (path, what) in [(&want.run_dir, "run directory"), (&want.worker, "worker program")] {
        if !path.is_absolute() {
            let text = format!("the {what} {} is not an absolute path", path.display());
            return Err(Refusal::new(FailureClass::Config, text));
        }
    }
    if let Some(option) = want.options.keys().find(|key| !AMOUNTS.contains(&key.as_str())) {
        let text = "a job may set no such option of the process launcher";
        let at = format!("launcher_spec.{}.process.{option}", want.id.site);
        return Err(Refusal::new(FailureClass::Config, text).at("meta", &at, option, &AMOUNTS.join(", ")));
    }
    if want.files == FileWay::Channel {
        let text = "workers that share no files with their parent are not in this build";
        let refusal = Refusal::new(FailureClass::Config, text);
        return Err(refusal.at("parent.yaml", "launcher.process.files", "channel", "shared"));
    }
    let attempt = attempt_dir(&want.run_dir, want.id.attempt);
    let handover = attempt.join(rundir::HANDOVER);
    let tmp = want.run_dir.join(rundir::TMP);
    let text = |path: &Path| path.display().to_string();
    let mut command = vec![text(&want.worker)];
    command.extend(
        settings
            .worker_args
            .clone()
            .unwrap_or_else(|| vec!["run".to_owned(), "--handover".to_owned(), text(&handover)]),
    );
    let devices: Vec<_> = with.devices.iter().map(|id| id.0.clone()).collect();
    let env = BTreeMap::from([
        ("CUDA_VISIBLE_DEVICES".to_owned(), devices.join(",")),
        ("HOME".to_owned(), text(&tmp)),
        ("POLDER_LAUNCH".to_owned(), want.id.to_string()),
        ("TMPDIR".to_owned(), text(&tmp)),
    ]);
    Ok(ProcessPlan {
        name: group_name(&want.id, &attempt),
        command,
        directory: want.run_dir.clone(),
        env,
        forward_env: facts.forward.clone(),
        gpus: devices,
        limits: Limits { memory: want.memory, cpus: want.cpus, pids: Some(settings.pids), files: None },
        account: facts.account,
        fence: fence(settings, facts, want, with, &handover),
        log: LogCap { head: settings.log_bytes / 4, tail: settings.log_bytes / 4 },
        shim: settings.shim.clone().unwrap_or_else(|| want.worker.clone()),
        attempt,
    })
}

fn fence(settings: &Settings, facts: &Facts, want: &Resolved, with: &Allotted, handover: &Path) -> Fence {
    let mut fence =
        Fence { isolation: facts.isolation, read: Vec::new(), write: Vec::new(), hide: Vec::new() };
    if !matches!(facts.isolation, Isolation::Landlock | Isolation::UserNamespace) {
        return fence;
    }
    fence.hide.clone_from(&settings.hide);
    // Only then, since it has a price: a folder opened around something is open for what was there at the start.
    if facts.root {
        fence.hide.extend(PRIVATE.iter().map(PathBuf::from));
    }
    let in_run_dir = |name: &&str| want.run_dir.join(name);
    fence.read.extend(SYSTEM.iter().map(PathBuf::from));
    fence.read.extend(facts.programs.iter().cloned());
    fence.read.extend(settings.read.iter().cloned());
    fence.read.push(want.worker.clone());
    fence.read.extend([rundir::APP, rundir::IN].iter().map(in_run_dir));
    fence.read.push(handover.to_owned());
    fence.read.extend(settings.sockets.iter().cloned());
    fence.write.extend([rundir::OUT, rundir::STATE, rundir::TMP].iter().map(in_run_dir));
    fence.write.extend(settings.write.iter().cloned());
    fence.write.extend(DEVICES.iter().map(PathBuf::from));
    if !with.devices.is_empty() {
        fence.write.extend(GPU_DEVICES.iter().map(PathBuf::from));
        fence.write.extend((0..GPU_FILES).map(|n| PathBuf::from(format!("/dev/nvidia{n}"))));
    }
    fence
}

/// The folder of one attempt.
#[must_use]
pub fn attempt_dir(run_dir: &Path, attempt: u32) -> PathBuf {
    run_dir.join(rundir::ATTEMPTS).join(attempt.to_string())
}

/// What the control group of a launch is called. The folder counts too, since several parents of one host may have
/// the same name (a federation that was set up twice).
#[must_use]
pub fn group_name(id: &LaunchId, attempt: &Path) -> String {
    // FNV-1a: the name must be the same in every version of this program, and need not be hard to guess.
    let hash = attempt.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("polder.{id}.{hash:016x}")
}

impl ProcessPlan {
    /// As the ledger has it.
    #[must_use]
    pub fn to_plan(&self) -> Plan {
        let value = serde_json::to_value(self).expect("a plan is plain data with text keys");
        let serde_json::Value::Object(native) = value else { unreachable!("a struct is an object") };
        Plan { mode: Mode::Process, native }
    }

    /// Back from the ledger.
    ///
    /// # Errors
    /// When it is no plan of this adapter.
    pub fn from_plan(plan: &Plan) -> Result<Self, Refusal> {
        let wrong = |text: String| Refusal::new(FailureClass::Infrastructure, text);
        if plan.mode != Mode::Process {
            return Err(wrong(format!("a plan for {} reached the process launcher", plan.mode)));
        }
        serde_json::from_value(serde_json::Value::Object(plan.native.clone()))
            .map_err(|error| wrong(format!("a plan that cannot be read: {error}")))
    }
}
