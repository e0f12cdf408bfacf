//! `demo`, `simulate`, `completions`: what needs no federation.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Who trains in the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrainerKind {
    /// A small Rust program; needs nothing else
    Rust,
    /// The same in Python with numpy
    Numpy,
}

/// `polder demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder demo                  train, compare, leave nothing running
  polder demo --seed 7         split the data in another way
  polder demo --keep           leave the federation up, and say how to use and stop it
  polder demo --stop           stop it

A study `pathology` across hospital-a, hospital-b and university learns to tell
benign from malignant tumours (Wisconsin diagnostic breast-cancer data, 569 cases).
Everything is real: certificates, TLS, parents, workers, signed orders. All of it
lies in one temporary folder.")]
pub(crate) struct DemoArgs {
    /// Leave the federation up
    #[arg(long, conflicts_with = "stop")]
    pub(crate) keep: bool,
    /// Stop the federation that --keep left up
    #[arg(long)]
    pub(crate) stop: bool,
    /// Splits the data and seeds the training
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Who trains
    #[arg(long, value_name = "KIND", value_enum, default_value_t = TrainerKind::Rust)]
    pub(crate) trainer: TrainerKind,
    /// How many rounds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Shuffle the labels of the training data: what is learnt must then be worth nothing
    #[arg(long, hide = true)]
    pub(crate) shuffled_labels: bool,
}

/// `polder simulate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder simulate my-job --sites 3
  polder simulate my-job --sites 2 --env DATA=/data/{site}.csv -o results

The job runs as it would in a federation (parents, workers, TLS, a signed order),
with processes of this machine for sites. The sites are those deploy_map names, or
site-1 to site-N for @ALL.")]
pub(crate) struct SimulateArgs {
    /// The job's folder
    #[arg(value_name = "JOB")]
    pub(crate) job: PathBuf,
    /// How many sites
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) sites: u32,
    /// A variable for the trainers; {site} stands for the site's name, {n} for its number from 1
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Folder for the results [default: the job's name and id]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("a variable is written NAME=VALUE".to_owned()),
    }
}

/// `polder completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  polder completions bash > ~/.local/share/bash-completion/completions/polder
  polder completions zsh > ~/.zfunc/_polder
  polder completions fish > ~/.config/fish/completions/polder.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
