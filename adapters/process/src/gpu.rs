//! Which GPUs there are.

use crate::settings::Gpus;
use polder_launch::DeviceId;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long `nvidia-smi` may take; it hangs when a driver does.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ids, as `CUDA_VISIBLE_DEVICES` wants them; and what went wrong, in words.
pub async fn list(gpus: &Gpus) -> (Vec<DeviceId>, Option<String>) {
    match gpus {
        Gpus::Ids(ids) => (ids.iter().map(|id| DeviceId(id.clone())).collect(), None),
        Gpus::Auto => {
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

fn parse(text: &str) -> Vec<DeviceId> {
    let uuid = |line: &&str| line.starts_with("GPU-") || line.starts_with("MIG-");
    text.lines().map(str::trim).filter(uuid).map(|line| DeviceId(line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
