//! What was measured, beside what was aimed at and what FLARE takes for the same work.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Value, json};

/// One figure.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// Which part of the benchmark it is of.
    pub(crate) part: &'static str,
    /// What was measured.
    pub(crate) what: String,
    /// In which unit.
    pub(crate) unit: &'static str,
    /// The median, or the one value.
    pub(crate) value: f64,
    /// Lowest and highest, where there were several.
    pub(crate) range: Option<(f64, f64)>,
    /// At most this.
    pub(crate) target: Option<f64>,
    /// FLARE 2.9.0, in the same unit, from `docs/performance.md`.
    pub(crate) flare: Option<f64>,
}

impl Figure {
    /// A figure from one or more values.
    pub(crate) fn new(
        part: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        mut values: Vec<f64>,
    ) -> Self {
        values.sort_by(f64::total_cmp);
        let value = if values.is_empty() { f64::NAN } else { median(&values) };
        let range = (values.len() > 1).then(|| (values[0], values[values.len() - 1]));
        Self { part, what: what.into(), unit, value, range, target: None, flare: None }
    }

    /// With a target.
    pub(crate) fn at_most(mut self, target: f64) -> Self {
        self.target = Some(target);
        self
    }

    /// With FLARE's figure.
    pub(crate) fn flare(mut self, value: f64) -> Self {
        self.flare = Some(value);
        self
    }

    /// Whether the target is met; absent without a target.
    pub(crate) fn met(&self) -> Option<bool> {
        self.target.map(|target| self.value <= target)
    }

    fn json(&self) -> Value {
        json!({
            "part": self.part, "what": self.what, "unit": self.unit, "value": self.value,
            "range": self.range, "target": self.target, "met": self.met(), "flare_2_9_0": self.flare,
        })
    }
}

/// The middle of sorted values.
fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) }
}

/// Three significant digits: what such measurements are good for.
fn short(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else if value.abs() >= 1.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

/// For people.
pub(crate) fn print(figures: &[Figure]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header([
            "part",
            "what",
            "unit",
            "measured",
            "range",
            "target",
            "met",
            "FLARE 2.9.0",
            "times better",
        ]);
    for figure in figures {
        let range =
            figure.range.map_or(String::new(), |(low, high)| format!("{}..{}", short(low), short(high)));
        table.add_row([
            figure.part.to_owned(),
            figure.what.clone(),
            figure.unit.to_owned(),
            short(figure.value),
            range,
            figure.target.map_or(String::new(), short),
            figure.met().map_or("", |met| if met { "yes" } else { "NO" }).to_owned(),
            figure.flare.map_or(String::new(), short),
            figure.flare.map_or(String::new(), |flare| short(flare / figure.value)),
        ]);
    }
    for column in [3, 5, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// For programs.
pub(crate) fn document(figures: &[Figure], machine: &Value) -> Value {
    json!({
        "version": 1,
        "machine": machine,
        "figures": figures.iter().map(Figure::json).collect::<Vec<_>>(),
        "missed": figures.iter().filter(|figure| figure.met() == Some(false)).map(|f| &f.what).collect::<Vec<_>>(),
    })
}
