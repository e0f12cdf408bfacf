//! The demo's job: an ordinary folder, written out so that people can look into it and copy it.

use crate::args::{DemoArgs, TrainerKind};
use crate::federation::program;
use crate::output::Failure;
use polder_api::ProblemCode;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The Rust trainer's program.
const TRAINER: &str = "polder-demo-trainer";

macro_rules! file {
    ($name:literal, $path:literal) => {
        ($name, include_str!(concat!("../../../../", $path)))
    };
}

/// The numpy trainer, and what it imports of the Python package.
const NUMPY: [(&str, &str); 5] = [
    file!("train.py", "examples/breast-cancer-numpy/app/train.py"),
    file!("features.py", "examples/breast-cancer-numpy/app/features.py"),
    file!("polder_client/__init__.py", "sdk/python/polder_client/__init__.py"),
    file!("polder_client/trainer.py", "sdk/python/polder_client/trainer.py"),
    file!("polder_client/_safetensors.py", "sdk/python/polder_client/_safetensors.py"),
];

/// A Python that has numpy: the first in PATH may be one somebody built, without.
fn python() -> Result<&'static str, Failure> {
    let has_numpy = |python: &&str| {
        let mut probe = Command::new(python);
        probe.args(["-c", "import numpy"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has_numpy).ok_or_else(|| {
        let why = "no python3 with numpy is in PATH or /usr/bin (Debian: apt-get install python3-numpy)";
        Failure::new(ProblemCode::NotFound, why)
    })
}

/// Writes the job's folder beneath a folder.
pub(super) fn write(dir: &Path, args: &DemoArgs) -> Result<PathBuf, Failure> {
    let job = dir.join("job");
    let app = job.join("app");
    let failed = |error: std::io::Error| Failure::io(&job, "write", &error);
    fs::create_dir_all(&app).map_err(failed)?;
    let seed = args.seed.to_string();
    let command = match args.trainer {
        TrainerKind::Rust => {
            fs::copy(program(TRAINER)?, app.join(TRAINER)).map_err(failed)?;
            json!([format!("./{TRAINER}"), "--seed", seed])
        }
        TrainerKind::Numpy => {
            for (name, text) in NUMPY {
                let path = app.join(name);
                fs::create_dir_all(path.parent().unwrap_or(&app)).map_err(failed)?;
                fs::write(path, text).map_err(failed)?;
            }
            json!([python()?, "train.py", "--seed", seed])
        }
    };
    let meta = json!({
        "name": "breast-cancer",
        "deploy_map": {"app": ["@ALL"]},
        "min_clients": 3,
    });
    let config = json!({
        "workflow": "fedavg",
        "rounds": args.rounds,
        "trainer": {"command": command},
        "aggregation": {"weight": "num_samples", "round_timeout": "60s"},
    });
    let pretty = |value| serde_json::to_string_pretty(value).expect("plain data becomes JSON") + "\n";
    fs::write(job.join("meta.json"), pretty(&meta)).map_err(failed)?;
    // JSON is YAML.
    fs::write(app.join("job.yaml"), pretty(&config)).map_err(failed)?;
    Ok(job)
}
