//! The flags.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use ensign::model::HumanDuration;

/// A fleet in one process: the network half of many agents. A seed decides how commands end.
#[derive(Debug, Parser)]
#[command(name = "ensign-sim")]
pub(crate) struct Options {
    /// The number of nodes.
    #[arg(long, default_value_t = 100)]
    pub(crate) nodes: u32,
    /// The number of the first node: sim00001 is number 1. Lets several processes share a fleet. The system limits the open
    /// files of a process, and a node needs four.
    #[arg(long, default_value_t = 1)]
    pub(crate) first: u32,
    /// The server.
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    pub(crate) server: String,
    /// The fleet.
    #[arg(long, value_name = "NAME")]
    pub(crate) fleet: String,
    /// The file with the `[trust]` table that `ensign trust init` prints; the bundle that it names is beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: PathBuf,
    /// The share of nodes of each group.
    #[arg(long, value_name = "NAME:SHARE,...", value_delimiter = ',')]
    pub(crate) groups: Vec<Group>,
    /// The share of commands that fail.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) fail_rate: Fraction,
    /// The share of commands that change something.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    pub(crate) change_rate: Fraction,
    /// The share of commands in which the node falls silent: its connection ends when the work begins, for good.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) silent_rate: Fraction,
    /// The share of nodes that stop after they were online.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) offline_rate: Fraction,
    /// The duration of a command: a range.
    #[arg(long, value_name = "FROM..TO", default_value = "50ms..2s")]
    pub(crate) work: DurationRange,
    /// The seed of all random decisions.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Time between two heartbeats of a node.
    #[arg(long, default_value = "30s")]
    pub(crate) heartbeat: HumanDuration,
    /// Time between two counts of stable runs of a node.
    #[arg(long, default_value = "1h")]
    pub(crate) stable_interval: HumanDuration,
    /// The directory for ledgers and outboxes, which the nodes find again. By default, a directory that is removed at the end.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Keeps ledgers and outboxes in memory (/dev/shm), without the cost of fsync. Ten thousand nodes have ten thousand disks,
    /// this machine has one.
    #[arg(long, conflicts_with = "state_dir")]
    pub(crate) no_fsync: bool,
    /// Threads that all nodes share.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Logs the messages of every node, on standard error.
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// A share: `2%` or `0.02`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fraction(pub(crate) f64);

impl FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, whole) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
        match number.parse::<f64>() {
            Ok(number) if (0.0..=whole).contains(&number) => Ok(Self(number / whole)),
            _ => Err(format!("\"{text}\" is not a share, as 2% or 0.02")),
        }
    }
}

/// A group and its share of the nodes.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) share: Fraction,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, share) = text.split_once(':').ok_or_else(|| format!("\"{text}\" is not NAME:SHARE, as web:30%"))?;
        Ok(Self { name: name.to_owned(), share: share.parse()? })
    }
}

/// A duration between two limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DurationRange {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl FromStr for DurationRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let time = |text: &str| text.parse::<HumanDuration>().map(HumanDuration::as_std).map_err(|error| error.to_string());
        let (from, to) = (time(from)?, time(to)?);
        if from > to { Err(format!("\"{text}\" ends before it begins")) } else { Ok(Self { from, to }) }
    }
}
