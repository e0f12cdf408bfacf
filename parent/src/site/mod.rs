//! The role of a site: keeps the link to the server, judges orders by its own rules, launches, and lets out what the
//! study's export policy allows.

use crate::boot::Ground;
use tokio_util::sync::CancellationToken;

/// Runs a site until it is stopped.
pub(crate) async fn serve(_ground: Ground, _stop: CancellationToken) -> anyhow::Result<()> {
    anyhow::bail!("role: site is not there yet")
}
