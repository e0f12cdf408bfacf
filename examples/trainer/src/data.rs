//! Patients as rows of a CSV file: 30 measurements and the diagnosis.

use crate::features::{COUNT, NAMES};
use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::path::Path;

/// One patient.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The measurements, as published.
    pub measured: [f64; COUNT],
    /// The diagnosis.
    pub malignant: bool,
}

/// The whole data set. See `examples/data/README.md` for its authors and licence.
#[must_use]
pub fn all() -> Vec<Row> {
    parse(include_str!("../../data/breast_cancer.csv")).expect("the file beside the source is well-formed")
}

/// Reads a site's file.
///
/// # Errors
/// When it cannot be read or is not of the form that [`save`] writes.
pub fn load(path: &Path) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Writes a site's file.
///
/// # Errors
/// When it cannot be written.
pub fn save(path: &Path, rows: &[Row]) -> Result<()> {
    let mut text = NAMES.map(|(name, ..)| name).join(",") + ",malignant\n";
    for row in rows {
        for value in row.measured {
            let _ = write!(text, "{value},");
        }
        let _ = writeln!(text, "{}", u8::from(row.malignant));
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<Row>> {
    let mut lines = text.lines();
    let columns = lines.next().map_or(0, |line| line.split(',').count());
    if columns != COUNT + 1 {
        bail!("line 1 has {columns} columns where {} are expected", COUNT + 1);
    }
    lines.enumerate().map(|(i, line)| row(line).with_context(|| format!("line {}", i + 2))).collect()
}

fn row(line: &str) -> Result<Row> {
    let mut measured = [0.0; COUNT];
    let mut values = line.split(',');
    for slot in &mut measured {
        let text = values.next().context("too few columns")?;
        *slot = text
            .trim()
            .parse()
            .ok()
            .filter(|v: &f64| v.is_finite())
            .with_context(|| format!("{text:?} is no number"))?;
    }
    let malignant = match (values.next().map(str::trim), values.next()) {
        (Some("1"), None) => true,
        (Some("0"), None) => false,
        (found, _) => bail!("the diagnosis is {found:?}; allowed are 0 and 1, in the last column"),
    };
    Ok(Row { measured, malignant })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_is_whole_and_reads_back() {
        let rows = all();
        assert_eq!(rows.len(), 569);
        assert_eq!(rows.iter().filter(|row| row.malignant).count(), 212);
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("site.csv");
        save(&path, &rows[..100]).expect("written");
        assert_eq!(load(&path).expect("read"), rows[..100]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("site.csv");
        save(&path, &all()[..3]).expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        std::fs::write(&path, text.replacen(",1\n", ",2\n", 1)).expect("written");
        let error = format!("{:#}", load(&path).expect_err("a diagnosis of 2"));
        assert!(error.contains("site.csv: line 2: the diagnosis is Some(\"2\")"), "{error}");
    }
}
