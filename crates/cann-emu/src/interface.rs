//! The table of the interface, `interface.tsv`, which `xtask/cann/generate.py` writes: every function with its libraries. The
//! build script makes the entry points from the same table.

/// A function, or an operator with both its phases.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The function, or the operator's second phase.
    pub symbol: &'static str,
    /// Its libraries in 8.1 and in 9.1, separated by `|`; `-` where a release does not have it.
    pub libraries: [&'static str; 2],
    /// `operator`, `function`, or `absent` for what the emulator exports and does not have.
    pub kind: &'static str,
    /// Of an operator, `name:class` for each argument of the first phase but the last two; of a function, classes.
    pub arguments: &'static str,
}

/// All rows.
pub fn rows() -> impl Iterator<Item = Row> {
    include_str!("../interface.tsv").lines().skip(1).filter_map(|line| {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let [symbol, old, new, kind, _, arguments] = fields[..] else { return None };
        Some(Row { symbol, libraries: [old, new], kind, arguments })
    })
}

impl Row {
    /// What the libraries export for it.
    pub fn symbols(&self) -> impl Iterator<Item = String> {
        let first = (self.kind == "operator").then(|| format!("{}GetWorkspaceSize", self.symbol));
        first.into_iter().chain([self.symbol.to_owned()])
    }
}
