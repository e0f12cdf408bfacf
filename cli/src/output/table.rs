//! Tables whose columns align, without lines.

use super::units::one_line;
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Grid};

/// A table under construction.
pub(crate) struct Table(Grid);

impl Table {
    /// A table with these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut grid = Grid::new();
        grid.load_style(NOTHING).set_header(headings);
        Self(grid)
    }

    /// A table of facts: a word on the left, its value on the right.
    pub(crate) fn facts() -> Self {
        let mut grid = Grid::new();
        grid.load_style(NOTHING);
        Self(grid)
    }

    /// Adds a row.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Self {
        self.0.add_row(cells.into_iter().map(|cell| one_line(&cell.into())).collect::<Vec<String>>());
        self
    }

    /// Puts a column's cells to the right, as numbers want.
    pub(crate) fn right(mut self, column: usize) -> Self {
        if let Some(column) = self.0.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        self
    }

    /// The text, each line ended, no space at line ends.
    pub(crate) fn print(mut self) -> String {
        for column in self.0.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut text = String::new();
        for line in self.0.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_whatever_the_letters() {
        let mut table = Table::new(&["SITE", "ROUND", "WHY"]).right(1);
        table.row(["hôpital", "1", ""]).row(["uni", "12", "3 GPUs free of 8"]);
        assert_eq!(table.print(), "SITE     ROUND  WHY\nhôpital      1\nuni         12  3 GPUs free of 8\n");
    }
}
