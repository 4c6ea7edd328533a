//! The directory of external resource types, from the command line or the environment.

use std::path::PathBuf;

use clap::Args;

use crate::cli::error::{CliError, Exit};
use crate::diag::Diagnostic;
use crate::diag::error_chain;
use crate::host::Host;
use crate::resource::Types;

/// The variable with the directory of external types.
pub const VARIABLE: &str = "ENSIGN_TYPES";

/// The directory of external resource types.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct TypesArgs {
    /// Directory of external resource types: each executable file is a type.
    #[arg(long = "types", value_name = "DIR", env = VARIABLE, hide_env_values = true, global = true)]
    pub types: Option<PathBuf>,
}

impl TypesArgs {
    /// Reads the types of the directory; those of this program alone without one.
    ///
    /// # Errors
    /// When a program of the directory is no type.
    pub fn read(&self) -> Result<Types, CliError> {
        let Some(directory) = self.types.as_ref().filter(|directory| !directory.as_os_str().is_empty()) else {
            return Ok(Types::default());
        };
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.clone());
        let (types, invalid) = Types::read(&directory, &Host::system(None));
        if invalid.is_empty() {
            return Ok(types);
        }
        let diagnostics = invalid.iter().map(|invalid| Diagnostic::new(error_chain(invalid))).collect();
        Err(CliError { exit: Exit::Usage, diagnostics })
    }
}
