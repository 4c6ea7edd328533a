//! The directory of external types. Each executable file in it is a type.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::definition::Definition;
use super::description::{Description, InvalidDescription, is_name};
use super::external_type::ExternalType;
use super::program::{Program, ProgramError};
use crate::host::Host;
use crate::host::command::is_executable;
use crate::host::fs::{self, FsError};

/// A program that is no type.
#[derive(Debug, thiserror::Error)]
pub enum InvalidType {
    /// The directory or the program can't be read, or others can change it.
    #[error("cannot use {} as {}", path.display(), if *is_directory { "the directory of types" } else { "a type" })]
    File {
        /// The file or directory.
        path: PathBuf,
        /// True for the directory of all types.
        is_directory: bool,
        /// The cause.
        #[source]
        source: FsError,
    },
    /// The name of the file is no name of a type.
    #[error("cannot use {} as a type: a name has at most 63 of a-z, 0-9 and _, and begins with a letter", .0.display())]
    Name(PathBuf),
    /// The name belongs to another type.
    #[error("cannot use {} as a type: {} has the same name; hint: rename the file", path.display(), other)]
    Taken {
        /// The program.
        path: PathBuf,
        /// The other type.
        other: String,
    },
    /// The program did not describe itself.
    #[error("cannot use {} as a type: its description failed", path.display())]
    Call {
        /// The program.
        path: PathBuf,
        /// The cause.
        #[source]
        source: ProgramError,
    },
    /// The description is wrong.
    #[error("cannot use {} as a type: its description is wrong", path.display())]
    Description {
        /// The program.
        path: PathBuf,
        /// The cause.
        #[source]
        source: InvalidDescription,
    },
}

/// The types of a directory, and the programs that are none.
#[derive(Default)]
pub struct ExternalTypes {
    /// The types by name.
    pub types: BTreeMap<String, ExternalType>,
    /// The reasons for the others.
    pub invalid: Vec<InvalidType>,
}

/// Reads a directory of types: runs every program once, to describe itself.
///
/// `is_built_in` is true for the names of other types. Files that are not executable are no types.
pub fn read_directory(directory: &Path, is_built_in: impl Fn(&str) -> bool, host: &Host) -> ExternalTypes {
    let mut found = ExternalTypes::default();
    let file =
        |path: &Path, is_directory: bool, source: FsError| InvalidType::File { path: path.to_owned(), is_directory, source };
    let listed = fs::check_trusted(directory).and_then(|()| fs::list(directory));
    let mut files = match listed {
        Ok(files) => files,
        Err(source) => {
            found.invalid.push(file(directory, true, source));
            return found;
        }
    };
    files.sort();
    for path in files.into_iter().filter(|path| !is_hidden(path) && is_executable(path)) {
        let Some(name) = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_name(stem)).map(str::to_owned) else {
            found.invalid.push(InvalidType::Name(path));
            continue;
        };
        let other = found.types.get(&name).map(|other| other.program().display().to_string());
        if let Some(other) = other.or_else(|| is_built_in(&name).then(|| format!("the built-in type {name}"))) {
            found.invalid.push(InvalidType::Taken { path, other });
            continue;
        }
        match read_type(&name, &path, host) {
            Ok(kind) => drop(found.types.insert(name, kind)),
            Err(invalid) => found.invalid.push(invalid),
        }
    }
    found
}

fn read_type(name: &str, path: &Path, host: &Host) -> Result<ExternalType, InvalidType> {
    let file = |source| InvalidType::File { path: path.to_owned(), is_directory: false, source };
    fs::check_trusted(path).map_err(file)?;
    let program = Program::at(path.to_owned()).map_err(file)?;
    let described = program.describe(host).map_err(|source| InvalidType::Call { path: path.to_owned(), source })?;
    let description =
        Description::read(&described).map_err(|source| InvalidType::Description { path: path.to_owned(), source })?;
    Ok(ExternalType::new(Definition::new(name.to_owned(), program, description)))
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'))
}
