//! `polder-parent`: the daemon of a site or of the server.
//!
//! Arguments, logging and signals are here; everything else is in the role's room.

mod boot;
mod server;
mod session;
mod site;
mod time;
mod workers;

use anyhow::Context as _;
use clap::Parser;
use polder_words::Role;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// The daemon of a site, or of the server of a federation.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// The parent's configuration.
    #[arg(long, value_name = "FILE", default_value = polder_core::parent::FILE)]
    config: PathBuf,
    /// Only look whether everything is as it should be: configuration, kit, launcher.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("POLDER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    // What the parent makes is its own unless it says otherwise, and its memory is nobody's to read: it holds keys.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if let Err(error) = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
    {
        tracing::warn!(%error, "other processes of this account may read this one's memory");
    }
    let (config, folder) = boot::read_config(&arguments.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        if arguments.check {
            return boot::check(&config, &folder).await;
        }
        let role = config.role;
        let ground = boot::Ground::open(config, folder)?;
        let stop = CancellationToken::new();
        tokio::spawn(signals(stop.clone()));
        match role {
            Role::Server => server::serve(ground, stop).await,
            Role::Client => site::serve(ground, stop).await,
        }
    })
}

/// The first TERM or INT stops gracefully, the second at once. Workers go on either way; the next parent adopts them.
async fn signals(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals cannot be caught; stopping will not be graceful");
        return;
    };
    for _ in 0..2 {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if stop.is_cancelled() {
            std::process::exit(1);
        }
        tracing::info!("stopping; workers go on");
        stop.cancel();
    }
}
