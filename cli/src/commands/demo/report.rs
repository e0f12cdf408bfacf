//! What the demo says.

use crate::output::table::Table;
use crate::state::Login;
use polder_demo_trainer::data::Row;
use polder_demo_trainer::logistic::Baselines;
use polder_demo_trainer::split::Split;
use serde::Serialize;
use std::path::Path;

/// Who has which patients.
#[derive(Serialize)]
pub(super) struct Data {
    event: &'static str,
    seed: u64,
    sites: Vec<Group>,
    held_out: Group,
}

#[derive(Serialize)]
struct Group {
    name: String,
    patients: usize,
    malignant: usize,
}

impl Group {
    fn of(name: &str, rows: &[Row]) -> Self {
        let malignant = rows.iter().filter(|row| row.malignant).count();
        Self { name: name.to_owned(), patients: rows.len(), malignant }
    }

    fn row(&self) -> [String; 3] {
        let percent = (self.malignant * 100 + self.patients / 2) / self.patients.max(1);
        [self.name.clone(), self.patients.to_string(), format!("{percent} %")]
    }
}

impl Data {
    pub(super) fn of(split: &Split, seed: u64) -> Self {
        Self {
            event: "data",
            seed,
            sites: split.sites.iter().map(|(name, rows)| Group::of(name, rows)).collect(),
            held_out: Group::of("held out", &split.held_out),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new(&["SITE", "PATIENTS", "MALIGNANT"]).right(1).right(2);
        for group in self.sites.iter().chain([&self.held_out]) {
            table.row(group.row());
        }
        format!(
            "study pathology: is a tumour benign or malignant? (seed {} splits the data)\n\n{}",
            self.seed,
            table.print()
        )
    }
}

/// The contract's last line.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Of the federation's model, on patients nobody trained on.
    pub(super) accuracy: f64,
    /// Of the best model a site makes alone.
    pub(super) best_single_site: f64,
    /// Of a model of all data in one place.
    pub(super) pooled: f64,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
}

impl Report {
    pub(super) fn text(&self, compared: &Baselines, held_out: usize, dir: &Path) -> String {
        let mut table = Table::new(&["MODEL", "ACCURACY"]).right(1);
        for (site, accuracy) in &compared.sites {
            table.row([format!("{site} alone"), format!("{accuracy:.4}")]);
        }
        table.row(["the three sites, federated".to_owned(), format!("{:.4}", self.accuracy)]);
        table.row(["all data in one place".to_owned(), format!("{:.4}", self.pooled)]);
        format!(
            "\non the {held_out} patients nobody trained on:\n\n{}\n\
             {} rounds, {:.1} s in all; no patient left its site.\n\
             model    {}\nrecord   {}  (who trained what with which code, signed)\n",
            table.print(),
            self.rounds,
            self.seconds,
            dir.join("model.safetensors").display(),
            dir.join("provenance.json").display(),
        )
    }
}

/// What to do after a demo that left nothing running.
pub(super) const NEXT: &str = "
nothing was left running. Try next:
  polder demo --keep             leave the federation up and use it yourself
  polder demo --trainer numpy    the same in Python
  polder demo --seed 7           other patients at each site
  polder simulate FOLDER         your own job on this machine
";

/// What to do with a federation that was kept.
pub(super) fn kept(login: &Login, dir: &Path) -> String {
    format!(
        "
the federation is still up. Use it:
  export POLDER_KIT={} POLDER_STUDY={}
  polder sites
  polder submit {} --wait
  polder jobs
stop it and remove its folder:
  polder demo --stop
",
        login.kit.display(),
        login.study,
        dir.join("job").display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_reads() {
        let data = Data::of(&polder_demo_trainer::split::split(0), 0);
        let compared = Baselines {
            sites: vec![("hospital-a", 0.7412), ("hospital-b", 0.9254), ("university", 0.8991)],
            best_single_site: 0.9254,
            pooled: 0.9737,
        };
        let report =
            Report { accuracy: 0.9649, best_single_site: 0.9254, pooled: 0.9737, rounds: 20, seconds: 2.345 };
        let text = report.text(&compared, 228, Path::new("/home/ada/.local/state/polder/demo"));
        let login = Login { kit: "/tmp/x/kit".into(), study: "pathology".parse().expect("a name") };
        insta::assert_snapshot!(format!("{}{text}{NEXT}{}", data.text(), kept(&login, Path::new("/tmp/x"))));
        insta::assert_json_snapshot!(report);
    }
}
