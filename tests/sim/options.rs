//! The flags.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;
use ensign::model::HumanDuration;

/// A fleet in one process: the network half of many agents, whose commands end as a seed says.
#[derive(Debug, Parser)]
#[command(name = "ensign-sim")]
pub(crate) struct Options {
    /// How many nodes.
    #[arg(long, default_value_t = 100)]
    pub(crate) nodes: u32,
    /// The number of the first node: sim00001 is number 1. With it, several processes can share a fleet: each may open
    /// as many files as the system lets one process, and a node needs four.
    #[arg(long, default_value_t = 1)]
    pub(crate) first: u32,
    /// The server.
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    pub(crate) server: String,
    /// The fleet.
    #[arg(long, value_name = "NAME")]
    pub(crate) fleet: String,
    /// The `[trust]` table that `ensign trust init` prints, in a file; the bundle that it names is beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) trust: PathBuf,
    /// Which share of the nodes is in which group.
    #[arg(long, value_name = "NAME:SHARE,...", value_delimiter = ',')]
    pub(crate) groups: Vec<Group>,
    /// The share of commands that fail.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) fail_rate: Share,
    /// The share of commands that change something.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    pub(crate) change_rate: Share,
    /// The share of commands in which the node falls silent: its connection is cut when the work begins, and does not come
    /// back.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) silent_rate: Share,
    /// The share of nodes that are stopped once they were there.
    #[arg(long, value_name = "SHARE", default_value = "0%")]
    pub(crate) offline_rate: Share,
    /// How long a command takes: from this to that.
    #[arg(long, value_name = "FROM..TO", default_value = "50ms..2s")]
    pub(crate) work: Between,
    /// Everything that is made up follows from it.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Time between two heartbeats of a node.
    #[arg(long, default_value = "30s")]
    pub(crate) heartbeat: HumanDuration,
    /// Time between two counts of stable runs of a node.
    #[arg(long, default_value = "1h")]
    pub(crate) stable_interval: HumanDuration,
    /// Where the nodes keep ledgers and outboxes, and find them again; a directory that is removed at the end when not given.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Keeps them in memory (/dev/shm), where writing through to the disk costs nothing: ten thousand nodes have ten
    /// thousand disks, this machine has one.
    #[arg(long, conflicts_with = "state_dir")]
    pub(crate) no_fsync: bool,
    /// Threads that all nodes share.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Logs what every node logs, on standard error.
    #[arg(long)]
    pub(crate) verbose: bool,
}

/// A share: `2%` or `0.02`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
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
    pub(crate) share: Share,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, share) = text.split_once(':').ok_or_else(|| format!("\"{text}\" is not NAME:SHARE, as web:30%"))?;
        Ok(Self { name: name.to_owned(), share: share.parse()? })
    }
}

/// A time between two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Between {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

impl FromStr for Between {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let time = |text: &str| text.parse::<HumanDuration>().map(HumanDuration::get).map_err(|error| error.to_string());
        let (from, to) = (time(from)?, time(to)?);
        if from > to { Err(format!("\"{text}\" ends before it begins")) } else { Ok(Self { from, to }) }
    }
}
