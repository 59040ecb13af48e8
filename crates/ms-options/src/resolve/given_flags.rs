//! Flags as written on a command line, whatever they mean.

use ms_cli::Usage;
use ms_cli::megatron::{Entry, Options, Reader};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The flags that were given.
#[derive(Clone, Debug)]
pub(crate) struct GivenFlags {
    /// As checkpoints keep them.
    pub(crate) record: Map<String, Value>,
    /// How they were spelled.
    pub(crate) flags: BTreeSet<&'static str>,
}

impl Options for GivenFlags {
    fn entries() -> Vec<Entry> {
        Vec::new()
    }

    fn read(from: &Reader<'_>) -> Result<Self, Usage> {
        let args = from.args();
        let flags = args.written_flags().map(|(_, flag)| flag).collect();
        Ok(Self { record: args.record().clone(), flags })
    }
}
