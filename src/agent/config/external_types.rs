//! The external resource types of the configuration: read at the start, and again with every reload.

use crate::config::AgentSettings;
use crate::diag::error_chain;
use crate::host::Host;
use crate::resource::Types;

/// Reads the types of the configured directory. Returns also the reasons for the programs that are no types.
pub fn read_types(settings: &AgentSettings) -> (Types, Option<String>) {
    let Some(directory) = &settings.types.dir else { return (Types::default(), None) };
    let (types, invalid) = Types::read(directory, &Host::system(None));
    let reasons: Vec<String> = invalid.iter().map(|invalid| error_chain(invalid)).collect();
    (types, (!reasons.is_empty()).then(|| reasons.join("; ")))
}
