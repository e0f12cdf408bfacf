//! What both roles stand on: configuration, kit, locked state, store, audit log and launcher.

use anyhow::Context as _;
use jiff::Timestamp;
use polder_adapters::Places;
use polder_core::parent::ParentConfig;
use polder_launch::Launcher;
use polder_store::{Audit, Sqlite, StateDir};
use polder_transport::identity::{Kind, Kit};
use polder_words::{Epoch, Role};
use ring::rand::SecureRandom as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything a role begins with.
pub(crate) struct Ground {
    /// `parent.yaml`.
    pub(crate) config: ParentConfig,
    /// The folder of `parent.yaml`, absolute: relative paths in it are beside the file.
    pub(crate) folder: PathBuf,
    /// This parent's identity.
    pub(crate) kit: Arc<Kit>,
    /// The state directory, locked.
    pub(crate) state: StateDir,
    /// The database.
    pub(crate) store: Arc<Sqlite>,
    /// The audit log.
    pub(crate) audit: Arc<Audit>,
    /// This run.
    pub(crate) epoch: Epoch,
    /// What workers are launched with.
    pub(crate) launcher: Arc<dyn Launcher>,
    /// The worker binary.
    pub(crate) worker: PathBuf,
}

/// Reads `parent.yaml`; gives it and its folder.
pub(crate) fn read_config(path: &Path) -> anyhow::Result<(ParentConfig, PathBuf)> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let config = ParentConfig::parse(&path.display().to_string(), &bytes)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder =
        std::path::absolute(folder).with_context(|| format!("cannot tell where {} is", folder.display()))?;
    Ok((config, folder))
}

impl Ground {
    /// Opens everything; the state directory is ours afterwards or this fails.
    pub(crate) fn open(config: ParentConfig, folder: PathBuf) -> anyhow::Result<Self> {
        let kind = match config.role {
            Role::Server => Kind::Server,
            Role::Client => Kind::Site,
        };
        let kit = Kit::open_as(&folder.join(&config.kit), kind, Timestamp::now())?;
        anyhow::ensure!(
            kit.identity().name() == config.name.as_str(),
            "parent.yaml: name: is {}, but the kit is of {}; allowed: the name in the kit",
            config.name,
            kit.identity().name()
        );
        let state = StateDir::open(&folder.join(&config.state))?;
        let store = Arc::new(Sqlite::open(state.path())?);
        let audit = Arc::new(Audit::open(&state.path().join("audit.jsonl"))?);
        let worker = worker_program(&config, &folder)?;
        let launcher = launcher(&config, &folder, state.path())?;
        Ok(Self {
            config,
            folder,
            kit: Arc::new(kit),
            state,
            store,
            audit,
            epoch: new_epoch()?,
            launcher,
            worker,
        })
    }
}

/// What workers are launched with, where they run and dial.
fn launcher(config: &ParentConfig, folder: &Path, state: &Path) -> anyhow::Result<Arc<dyn Launcher>> {
    let places = Places {
        state: state.to_owned(),
        kit: folder.join(&config.kit),
        config: folder.join("parent.yaml"),
        sockets: vec![crate::workers::socket_path(state, config.launcher.mode())?],
    };
    Ok(polder_adapters::from_config(config, &places)?)
}

fn worker_program(config: &ParentConfig, folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(polder_adapters::worker_program(&config.launcher));
    anyhow::ensure!(path.is_file(), "{}: the worker program is not there", path.display());
    Ok(path)
}

fn new_epoch() -> anyhow::Result<Epoch> {
    let mut bytes = [0; 8];
    ring::rand::SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(Epoch(bytes))
}

/// `--check`: says of everything whether it is as it should be.
pub(crate) async fn check(config: &ParentConfig, folder: &Path) -> anyhow::Result<()> {
    let kit = Kit::open(&folder.join(&config.kit), Timestamp::now())?;
    println!("kit: {} of {}", kit.identity().principal, kit.info().federation);
    let mut good = true;
    for check in launcher(config, folder, &folder.join(&config.state))?.preflight().await {
        println!("{}: {}: {}", if check.ok { "ok" } else { "NOT OK" }, check.what, check.text);
        good &= check.ok;
    }
    if let Some(listener) = crate::workers::Reach::of(&config.launcher).listen().await?
        && let Some(address) = listener.local_addr()
    {
        println!("ok: workers: may dial {address}");
    }
    anyhow::ensure!(good, "not everything is as it should be");
    Ok(())
}
