//! The demo's trainer: logistic regression on a site's own patients.
//!
//! ```text
//! polder-demo-trainer [--data FILE] [--seed N] [--steps N] [--rate X]   as a job's trainer (mode: session)
//! polder-demo-trainer split --seed N --out FOLDER                       a CSV file for each site, and held-out.csv
//! polder-demo-trainer evaluate --model FILE --data FILE                 accuracy of a model on some rows
//! polder-demo-trainer baselines --seed N                                each site alone, and all rows pooled
//! ```
//! The site's rows are in the file that `--data` or the variable `DATA` names; the site sets that variable,
//! not the job.

use anyhow::{Context as _, Result, bail};
use polder_demo_trainer::logistic::{Examples, Model, Options, ROUNDS, baselines};
use polder_demo_trainer::session::Session;
use polder_demo_trainer::{data, split};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    let command =
        if args.first().is_some_and(|arg| !arg.starts_with("--")) { args.remove(0) } else { String::new() };
    let mut given = BTreeMap::new();
    for pair in args.chunks(2) {
        let [name, value] = pair else { bail!("{} needs a value", pair[0]) };
        let name = name.strip_prefix("--").with_context(|| format!("{name:?} is not an option"))?;
        given.insert(name.to_owned(), value.clone());
    }
    let number = |given: &mut BTreeMap<String, String>, name: &str| -> Result<Option<f64>> {
        given.remove(name).map(|text| text.parse().with_context(|| format!("--{name} {text}"))).transpose()
    };
    let path = |given: &mut BTreeMap<String, String>, name: &str| given.remove(name).map(PathBuf::from);
    let seed = given.remove("seed").map(|text| text.parse().context("--seed")).transpose()?.unwrap_or(0);
    let mut options = Options::default();
    if let Some(rate) = number(&mut given, "rate")? {
        options.rate = rate;
    }
    if let Some(steps) = given.remove("steps") {
        options.steps = steps.parse().context("--steps")?;
    }
    let rows = path(&mut given, "data").or_else(|| std::env::var_os("DATA").map(PathBuf::from));
    let (out, model) = (path(&mut given, "out"), path(&mut given, "model"));
    if let Some(name) = given.keys().next() {
        bail!("unknown option --{name}");
    }
    let need = |path: Option<PathBuf>, what: &str| path.with_context(|| format!("{what} is missing"));
    match command.as_str() {
        "" => train(&need(rows, "--data or the variable DATA")?, seed, options),
        "split" => write_split(seed, &need(out, "--out")?),
        "evaluate" => {
            let examples = Examples::new(&data::load(&need(rows, "--data")?)?);
            println!("{}", Model::load(&need(model, "--model")?)?.accuracy(&examples));
            Ok(())
        }
        "baselines" => {
            let found = baselines(&split::split(seed), seed, ROUNDS, options);
            for (site, accuracy) in &found.sites {
                println!("{site} alone: {accuracy:.4}");
            }
            println!("pooled: {:.4}", found.pooled);
            Ok(())
        }
        other => bail!("unknown command {other:?}; there are split, evaluate and baselines"),
    }
}

fn write_split(seed: u64, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let split = split::split(seed);
    for (site, rows) in &split.sites {
        data::save(&out.join(format!("{site}.csv")), rows)?;
    }
    data::save(&out.join("held-out.csv"), &split.held_out)
}

fn train(rows: &Path, seed: u64, options: Options) -> Result<()> {
    let examples = Examples::new(&data::load(rows)?);
    let mut session = Session::connect()?;
    println!("{} patients at {}", examples.len(), session.site);
    while let Some(task) = session.receive()? {
        // Two names in turn: the last round's file may still be read.
        let out = session.out.join(format!("model-{}.safetensors", task.round % 2));
        let Some(path) = &task.model else {
            Model::start(seed).save(&out)?;
            session.send(&out, examples.len() as f64, &[])?;
            continue;
        };
        let global = Model::load(path)?;
        let metrics = [("accuracy", global.accuracy(&examples)), ("loss", global.loss(&examples))];
        global.train(&examples, options).save(&out)?;
        println!(
            "round {} of {}: accuracy {:.4}, loss {:.4}",
            task.round, task.total_rounds, metrics[0].1, metrics[1].1
        );
        session.send(&out, examples.len() as f64, &metrics)?;
    }
    Ok(())
}
