//! Taking a model from the trainer: where it lies, what it is, whether it may go up.
//!
//! The trainer and its worker are one trust domain, so nothing here protects anybody: the parent and the
//! server check again. It is here that a mistake of the trainer's can be named together with its log.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use polder_api::payload::{INLINE_LIMIT, Payload};
use polder_api::rundir;
use polder_workflow::tensors::check::{all_finite, same_tensors};
use polder_workflow::tensors::{Header, Model};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

/// Largest metrics file of a trainer.
const METRICS_LIMIT: u64 = 256 << 10;
/// Most metrics at a time, and bytes of a metric's name.
const METRICS: usize = 1000;
const METRIC_NAME: usize = 200;

/// A model that may go up.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) payload: Payload,
}

/// Takes the model at a path the trainer gave.
pub(crate) fn take(run_dir: &Path, path: &str, wanted: Option<&Header>) -> Result<Taken, String> {
    let shown: String = path.chars().take(300).collect();
    let relative = below_out(run_dir, path).ok_or_else(|| {
        format!("it sent the path {shown:?}; allowed is a file below {}", run_dir.join(rundir::OUT).display())
    })?;
    let mut file = open_below(run_dir, &relative).map_err(|error| format!("it sent {shown:?}: {error}"))?;
    let meta = file.metadata().map_err(|error| format!("it sent {shown:?}: {error}"))?;
    if !meta.is_file() || meta.nlink() != 1 {
        return Err(format!("it sent {shown:?}, which is not a regular file with one name"));
    }
    // Small models are read once, and what was checked is what is sent.
    let mut inline = None;
    let model = if meta.len() <= INLINE_LIMIT {
        let mut bytes = Vec::new();
        (&mut file)
            .take(INLINE_LIMIT + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| format!("it sent {shown:?}: {error}"))?;
        inline = Some(BASE64.encode(&bytes));
        Model::from_bytes(bytes)
    } else {
        Model::from_file(file)
    };
    let model = model.map_err(|error| format!("it sent {shown:?}: {error}"))?;
    if let Some(wanted) = wanted {
        same_tensors(model.header(), wanted).map_err(|why| why.to_string())?;
    }
    all_finite(&model)
        .map_err(|error| format!("it sent {shown:?}: {error}"))?
        .map_err(|why| why.to_string())?;
    let payload = match inline {
        Some(data) => Payload::Inline { data },
        None => Payload::File { path: relative, blob: None },
    };
    Ok(Taken { payload })
}

/// The path below the run directory, if it names something in `out/`.
fn below_out(run_dir: &Path, path: &str) -> Option<String> {
    let path = Path::new(path);
    let relative = if path.is_absolute() {
        let real = std::fs::canonicalize(run_dir).unwrap_or_else(|_| PathBuf::from(run_dir));
        path.strip_prefix(run_dir).or_else(|_| path.strip_prefix(&real)).ok()?
    } else {
        path
    };
    let mut parts = Vec::new();
    for part in relative.components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (parts.len() > 1 && parts[0] == rundir::OUT).then(|| parts.join("/"))
}

