//! `ensign fleet apply`: a manifest or bundle on many nodes, pinned by its digest.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Args;

use crate::fleet::dispatch::next_in_channel;
use crate::fleet::{Order, channels};
use crate::host::fs;
use crate::manifest::bundle;
use crate::wire::Action;
use crate::wire::command::{Apply, Channel, is_token};

use super::super::error::{Exit, Failure};
use super::super::ui::Ui;
use super::plan;
use super::report::send;
use super::session::{Context, Session, failure};
use super::target::TargetArgs;

/// As much as an agent takes, unless it is told otherwise.
const BUNDLE_MAX: u64 = 64 << 20;

/// What is to be applied.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct SourceArgs {
    /// A directory with a manifest.yaml, a bundle, a manifest; or the URL of one, with its digest and size.
    source: Option<String>,
    /// The SHA-256 of what is behind a URL, in hex.
    #[arg(long, value_name = "HEX", requires = "size")]
    sha256: Option<String>,
    /// The size of what is behind a URL, in bytes.
    #[arg(long, value_name = "BYTES", requires = "sha256")]
    size: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    what: ApplyWhat,
    /// Does what a plan said, where nodes would still do the same: the id of the plan, or its file.
    #[arg(long, value_name = "ID|FILE", conflicts_with_all = ["source", "sha256", "size", "channel"])]
    approve: Option<String>,
    #[command(flatten)]
    target: TargetArgs,
}

/// What is to be applied, and in which series.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct ApplyWhat {
    #[command(flatten)]
    source: SourceArgs,
    /// A series of applies: nodes refuse an older one of it after a newer one.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
}

impl ApplyWhat {
    /// The order, and the way to the fleet: what is applied is put where nodes find it.
    ///
    /// # Errors
    /// When something is wrong or missing, or the fleet can't be reached.
    pub(super) async fn order(&self, target: &TargetArgs, context: &Context, ui: &mut Ui) -> Result<(Order, Session), Failure> {
        target.audience()?;
        if let Some(channel) = &self.channel {
            check_channel(channel)?;
        }
        let source = Source::new(&self.source)?;
        let session = context.open().await?;
        let apply = source.pin(&session, ui).await?;
        let channel = match &self.channel {
            Some(name) => Some(next_place(name, &session).await?),
            None => None,
        };
        Ok((target.order(Action::Apply(apply), channel)?, session))
    }
}

pub(super) async fn run(args: ApplyArgs, context: &Context, ui: &mut Ui) -> Result<Exit, Failure> {
    if let Some(approve) = &args.approve {
        return plan::approve(approve, &args.target, context, ui).await;
    }
    let (order, session) = args.what.order(&args.target, context, ui).await?;
    Ok(send(order, &args.target, &session, ui).await?.exit)
}

/// Whether a channel can have this name.
///
/// # Errors
/// When it can't.
pub(super) fn check_channel(name: &str) -> Result<(), Failure> {
    if is_token(name) {
        return Ok(());
    }
    Err(Failure::usage(format!("\"{name}\" is not the name of a channel: 1 to 63 of a-z, 0-9, _ and -")))
}

/// The next place in a channel.
///
/// # Errors
/// When nobody can say what the latest one is.
pub(super) async fn next_place(name: &str, session: &Session) -> Result<Channel, Failure> {
    let states = session.states().await?;
    let desired = channels::desired(&session.bus, &session.subjects).await.map_err(|error| failure(&error))?;
    Ok(next_in_channel(name, &states, desired.get(name).map(|desired| &desired.place)))
}

/// What is to be applied, before it has an address that nodes can reach.
#[derive(Debug, PartialEq)]
pub(in crate::cli) enum Source {
    /// Behind a URL, with what it must be.
    Pinned { url: String, sha256: String, size: u64 },
    /// Here.
    Here { content: Vec<u8>, ending: &'static str },
}

impl Source {
    pub(super) fn new(args: &SourceArgs) -> Result<Self, Failure> {
        let Some(source) = args.source.as_deref() else {
            let hint = "name a directory, a bundle, a manifest or a URL";
            return Err(Failure::usage("what is to be applied is not said").hint(hint));
        };
        if source.contains("://") {
            let (Some(sha256), Some(size)) = (args.sha256.clone(), args.size) else {
                return Err(Failure::usage("a URL needs --sha256 and --size: nodes obey the digest, not the URL").hint(
                    "sha256sum and stat -c %s say both of a file; a directory or file here is uploaded and pinned by itself",
                ));
            };
            return Ok(Self::Pinned { url: source.to_owned(), sha256, size });
        }
        if args.sha256.is_some() {
            return Err(Failure::usage("--sha256 and --size are for URLs"));
        }
        Self::here(Path::new(source))
    }

    /// A directory, bundle or manifest of this machine.
    pub(in crate::cli) fn here(path: &Path) -> Result<Self, Failure> {
        let content = if path.is_dir() {
            bundle::pack(path).map_err(|error| Failure::from_error(Exit::Usage, &error))?
        } else {
            fs::read(path, BUNDLE_MAX).map_err(|error| Failure::from_error(Exit::Usage, &error))?
        };
        if content.len() as u64 > BUNDLE_MAX {
            return Err(Failure::usage(format!("{} has {} bytes; nodes take {BUNDLE_MAX}", path.display(), content.len())));
        }
        let ending = if bundle::is_bundle(&content) { "tar.gz" } else { "yaml" };
        Ok(Self::Here { content, ending })
    }

    /// Puts it where nodes find it, unless it is there.
    pub(in crate::cli) async fn pin(self, session: &Session, ui: &mut Ui) -> Result<Apply, Failure> {
        let (content, ending) = match self {
            Self::Pinned { url, sha256, size } => return Ok(Apply { url, sha256, size, data: BTreeMap::new() }),
            Self::Here { content, ending } => (content, ending),
        };
        let (bucket, sha256) = (session.subjects.bucket(), fs::sha256(&content));
        let key = format!("{sha256}.{ending}");
        let size = content.len() as u64;
        // What has this name has this content: writing it again would only disturb those who read it.
        let there = session.bus.object_size(&bucket, &key).await.map_err(|error| failure(&error))?;
        if there != Some(size) {
            session.bus.object_put(&bucket, &key, &content).await.map_err(|error| failure(&error))?;
        }
        let url = format!("obj://{bucket}/{key}");
        ui.say(format_args!("{url}, {size} bytes"));
        Ok(Apply { url, sha256, size, data: BTreeMap::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(source: &str) -> SourceArgs {
        SourceArgs { source: Some(source.to_owned()), ..SourceArgs::default() }
    }

    #[test]
    fn directories_are_packed_and_urls_need_their_digest() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("manifest.yaml"), "ccm:\n  resources: []\n").unwrap();
        let path = dir.path().to_str().unwrap();
        assert!(matches!(Source::new(&args(path)).unwrap(), Source::Here { ending: "tar.gz", .. }));
        assert!(matches!(Source::new(&args(&format!("{path}/manifest.yaml"))).unwrap(), Source::Here { ending: "yaml", .. }));
        assert!(Source::new(&args("https://x/y")).unwrap_err().diagnostics[0].message.contains("--sha256"));
        assert!(Source::new(&args("/no/such/thing")).is_err());
        let pinned = SourceArgs { sha256: Some("ab".into()), size: Some(3), ..args("https://x/y") };
        assert!(matches!(Source::new(&pinned).unwrap(), Source::Pinned { size: 3, .. }));
        assert!(check_channel("a.b").is_err());
    }
}
