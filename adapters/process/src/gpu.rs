//! Which GPUs there are.

use crate::settings::Gpus;
use polder_launch::DeviceId;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long `nvidia-smi` may take; it hangs when a driver does.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ids, as `CUDA_VISIBLE_DEVICES` wants them; and what went wrong, in words.
pub async fn list(gpus: &Gpus) -> (Vec<DeviceId>, Option<String>) {
    match gpus {
        Gpus::Ids(ids) => (ids.iter().map(|id| DeviceId(id.clone())).collect(), None),
        Gpus::Auto => {
            // The driver's own list costs nothing; `nvidia-smi` may take a second.
            if let Some(ids) = from_driver(Path::new("/proc/driver/nvidia/gpus")) {
                return (ids, None);
            }
            let asked = tokio::task::spawn_blocking(|| {
                let mut command = Command::new("nvidia-smi");
                command.args(["--query-gpu=uuid", "--format=csv,noheader"]);
                command.stdin(Stdio::null()).stderr(Stdio::null()).output()
            });
            match tokio::time::timeout(PATIENCE, asked).await {
                Ok(Ok(Ok(output))) if output.status.success() => {
                    (parse(&String::from_utf8_lossy(&output.stdout)), None)
                }
                // No such program: no such GPUs.
                Ok(Ok(Err(error))) if error.kind() == std::io::ErrorKind::NotFound => (Vec::new(), None),
                Ok(Ok(Ok(output))) => (Vec::new(), Some(format!("nvidia-smi ended with {}", output.status))),
                Ok(Ok(Err(error))) => (Vec::new(), Some(format!("nvidia-smi: {error}"))),
                Ok(Err(error)) => (Vec::new(), Some(format!("nvidia-smi: {error}"))),
                Err(_) => (Vec::new(), Some(format!("nvidia-smi did not answer in {PATIENCE:?}"))),
            }
        }
    }
}

/// What the driver lists; `None` when it does not, or does not know an id yet.
fn from_driver(folder: &Path) -> Option<Vec<DeviceId>> {
    let mut found = Vec::new();
    for gpu in fs::read_dir(folder).ok()? {
        let gpu = gpu.ok()?;
        let text = fs::read_to_string(gpu.path().join("information")).ok()?;
        let uuid = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?.trim();
        if !uuid.starts_with("GPU-") || uuid.contains('?') {
            return None;
        }
        found.push((gpu.file_name(), DeviceId(uuid.to_owned())));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Some(found.into_iter().map(|(_, id)| id).collect())
}

fn parse(text: &str) -> Vec<DeviceId> {
    let uuid = |line: &&str| line.starts_with("GPU-") || line.starts_with("MIG-");
    text.lines().map(str::trim).filter(uuid).map(|line| DeviceId(line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_lists_by_bus() {
        let dir = tempfile::tempdir().expect("a folder");
        assert_eq!(from_driver(&dir.path().join("none")), None);
        assert_eq!(from_driver(dir.path()), Some(Vec::new()));
        let gpu = |bus: &str, uuid: &str| {
            fs::create_dir_all(dir.path().join(bus)).expect("a folder");
            let text = format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n");
            fs::write(dir.path().join(bus).join("information"), text).expect("a file");
        };
        gpu("0000:41:00.0", "GPU-b");
        gpu("0000:01:00.0", "GPU-a");
        assert_eq!(from_driver(dir.path()), Some(vec![DeviceId("GPU-a".into()), DeviceId("GPU-b".into())]));
        gpu("0000:81:00.0", "GPU-????????-????");
        assert_eq!(from_driver(dir.path()), None, "not known yet");
    }

    #[tokio::test]
    async fn lists() {
        assert_eq!(
            parse("GPU-1a2b\n GPU-3c4d \nFailed to initialize NVML\n"),
            [DeviceId("GPU-1a2b".into()), DeviceId("GPU-3c4d".into())]
        );
        let (ids, wrong) = list(&Gpus::Ids(vec!["0".into(), "1".into()])).await;
        assert_eq!((ids.len(), wrong), (2, None));
    }
}
