//! Log settings: `info`, or with levels of single modules, `info,ensign::agent=debug`.
//!
//! The form is that of `RUST_LOG`, which operators of Rust programs know. The command line turns it into a filter.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};

/// Log level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Errors.
    Error,
    /// Errors and warnings.
    Warn,
    /// The actions of the program as well.
    #[default]
    Info,
    /// Details of every action as well.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, from the fewest lines to the most.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// Log settings: a level, and levels of single modules.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct LogSettings {
    /// The level of the program itself. Libraries log warnings and errors only.
    pub level: LogLevel,
    /// Levels of single modules (`ensign::agent`, `async_nats`): the longest matching name wins.
    pub modules: Vec<(String, LogLevel)>,
}

/// An error in log settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// A word that is not a level.
    #[error("\"{0}\" is not a level: expected error, warn, info, debug or trace, alone or as module=level")]
    Level(String),
    /// A text that is not the name of a module.
    #[error("\"{0}\" is not the name of a module, as ensign::agent")]
    Module(String),
    /// Two levels without a module.
    #[error("more than one level has no module")]
    Twice,
}

impl FromStr for LogSettings {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        let mut log = Self::default();
        let mut seen = false;
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None => {
                    let level = level(part)?;
                    if seen {
                        return Err(LogError::Twice);
                    }
                    (log.level, seen) = (level, true);
                }
                Some((module, word)) => {
                    let module = module.trim();
                    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
                    if module.is_empty() || !module.chars().all(fits) {
                        return Err(LogError::Module(module.to_owned()));
                    }
                    log.modules.push((module.to_owned(), level(word.trim())?));
                }
            }
        }
        Ok(log)
    }
}

fn level(word: &str) -> Result<LogLevel, LogError> {
    LogLevel::ALL.into_iter().find(|level| level.to_string() == word).ok_or_else(|| LogError::Level(word.to_owned()))
}

impl fmt::Display for LogSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.level)?;
        self.modules.iter().try_for_each(|(module, level)| write!(f, ",{module}={level}"))
    }
}

impl<'de> Deserialize<'de> for LogSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_apply_to_the_program_or_to_modules() {
        for (text, shown) in [
            ("info", "info"),
            ("debug", "debug"),
            ("warn, ensign::agent=debug", "warn,ensign::agent=debug"),
            ("async_nats=trace", "info,async_nats=trace"),
        ] {
            assert_eq!(text.parse::<LogSettings>().unwrap().to_string(), shown);
        }
        for (text, wrong) in [
            ("loud", LogError::Level("loud".into())),
            ("info,", LogError::Level(String::new())),
            ("ensign::agent=loud", LogError::Level("loud".into())),
            ("info,debug", LogError::Twice),
            ("=debug", LogError::Module(String::new())),
            ("a b=debug", LogError::Module("a b".into())),
        ] {
            assert_eq!(text.parse::<LogSettings>(), Err(wrong), "{text}");
        }
    }
}
