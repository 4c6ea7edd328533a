//! `ensign completions` and `ensign man`: generated from the definition of the parser.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::host::fs;

use super::error::{CliError, Exit};
use super::ui::{Ui, text};

/// Print the completions for a shell.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page of a command, or write the pages of all commands.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Command of the page, as `apply` or `fleet status`; `ensign` itself by default.
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// Directory for the pages of all commands, as `ensign-fleet-status.1`.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    directory: Option<PathBuf>,
}

/// Runs `ensign completions`.
pub fn completions(args: &CompletionsArgs, mut command: Command, ui: &mut Ui) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "ensign", &mut script);
    ui.data(&script);
    Exit::Success
}

/// Runs `ensign man`.
pub fn man(args: &ManArgs, mut command: Command, ui: &mut Ui) -> Result<Exit, CliError> {
    // Gives every command its full name and the inherited options.
    command.build();
    if let Some(directory) = &args.directory {
        let pages = write_pages(&command, "ensign", directory)?;
        ui.line(text!("wrote {} pages to {}", pages, directory.display()));
        return Ok(Exit::Success);
    }
    let mut wanted = &command;
    let mut name = "ensign".to_owned();
    for word in &args.command {
        wanted = wanted.find_subcommand(word).ok_or_else(|| {
            CliError::usage(format!("unknown command `{name} {word}`")).hint(format!("{name} --help lists the commands"))
        })?;
        name = format!("{name} {}", wanted.get_name());
    }
    ui.data(&man_page(wanted, &name.replace(' ', "-"))?);
    Ok(Exit::Success)
}

fn write_pages(command: &Command, name: &str, directory: &Path) -> Result<usize, CliError> {
    let failed = |error: crate::host::FsError| CliError::from_error(Exit::Failed, &error);
    let page = man_page(command, name)?;
    let spec = fs::WriteSpec { uid: None, gid: None, mode: 0o644 };
    fs::write_atomic(&directory.join(format!("{name}.1")), &mut page.as_slice(), spec).map_err(failed)?;
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below
        .map(|below| write_pages(below, &format!("{name}-{}", below.get_name()), directory))
        .try_fold(1, |sum, pages| Ok(sum + pages?))
}

fn man_page(command: &Command, name: &str) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone().name(name.to_owned()).display_name(name.to_owned()));
    man.render(&mut page).map_err(|error| CliError::from_error(Exit::Failed, &error))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn every_command_has_a_page_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("ensign")
            .subcommand(Command::new("fleet").subcommand(Command::new("status").arg(Arg::new("x").long("deep"))));
        command.build();
        // `help` is a command too.
        let pages = write_pages(&command, "ensign", directory.path()).unwrap();
        let page = std::fs::read_to_string(directory.path().join("ensign-fleet-status.1")).unwrap();
        assert!(page.contains(".TH ensign-fleet-status 1") && page.contains("deep"), "{page}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), pages);
    }
}