fn open_below(run_dir: &Path, relative: &str) -> std::io::Result<File> {
    // Only to walk on from: inside a Landlock fence the run directory itself may not be read.
    let walk = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(run_dir, walk, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&folder, relative, flags, Mode::empty(), resolve) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::LOOP | Errno::XDEV) => Err(std::io::Error::other("it is, or lies behind, a link")),
        // Old container runtimes deny a call they do not know. The parent does not.
        Err(Errno::NOSYS | Errno::PERM) => {
            let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(run_dir.join(relative))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether metrics are few and short enough to go up in a message.
pub(crate) fn few(metrics: &BTreeMap<String, f64>) -> Result<(), String> {
    if metrics.len() > METRICS {
        return Err(format!("it gives {} metrics; allowed are {METRICS} at a time", metrics.len()));
    }
    match metrics.keys().find(|name| name.len() > METRIC_NAME) {
        Some(name) => Err(format!("a metric's name has {} bytes; allowed are {METRIC_NAME}", name.len())),
        None => Ok(()),
    }
}

/// What a process of `mode: per_round` wrote about its round, if it did:
/// `{"weight": 120, "metrics": {"loss": 0.3}}` or plain `{"num_samples": 120, "loss": 0.3}`.
pub(crate) fn metrics(path: &Path) -> Result<(Option<f64>, BTreeMap<String, f64>), String> {
    let wrong = |why: String| format!("the metrics file {}: {why}", path.display());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((None, BTreeMap::new())),
        Err(error) => return Err(wrong(error.to_string())),
    };
    let mut text = String::new();
    file.take(METRICS_LIMIT).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    let found: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let mut metrics = BTreeMap::new();
    let mut weight = None;
    for (name, value) in &found {
        match (name.as_str(), value.as_f64(), value.as_object()) {
            ("weight", Some(value), _) => weight = Some(value),
            ("metrics", _, Some(inner)) => {
                metrics
                    .extend(inner.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))));
            }
            (_, Some(value), _) => {
                metrics.insert(name.clone(), value);
            }
            _ => return Err(wrong(format!("{name:?} is not a number"))),
        }
    }
    few(&metrics).map_err(wrong)?;
    Ok((weight, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polder_workflow::Dtype;

    fn model(values: &[f32]) -> Vec<u8> {
        let header = Header::build([("w", Dtype::F32, &[values.len() as u64][..])]).expect("a header");
        let mut bytes = header.to_bytes();
        bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }

    #[test]
    fn only_regular_files_below_out_are_taken() {
        let dir = tempfile::tempdir().expect("a folder");
        let run = dir.path();
        std::fs::create_dir_all(run.join("out/deep")).expect("made");
        std::fs::write(run.join("secret"), model(&[1.0])).expect("written");
        std::fs::write(run.join("out/m"), model(&[1.0])).expect("written");
        std::fs::write(run.join("out/deep/m"), model(&[1.0])).expect("written");
        std::os::unix::fs::symlink("../secret", run.join("out/link")).expect("made");
        std::os::unix::fs::symlink(".", run.join("out/dir")).expect("made");
        std::fs::hard_link(run.join("secret"), run.join("out/hard")).expect("made");
        let absolute = run.join("out/m").display().to_string();
        for good in ["out/m", "./out/m", "out/deep/m", &absolute] {
            assert!(take(run, good, None).is_ok(), "{good}");
        }
        for (bad, part) in [
            ("secret", "allowed is a file below"),
            ("out/../secret", "allowed is a file below"),
            ("/etc/passwd", "allowed is a file below"),
            ("../../etc/passwd", "allowed is a file below"),
            ("out", "allowed is a file below"),
            ("out/none", "No such file"),
            ("out/link", "a link"),
            ("out/dir/m", "a link"),
            ("out/deep", "not a regular file"),
            ("out/hard", "with one name"),
        ] {
            let error = take(run, bad, None).expect_err(bad);
            assert!(error.contains(part), "{bad}: {error}");
        }
    }

    #[test]
    fn small_models_ride_along_and_large_ones_are_named() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("out")).expect("made");
        std::fs::write(dir.path().join("out/small"), model(&[1.0])).expect("written");
        std::fs::write(dir.path().join("out/large"), model(&[1.0; 20_000])).expect("written");
        let payload = |path| take(dir.path(), path, None).expect("taken").payload;
        assert_eq!(payload("out/small"), Payload::Inline { data: BASE64.encode(model(&[1.0])) });
        assert_eq!(payload("out/large"), Payload::File { path: "out/large".to_owned(), blob: None });
    }

    #[test]
    fn a_wrong_model_is_named_by_its_tensor() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("out")).expect("made");
        let wanted = Model::from_bytes(model(&[0.0; 2])).expect("a model");
        for (bytes, part) in [
            (model(&[1.0, f32::NAN]), r#"tensor "w" holds NaN at position 1"#),
            (model(&[1.0]), r#"tensor "w" has shape [1] where the model has [2]"#),
            (b"no model at all".to_vec(), "header"),
            (Vec::new(), "no safetensors file"),
        ] {
            std::fs::write(dir.path().join("out/m"), bytes).expect("written");
            let error = take(dir.path(), "out/m", Some(wanted.header())).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn metrics_of_a_round_in_either_form() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("metrics.json");
        assert_eq!(metrics(&path), Ok((None, BTreeMap::new())));
        let loss = BTreeMap::from([("loss".to_owned(), 0.5)]);
        std::fs::write(&path, r#"{"weight": 12, "metrics": {"loss": 0.5}}"#).expect("written");
        assert_eq!(metrics(&path), Ok((Some(12.0), loss.clone())));
        std::fs::write(&path, r#"{"loss": 0.5}"#).expect("written");
        assert_eq!(metrics(&path), Ok((None, loss)));
        for bad in ["[]", "{\"loss\": NaN}", "{\"loss\": \"low\"}"] {
            std::fs::write(&path, bad).expect("written");
            assert!(metrics(&path).expect_err(bad).contains("metrics.json"));
        }
    }
}
